# SPDX-License-Identifier: Apache-2.0
"""The revision of the schema that this program needs, the revision of a database, the upgrade between them, and the
engines of databases.

Only `upgrade` imports Alembic, so that readers and writers start faster.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, pool
from sqlalchemy.dialects import postgresql, sqlite

from monasca_common.storage.base import StorageStatus, StoredOffset
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.positions import Result
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.tables import kafka_offset

Execute = Callable[[str], Result]

#: The newest file in migrations/versions; a test compares them.
REVISION = "0024"
_FIRST = "0024"  # the revision of release 4.0.0; earlier builds had other revisions
_HAS_REVISION = {
    "postgresql": "SELECT to_regclass('alembic_version')",
    "sqlite": "SELECT max(name) FROM sqlite_master WHERE name = 'alembic_version'",
}
_SELECT_REVISION = "SELECT version_num FROM alembic_version"
_SELECT_OLDEST = "SELECT revision FROM oldest_program"
_REMEDY = "run `monasca-common db upgrade` with the configuration of this service"
_UPGRADE_LOCK = 0x6D6F6E61736361  # key of an advisory lock: the bytes of "monasca"


def check_database(execute: Execute, dialect: str) -> None:
    """Raise `SchemaMismatch` unless this program may run on the database. Every writer, reader and job calls it.

    ``execute``: see `positions`; ``dialect``: ``postgresql`` or ``sqlite``. The database's revision must be the
    revision of this program, or a newer revision that still allows this program: each migration stores the oldest
    program that it allows. So the database is upgraded first, then one process after another."""
    found = revision(execute, dialect)
    check(found, _one(execute(_SELECT_OLDEST)) if found is not None and found > REVISION else None)


def check(found: str | None, oldest: str | None = None) -> None:
    """Check ``found``, the database's revision; ``oldest``: the revision of the oldest program that may run on it."""
    if found == REVISION or (found is not None and oldest is not None and oldest <= REVISION < found):
        return
    if found is None:
        raise SchemaMismatch(f"the database has no tables yet: {_REMEDY}")
    raise SchemaMismatch(
        refusal(found)
        or f"the database schema has revision {found}, and this program needs revision {REVISION}: {_REMEDY}"
    )


def refusal(found: str | None) -> str:
    """Return the reason why `upgrade` refuses a database of this revision, or an empty string."""
    if found is not None and found > REVISION:
        return (
            f"the database schema has revision {found}, which is newer than this program's revision {REVISION}: "
            "upgrade the program"
        )
    if found is not None and found < _FIRST:
        return (
            f"the database schema has revision {found}, from a build before release 4.0.0, which cannot be upgraded: "
            "use a new database"
        )
    return ""


def engine(connection: str, *, to_write: bool = False, bounds: Bounds | None = None, connections: int = 0) -> sa.Engine:
    """Create an engine that runs DDL within transactions, even on SQLite.

    ``to_write``: a transaction on SQLite takes the write lock when it begins, because SQLite may refuse the lock later.
    ``bounds``: the time limits of PostgreSQL sessions, and of waits for SQLite's writer; ``None`` for migrations.
    ``connections``: the number of connections that stay open, at most one on SQLite; requires ``bounds``. Errors do not
    contain parameters, which can be addresses with tokens."""
    url = sa.make_url(connection)
    if url.get_backend_name() == "postgresql":
        return _postgresql_engine(connection, bounds, _pooling(bounds, connections))
    waits = {} if bounds is None else {"timeout": bounds.lock_seconds}
    shared = {"check_same_thread": False} if connections else {}
    pooling = _pooling(bounds, min(1, connections))
    made = sa.create_engine(url, hide_parameters=True, **pooling, connect_args=waits | shared)
    # By default, the driver begins no transaction before DDL, so a crash during an upgrade would leave the schema
    # incomplete.
    begin = "BEGIN IMMEDIATE" if to_write else "BEGIN"
    file = url.database
    if file and file != ":memory:" and not file.startswith("file:"):
        event.listen(made, "do_connect", lambda *_: make_private_file(file))
    event.listen(made, "connect", _leave_transactions_alone)
    event.listen(made, "begin", lambda begun: begun.exec_driver_sql(begin))
    return made


def _pooling(bounds: Bounds | None, connections: int) -> Mapping[str, Any]:
    if bounds is None or not connections:
        return {"poolclass": pool.NullPool}
    waits = {"pool_timeout": bounds.statement_seconds, "pool_pre_ping": True}
    return {"poolclass": pool.QueuePool, "pool_size": connections, "max_overflow": 0, **waits}


def _postgresql_engine(connection: str, bounds: Bounds | None, pooling: Mapping[str, Any]) -> sa.Engine:
    from monasca_common.storage.sql.bounded import connect_arguments, open_connection

    arguments = connect_arguments(connection)
    return sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: open_connection(arguments, bounds, application="monasca-common"),
        hide_parameters=True,
        **pooling,
    )


def make_private_file(path: str | Path) -> None:
    """Create an empty file (0600), or keep an existing one. SQLite itself would use the umask; it copies the file's
    permissions to its other files (``-wal``, ``-shm``, ``-journal``).

    If the file cannot be created, SQLite fails as well, and its error is translated.
    """
    # The target of a link is opened, because an exclusive creation does not follow links. The creation is exclusive,
    # because closing a file that SQLite has open would release this process's locks on it.
    target = os.path.realpath(path)
    with contextlib.suppress(OSError):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _leave_transactions_alone(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]


def revision(execute: Execute, dialect: str) -> str | None:
    """Return the database's revision, or ``None`` if it has no tables yet."""
    return _one(execute(_SELECT_REVISION)) if _one(execute(_HAS_REVISION[dialect])) else None


def status(connection: sa.Connection) -> StorageStatus:
    """Return the state of the database."""
    found, usable = revision(connection.exec_driver_sql, connection.dialect.name), True
    try:
        check_database(connection.exec_driver_sql, connection.dialect.name)
    except SchemaMismatch:
        usable = False
    table = kafka_offset.c
    columns = (table.consumer_group, table.topic, table.partition, table.topic_id, table.next)
    offsets = connection.execute(sa.select(*columns).order_by(*columns[:3])) if usable else ()
    stored = tuple(StoredOffset(*row) for row in offsets)
    return StorageStatus(found, REVISION, stored, usable=usable, refusal=refusal(found))


def _one(result: Result) -> str | None:
    rows = result.fetchall()
    return rows[0][0] if rows else None


def upgrade(connection: sa.Connection) -> None:
    """Run the missing migrations in the connection's transaction; only one program at a time does this.

    Raises `SchemaMismatch` if a newer program has upgraded the database, or if a build before release 4.0.0 created it.
    """
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
    found = revision(connection.exec_driver_sql, connection.dialect.name)
    if refused := refusal(found):
        raise SchemaMismatch(refused)
    with importlib.resources.as_file(importlib.resources.files("monasca_common.storage.sql") / "migrations") as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT statement in the connection's dialect, which can update or skip existing rows
    (``on_conflict_...``)."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def reason(error: Exception) -> str:
    """Return the first line of the error's text, without the statement and SQLAlchemy's link to documentation."""
    origin = getattr(error, "orig", None) or error
    return (str(origin).splitlines() or [type(origin).__name__])[0]
