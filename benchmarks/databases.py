# SPDX-License-Identifier: Apache-2.0
"""Databases of a benchmark, each with a schema and nothing else, and how many measurements they hold."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from monasca_common.devbroker.postgresql import PostgresqlServer
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.postgresql.partitions import partition_name
from monasca_common.storage.retention import DAY_MS

# No checkpoint within a run: whichever case it fell into would pay for all of them.
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}


# Debian's, which people run, before the wheel of the tests.
_SYSTEM = Path("/usr/lib/postgresql/15/bin")


class Databases(contextlib.ExitStack):
    """Starts PostgreSQL on entering, and stops it on leaving."""

    def __enter__(self) -> Databases:
        programs = _SYSTEM if (_SYSTEM / "postgres").exists() else None
        self._server = self.enter_context(PostgresqlServer(settings=_SETTINGS, programs=programs))
        return self

    @contextlib.contextmanager
    def new(self, driver: str = "postgresql") -> Iterator[str]:
        """The URL of one, gone afterwards."""
        if driver == "sqlite":
            with tempfile.TemporaryDirectory(prefix="monasca-common-benchmark-") as folder:
                url = f"sqlite:///{folder}/benchmark.sqlite"
                open_storage(StorageSettings(driver, url)).upgrade()
                yield url
            return
        url = self._server.create_database()
        open_storage(StorageSettings("postgresql", url)).upgrade()
        try:
            yield url
        finally:
            self._server.execute(f'DROP DATABASE "{url.rpartition("/")[2]}" WITH (FORCE)')


def add_history_days(connection: sa.Connection, first_ms: int, last_ms: int) -> None:
    """PostgreSQL's partitions of the history of alarms: without that of its day the evaluator writes no row."""
    for day in range(first_ms // DAY_MS, last_ms // DAY_MS + 1):
        bounds = f"FOR VALUES FROM ({day * DAY_MS}) TO ({(day + 1) * DAY_MS})"
        name = partition_name("alarm_history", day)
        connection.execute(sa.text(f"CREATE TABLE {name} PARTITION OF alarm_history {bounds}"))


def stored_rows(url: str) -> int:
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM measurements")))


def session_cpu_seconds(url: str) -> float:
    """What the server's processes of all sessions with this database have used so far; SQLite has none."""
    if url.startswith("sqlite"):
        return 0.0
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        pids = [pid for (pid,) in connection.execute(sa.text(others))]
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def server_version(url: str) -> dict[str, str]:
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return {"SQLite": str(connection.scalar(sa.text("SELECT sqlite_version()")))}
        return {"PostgreSQL": str(connection.scalar(sa.text("SHOW server_version"))).partition(" ")[0]}
