# SPDX-License-Identifier: Apache-2.0
"""Reads chosen offsets of topics for an operator: no group is asked or changed by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from monasca_common.kafka import GivenStarts, KafkaConsumer, Message, RetriableError, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

_NAME = "monasca-look"  # this group never gets an offset
_POLL_SECONDS = 0.2
_POLL_MESSAGES = 2000
_FEW_MESSAGES = 100
_PATIENCE_SECONDS = 30.0


class LogReader:
    """``patience_seconds``: how long it waits for messages that are known to be there."""

    def __init__(self, connection: ConnectionSettings, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._settings = ConsumerSettings(connection, (_NAME,), _NAME, topic_check_seconds=0.0)
        self._patience_seconds = patience_seconds

    def messages(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Message]:
        """What is in each partition from its start up to its end. Raises `RetriableError` where nothing comes."""
        left = {partition for partition, start in starts.items() if start < ends[partition]}
        heard = time.monotonic()
        with self._open({partition: starts[partition] for partition in left}) as consumer:
            while left:
                batch = consumer.poll(_POLL_MESSAGES, timeout=_POLL_SECONDS)
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
                if batch.partitions:
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._patience_seconds:
                    raise self._silence(min(left))

    def at(
        self, offsets: Mapping[TopicPartition, Sequence[int]], ends: Mapping[TopicPartition, int]
    ) -> Iterator[Message]:
        """The first message at or behind each of these offsets, which ascend, each message once; none from its end on.
        Raises `RetriableError` where nothing comes."""
        left = {partition: list(wanted) for partition, wanted in offsets.items()}
        heard = time.monotonic()
        with self._open({partition: wanted[0] for partition, wanted in left.items()}) as consumer:
            while left:
                batch = consumer.poll(_FEW_MESSAGES, timeout=_POLL_SECONDS)
                _check(batch.errors)
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
                        self._finish(consumer, left, part.topic_partition)
                for partition in reached.keys() & left.keys():
                    if (consumer.position(partition) or 0) >= left[partition][0]:
                        self._finish(consumer, left, partition)
                if batch.partitions:
                    heard = time.monotonic()
                elif left and time.monotonic() - heard > self._patience_seconds:
                    raise self._silence(min(left))

    def _finish(
        self, consumer: KafkaConsumer, left: dict[TopicPartition, list[int]], partition: TopicPartition
    ) -> None:
        left.pop(partition, None)
        consumer.pause([partition])

    def _silence(self, partition: TopicPartition) -> RetriableError:
        return RetriableError(
            f"no message for {self._patience_seconds:g} s, and {partition.topic}/{partition.partition} has more: look "
            "at the brokers"
        )

    def follow(self, starts: Mapping[TopicPartition, int], done: Callable[[], bool]) -> Iterator[Message]:
        """What is there and what comes, until ``done``, which is asked several times a second."""
        with self._open(starts) as consumer:
            while not done():
                batch = consumer.poll(_POLL_MESSAGES, timeout=_POLL_SECONDS)
                _check(batch.errors)
                yield from batch

    def _open(self, starts: Mapping[TopicPartition, int]) -> KafkaConsumer:
        return open_consumer(self._settings, partitions=starts, listener=GivenStarts(starts))


def _check(errors: tuple[Exception, ...]) -> None:
    for error in errors:
        if not isinstance(error, RetriableError):
            raise error
