# SPDX-License-Identifier: Apache-2.0
"""Decodes batches of a topic to rows of its tables, column by column."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.message import PartitionBatch
from monasca_common.kafka.serialization.base import SerializationContext, Serializer, takes_context
from monasca_common.sink.mapping import MessagePart, Mode, SinkColumn, Steps, TableMapping
from monasca_common.sink.values import pick
from monasca_common.storage import row_keys

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows, or keys of rows to delete, in order of offset. ``indexes``: the positions of their elements."""

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
        """Return the rows for whose offset and index ``refused`` is false."""
        kept = [not refused(*each) for each in zip(self.offsets, self.indexes, strict=True)]
        return TableRows(*(list(compress(column, kept)) for column in (self.rows, self.offsets, self.indexes)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What one batch stores in and deletes from a table. The later of a row and a deletion of its key counts."""

    table: TableMapping
    stored: TableRows
    deleted: TableRows

    def between(self, start: int, end: int) -> TableChanges:
        return TableChanges(self.table, self.stored.between(start, end), self.deleted.between(start, end))

    def without(self, refused: Callable[[int, int], bool]) -> TableChanges:
        return TableChanges(self.table, self.stored.without(refused), self.deleted.without(refused))


def joined_changes(changes: Sequence[TableChanges], others: Sequence[TableChanges]) -> list[TableChanges]:
    """Return the changes of both, in order of offset. ``others``: rows of one offset, which ``changes`` has none of."""
    joined = []
    for one, other in zip(changes, others, strict=True):
        at = bisect_left(one.stored.offsets, other.stored.offsets[0]) if other.stored.offsets else 0
        joined.append(TableChanges(one.table, one.stored.inserted(at, other.stored), one.deleted))
    return joined


class Faults:
    """What cannot be stored of a batch: whole messages, or elements of arrays; with the reasons by offset."""

    def __init__(self) -> None:
        self.reasons: dict[int, list[str]] = {}
        self._messages: set[int] = set()
        self._elements: set[tuple[int, int]] = set()

    def message(self, offset: int, reason: str) -> None:
        self._messages.add(offset)
        self.reasons.setdefault(offset, []).append(reason)

    def row(self, table: TableMapping, offset: int, index: int, reason: str) -> None:
        if table.each is None:
            self.message(offset, reason)
        else:
            self._elements.add((offset, index))
            self.reasons.setdefault(offset, []).append(f"element {index}: {reason}")

    def refused(self, offset: int, index: int) -> bool:
        return offset in self._messages or (offset, index) in self._elements

    def has_message(self, offset: int) -> bool:
        return offset in self._messages


class TopicDecoder:
    """``load``: opens the serializer of a table's values or keys. Thread-safe, as serializers are."""

    def __init__(
        self, tables: Sequence[TableMapping], load: Callable[[TableMapping, Literal["key", "value"]], Serializer]
    ) -> None:
        self.tables = tuple(tables)
        self._values = {(table.serializer, table.message_type): load(table, "value") for table in tables}
        with_keys = [table for table in tables if any(_reads_key(column) for column in table.columns)]
        self.nothing = tuple(TableChanges(table, *[TableRows([], [], [])] * 2) for table in tables)
        self._keys = {table.key_serializer: load(table, "key") for table in with_keys}

    def values(self, table: TableMapping, part: PartitionBatch, faults: Faults) -> list[Any]:
        """Return the decoded values for a table; ``None`` for missing ones, and for faults."""
        return _decoded(part, "value", self._values[table.serializer, table.message_type], faults)

    def decode(self, part: PartitionBatch, faults: Faults) -> tuple[TableChanges, ...]:
        """Return the changes of each table, without those in ``faults``, which it adds to. Raises `RetryLater`."""
        values = {name: _decoded(part, "value", each, faults) for name, each in self._values.items()}
        keys = {name: _decoded(part, "key", each, faults) for name, each in self._keys.items()}
        changes = [
            _TableDecoder(
                table, part, values[table.serializer, table.message_type], keys.get(table.key_serializer), faults
            ).changes()
            for table in self.tables
        ]
        return tuple(each.without(faults.refused) if faults.reasons else each for each in changes)


def _reads_key(column: SinkColumn) -> bool:
    return column.source.part is MessagePart.KEY and bool(column.source.steps)


def _decoded(part: PartitionBatch, which: Literal["key", "value"], serializer: Serializer, faults: Faults) -> list[Any]:
    """Return the decoded values or keys; ``None`` for missing ones, and for faults."""
    loads: Callable[..., Any] = serializer.loads
    topic = part.topic_partition.topic
    with_context = takes_context(type(serializer).loads)
    decoded: list[Any] = []
    for index, value in enumerate(part.values if which == "value" else part.keys):
        try:
            if value is None:
                decoded.append(None)
            elif with_context:
                decoded.append(loads(value, SerializationContext(topic, which, part.headers[index])))
            else:
                decoded.append(loads(value))
        except SerializationError as error:
            faults.message(part.offsets[index], f"{which}: {error}")
            decoded.append(None)
    return decoded


@dataclass(slots=True)
class _TableDecoder:
    """Decodes one batch to the changes of one table. ``owners``, ``indexes``, ``elements``: the position of the message
    of each row, and the position and value of its element."""

    table: TableMapping
    part: PartitionBatch
    values: list[Any]
    keys: list[Any] | None
    faults: Faults
    owners: Sequence[int] = ()
    indexes: list[int] = field(default_factory=list)
    elements: list[Any] = field(default_factory=list)

    def changes(self) -> TableChanges:
        offsets, columns, by_key = self.part.offsets, self.table.columns, TableRows([], [], [])
        tombstones = [index for index, value in enumerate(self.part.values) if value is None]
        if tombstones and self.table.mode is Mode.DELETE:
            self.owners, self.indexes = tombstones, [0] * len(tombstones)
            by_key = self._rows([columns[position] for position in self.table.key_positions])
        for owner in tombstones if self.table.mode is not Mode.DELETE else ():
            self.faults.message(offsets[owner], "has no value (a deletion): use mode delete-on-tombstone")
        self.owners = range(len(offsets))
        if tombstones or self.faults.reasons:
            left = set(tombstones)
            self.owners = [o for o in self.owners if o not in left and not self.faults.has_message(offsets[o])]
        self.indexes = [0] * len(self.owners)
        if self.table.each is not None:
            found = list(self._elements(self.table.each))
            self.owners, self.indexes, self.elements = ([each[n] for each in found] for n in range(3))
        return TableChanges(self.table, self._rows(columns), by_key)

    def _elements(self, each: Steps) -> Iterator[tuple[int, int, Any]]:
        for owner, array in zip(self.owners, pick(self._of_owners(self.values), each), strict=True):
            if array is None:
                continue
            if isinstance(array, str | bytes | Mapping) or not isinstance(array, Sequence):
                self.faults.message(self.part.offsets[owner], "has no array at the path of each")
                continue
            for index, element in enumerate(array):
                yield owner, index, element

    def _rows(self, columns: Sequence[SinkColumn]) -> TableRows:
        offsets = self._of_owners(self.part.offsets)
        stored = []
        for column in columns:
            read = self._read(column)
            values, reasons = column.type.converted(read, required=column.required, default=column.default)
            for position, reason in reasons.items():
                text = f"column {column.name!r} {reason}"
                self.faults.row(self.table, offsets[position], self.indexes[position], text)
            stored.append(values)
        return TableRows(list(zip(*stored, strict=True)), offsets, self.indexes)

    def _read(self, column: SinkColumn) -> list[Any]:
        part, (source, steps, header) = self.part, column.source
        match source:
            case MessagePart.VALUE:
                return pick(self._of_owners(self.values), steps)
            case MessagePart.ELEMENT:
                return pick(self.elements, steps)
            case MessagePart.KEY:
                return pick(self._of_owners(self.keys), steps) if self.keys and steps else self._of_owners(part.keys)
            case MessagePart.HEADER:
                return [_header(part.headers[owner], header) for owner in self.owners]
            case MessagePart.TIMESTAMP:
                return self._of_owners(part.timestamps)
            case MessagePart.OFFSET:
                return self._of_owners(part.offsets)
            case MessagePart.INDEX:
                return list(self.indexes)
            case MessagePart.MESSAGE_ID:
                place, headers, offsets = part.topic_partition, part.headers, part.offsets
                return [row_keys.message_key(headers[owner], *place, offsets[owner]) for owner in self.owners]
            case _:
                constant = part.topic_partition.topic if source is MessagePart.TOPIC else part.topic_partition.partition
                return [constant] * len(self.owners)

    def _of_owners(self, values: list[Any]) -> list[Any]:
        if isinstance(self.owners, range):
            return values
        return [values[owner] for owner in self.owners]


def _header(headers: Sequence[tuple[str, bytes | None]], name: str) -> bytes | None:
    """Return the last header of this name."""
    return next((value for key, value in reversed(headers) if key == name), None)
