# SPDX-License-Identifier: Apache-2.0
"""The event time of the oldest record of each partition that a job has not read: how far behind it is in time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from monasca_common.kafka import open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import MIB, ConsumerSettings
from monasca_common.models import json_text, times
from monasca_common.models.errors import NotJson
from monasca_common.runtime.polling import POLL_SECONDS

_MEMBERS = ("metric", "alarm-transitioned", "log", "event")


def unread_times(
    settings: ConsumerSettings, next_offsets: Mapping[int, int], wait_seconds: float = 10.0
) -> dict[int, int | None]:
    """The event time, in ms, of the first record at or after each offset; Kafka's timestamp where a record has none.

    ``None`` where the log ends without a message. A partition of which nothing was heard in ``wait_seconds`` is
    missing.
    """
    wanted = {TopicPartition(settings.topics[0], partition): offset for partition, offset in next_offsets.items()}
    found: dict[int, int | None] = {}
    if not wanted:
        return found
    # One record of each partition is needed, and the client would fetch many megabytes.
    with open_consumer(replace(settings, buffer_bytes=MIB), partitions=wanted) as consumer:
        for each, offset in wanted.items():
            consumer.seek(each, offset)
        deadline = consumer.clock.monotonic() + wait_seconds
        while wanted and consumer.clock.monotonic() < deadline:
            batch = consumer.poll(timeout=min(POLL_SECONDS, wait_seconds))
            for part in batch.partitions:
                if part.topic_partition in wanted:
                    del wanted[part.topic_partition]
                    found[part.topic_partition.partition] = event_ms(part.values[0], part.timestamps[0])
            for each in wanted.keys() & consumer.take_ends().keys():
                del wanted[each]
                found[each.partition] = None
            consumer.pause(consumer.assignment() - wanted.keys())
    return found


def event_ms(value: bytes | None, kafka_ms: int | None) -> int | None:
    """The time in an envelope, or else ``kafka_ms``."""
    with contextlib.suppress(NotJson, ValueError, LookupError, TypeError, StopIteration):
        envelope = json_text.read(value or b"")
        member = next(name for name in _MEMBERS if name in envelope)
        return times.from_ms_or_iso(envelope[member]["timestamp"])
    return kafka_ms
