# SPDX-License-Identifier: Apache-2.0
"""The rows of users' tables, and the properties of a table that storage needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol

Row = tuple[Any, ...]


class StoredColumn(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """``type`` is one of `steps.SQL_TYPES`."""


class StoredTable(Protocol):
    """A table with the key columns ``key``. ``keeps_first``: the first row of a key is kept, not the last one."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Sequence[StoredColumn]: ...
    @property
    def key(self) -> Sequence[str]: ...
    @property
    def keeps_first(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows, or keys of rows to delete, in order of offset. ``indexes``: the positions of their elements in their
    message."""

    rows: list[Row]
    offsets: list[int]
    indexes: list[int]

    def between(self, start: int, end: int) -> TableRows:
        """Return the rows of the offsets from ``start`` to before ``end``."""
        part = slice(bisect_left(self.offsets, start), bisect_left(self.offsets, end))
        return TableRows(self.rows[part], self.offsets[part], self.indexes[part])

    def inserted(self, at: int, other: TableRows) -> TableRows:
        """Return these rows with others at a position."""
        return TableRows(
            self.rows[:at] + other.rows + self.rows[at:],
            self.offsets[:at] + other.offsets + self.offsets[at:],
            self.indexes[:at] + other.indexes + self.indexes[at:],
        )

    def without(self, refused: Callable[[int, int], bool]) -> TableRows:
        """Return the rows whose offset and index ``refused`` returns false for."""
        kept = [not refused(*each) for each in zip(self.offsets, self.indexes, strict=True)]
        return TableRows(*(list(compress(column, kept)) for column in (self.rows, self.offsets, self.indexes)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The rows that one batch stores in and deletes from a table. Of a row and a deletion of its key, the later one
    counts."""

    table: StoredTable
    stored: TableRows
    deleted: TableRows

    def between(self, start: int, end: int) -> TableChanges:
        return TableChanges(self.table, self.stored.between(start, end), self.deleted.between(start, end))

    def without(self, refused: Callable[[int, int], bool]) -> TableChanges:
        return TableChanges(self.table, self.stored.without(refused), self.deleted.without(refused))


def joined_changes(changes: Sequence[TableChanges], others: Sequence[TableChanges]) -> list[TableChanges]:
    """Return the changes of both, in order of offset. ``others``: rows of one offset, of which ``changes`` has no
    rows."""
    joined = []
    for one, other in zip(changes, others, strict=True):
        at = bisect_left(one.stored.offsets, other.stored.offsets[0]) if other.stored.offsets else 0
        joined.append(TableChanges(one.table, one.stored.inserted(at, other.stored), one.deleted))
    return joined
