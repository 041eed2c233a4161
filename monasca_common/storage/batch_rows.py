# SPDX-License-Identifier: Apache-2.0
"""The rows of one batch of one partition, as columns in order of offset. A message may have several rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self


class RowOrigin(NamedTuple):
    """The offset of a message, and the index of one of its elements, or ``None`` if the message has only one row.
    ``table``: the table of the row, if elements have rows in several tables."""

    offset: int
    element: int | None
    table: str = ""


class BatchRows(Protocol):
    """The interface of rows that can be stored in parts. All rows of a message are in the same part."""

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each row, in ascending order."""

    def __len__(self) -> int: ...

    def origin(self, position: int) -> RowOrigin:
        """Return the origin of the row at this position, as numbered by `RowsRefused`."""

    def between(self, start: int, end: int) -> Self:
        """Return the rows with offsets from ``start`` (inclusive) to ``end`` (exclusive)."""

    def without(self, refused: Container[RowOrigin]) -> Self:
        """Return the rows whose origin is not in ``refused``."""

    def joined(self, others: Iterable[Self]) -> Self:
        """Return these rows together with ``others``, which have different offsets."""


class RowColumns(ABC):
    """`BatchRows` as columns of equal length; an unused column is empty. ``indexes``: the index of each row in
    its message; empty if each message has one row."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def offsets(self) -> Sequence[int]: ...
        @property
        def indexes(self) -> Sequence[int]: ...

    @abstractmethod
    def columns(self) -> Sequence[Sequence[Any]]: ...

    @abstractmethod
    def of(self, columns: Iterable[Sequence[Any]]) -> Self:
        """Return rows that have these columns, with all other attributes unchanged."""

    def __len__(self) -> int:
        return len(self.offsets)

    def origin(self, position: int) -> RowOrigin:
        return RowOrigin(self.offsets[position], self.indexes[position] if self.indexes else None)

    def part(self, start: int, stop: int | None = None) -> Self:
        """Return the rows at the positions from ``start`` (inclusive) to ``stop`` (exclusive)."""
        if start == 0 and (stop is None or stop == len(self)):
            return self
        return self.of(column[start:stop] for column in self.columns())

    def between(self, start: int, end: int) -> Self:
        return self.part(bisect_left(self.offsets, start), bisect_left(self.offsets, end))

    def without(self, refused: Container[RowOrigin]) -> Self:
        kept = [self.origin(position) not in refused for position in range(len(self))]
        return self.of(list(compress(column, kept)) for column in self.columns())

    def joined(self, others: Iterable[Self]) -> Self:
        parts = [self, *others]
        columns: list[Sequence[Any]] = []
        for same in zip(*(part.columns() for part in parts), strict=True):
            filled = [column or [False] * len(part) for part, column in zip(parts, same, strict=True)]
            columns.append(list(chain(*filled)) if any(same) else ())
        offsets = self.of(columns).offsets
        order = sorted(range(len(offsets)), key=offsets.__getitem__)
        return self.of([column[position] for position in order] if column else () for column in columns)
