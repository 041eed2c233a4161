# SPDX-License-Identifier: Apache-2.0
"""Compares a sample of a topic with the mapping: finds future dead letters, and fields that no column reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from monasca_common.kafka.message import LazyColumns, Message, PartitionBatch, TopicPartition
from monasca_common.models.errors import escaped_key, joined
from monasca_common.sink.decoder import FieldReader, TopicDecoder
from monasca_common.sink.mapping import MessagePart, TableMapping
from monasca_common.storage.batch_handler import Faults
from monasca_common.storage.tables.column_types import kind_of


def sample_findings(decoder: TopicDecoder, messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the findings for a sample of a topic, as (place, finding): messages that would become dead letters, and
    fields that no column reads. Raises `RetryLater`."""
    findings: dict[tuple[str, str], None] = {}
    for partition, chosen in groupby(sorted(messages, key=_partition), key=_partition):
        part, faults = _batch(list(chosen)), Faults()
        decoder(part, faults)
        place = "{}/{}".format(*partition)
        findings |= {(f"{place}/{offset}", "; ".join(reasons)): None for offset, reasons in faults.reasons.items()}
        for table in decoder.tables:
            path = table.each or ()
            serializer = decoder.serializer(table, "value")
            assert serializer is not None
            values = FieldReader(serializer, "value", [path]).read(part, Faults())[path]
            findings |= {(table.name, finding): None for finding in _unmapped(table, values)}
    return sorted(findings)


def _unmapped(table: TableMapping, values: Sequence[Any]) -> Iterator[str]:
    part = MessagePart.VALUE if table.each is None else MessagePart.ELEMENT
    read = {column.source.steps[:1] for column in table.columns if column.source.part is part}
    if table.each is not None:
        values = [element for array in values if isinstance(array, list) for element in array]
    kinds: dict[str, str] = {}
    for value in values if () not in read else ():  # the path () reads the whole value
        kinds |= {name: kind_of(each) for name, each in value.items()} if isinstance(value, Mapping) else {}
    for name, kind in kinds.items():
        if (name,) not in read:
            yield f"no column reads {joined(part, escaped_key(name))}, which is {kind}"


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def _batch(messages: Sequence[Message]) -> PartitionBatch:
    fields = {"offsets": "offset", "keys": "key", "values": "value", "timestamps": "timestamp_ms", "headers": "headers"}
    columns = LazyColumns(len(messages), lambda name: [getattr(message, fields[name]) for message in messages])
    return PartitionBatch(_partition(messages[0]), 0, columns)
