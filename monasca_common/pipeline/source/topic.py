# SPDX-License-Identifier: Apache-2.0
"""Queries a topic in the driver: its partitions, the extents of their logs, and the records of small batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from monasca_common.kafka import CommitResult, KafkaConsumer, open_consumer
from monasca_common.kafka.errors import ConfigurationError, MessagingError, TransportError
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.range_reader import RangeReader

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


@dataclass(frozen=True, slots=True)
class Extent:
    """The log of a partition. ``first``: the oldest offset; ``end``: the offset after the newest record that consumers
    can read."""

    first: int
    end: int


class SourceTopic:
    """Queries a topic, reads small batches and commits offsets. Every call raises `TransportError`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.name = settings.topics[0]
        self._consumer: KafkaConsumer | None = None
        self._reader: RangeReader | None = None
        self._partitions: tuple[TopicPartition, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_topics(self, *topics: str) -> None:
        """Raise `ConfigurationError` for a topic that does not exist, so that the broker does not create it
        silently."""
        consumer = self._consumer = self._consumer or self._open(())
        for topic in topics:
            try:
                consumer.partition_count(topic)
            except TransportError as error:
                if error.name not in _UNKNOWN:
                    raise
                raise ConfigurationError(f"topic {topic!r} does not exist: create it") from None

    def extents(self) -> dict[int, Extent]:
        """Return the extent of every existing partition."""
        consumer = self._assigned()
        firsts, ends = consumer.seek_to_beginning(), consumer.seek_to_end()
        # Discard messages that were fetched before a pause. While they wait, the thread of a removed broker spins.
        with contextlib.suppress(MessagingError):  # an error of reading
            consumer.poll(timeout=0.0)
        return {tp.partition: Extent(first, ends[tp]) for tp, first in firsts.items()}

    def topic_id(self) -> str | None:
        return self._assigned().topic_ids().get(self.name)

    def starts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offsets that the option ``start`` selects."""
        wanted = [TopicPartition(self.name, partition) for partition in partitions]
        return {tp.partition: offset for tp, offset in self._assigned().resolve_starts(wanted).items()}

    def at_time(self, time_ms: int) -> dict[int, int]:
        """Return the first offset of each partition at or after this time, or the end of its log."""
        consumer = self._assigned()
        found = consumer.seek_to_time(dict.fromkeys(self._partitions, time_ms))
        return {tp.partition: offset for tp, offset in found.items()}

    def read(self, ranges: Sequence[OffsetRange], starts: Mapping[int, int]) -> Iterator[PartitionBatch]:
        """Yield the messages of these ranges, ordered by offset within each partition. ``starts``: an offset of each
        partition of the topic, from which the consumer can fetch ahead."""
        if self._reader is not None and self._reader.partitions != starts.keys():
            self._close_reader()
        reader = self._reader = self._reader or RangeReader(self._settings, starts)
        try:
            yield from reader.read(ranges)
        except TransportError:
            self._close_reader()
            raise

    def commit(self, offsets: Mapping[int, int]) -> Mapping[TopicPartition, CommitResult]:
        """Commit offsets to Kafka, for tools that show consumer groups. The job itself uses only the offsets in the
        database."""
        return self._assigned().commit({TopicPartition(self.name, partition): at for partition, at in offsets.items()})

    def close(self) -> None:
        self._close_reader()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _assigned(self) -> KafkaConsumer:
        """Return a consumer with all partitions assigned and paused."""
        consumer = self._consumer or self._open(())
        count = consumer.partition_count(self.name)
        if count != len(self._partitions):
            consumer.close()
            self._partitions = tuple(TopicPartition(self.name, number) for number in range(count))
            consumer = self._open(self._partitions)
            consumer.pause(self._partitions)
        self._consumer = consumer
        return consumer

    def _open(self, partitions: tuple[TopicPartition, ...]) -> KafkaConsumer:
        return open_consumer(self._settings, partitions=partitions)
