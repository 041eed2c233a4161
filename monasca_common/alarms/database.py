# SPDX-License-Identifier: Apache-2.0
"""The database of alarms: reads are pooled, and whatever is written is one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa

from monasca_common.alarms.errors import NameTaken
from monasca_common.storage.errors import DuplicateKey
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.connections import Deadline, ReadConnections, snapshot
from monasca_common.storage.sql.transactions import GroupedTransactions, Transactions

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
    """``offset``: how many rows are skipped."""

    limit: int
    offset: int = 0


class AlarmsDatabase:
    """It connects when it is asked first, and must not be used after a fork.

    ``grouped``: what several threads write at once is one transaction, as `GroupedTransactions` says.
    """

    def __init__(self, settings: StorageSettings, *, grouped: bool = False) -> None:
        self._reads = ReadConnections(settings, schema.check_database)
        self._transactions = (GroupedTransactions if grouped else Transactions)(settings)
        self.dialect = self._reads.dialect

    def rows(self, statement: Select, values: Mapping[str, Any] | None = None) -> Sequence[Row]:
        """``values``: of the statement's parameters. One that is made once costs a fraction of one made anew."""
        return self._reads.run(lambda connection, _deadline: connection.execute(statement, values).all())

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """What ``work`` reads is of one moment."""

        def in_snapshot(connection: sa.Connection, _deadline: Deadline) -> T:
            with snapshot(connection):
                return work(connection)

        return self._reads.run(in_snapshot)

    def stream(self, work: Callable[[sa.Connection], Iterator[T]]) -> Generator[T]:
        """What ``work`` yields. It has a connection until it is exhausted or closed."""
        return self._reads.stream(lambda connection, _deadline: work(connection))

    def write(self, work: Callable[[sa.Connection], T], *, named: str | None = None) -> T:
        """Call ``work`` in a transaction, and commit it. Raises `NameTaken` if ``work`` gives the name of another row
        to a row of the kind ``named``."""
        try:
            return self._transactions.run(work)
        except DuplicateKey:
            if named is None:
                raise
            raise NameTaken(named) from None

    def close(self) -> None:
        self._reads.close()
        self._transactions.close()


def new_id() -> str:
    return str(uuid.uuid4())


def of_tenant(table: sa.Table, tenant: str, row_id: str) -> tuple[Condition, Condition]:
    """The conditions for the row with this id, if it is the tenant's."""
    return table.c.id == row_id, table.c.tenant == tenant


def ordered(
    statement: Select,
    sorts: Sequence[Sort],
    columns: Mapping[str, sa.ColumnElement[Any]],
    last: sa.ColumnElement[Any],
    part: Slice,
) -> Select:
    """The slice of a statement's rows in this order; ``last``: the id, which orders what is equal.

    NULL comes before every value, on every database.
    """
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
