# SPDX-License-Identifier: Apache-2.0
"""The contract of `KafkaConsumer` as the only member of its group: batches, commits, start offsets, and close."""

import datetime

from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.tests.contracts.cluster import Capability, needs
from monasca_common.tests.contracts.scenario import Scenario


class ConsumerContract(Scenario):
    def test_a_batch_has_a_column_for_each_field_of_a_message(self) -> None:
        self.publish(
            self.topic,
            [Record(b"%d" % n, b"k%d" % n, (("h", b"%d" % n),), 1000 + n, partition=1) for n in range(3)],
            topics_without_message_id=frozenset({self.topic}),
        )
        consumer = self.cluster.consumer(self.topic, self.group)
        parts = [part for batch in self.await_batches(consumer, 3) for part in batch.partitions]
        self.assertEqual({TopicPartition(self.topic, 1)}, {part.topic_partition for part in parts})
        self.assertEqual(1, len({part.epoch for part in parts}))
        self.assertEqual([0, 1, 2], [offset for part in parts for offset in part.offsets])
        self.assertEqual([b"0", b"1", b"2"], [value for part in parts for value in part.values])
        self.assertEqual([b"k0", b"k1", b"k2"], [key for part in parts for key in part.keys])
        self.assertEqual([1000, 1001, 1002], [at for part in parts for at in part.timestamps])
        self.assertEqual(
            [(("h", b"%d" % n),) for n in range(3)], [headers for part in parts for headers in part.headers]
        )
        for part in parts:
            self.assertEqual(part.values, part.header("h"))
            self.assertEqual([None] * len(part), part.header("H"))
        self.assertEqual(3, parts[-1].next_offset)

    def test_a_poll_returns_at_most_max_messages(self) -> None:
        self.fill(self.topic, 5)
        consumer = self.cluster.consumer(self.topic, self.group)
        sizes: list[int] = []
        for _ in self.attempts(lambda: f"batches of {sizes}"):
            if sum(sizes) == 20:
                break
            sizes.append(len(consumer.poll(max_messages=3, timeout=0.05)))
        self.assertLessEqual(max(sizes), 3)

    def test_the_end_of_a_log_is_known_once_all_messages_were_polled_and_ends_no_poll(self) -> None:
        self.fill(self.topic, 3)
        consumer = self.cluster.consumer(self.topic, self.group)
        self.await_batches(consumer, 12)
        ends: dict[TopicPartition, int] = {}
        for _ in self.attempts(lambda: f"ends of {ends}"):
            batch = consumer.poll(timeout=0.05)
            self.assertEqual((), (*batch.partitions, *batch.errors))
            ends.update((partition, at.next_offset) for partition, at in consumer.take_ends().items())
            if len(ends) == 4:
                break
        self.assertEqual({TopicPartition(self.topic, number): 3 for number in range(4)}, ends)
        self.assertEqual({}, consumer.take_ends())

    def test_an_end_is_reached_again_after_a_seek(self) -> None:
        self.fill(self.topic, 1)
        first = TopicPartition(self.topic, 0)
        consumer = self.cluster.consumer(self.topic, self.group, partitions=[first])
        self.await_batches(consumer, 1)
        self.settle(consumer, until=lambda: consumer.lag() == {first: 0})
        for offset, messages in ((0, 1), (1, 0)):  # the second offset is the end of the log
            consumer.seek(first, offset)
            self.assertEqual({}, consumer.take_ends())
            self.await_batches(consumer, messages)
            self.settle(consumer, until=lambda: bool(consumer.take_ends()))

    def test_chosen_partitions_are_read_and_no_others(self) -> None:
        self.fill(self.topic, 2)
        chosen = [TopicPartition(self.topic, 1), TopicPartition(self.topic, 3)]
        consumer = self.cluster.consumer(self.topic, self.group, partitions=chosen)
        self.assertEqual([1, 1, 3, 3], sorted(message.partition for message in self.read(consumer, 4)))
        self.assertEqual(set(chosen), consumer.assignment())

    def test_only_uncommitted_messages_are_read_again(self) -> None:
        self.publish(self.topic, [Record(b"%d" % n, partition=0) for n in range(6)])
        with self.cluster.consumer(self.topic, self.group) as first:
            batches = self.await_batches(first, 6)
            results = first.commit({TopicPartition(self.topic, 0): 4})
            self.assertTrue(results[TopicPartition(self.topic, 0)].committed)
            self.assertEqual(6, batches[-1].partitions[-1].next_offset)
        with self.cluster.consumer(self.topic, self.group) as second:
            self.assertEqual([b"4", b"5"], [message.value for message in self.read(second, 2)])

    def test_an_owner_can_commit_a_lower_offset(self) -> None:
        self.publish(self.topic, [Record(b"%d" % n, partition=0) for n in range(3)])
        consumer = self.cluster.consumer(self.topic, self.group)
        for batch in self.await_batches(consumer, 3):
            consumer.commit(batch)
        consumer.commit({TopicPartition(self.topic, 0): 1})
        consumer.seek_to_committed([TopicPartition(self.topic, 0)])
        self.assertEqual([b"1", b"2"], [message.value for message in self.read(consumer, 2)])

    # Rule 18
    def test_a_start_at_latest_is_committed_immediately_so_that_a_crash_skips_nothing(self) -> None:
        self.fill(self.topic, 2)
        with self.cluster.consumer(self.topic, self.group, start="latest") as first:
            self.settle(first, until=self.own(first, 4))
        self.publish(self.topic, [Record(b"between", partition=3)])
        with self.cluster.consumer(self.topic, self.group, start="latest") as second:
            self.assertEqual([b"between"], [message.value for message in self.read(second, 1)])

    @needs(Capability.TIME_INDEX)
    def test_a_start_at_a_time_reads_messages_that_are_not_older(self) -> None:
        self.fill(self.topic, 3)
        moment = datetime.datetime.fromtimestamp(2, datetime.UTC).isoformat()
        consumer = self.cluster.consumer(self.topic, self.group, start=moment)
        self.assertEqual({2000, 3000}, {message.timestamp_ms for message in self.read(consumer, 8)})

    def test_a_consumer_that_was_never_used_closes(self) -> None:
        self.cluster.consumer(self.topic, self.group).close()
