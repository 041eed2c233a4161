# SPDX-License-Identifier: Apache-2.0
"""Reads logs at given offsets, without a consumer group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

from monasca_common.kafka import GivenStarts, KafkaConsumer, Message, OffsetOutOfRange, RetriableError, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.runtime.shutdown import POLL_MESSAGES, POLL_SECONDS

_NAME = "monasca-log-reader"  # a consumer requires a group name; no offsets are committed to this group
_FEW_MESSAGES = 100
_PATIENCE_SECONDS = 30.0
_BUFFER_BYTES = 8 * 1024 * 1024


class LogReader:
    """Reads existing messages. ``patience_seconds``: the maximum wait for the next one. ``most_seconds``: the time-out
    of a whole read, including the time that the caller takes per message."""

    def __init__(
        self,
        connection: ConnectionSettings,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        most_seconds: float = math.inf,
    ) -> None:
        self._settings = ConsumerSettings(
            connection,
            (_NAME,),
            _NAME,
            buffer_bytes=_BUFFER_BYTES,
            topic_check_seconds=0.0,
        )
        self._patience_seconds = patience_seconds
        self._most_seconds = most_seconds

    def messages(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Generator[Message, None, None]:
        """Yield the messages of each partition from its start to its end.

        Raises `RetriableError` after a time-out.
        """
        left = {partition for partition, start in starts.items() if start < ends[partition]}
        if not left:
            return
        waiting = _ReadTimeout(self._patience_seconds, self._most_seconds)
        with self._open({partition: starts[partition] for partition in left}) as consumer:
            while left:
                batch = consumer.poll(POLL_MESSAGES, timeout=POLL_SECONDS)
                _check(batch.errors)
                for part in batch.partitions:
                    end = ends[part.topic_partition]
                    yield from (message for message in part if message.offset < end)
                    if part.next_offset >= end:
                        left.discard(part.topic_partition)
                        consumer.pause([part.topic_partition])
                left -= {
                    partition for partition, at in consumer.take_ends().items() if at.next_offset >= ends[partition]
                }
                waiting.check(left, received=bool(batch.partitions))

    def at(
        self, offsets: Mapping[TopicPartition, Sequence[int]], ends: Mapping[TopicPartition, int]
    ) -> Iterator[Message]:
        """Yield the first message at or after each of these ascending offsets and before the end, each message once.
        Raises `RetriableError` after a time-out."""
        left = {partition: list(wanted) for partition, wanted in offsets.items()}
        if not left:
            return
        waiting = _ReadTimeout(self._patience_seconds, self._most_seconds)
        with self._open({partition: wanted[0] for partition, wanted in left.items()}) as consumer:
            while left:
                batch = consumer.poll(_FEW_MESSAGES, timeout=POLL_SECONDS)
                _check(error for error in batch.errors if not _is_passed_over(consumer, error))
                reached = consumer.take_ends()
                for part in batch.partitions:
                    wanted = left.get(part.topic_partition)
                    for message in part if wanted else ():
                        if wanted and wanted[0] <= message.offset < ends[part.topic_partition]:
                            yield message
                            wanted[:] = [offset for offset in wanted if offset > message.offset]
                    if wanted and part.next_offset < wanted[0]:
                        consumer.seek(part.topic_partition, wanted[0])
                    if not wanted or part.next_offset >= ends[part.topic_partition]:
                        _finish(consumer, left, part.topic_partition)
                for partition in reached.keys() & left.keys():
                    if (consumer.position(partition) or 0) >= left[partition][0]:
                        _finish(consumer, left, partition)
                waiting.check(left, received=bool(batch.partitions))

    def follow(self, starts: Mapping[TopicPartition, int], done: Callable[[], bool]) -> Iterator[Message]:
        """Yield existing and new messages until ``done``, which is called several times per second, returns true."""
        with self._open(starts) as consumer:
            while not done():
                batch = consumer.poll(POLL_MESSAGES, timeout=POLL_SECONDS)
                _check(batch.errors)
                yield from batch

    def _open(self, starts: Mapping[TopicPartition, int]) -> KafkaConsumer:
        return open_consumer(self._settings, partitions=starts, listener=GivenStarts(starts))


class _ReadTimeout:
    """The time-outs of a read: in total, and since the last message."""

    def __init__(self, patience_seconds: float, most_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._most_seconds = most_seconds
        self._began = self._received = time.monotonic()

    def check(self, left: set[TopicPartition] | dict[TopicPartition, list[int]], *, received: bool) -> None:
        """Raise `RetriableError` after a time-out if partitions are left. ``received``: whether messages arrived."""
        now = time.monotonic()
        if received:
            self._received = now
        if left and now - self._began > self._most_seconds:
            raise RetriableError(
                f"{_place(left)} and {len(left) - 1} more partitions were not read within {self._most_seconds:g} s: "
                "try again, or read less"
            )
        if left and now - self._received > self._patience_seconds:
            raise RetriableError(
                f"no message for {self._patience_seconds:g} s, although {_place(left)} has more: check the brokers"
            )


def _place(partitions: set[TopicPartition] | dict[TopicPartition, list[int]]) -> str:
    first = min(partitions)
    return f"{first.topic}/{first.partition}"


def _finish(consumer: KafkaConsumer, left: dict[TopicPartition, list[int]], partition: TopicPartition) -> None:
    left.pop(partition, None)
    consumer.pause([partition])


def _is_passed_over(consumer: KafkaConsumer, error: Exception) -> bool:
    """Return whether the offset was deleted before it was read; the consumer then continues at the next offset."""
    if not isinstance(error, OffsetOutOfRange):
        return False
    return consumer.seek_to_beginning([error.partition])[error.partition] > (error.offset or 0)


def _check(errors: Iterable[Exception]) -> None:
    for error in errors:
        if not isinstance(error, RetriableError):
            raise error
