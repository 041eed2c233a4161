# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka.errors import AuthorizationError, ClosedError, ConfigurationError, TransportError
from monasca_common.kafka.message import Message, PartitionBatch, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.base import PartitionEvent
from monasca_common.kafka.transport.memory import Fail, LoseAnswer, MemoryConsumer, MemoryProducer, VirtualClock

TP = TopicPartition("t", 0)
ANY = -1


def is_end(element):
    return isinstance(element, PartitionEvent) and element.error.name == "_PARTITION_EOF"


def elements(fetched):
    """Return the events and the messages of a poll."""
    parts = [PartitionBatch(partition, 1, columns) for partition, columns in fetched.parts]
    return [*fetched.events, *(message for part in parts for message in part)]


class ConsumerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock(start_ms=1000)
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 2)
        self.consumer = MemoryConsumer(self.kafka.consumer_settings("t"))
        self.addCleanup(self.consumer.close)

    def fill(self, count, topic="t", partition=0, first=0):
        producer = MemoryProducer(self.kafka.producer_settings(), batch_bytes=1_000_000, on_error=print)
        for number in range(first, first + count):
            value = b"%d" % number
            producer.produce_record(topic, value, None, partition, (number + 1) * 10, (), number)

    def poll(self, count=100):
        """Return messages and errors, without the ends of logs."""
        return [element for element in elements(self.consumer.poll(count, 0)) if not is_end(element)]

    def ends(self):
        """Poll until there are no more events, and return the ends of logs."""
        return [
            element.offset
            for element in iter(lambda: next(iter(elements(self.consumer.poll(1, 0))), None), None)
            if is_end(element)
        ]

    def values(self, count=100):
        return [message.value for message in self.poll(count)]


class ReadingTest(ConsumerCase):
    def test_poll_returns_up_to_the_requested_number_in_order_of_offset(self):
        self.fill(5)
        self.consumer.assign({TP: 1})
        self.assertEqual([b"1", b"2"], self.values(2))
        self.assertEqual([b"3", b"4"], self.values())
        self.assertEqual([], self.values())

    def test_a_waiting_poll_returns_as_soon_as_there_is_a_message(self):
        self.consumer.assign({TP: 0})
        self.assertEqual([0], self.ends())
        found: list[Message] = []
        poller = threading.Thread(target=lambda: found.extend(elements(self.consumer.poll(10, 1000))))
        poller.start()
        self.fill(1)
        poller.join(50)
        self.assertEqual([b"0"], [message.value for message in found])

    def test_the_end_of_the_log_is_reported_once_after_its_messages(self):
        self.fill(2)
        self.broker.skip_offsets("t", 0, 3)
        self.consumer.assign({TP: 0})
        self.assertEqual([b"0", b"1"], self.values())
        self.assertEqual([5], self.ends())
        self.assertEqual([], self.ends())
        self.fill(1, first=5)
        self.assertEqual([6], self.ends())
        self.consumer.seek(TP, 0)
        self.assertEqual([6], self.ends())

    def test_an_offset_without_a_message_is_passed_over(self):
        self.broker.skip_offsets("t", 0, 2)
        self.fill(1)
        self.broker.skip_offsets("t", 0, 1)
        self.fill(1, first=1)
        self.consumer.assign({TP: 0})
        self.assertEqual([2, 4], [message.offset for message in self.poll()])

    def test_no_partition_starves_another(self):
        self.fill(10, partition=0)
        self.fill(10, partition=1)
        self.consumer.assign({TP: 0, TopicPartition("t", 1): 0})
        self.assertEqual({0, 1}, {message.partition for _ in range(2) for message in self.poll(1)})

    def test_paused_partitions_deliver_nothing_and_stay_paused_when_they_are_assigned_again(self):
        self.fill(2)
        self.consumer.assign({TP: 0})
        self.consumer.pause([TP])
        self.assertEqual([], self.values())
        self.consumer.assign({TP: 0})
        self.assertEqual([], self.values())
        self.consumer.resume([TP])
        self.assertEqual([b"0", b"1"], self.values())

    def test_offsets_are_found_by_time(self):
        self.fill(3)
        other = TopicPartition("t", 1)
        self.assertEqual({TP: 1, other: 0}, self.consumer.offsets_for_times({TP: 15, other: 15}, 1))
        self.assertEqual({TP: 3}, self.consumer.offsets_for_times({TP: 31}, 1))

    def test_an_unknown_topic_is_a_transport_error(self):
        for ask in (
            lambda: self.consumer.partition_count("nope", 1),
            lambda: self.consumer.end_offsets([TopicPartition("nope", 0)], 1),
        ):
            self.assertEqual("UNKNOWN_TOPIC_OR_PART", self.assertRaises(TransportError, ask).name)

    def test_a_closed_consumer_refuses_calls_and_can_be_closed_again(self):
        self.consumer.close()
        self.consumer.close()
        self.assertRaises(ClosedError, self.poll)

    def test_group_metadata_reports_missing_transactions(self):
        self.assertRaises(ConfigurationError, self.consumer.group_metadata)


class OutOfRangeTest(ConsumerCase):
    def assert_out_of_range_once(self, offset):
        [element] = self.poll()
        self.assertEqual(("_AUTO_OFFSET_RESET", offset), (element.error.name, element.offset))
        self.assertEqual([], self.poll())

    def test_a_position_before_the_log_is_reported_once_and_ends_the_fetches(self):
        self.fill(5)
        self.broker.delete_records("t", 0, before=3)
        self.consumer.assign({TP: 1})
        self.assert_out_of_range_once(1)

    def test_a_position_beyond_the_log_is_reported_once_and_ends_the_fetches(self):
        self.consumer.assign({TP: 7})
        self.assert_out_of_range_once(7)

    def test_records_deleted_before_they_are_read_are_also_an_error(self):
        self.fill(5)
        self.consumer.assign({TP: 0})
        self.poll(1)
        self.broker.delete_records("t", 0, before=4)
        self.assert_out_of_range_once(1)

    def test_a_partition_out_of_range_refuses_seeks_until_it_is_assigned_again(self):
        self.fill(1)
        self.consumer.assign({TP: 7})
        self.poll()
        self.assertEqual("_STATE", self.assertRaises(TransportError, self.consumer.seek, TP, 0).name)
        self.consumer.assign_owned({TP: 0})
        self.assertEqual([b"0"], self.values())

    def test_a_recreated_topic_has_another_id_and_silently_skips_records(self):
        self.fill(3)
        self.consumer.assign({TP: 2})
        self.poll()
        [old] = self.consumer.topic_ids(["t"], 1).values()
        self.broker.delete_topic("t")
        self.assertEqual({}, self.consumer.topic_ids(["t"], 1))
        self.assertEqual([], self.poll())
        self.broker.create_topic("t", 2)
        [new] = self.consumer.topic_ids(["t"], 1).values()
        self.assertNotEqual(old, new)
        self.fill(2)
        self.assertEqual([], self.poll())
        self.fill(2, first=2)
        self.assertEqual([b"3"], self.values())

    def test_a_partition_that_does_not_exist_is_an_error(self):
        self.consumer.assign({TopicPartition("t", 9): 0})
        [element] = self.poll()
        self.assertEqual("_UNKNOWN_PARTITION", element.error.name)


class RequestsTest(ConsumerCase):
    def test_committed_offsets_belong_to_the_group(self):
        self.assertEqual({TP: None}, self.consumer.committed([TP], 1))
        self.assertEqual({TP: None}, self.consumer.commit({TP: 3}))
        self.assertEqual({TP: 3}, self.consumer.committed([TP], 1))
        self.assertEqual({TP: 3}, self.broker.committed("test-group"))

    def test_each_partition_of_a_commit_has_its_own_response(self):
        nowhere = TopicPartition("t", 9)
        answers = self.consumer.commit({TP: 3, nowhere: 1})
        self.assertIsNone(answers[TP])
        self.assertIsInstance(answers[nowhere], TransportError)

    def test_a_commit_fails_on_demand_and_stores_nothing(self):
        self.broker.inject("commit", Fail("GROUP_AUTHORIZATION_FAILED"))
        self.assertRaises(AuthorizationError, self.consumer.commit, {TP: 3})
        self.assertEqual({}, self.broker.committed("test-group"))

    def test_a_commit_whose_response_never_comes_is_stored_and_ends_after_45_seconds(self):
        self.broker.inject("commit", LoseAnswer(float("inf")))
        failures = []

        def commit():
            try:
                self.consumer.commit({TP: 3})
            except TransportError as error:
                failures.append(error.name)

        committer = threading.Thread(target=commit)
        committer.start()
        while committer.is_alive():
            self.clock.advance(46)
            committer.join(0.01)
        self.assertEqual(["_TIMED_OUT"], failures)
        self.assertEqual({TP: 3}, self.broker.committed("test-group"))

    def test_a_fetch_fails_on_demand_once(self):
        self.fill(1)
        self.broker.inject("fetch", Fail("TOPIC_AUTHORIZATION_FAILED"), topic="t")
        self.consumer.assign({TP: 0})
        [element] = self.poll()
        self.assertEqual("TOPIC_AUTHORIZATION_FAILED", element.error.name)
        self.assertEqual([b"0"], self.values())

    def test_an_unreachable_broker_delivers_nothing(self):
        self.fill(1)
        self.consumer.assign({TP: 0})
        self.broker.disconnect()
        self.assertEqual([], self.values())
        self.assertEqual("_TIMED_OUT", self.assertRaises(TransportError, self.consumer.committed, [TP], 0).name)
        self.broker.reconnect()
        self.assertEqual([b"0"], self.values())
