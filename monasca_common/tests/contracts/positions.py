# SPDX-License-Identifier: Apache-2.0
"""The contract of a consumer's positions: seeking, pausing, and offsets outside the log."""

import time

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import OffsetOutOfRange, TopicRecreated
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.tests.contracts.cluster import Capability, needs
from monasca_common.tests.contracts.scenario import Scenario


class PositionContract(Scenario):
    def filled(self, count: int = 5) -> tuple[TopicPartition, KafkaConsumer]:
        """Return a partition with ``count`` messages and a consumer that owns it and has read all messages."""
        self.publish(self.topic, [Record(b"%d" % n, partition=0, timestamp_ms=(n + 1) * 1000) for n in range(count)])
        consumer = self.cluster.consumer(self.topic, self.group, topic_check_seconds=0.1)
        self.read(consumer, count)
        return TopicPartition(self.topic, 0), consumer

    def values(self, consumer: KafkaConsumer, count: int) -> list[bytes | None]:
        return [message.value for message in self.read(consumer, count)]

    def test_seeking_to_an_offset_reads_from_there(self) -> None:
        partition, consumer = self.filled(5)
        consumer.seek(partition, 3)
        self.assertEqual([b"3", b"4"], self.values(consumer, 2))

    def test_seeking_to_both_ends(self) -> None:
        partition, consumer = self.filled(3)
        self.assertEqual(0, consumer.seek_to_beginning()[partition])
        self.assertEqual([b"0", b"1", b"2"], self.values(consumer, 3))
        consumer.seek(partition, 0)
        self.assertEqual(3, consumer.seek_to_end([partition])[partition])
        self.publish(partition.topic, [Record(b"new", partition=0)])
        self.assertEqual([b"new"], self.values(consumer, 1))

    @needs(Capability.TIME_INDEX)
    def test_seeking_to_a_time_reads_the_first_message_that_is_not_older(self) -> None:
        partition, consumer = self.filled(5)
        self.assertEqual({partition: 3}, consumer.seek_to_time({partition: 3500}))
        self.assertEqual([b"3", b"4"], self.values(consumer, 2))

    @needs(Capability.TIME_INDEX)
    def test_seeking_to_a_future_time_seeks_to_the_end(self) -> None:
        partition, consumer = self.filled(5)
        self.assertEqual({partition: 5}, consumer.seek_to_time({partition: 9000}))
        self.publish(partition.topic, [Record(b"new", partition=0)])
        self.assertEqual([b"new"], self.values(consumer, 1))

    def test_a_paused_partition_waits_and_the_others_continue(self) -> None:
        partition, consumer = self.filled(1)
        consumer.pause([partition])
        self.publish(partition.topic, [Record(b"held", partition=0), Record(b"free", partition=1)])
        self.assertEqual([b"free"], self.values(consumer, 1))
        self.assertEqual(0, len(consumer.poll(timeout=0.1)))
        consumer.resume([partition])
        self.assertEqual([b"held"], self.values(consumer, 1))

    def test_the_lag_is_the_number_of_unread_messages(self) -> None:
        partition, consumer = self.filled(5)
        self.assertEqual(0, consumer.lag(5.0)[partition])
        consumer.pause([partition])
        consumer.seek(partition, 2)
        self.assertEqual(3, consumer.lag(5.0)[partition])

    def test_an_offset_beyond_the_log_is_reported_and_nothing_is_read_until_a_seek(self) -> None:
        partition, consumer = self.filled(2)
        consumer.seek(partition, 1000)
        error = self.await_error(consumer, OffsetOutOfRange)
        self.assertEqual((partition, 1000), (error.partition, error.offset))
        self.publish(partition.topic, [Record(b"other", partition=1)])
        self.assertEqual([b"other"], self.values(consumer, 1))
        consumer.seek(partition, 1)
        self.assertEqual([b"1"], self.values(consumer, 1))

    # Rule 18
    @needs(Capability.DELETE_RECORDS)
    def test_records_deleted_before_they_were_read_are_an_error(self) -> None:
        partition, consumer = self.filled(5)
        self.cluster.delete_records(partition, before=4)
        consumer.seek(partition, 1)
        error = self.await_error(consumer, OffsetOutOfRange)
        self.assertEqual((partition, 1), (error.partition, error.offset))
        self.assertEqual(4, consumer.seek_to_beginning([partition])[partition])
        self.assertEqual([b"4"], self.values(consumer, 1))

    @needs(Capability.DELETE_RECORDS)
    def test_a_commit_out_of_range_is_reported_at_the_start(self) -> None:
        partition = TopicPartition(self.topic, 0)
        self.publish(self.topic, [Record(b"%d" % n, partition=0) for n in range(5)])
        with self.cluster.consumer(self.topic, self.group) as consumer:
            self.read(consumer, 5)
            consumer.commit({partition: 2})
        self.cluster.delete_records(partition, before=4)
        error = self.await_error(self.cluster.consumer(self.topic, self.group), OffsetOutOfRange)
        self.assertEqual(2, error.offset)

    # Rule 18
    @needs(Capability.TOPIC_IDS)
    def test_a_recreated_topic_stops_its_readers_and_their_commits(self) -> None:
        partition, consumer = self.filled(3)
        self.settle(consumer, until=self.own(consumer, 4))
        self.await_topic_id(consumer)
        self.cluster.recreate_topic(partition.topic)
        error = self.await_recreated(consumer)
        self.assertEqual(partition.topic, error.topic)
        self.assertRaises(TopicRecreated, consumer.poll)
        self.assertIsInstance(consumer.commit({partition: 3})[partition].error, TopicRecreated)

    def await_topic_id(self, consumer: KafkaConsumer) -> None:
        """Wait for the topic's first id, which is requested in the background and compared once it is known."""
        end = time.monotonic() + 0.5
        self.settle(consumer, until=lambda: time.monotonic() > end)

    def await_recreated(self, consumer: KafkaConsumer) -> TopicRecreated:
        try:
            for _ in self.attempts(lambda: "the reader was not stopped"):
                consumer.poll(timeout=0.05)
        except TopicRecreated as error:
            return error
        raise AssertionError("unreachable")
