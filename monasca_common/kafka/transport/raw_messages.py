# SPDX-License-Identifier: Apache-2.0
"""Messages that a client returns one by one, as `Fetched`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import MessageColumns, TopicPartition
from monasca_common.kafka.transport.base import Fetched, PartitionEvent


def grouped(raws: Sequence[Any], message_type: Any, translate: Callable[[Any], TransportError]) -> Fetched:
    """Group messages of ``message_type`` by partition, keeping the order within each, and separate the errors.

    A pass in C over a batch (``map`` of an unbound method) costs 0.03 us a message, a loop in Python 0.15.
    """
    events: list[PartitionEvent] = []
    if any(map(message_type.error, raws)):
        errors = [raw for raw in raws if raw.error() is not None]
        events = [PartitionEvent(translate(raw.error()), raw.topic(), raw.partition(), raw.offset()) for raw in errors]
        raws = [raw for raw in raws if raw.error() is None]
    parts = _by_partition(raws, message_type)
    return Fetched([(partition, MessageColumns(run)) for partition, run in parts.items()], events)


def _by_partition(raws: Sequence[Any], message_type: Any) -> Mapping[TopicPartition, Sequence[Any]]:
    topics, numbers = set(map(message_type.topic, raws)), set(map(message_type.partition, raws))
    if len(topics) == len(numbers) == 1:
        return {TopicPartition(topics.pop(), numbers.pop()): raws}
    groups: dict[TopicPartition, list[Any]] = {}
    for topic, run_of_topic in groupby(raws, message_type.topic):
        for number, run in groupby(run_of_topic, message_type.partition):
            groups.setdefault(TopicPartition(topic, number), []).extend(run)
    return groups
