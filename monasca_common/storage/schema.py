# SPDX-License-Identifier: Apache-2.0
"""The schema's revision: what this program needs, what a database has, and the way from one to the other.

Alembic is imported by `upgrade` alone: whoever only reads or writes does not pay for it.
"""

from __future__ import annotations

import importlib.resources

import sqlalchemy as sa
from sqlalchemy import event, pool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from monasca_common.storage.base import StoredOffset
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.tables import kafka_offset

#: The newest file in migrations/versions, which a test compares it with.
REVISION = "0004"
SELECT_REVISION = "SELECT version_num FROM alembic_version"
_REMEDY = "run `monasca-common db upgrade` with the configuration of this service"
_UPGRADE_LOCK = 0x6D6F6E61736361  # of PostgreSQL's advisory locks: "monasca"


def check(found: str | None) -> None:
    """Raise `SchemaMismatch` unless the database's revision is this program's."""
    if found == REVISION:
        return
    if found is None:
        raise SchemaMismatch(f"the database has no tables yet: {_REMEDY}")
    if found > REVISION:
        raise SchemaMismatch(_newer(found))
    raise SchemaMismatch(f"the database's schema is {found} and this program needs {REVISION}: {_REMEDY}")


def engine(connection: str, *, to_write: bool = False) -> sa.Engine:
    """For migrations and for looking around: no pool, psycopg for PostgreSQL, DDL within transactions on SQLite too.

    ``to_write``: a transaction on SQLite waits for its turn as it begins, for later it may be refused.
    """
    url = sa.make_url(connection)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    made = sa.create_engine(url, poolclass=pool.NullPool)
    if made.dialect.name == "sqlite":
        # The driver begins no transaction before DDL: a kill within an upgrade would leave half of it.
        begin = "BEGIN IMMEDIATE" if to_write else "BEGIN"
        event.listen(made, "connect", _leave_transactions_alone)
        event.listen(made, "begin", lambda begun: begun.exec_driver_sql(begin))
    return made


def _leave_transactions_alone(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]


def revision(connection: sa.Connection) -> str | None:
    """The database's, or ``None`` where nothing was made yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text(SELECT_REVISION))
    return found


def upgrade(connection: sa.Connection) -> None:
    """Run the steps that are missing within the connection's transaction, one program at a time.

    Raises `SchemaMismatch` where a newer program has been here.
    """
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
    found = revision(connection)
    if found is not None and found > REVISION:
        raise SchemaMismatch(_newer(found))
    with importlib.resources.as_file(importlib.resources.files("monasca_common.storage") / "migrations") as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def stored_offsets(connection: sa.Connection) -> tuple[StoredOffset, ...]:
    """All that `kafka_offset` holds, in order."""
    table = kafka_offset.c
    columns = (table.consumer_group, table.topic, table.partition, table.topic_id, table.next)
    rows = connection.execute(sa.select(*columns).order_by(*columns[:3]))
    return tuple(StoredOffset(*row) for row in rows)


def reason(error: SQLAlchemyError) -> str:
    """What the database said, without the statement and a link to the library's documentation."""
    return str(error.orig if isinstance(error, DBAPIError) else error)


def _newer(found: str) -> str:
    return f"the database's schema is {found}, of a newer program than this one ({REVISION}): upgrade the program"
