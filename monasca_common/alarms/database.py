# SPDX-License-Identifier: Apache-2.0
"""Accesses the alarms database. Reads use pooled connections, and each write is one transaction."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.alarms.errors import NameTaken, UnknownId
from monasca_common.storage.errors import DuplicateKey
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.connections import Deadline, ReadConnections, snapshot, translated

T = TypeVar("T")
Select: TypeAlias = sa.Select[*tuple[Any, ...]]
Row: TypeAlias = sa.Row[*tuple[Any, ...]]
Condition: TypeAlias = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Sort:
    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """``offset``: the number of rows to skip."""

    limit: int
    offset: int = 0


class AlarmsDatabase:
    """The alarms database. It connects at the first call, and must not be used after a fork. For writes, at most
    ``read_connections`` stay open, or one on SQLite, which permits only one writer."""

    def __init__(self, settings: StorageSettings) -> None:
        self._reads = ReadConnections(settings)
        self._seconds = settings.read_timeout_seconds
        bounds = Bounds(self._seconds, self._seconds / 2, self._seconds)
        connections = settings.read_connections
        self._writes = schema.engine(settings.connection, to_write=True, bounds=bounds, connections=connections)
        self.dialect = self._reads.dialect

    def rows(self, statement: Select, values: Mapping[str, Any] | None = None) -> Sequence[Row]:
        """Return the rows of a statement. ``values``: the values of its parameters. Build frequent statements once,
        because building one takes longer than executing it."""
        return self._reads.run(lambda connection, _deadline: connection.execute(statement, values).all())

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return the result of ``work``, which reads from one snapshot."""

        def in_snapshot(connection: sa.Connection, _deadline: Deadline) -> T:
            with snapshot(connection):
                return work(connection)

        return self._reads.run(in_snapshot)

    def stream(self, work: Callable[[sa.Connection], Iterator[T]]) -> Generator[T]:
        """Yield the results of ``work``, which uses a connection until this iterator is exhausted or closed."""
        return self._reads.stream(lambda connection, _deadline: work(connection))

    def write(self, work: Callable[[sa.Connection], T], *, named: str | None = None) -> T:
        """Return the result of ``work``, which runs in a transaction.

        Raises `NameTaken` if ``work`` gives a row of the kind ``named`` a name that another row already has, and
        `DuplicateKey`, `StorageUnavailable` or `SchemaMismatch`."""
        try:
            with self._writes.begin() as connection:
                if not connection.info.get("is_checked"):
                    schema.check_database(connection.exec_driver_sql, connection.dialect.name)
                    connection.info["is_checked"] = True
                return work(connection)
        except exc.IntegrityError as error:
            if named is not None:
                raise NameTaken(named) from None
            raise DuplicateKey("the database has a row with this key") from error
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translated(error, Deadline(self._seconds)) from error

    def close(self) -> None:
        self._reads.close()
        self._writes.dispose()


def new_id() -> str:
    return str(uuid.uuid4())


def of_tenant(table: sa.Table, tenant: str, row_id: str) -> tuple[Condition, Condition]:
    """Return the conditions for the tenant's row with this id."""
    return table.c.id == row_id, table.c.tenant == tenant


def only_row(rows: Iterable[Row], kind: str, row_id: str) -> Row:
    """Return the single row with this id. Raises `UnknownId`, with the ``kind`` of row, if there is none."""
    for row in rows:
        return row
    raise UnknownId(kind, row_id)


def delete_one(connection: sa.Connection, table: sa.Table, tenant: str, row_id: str, kind: str) -> None:
    """Delete the tenant's row with this id. Raises `UnknownId`, with the ``kind`` of row, if there is none."""
    if not connection.execute(table.delete().where(*of_tenant(table, tenant, row_id))).rowcount:
        raise UnknownId(kind, row_id)


def ordered(
    statement: Select,
    sorts: Sequence[Sort],
    columns: Mapping[str, sa.ColumnElement[Any]],
    last: sa.ColumnElement[Any],
    part: Slice,
) -> Select:
    """Return a statement for the slice of rows in this order. ``last``: the id column, which orders rows that are
    otherwise equal. NULL sorts before all values on every database."""
    orders: list[sa.ColumnElement[Any]] = []
    for sort in sorts:
        column = columns[sort.field]
        order = column.desc() if sort.descending else column.asc()
        if getattr(column, "nullable", False):
            order = order.nulls_last() if sort.descending else order.nulls_first()
        orders.append(order)
    if all(columns[sort.field] is not last for sort in sorts):
        orders.append(last)
    return statement.order_by(*orders).limit(part.limit).offset(part.offset)
