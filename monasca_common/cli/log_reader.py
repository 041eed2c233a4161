# SPDX-License-Identifier: Apache-2.0
"""Reads chosen offsets of topics for an operator: no group is asked or changed by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from monasca_common.kafka import KafkaConsumer, Message, RebalanceListener, RetriableError, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

_NAME = "monasca-look"  # this group never gets an offset
_POLL_SECONDS = 0.2
_POLL_MESSAGES = 2000
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
                    first = min(left)
                    raise RetriableError(
                        f"no message for {self._patience_seconds:g} s, and {first.topic}/{first.partition} has more: "
                        "look at the brokers"
                    )

    def follow(self, starts: Mapping[TopicPartition, int], done: Callable[[], bool]) -> Iterator[Message]:
        """What is there and what comes, until ``done``, which is asked several times a second."""
        with self._open(starts) as consumer:
            while not done():
                batch = consumer.poll(_POLL_MESSAGES, timeout=_POLL_SECONDS)
                _check(batch.errors)
                yield from batch

    def _open(self, starts: Mapping[TopicPartition, int]) -> KafkaConsumer:
        return open_consumer(self._settings, partitions=starts, listener=_GivenStarts(starts))


class _GivenStarts(RebalanceListener):
    """Gives each partition its start."""

    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._starts = starts

    def assigned(self, partitions: object) -> Mapping[TopicPartition, int]:
        return self._starts


def _check(errors: tuple[Exception, ...]) -> None:
    for error in errors:
        if not isinstance(error, RetriableError):
            raise error
