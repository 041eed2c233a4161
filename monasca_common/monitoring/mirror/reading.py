# SPDX-License-Identifier: Apache-2.0
"""Reads one partition from an offset to another, as no group: nothing is asked of one, nor committed to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from monasca_common.kafka import GivenStarts, KafkaConsumer, Message, RetriableError, open_consumer
from monasca_common.kafka.message import Batch, TopicPartition
from monasca_common.kafka.settings import MIB, ConnectionSettings, ConsumerSettings

_NAME = "monasca-mirror"  # a consumer needs the name of a group; this one never gets an offset
_POLL_MESSAGES = 5000
_POLL_SECONDS = 0.2


def open_reader(
    connection: ConnectionSettings, starts: Mapping[TopicPartition, int], *, buffer_bytes: int
) -> KafkaConsumer:
    """A consumer of exactly these partitions, each from its start; the caller closes it."""
    topics = tuple(sorted({partition.topic for partition in starts}))
    settings = ConsumerSettings(connection, topics, _NAME, buffer_bytes=buffer_bytes)
    return open_consumer(settings, partitions=starts, listener=GivenStarts(starts))


def read_log(
    connection: ConnectionSettings, partition: TopicPartition, start: int, end: int, *, timeout_seconds: float
) -> Iterator[Message]:
    """The messages from ``start`` to before ``end``.

    Raises `RetriableError` when there is none for ``timeout_seconds`` although the end is not reached.
    """
    if start >= end:
        return
    with open_reader(connection, {partition: start}, buffer_bytes=8 * MIB) as consumer:
        at, deadline = start, consumer.clock.monotonic() + timeout_seconds
        while at < end:
            batch = poll(consumer, _POLL_MESSAGES, _POLL_SECONDS)
            for part in batch.partitions:
                for message in part:
                    if message.offset >= end:
                        return
                    yield message
                at, deadline = part.next_offset, consumer.clock.monotonic() + timeout_seconds
            for reached in consumer.take_ends().values():
                at = max(at, reached.next_offset)
            if at < end and consumer.clock.monotonic() > deadline:
                raise RetriableError(
                    f"{partition.topic}/{partition.partition} was read to offset {at} of {end}, and then nothing came "
                    f"for {timeout_seconds:g} s: look at the brokers"
                )


def poll(consumer: KafkaConsumer, max_messages: int, timeout: float) -> Batch:
    """A batch; raises its first error that does not pass by itself."""
    batch = consumer.poll(max_messages, timeout)
    for error in batch.errors:
        if not isinstance(error, RetriableError):
            raise error
    return batch
