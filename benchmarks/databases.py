# SPDX-License-Identifier: Apache-2.0
"""Creates a benchmark's PostgreSQL databases, each with an empty schema, and counts their measurements."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.postgresql_server import PostgresqlServer

# No checkpoint within a run, because it would slow down only the case during which it happens.
_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
# Debian's programs, which installations use, are preferred over the wheel of the tests.
_SYSTEM = Path("/usr/lib/postgresql/15/bin")


class Databases(contextlib.ExitStack):
    """Starts PostgreSQL on entering, and stops it on leaving."""

    def __enter__(self) -> Databases:
        programs = _SYSTEM if (_SYSTEM / "postgres").exists() else None
        self._server = self.enter_context(PostgresqlServer(settings=_SETTINGS, programs=programs))
        return self

    def version(self) -> str:
        with _connection(self._server.url()) as connection:
            return ".".join(map(str, connection.dialect.server_version_info or ()))

    @contextlib.contextmanager
    def new(self) -> Iterator[str]:
        """Yield the URL of a new database, which is dropped afterwards."""
        url = self._server.create_database()
        open_storage(StorageSettings("postgresql", url)).upgrade()
        try:
            yield url
        finally:
            self._server.execute(f'DROP DATABASE "{url.rpartition("/")[2]}" WITH (FORCE)')


def _connection(url: str) -> sa.Connection:
    return sa.create_engine(url, poolclass=NullPool).connect()


def stored_rows(url: str) -> int:
    with _connection(url) as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM measurements")))


def session_cpu_seconds(url: str) -> float:
    """Return the CPU time so far of the server's processes for all sessions with this database."""
    with _connection(url) as connection:
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        pids = [pid for (pid,) in connection.execute(sa.text(others))]
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")
