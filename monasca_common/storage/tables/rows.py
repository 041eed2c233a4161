# SPDX-License-Identifier: Apache-2.0
"""The rows of users' tables, and the properties of a table that storage needs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from monasca_common.storage.batch_rows import RowColumns, RowOrigin
from monasca_common.storage.tables.column_types import ColumnType

Values = Sequence[Sequence[Any]]  # a column of values for each column of a table


class StoredColumn(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> ColumnType: ...


class StoredTable(Protocol):
    """A table with the key columns ``key``. ``keeps_first``: whether the first row of a key is kept instead of the last
    row."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Sequence[StoredColumn]: ...
    @property
    def key(self) -> Sequence[str]: ...
    @property
    def keeps_first(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TableRows(RowColumns):
    """Rows, or keys of rows to delete; see `RowColumns`. ``table``: the name of their table."""

    values: Values
    offsets: Sequence[int]
    indexes: Sequence[int] = ()
    table: str = ""

    def columns(self) -> Sequence[Sequence[Any]]:
        return *self.values, self.offsets, self.indexes

    def of(self, columns: Iterable[Sequence[Any]]) -> TableRows:
        *values, offsets, indexes = columns
        return TableRows(values, offsets, indexes, self.table)

    def origin(self, position: int) -> RowOrigin:
        # A message without elements is refused by all tables.
        origin = RowColumns.origin(self, position)  # no super(), because slots replace the class
        return origin if origin.element is None else origin._replace(table=self.table)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The rows that one batch stores in and deletes from a table. If a row and a deletion have the same key, the later
    one takes effect."""

    table: StoredTable
    stored: TableRows
    deleted: TableRows


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The changes of one batch in all tables of its topic, as `BatchRows`. The rows to store in a table are in order of
    offset, and so are those to delete. Positions count first the rows to store in all tables, then those to delete."""

    tables: tuple[TableChanges, ...]

    @property
    def parts(self) -> list[TableRows]:
        return [each.stored for each in self.tables] + [each.deleted for each in self.tables]

    def _of(self, parts: Iterable[TableRows]) -> TopicChanges:
        found, count = list(parts), len(self.tables)
        tables = [each.table for each in self.tables]
        return TopicChanges(tuple(map(TableChanges, tables, found[:count], found[count:])))

    @property
    def offsets(self) -> Sequence[int]:
        return sorted(chain(*(part.offsets for part in self.parts)))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def origin(self, position: int) -> RowOrigin:
        for part in self.parts:
            if position < len(part):
                return part.origin(position)
            position -= len(part)
        raise IndexError(position)

    def positions(self, start: int, stop: int) -> TopicChanges:
        """Return the rows at the positions from ``start`` (inclusive) to ``stop`` (exclusive)."""
        found, first = [], 0
        for part in self.parts:
            found.append(part.part(max(0, start - first), max(0, stop - first)))
            first += len(part)
        return self._of(found)

    def between(self, start: int, end: int) -> TopicChanges:
        return self._of(part.between(start, end) for part in self.parts)

    def without(self, refused: Container[RowOrigin]) -> TopicChanges:
        return self._of(part.without(refused) for part in self.parts)

    def joined(self, others: Iterable[TopicChanges]) -> TopicChanges:
        added = zip(*(other.parts for other in others), strict=True)
        return self._of(part.joined(more) for part, more in zip(self.parts, added, strict=True))
