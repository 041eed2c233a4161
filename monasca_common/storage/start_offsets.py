# SPDX-License-Identifier: Apache-2.0
"""The offsets at which a consumer starts, which are stored with the rows in the database.

Offsets in Kafka only show progress, because the broker accepts any offset from any live member of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from monasca_common.kafka import KafkaConsumer, RebalanceListener
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import TopicPartition
from monasca_common.runtime.member_health import MemberHealth, MemberState
from monasca_common.storage.base import TopicIds, Writer
from monasca_common.storage.errors import StorageError, StorageUnavailable
from monasca_common.storage.positions import first_reads
from monasca_common.storage.writer_pool import WriterPool


class StartOffsets(RebalanceListener):
    """Returns start offsets from the database. While the database is unavailable, `assigned` raises an error, and is
    called again with the same partitions. Permanent errors (a recreated topic, a different schema) are passed to
    ``fail``, which ends the member.
    """

    def __init__(self, writers: WriterPool, health: MemberHealth, fail: Callable[[Exception], None]) -> None:
        self._writers = writers
        self._health = health
        self._fail = fail
        self._consumer: KafkaConsumer | None = None
        self.topic_ids: Mapping[str, str] = {}
        self.positions: dict[TopicPartition, int] = {}  # the group's stored offsets at the time of the assignment

    def attach(self, consumer: KafkaConsumer) -> None:
        """Set the consumer, before its first poll."""
        self._consumer = consumer
        consumer.listener = self

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert self._consumer is not None
        self.topic_ids = self._consumer.topic_ids()
        try:
            with self._writers.writer() as writer:
                starts = self._starts(self._consumer, writer, partitions)
        except StorageUnavailable as error:
            self._health.waits(MemberState.WAITING_FOR_DATABASE, str(error))
            raise MessagingError(
                f"start offsets of {len(partitions)} partitions cannot be read from the database: {error}"
            ) from error
        except StorageError as error:
            self._fail(error)
            raise MessagingError(str(error)) from error
        self._health.waits(MemberState.WAITING_FOR_DATABASE, "")
        self._health.starts_at(starts)
        return starts

    def _starts(
        self, consumer: KafkaConsumer, writer: Writer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        group = consumer.settings.group_id
        starts = writer.next_offsets(group, self._with_ids(partitions))
        for partition in partitions:
            self.positions.pop(partition, None)
        self.positions.update(starts)
        for topic in sorted({partition.topic for partition in partitions if partition not in starts}):
            everything = [TopicPartition(topic, number) for number in range(consumer.partition_count(topic))]
            begun = writer.next_offsets(group, self._with_ids(everything))
            # All partitions of a topic are stored in one transaction, so that each member finds either all offsets or
            # none.
            chosen = first_reads(everything, begun, consumer.resolve_starts)
            starts |= begun
            if chosen:
                starts |= writer.begin(group, chosen, self._with_ids(chosen))
        return {partition: starts[partition] for partition in partitions}

    def _with_ids(self, partitions: Iterable[TopicPartition]) -> TopicIds:
        return {partition: self.topic_ids.get(partition.topic) for partition in partitions}
