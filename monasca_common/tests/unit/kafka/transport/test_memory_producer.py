# SPDX-License-Identifier: Apache-2.0
import threading

from confluent_kafka import KafkaException
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError, RetriableError, TransportError
from monasca_common.kafka.message import Message
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import Delay, Fail, LoseAnswer, MemoryProducer, VirtualClock
from monasca_common.kafka.transport.memory.log import batch_bytes
from monasca_common.kafka.transport.reservation import Reservation

ANY = -1


class ProducerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.broker = self.kafka.broker
        self.errors: list[TransportError] = []
        self.reports: list[tuple[str | None, int]] = []  # errors by sequence, in the order of the outcomes
        self.sent: list[bytes | None] = []
        self.producer = MemoryProducer(
            self.kafka.producer_settings(), batch_bytes=1_000_000, on_error=self.errors.append
        )

    def produce(self, topic, value, key=None, partition=ANY, timestamp_ms=0, headers=None):
        self.sent.append(value)
        self.producer.produce_record(topic, value, key, partition, timestamp_ms, headers or [], len(self.sent) - 1)

    def poll(self):
        self.note(self.producer.poll(0))

    def flush(self):
        """Return the number of remaining messages."""
        self.note(self.producer.flush(0))
        return self.producer.queued()

    def note(self, outcomes):
        self.reports += [(None, sequence) for sequence in outcomes.sequences]
        self.reports += [(each.error.name, each.sequence) for each in outcomes.undelivered]
        self.assertEqual(
            [self.sent[each.sequence] for each in outcomes.undelivered], [each.value for each in outcomes.undelivered]
        )

    def outcomes(self):
        return [(error, self.sent[sequence]) for error, sequence in self.reports]

    def values(self, topic="t"):
        return [message.value for message in self.broker.records(topic)]


class ProduceTest(ProducerCase):
    def test_a_record_is_in_the_log_with_key_headers_and_timestamp(self):
        self.broker.create_topic("t", 3)
        headers = [("a", b"1"), ("a", None)]
        self.produce("t", b"v", b"k", 2, 1234, headers)
        found = self.producer.poll(0)
        [message] = self.broker.records("t", 2)
        self.assertEqual(
            (b"v", b"k", 1234, tuple(headers), 0),
            (message.value, message.key, message.timestamp_ms, message.headers, message.offset),
        )
        self.assertEqual(
            ([0], [2], [0], [2]), tuple(map(list, (found.sequences, found.partitions, found.offsets, found.bytes)))
        )

    def test_a_record_without_a_timestamp_gets_the_time_of_the_clock(self):
        self.produce("t", b"v")
        self.assertEqual([self.clock.time_ms()], [message.timestamp_ms for message in self.broker.records("t")])

    def test_outcomes_are_in_the_order_of_their_sequences_with_the_bytes_up_to_each(self):
        self.broker.create_topic("t")
        self.broker.inject("produce", Delay(1))
        self.assertEqual(3, self.producer.produce("t", [b"a", b"bb", b"ccc"], b"k", 7, None))
        self.clock.advance(1)
        found = self.producer.poll(0)
        self.assertEqual(([7, 8, 9], [2, 5, 9]), (list(found.sequences), list(found.bytes)))

    def test_ids_are_the_prefix_and_the_sequence_or_those_of_the_caller(self):
        sent = self.producer.send("t", b"v", None, Reservation(255, 256, 100, 100, 0, b"prefix"))
        self.producer.produce("t", [b"w"], None, 256, b"prefix")
        without = self.producer.send("t", b"x", None, Reservation(257, 258, 100, 100, 0, None))
        self.producer.produce("t", [b"y", b"z"], None, 258, [b"own", b"other"])
        self.assertEqual((b"prefix0000000000ff", b""), (sent, without))
        self.assertEqual(
            [
                (("message-id", b"prefix0000000000ff"),),
                (("message-id", b"prefix000000000100"),),
                (),
                (("message-id", b"own"),),
                (("message-id", b"other"),),
            ],
            [message.headers for message in self.broker.records("t")],
        )

    def test_a_refused_send_is_undelivered_while_outcomes_are_taken(self):
        self.producer.close(0)
        fault = self.producer.fault

        def taken_meanwhile(error):
            self.assertEqual((), tuple(self.producer._reports.take().undelivered))
            return fault(error)

        self.producer.fault = taken_meanwhile
        self.assertEqual(b"", self.producer.send("t", b"v", None, Reservation(7, 8, 100, 100, 0, None)))
        [message] = self.producer._reports.take().undelivered
        self.assertEqual((7, False, "_STATE"), (message.sequence, message.taken, message.error.name))

    def test_the_first_message_creates_a_topic(self):
        self.produce("new", b"v")
        self.assertEqual(("new",), self.broker.topics())

    def test_records_without_keys_are_spread_evenly(self):
        self.broker.create_topic("t", 3)
        for _ in range(6):
            self.produce("t", b"v")
        self.assertEqual([2, 2, 2], [len(self.broker.records("t", partition)) for partition in range(3)])

    def test_a_partition_that_does_not_exist_is_reported(self):
        self.produce("t", b"v", None, 5)
        self.poll()
        self.assertEqual([("_UNKNOWN_PARTITION", b"v")], self.outcomes())

    def test_a_record_over_the_topic_s_limit_is_rejected_by_the_broker(self):
        self.broker.create_topic("t", max_message_bytes=200)
        self.produce("t", b"x" * 200)
        self.produce("t", b"x" * 20)
        self.poll()
        self.assertEqual([(None, b"x" * 20), ("MSG_SIZE_TOO_LARGE", b"x" * 200)], self.outcomes())
        self.assertEqual({"t": 200}, self.producer.max_message_bytes(("t",), 1))

    def test_the_size_of_a_record_is_that_of_its_fields_and_a_batch_header(self):
        headers = (("\u20ac", b"ab"), ("n", None))
        self.assertEqual(61 + 2 + 1 + 5 + 1, batch_bytes(Message("t", 0, -1, None, b"k", b"vv", headers)))
        self.assertEqual(61, batch_bytes(Message("t", 0, -1, None, None, None, ())))

    def test_the_smallest_batch_over_the_limit_is_refused(self):
        self.broker.create_topic("t", max_message_bytes=64)
        self.produce("t", b"fit")
        self.produce("t", b"over")
        self.poll()
        self.assertEqual([None, "MSG_SIZE_TOO_LARGE"], [error for error, _ in self.outcomes()])

    def test_an_invalid_topic_name_is_refused_and_no_topic_is_created(self):
        for name in ("", "..", "no/such", "x" * 250):
            self.produce(name, b"v")
            self.poll()
            self.assertEqual("TOPIC_EXCEPTION", self.outcomes()[-1][0])
            error = self.assertRaises(ConfigurationError, self.broker.create_topic, name)
            self.assertIn("letters, digits", str(error))
        self.assertEqual((), self.broker.topics())

    def test_names_that_differ_only_by_dots_and_underscores_collide(self):
        self.broker.create_topic("a.b_c")
        self.assertRaises(ConfigurationError, self.broker.create_topic, "a_b.c")
        self.produce("a_b_c", b"v")
        self.poll()
        self.assertEqual(["TOPIC_EXCEPTION"], [error for error, _ in self.outcomes()])

    def test_a_topic_has_partitions_and_a_limit(self):
        for wrong in ({"partitions": 0}, {"partitions": -1}, {"max_message_bytes": -1}):
            self.assertRaises(ConfigurationError, self.broker.create_topic, "t", **wrong)
        self.broker.create_topic("t")
        self.assertRaises(ConfigurationError, self.broker.add_partitions, "t", 0)

    def test_the_limit_of_an_unknown_topic_is_a_transport_error(self):
        self.broker.create_topic("t")
        limits = self.producer.max_message_bytes(("nope", "t"), 1)
        self.assertEqual(("UNKNOWN_TOPIC_OR_PART", 1_048_588), (limits["nope"].name, limits["t"]))

    def test_a_closed_producer_refuses_calls(self):
        self.producer.close(1)
        self.assertRaises(KafkaException, self.produce, "t", b"v")
        self.assertEqual(0, self.producer.produce("t", [b"v", b"w"], None, 0, None))

    def test_transactions_are_reported_as_unavailable(self):
        error = self.assertRaises(ConfigurationError, self.producer.begin_transaction)
        self.assertIn("use driver=kafka", str(error))


class FaultsTest(ProducerCase):
    def test_the_nth_record_fails_as_injected_and_is_not_in_the_log(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=2)
        for value in (b"1", b"2", b"3"):
            self.produce("t", value)
        self.poll()
        self.assertEqual([(None, b"1"), (None, b"3"), ("NOT_ENOUGH_REPLICAS", b"2")], self.outcomes())
        self.assertEqual([b"1", b"3"], self.values())

    def test_a_fault_may_apply_to_one_topic_indefinitely(self):
        self.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"), topic="closed", count=None)
        for topic in ("closed", "open", "closed"):
            self.produce(topic, topic.encode())
        self.poll()
        self.assertEqual(2, [error for error, _ in self.outcomes()].count("TOPIC_AUTHORIZATION_FAILED"))
        self.broker.clear_faults()
        self.produce("closed", b"now")
        self.poll()
        self.assertEqual((None, b"now"), self.outcomes()[-1])

    def test_a_delayed_response_arrives_after_its_delay(self):
        self.broker.inject("produce", Delay(5))
        self.produce("t", b"late")
        self.produce("t", b"prompt")
        self.poll()
        self.assertEqual([(None, b"prompt")], self.outcomes())
        self.assertEqual([b"late", b"prompt"], self.values())
        self.clock.advance(5)
        self.poll()
        self.assertEqual([(None, b"prompt"), (None, b"late")], self.outcomes())

    def test_a_lost_response_leaves_the_record_in_the_log_once_and_is_reported_as_a_broken_connection(self):
        self.broker.inject("produce", LoseAnswer(2))
        self.produce("t", b"v")
        self.poll()
        self.assertEqual([], self.outcomes())
        self.assertEqual(["_TRANSPORT"], [error.name for error in self.errors])
        self.clock.advance(2)
        self.assertEqual(0, self.flush())
        self.assertEqual([(None, b"v")], self.outcomes())
        self.assertEqual([b"v"], self.values())

    def test_a_lost_response_may_end_as_an_error_of_a_record_that_is_in_the_log(self):
        self.broker.inject("produce", LoseAnswer(1, error="OUT_OF_ORDER_SEQUENCE_NUMBER"))
        self.produce("t", b"v")
        self.clock.advance(1)
        self.flush()
        self.assertEqual([("OUT_OF_ORDER_SEQUENCE_NUMBER", b"v")], self.outcomes())
        self.assertEqual([b"v"], self.values())

    def test_a_permanently_lost_response_is_reported_only_by_a_purge(self):
        self.broker.inject("produce", LoseAnswer(float("inf")))
        self.produce("t", b"v")
        self.clock.advance(3600)
        self.assertEqual(1, self.flush())
        self.producer.purge()
        self.assertEqual(0, self.flush())
        self.assertEqual([("_PURGE_INFLIGHT", b"v")], self.outcomes())

    def test_an_unreachable_broker_is_reported_once_and_messages_wait_in_order(self):
        self.broker.disconnect()
        self.produce("t", b"1")
        self.produce("t", b"2")
        self.assertEqual(2, self.flush())
        self.assertEqual(["_ALL_BROKERS_DOWN"], [error.name for error in self.errors])
        self.broker.reconnect()
        self.produce("t", b"3")
        self.assertEqual(0, self.flush())
        self.assertEqual([b"1", b"2", b"3"], self.values())

    def test_messages_for_an_unreachable_broker_are_purged_from_the_queue(self):
        self.broker.disconnect()
        self.produce("t", b"v")
        self.producer.purge()
        self.poll()
        self.assertEqual([("_PURGE_QUEUE", b"v")], self.outcomes())

    def test_after_a_fatal_error_the_client_returns_no_report_and_accepts_no_message(self):
        self.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        self.produce("t", b"v")
        self.assertEqual(1, self.flush())
        self.assertEqual([], self.reports)
        self.assertEqual([True], [error.fatal for error in self.errors])
        error = self.assertRaises(KafkaException, self.produce, "t", b"w")
        self.assertEqual("_FATAL", self.producer.fault(error).name)

    def test_an_unreachable_broker_responds_to_no_request(self):
        self.broker.create_topic("t")
        self.broker.disconnect()
        error = self.producer.max_message_bytes(("t",), 0)["t"]
        self.assertIsInstance(error, RetriableError)
        self.assertEqual("_TIMED_OUT", error.name)

    def test_an_error_that_kafka_does_not_have_is_refused_when_the_fault_is_planned(self):
        error = self.assertRaises(ConfigurationError, self.broker.inject, "produce", Fail("NO_SUCH_ERROR"))
        self.assertIn("NO_SUCH_ERROR", str(error))

    def test_poll_wakes_when_the_virtual_clock_reaches_a_response(self):
        self.broker.inject("produce", Delay(60))
        self.produce("t", b"v")
        poller = threading.Thread(target=lambda: self.note(self.producer.poll(1000)))
        poller.start()
        self.clock.advance(60)
        poller.join(50)
        self.assertEqual([(None, b"v")], self.outcomes())
