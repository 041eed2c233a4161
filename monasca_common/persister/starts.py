# SPDX-License-Identifier: Apache-2.0
"""Where to start reading: where the database's rows end, whatever Kafka's commits say.

Any live member of a group may commit any offset, and the broker obeys; so its offsets only tell people how far we are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.consuming.rebalance import RebalanceListener
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import TopicPartition
from monasca_common.persister.account import Account
from monasca_common.persister.writers import Writers
from monasca_common.storage.base import Writer
from monasca_common.storage.errors import StorageError, StorageUnavailable


class StoredStarts(RebalanceListener):
    """Answers `assigned` from the database; while that is away it raises, keeps its partitions, and is asked again.

    What waiting does not cure (another topic of the same name, another schema) is the end of the consumer.
    """

    def __init__(self, writers: Writers, account: Account) -> None:
        self._writers = writers
        self._account = account
        self._consumer: KafkaConsumer | None = None
        self.topic_ids: Mapping[str, str] = {}

    def attach(self, consumer: KafkaConsumer) -> None:
        """Before the first poll."""
        self._consumer = consumer
        consumer.listener = self

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert self._consumer is not None
        self.topic_ids = self._consumer.topic_ids()
        try:
            with self._writers.lend() as writer:
                starts = self._starts(self._consumer, writer, partitions)
        except StorageUnavailable as error:
            self._account.unavailable(error)
            raise MessagingError(
                f"the database cannot tell where {len(partitions)} partitions start: {error}"
            ) from error
        except StorageError as error:
            self._account.fail(error)
            raise MessagingError(str(error)) from error
        self._account.available()
        self._account.done(starts)
        return starts

    def _starts(
        self, consumer: KafkaConsumer, writer: Writer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        group = consumer.settings.group_id
        starts = writer.next_offsets(group, self._with_ids(partitions))
        for topic in sorted({partition.topic for partition in partitions if partition not in starts}):
            everything = [TopicPartition(topic, number) for number in range(consumer.partition_count(topic))]
            begun = writer.next_offsets(group, self._with_ids(everything))
            # All of a topic at once, so that every member finds it begun, or not. What comes to a topic that was
            # begun already is new in it: nothing of that is to be missed, wherever the option `start` points.
            missing = [partition for partition in everything if partition not in begun]
            chosen = dict.fromkeys(missing, 0) if begun else consumer.resolve_starts(missing)
            starts |= begun
            if missing:
                starts |= writer.begin(group, chosen, self._with_ids(missing))
        return {partition: starts[partition] for partition in partitions}

    def _with_ids(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str | None]:
        return {partition: self.topic_ids.get(partition.topic) for partition in partitions}
