# SPDX-License-Identifier: Apache-2.0
"""Publishes records that a job rejects to the dead-letter topic, from the executor that read them.

A task returns only after they are acknowledged, so no rejected record before the stored offsets is lost. A task that
runs twice sends them twice, with the same ids. Only these records are read again with key, headers and time: reading
them for every record with Spark takes more than twice as long as reading only the values.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from monasca_common.kafka import DeadLetters, dead_letters, portions
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Message
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.errors import PipelineError, Rejection
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.range_reader import RangeReader
from monasca_common.pipeline.spark.worker_producer import portable_producer, usable, worker_producer

# Reading up to this number of unneeded records takes less time than a seek.
_SEEK_BEYOND = 2_000


@dataclass(frozen=True, slots=True)
class RejectedPublisher:
    """Publishes from executors, to which it is pickled with the settings of a consumer and a producer. ``error``: the
    exception class whose name a dead letter shows as the reason.
    """

    topic: str
    group: str
    error: type[PipelineError]
    _consumer: ConsumerSettings = field(repr=False)
    _producer: bytes = field(repr=False)

    @classmethod
    def of(cls, stream: StreamSettings, error: type[PipelineError]) -> RejectedPublisher:
        producer = portable_producer(stream.producer, stream.audit, stream.group)
        return cls(dead_letter_topic(stream), stream.group, error, stream.consumer, producer)

    def __call__(self, partition: int, rejected: Mapping[int, Rejection]) -> None:
        """Publish the ``rejected`` messages, by offset. Raises `UndeliveredError`, and the errors of `refetch`."""
        now_ms = time.time_ns() // 1_000_000
        letters = [
            dead_letters.dead_letter(message, self._error(rejected[message.offset]), self.group, 1, now_ms)
            for message in refetch(self._consumer, partition, rejected)
        ]
        producer = usable(worker_producer(self._producer))
        for portion in portions(letters, producer.settings):
            # A record that would be too large with the headers of its origin is truncated; otherwise it would block all
            # later batches.
            dead_letters.shrink_to_fit(portion, lambda left: producer.publish(self.topic, left).raise_for_undelivered())

    def _error(self, rejection: Rejection) -> PipelineError:
        return self.error(f"{rejection.kind}: {rejection.reason}")


def dead_letter_topic(stream: StreamSettings) -> str:
    return DeadLetters().topic_for(stream.topic, stream.consumer.dead_letter_topic)


def refetch(settings: ConsumerSettings, partition: int, offsets: Iterable[int]) -> Iterator[Message]:
    """Yield the messages in offset order. Raises `TransportError`, for example if an offset is no longer in the log."""
    missing = sorted(offsets, reverse=True)
    reader = RangeReader(settings, {partition: missing[-1]})
    try:
        for wanted in list(_ranges(partition, missing)):
            for part in reader.read([wanted]):
                for message in part:
                    if missing and message.offset == missing[-1]:
                        missing.pop()
                        yield message
            if missing and missing[-1] < wanted.end:
                raise TransportError(
                    f"offset {missing[-1]} of {settings.topics[0]}/{partition} is no longer in the log"
                )
    finally:
        reader.close()


def _ranges(partition: int, offsets: list[int]) -> Iterator[OffsetRange]:
    """Yield ranges in ascending order that cover all of these descending offsets, without long gaps."""
    start = end = offsets[-1]
    for offset in reversed(offsets):
        if offset - end > _SEEK_BEYOND:
            yield OffsetRange(partition, start, end + 1)
            start = offset
        end = offset
    yield OffsetRange(partition, start, end + 1)
