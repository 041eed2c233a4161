# SPDX-License-Identifier: Apache-2.0
"""Decodes batches of a topic into rows of its tables, column by column."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from monasca_common.kafka.errors import MessagingError, RetryLater, SerializationError
from monasca_common.kafka.message import PartitionBatch
from monasca_common.kafka.serialization.base import SerializationContext, Serializer, takes_context
from monasca_common.sink.fields import Columns, Steps, columns_at, loads_of
from monasca_common.sink.mapping import ColumnSource, MessagePart, Mode, SinkColumn, TableMapping
from monasca_common.storage import row_keys
from monasca_common.storage.batch_handler import Faults
from monasca_common.storage.tables.rows import TableChanges, TableRows, TopicChanges

# the number of values decoded together; small, because a decoded value is larger than the fields read from it
_BLOCK = 100


class FieldReader:
    """Reads the fields at ``paths`` of all values, or keys, of a batch."""

    def __init__(self, serializer: Serializer, which: Literal["key", "value"], paths: Iterable[Steps]) -> None:
        self.serializer = serializer
        self._which = which
        self._paths = tuple(dict.fromkeys(paths))
        self._loads = loads_of(serializer, self._paths)

    def read(self, part: PartitionBatch, faults: Faults) -> Columns:
        """Return a column for each path, with ``None`` for missing values and fields. Raises `RetryLater`."""
        encoded = part.values if self._which == "value" else part.keys
        columns: dict[Steps, list[Any]] = {path: [] for path in self._paths}
        for start in range(0, len(encoded), _BLOCK):
            found = columns_at(self._paths, self._decoded(part, start, encoded[start : start + _BLOCK], faults))
            for path, column in columns.items():
                column += found[path]
        return columns

    def _decoded(self, part: PartitionBatch, start: int, encoded: Sequence[bytes | None], faults: Faults) -> list[Any]:
        loads, topic = self._loads, part.topic_partition.topic
        with_context = takes_context(type(self.serializer).loads)
        if not with_context and None not in encoded:
            with contextlib.suppress(Exception):  # the loop below finds the values
                return list(map(loads, encoded))
        values = []
        for index, value in enumerate(encoded, start):
            context = (SerializationContext(topic, self._which, part.headers[index]),) if with_context else ()
            try:
                values.append(None if value is None else loads(value, *context))
                continue
            except SerializationError as error:
                reason = str(error)
            except (MessagingError, RetryLater):
                raise
            except Exception as error:  # its text may quote the value
                reason = f"the serializer raised {type(error).__name__}"
            faults.add(part.offsets[index], None, f"{self._which}: {reason}")
            values.append(None)
        return values


class TopicDecoder:
    """A `Decoder` of one topic. ``load``: opens the serializer of a table's values or keys, which threads share."""

    def __init__(
        self, tables: Sequence[TableMapping], load: Callable[[TableMapping, Literal["key", "value"]], Serializer]
    ) -> None:
        self.tables = tuple(tables)
        values, keys = defaultdict[Any, list[Steps]](list), defaultdict[Any, list[Steps]](list)
        for table in tables:
            values[_format(table)] += [*_steps(table, MessagePart.VALUE), *([] if table.each is None else [table.each])]
            keys[table.key_serializer] += filter(None, _steps(table, MessagePart.KEY))
        of_values = {_format(each): each for each in tables}.items()
        of_keys = {each.key_serializer: each for each in tables}.items()
        self._values = {name: FieldReader(load(each, "value"), "value", values[name]) for name, each in of_values}
        self._keys = {name: FieldReader(load(each, "key"), "key", keys[name]) for name, each in of_keys if keys[name]}

    def __call__(self, part: PartitionBatch, faults: Faults) -> TopicChanges:
        values = {name: reader.read(part, faults) for name, reader in self._values.items()}
        keys = {name: reader.read(part, faults) for name, reader in self._keys.items()}
        changes = []
        for table in self.tables:
            fields = values[_format(table)], keys.get(table.key_serializer, {})
            changes.append(_TableDecoder(table, part, *fields, faults).changes())
        return TopicChanges(tuple(changes))

    def serializer(self, table: TableMapping, which: Literal["key", "value"]) -> Serializer | None:
        """Return the serializer of a table's values or keys, or ``None`` if keys are not decoded."""
        reader = self._values[_format(table)] if which == "value" else self._keys.get(table.key_serializer)
        return None if reader is None else reader.serializer


def _format(table: TableMapping) -> tuple[str, str | None]:
    return table.serializer, table.message_type


def _steps(table: TableMapping, part: MessagePart) -> list[Steps]:
    return [column.source.steps for column in table.columns if column.source.part is part]


@dataclass(slots=True)
class _TableDecoder:
    """Decodes one batch into the changes of one table. ``owners``, ``indexes``: the positions of each row's message and
    element, the latter only with ``each``. ``elements``: the fields of elements."""

    table: TableMapping
    part: PartitionBatch
    values: Columns
    keys: Columns
    faults: Faults
    owners: Sequence[int] = ()
    indexes: list[int] = field(default_factory=list)
    elements: Columns = field(default_factory=dict)

    def changes(self) -> TableChanges:
        offsets, values, by_key = self.part.offsets, self.part.values, TableRows((), ())
        tombstones = [index for index, value in enumerate(values) if value is None]
        if self.table.mode is Mode.DELETE:
            self.owners, by_name = tombstones, {column.name: column for column in self.table.columns}
            by_key = self._rows([by_name[name] for name in self.table.key])
        for owner in tombstones if self.table.mode is not Mode.DELETE else ():
            self.faults.add(offsets[owner], None, "has no value (a deletion): use mode delete-on-tombstone")
        self.owners = range(len(offsets))
        if tombstones or self.faults.reasons:
            self.owners = [o for o in self.owners if values[o] is not None and not self.faults.has_message(offsets[o])]
        if self.table.each is not None:
            arrays = list(self._arrays(self.table.each))
            self.owners = [owner for owner, array in arrays for _ in array]
            self.indexes = [index for _, array in arrays for index in range(len(array))]
            elements = [element for _, array in arrays for element in array]
            self.elements = columns_at(_steps(self.table, MessagePart.ELEMENT), elements)
        return TableChanges(self.table, self._rows(self.table.columns), by_key)

    def _arrays(self, each: Steps) -> Iterator[tuple[int, Sequence[Any]]]:
        for owner in self.owners:
            array = self.values[each][owner]
            if isinstance(array, Sequence) and not isinstance(array, str | bytes | Mapping):
                yield owner, array
            elif array is not None:
                self.faults.add(self.part.offsets[owner], None, "has no array at the path of each")

    def _rows(self, columns: Sequence[SinkColumn]) -> TableRows:
        offsets = self._of_owners(self.part.offsets)
        stored = []
        for column in columns:
            read = self._read(column.source)
            values, reasons = column.type.converted(read, required=column.required, default=column.default)
            for position, reason in reasons.items():
                index = None if self.table.each is None else self.indexes[position]
                self.faults.add(offsets[position], index, f"column {column.name!r} {reason}", self.table.name)
            stored.append(values)
        return TableRows(stored, offsets, self.indexes, self.table.name)

    def _read(self, source: ColumnSource) -> Sequence[Any]:
        part = self.part
        match source.part:
            case MessagePart.VALUE:
                return self._of_owners(self.values[source.steps])
            case MessagePart.ELEMENT:
                return self.elements[source.steps]
            case MessagePart.KEY:
                return self._of_owners(self.keys[source.steps] if source.steps else part.keys)
            case MessagePart.HEADER:
                return self._of_owners(part.header(source.header))
            case MessagePart.TIMESTAMP:
                return self._of_owners(part.timestamps)
            case MessagePart.OFFSET:
                return self._of_owners(part.offsets)
            case MessagePart.INDEX:
                return self.indexes
            case MessagePart.MESSAGE_ID:
                headers, offsets = self._of_owners(part.headers), self._of_owners(part.offsets)
                return row_keys.message_keys(headers, part.topic_partition, offsets)
            case _:
                topic, partition = part.topic_partition
                return [topic if source.part is MessagePart.TOPIC else partition] * len(self.owners)

    def _of_owners(self, values: Sequence[Any]) -> Sequence[Any]:
        return values if isinstance(self.owners, range) else [values[owner] for owner in self.owners]
