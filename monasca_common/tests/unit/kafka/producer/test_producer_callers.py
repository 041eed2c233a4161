# SPDX-License-Identifier: Apache-2.0
"""Each caller gets the outcome of its message, even if another caller sends the same message."""

import threading
from unittest import mock

import fixtures

from monasca_common.kafka.errors import (
    AuthenticationError,
    DeliveryAbandoned,
    MessageTooLarge,
    QueueFull,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.memory import Delay, Fail
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase


class LimitTest(ProducerCase):
    def test_a_login_that_fails_at_first_keeps_a_topics_limit(self):
        self.broker.create_topic("small", 1, max_message_bytes=2000)
        self.broker.inject("metadata", Fail("SASL_AUTHENTICATION_FAILED"))
        producer = self.producer()
        report = producer.publish("small", [b"x" * 3000])
        self.assertIsInstance(report.failed[0].error, MessageTooLarge)
        self.assertIsInstance(producer.health().last_error, AuthenticationError)
        self.assertEqual([], self.values("small"))


class UndeliveredLogTest(ProducerCase):
    """The report of a close at the end of a block is not returned."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka.producer"))

    def test_leaving_a_block_logs_how_many_sends_were_not_delivered(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        with self.producer() as producer:
            producer.send("t", b"payload")
            producer.send("t", b"payload")
        self.assertIn("closed with 1 undelivered messages (0 of them unknown)", self.log.output)
        self.assertNotIn("payload", self.log.output)

    def test_messages_in_the_report_of_a_close_are_not_logged(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        with self.producer() as producer:
            producer.send("t", b"payload")
            self.assertEqual(1, len(producer.close().failed))
        self.assertEqual("", self.log.output)


class SentAndPublishedTest(ProducerCase):
    """A message that was sent, and then published under the same id: both callers get the outcome."""

    RECORD = Record(b"v", message_id=b"mine")

    def sent_and_published(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS", seconds=1))
        producer = self.warm_producer()
        producer.send("t", self.RECORD)
        self.assertEqual(1, len(producer.publish("t", [self.RECORD], **AWAY).unknown))
        return producer

    def test_a_message_is_reported_by_a_flush_that_does_not_wait_and_not_by_the_next_flush(self):
        producer = self.sent_and_published()
        self.assertEqual([b"mine"], [delivery.message_id for delivery in producer.flush(0).unknown])
        self.assertEqual(0, len(producer.flush(0).unknown))

    def test_a_flush_reports_a_failed_message(self):
        producer = self.sent_and_published()
        self.clock.advance(1)
        self.assertEqual(1, len(self.at_once(lambda: producer.flush(0.1)).failed))


class RepeatsInFlightTest(ProducerCase):
    """An id is published repeatedly while Kafka does not respond: only callers that still wait are stored."""

    RECORD = Record(b"v", message_id=b"mine")

    def setUp(self):
        super().setUp()
        self.patient = self.warm_producer()
        self.broker.disconnect()

    def waiting(self):
        [bulk] = self.patient._table.unfinished()
        [attempt] = bulk.attempts.values()
        return [*attempt.listeners, *self.patient._table.waiters]

    # Rule 4
    def test_callers_that_time_out_leave_no_waiters(self):
        for _ in range(200):
            self.assertEqual(1, len(self.patient.publish("t", [self.RECORD], **AWAY).unknown))
        self.assertEqual([], self.waiting())

    def test_sends_leave_no_state_and_a_flush_reports_the_message_once(self):
        for _ in range(200):
            self.patient.send("t", self.RECORD)
        self.assertEqual([], self.waiting())
        self.broker.reconnect()
        self.assertEqual(1, self.patient.flush().delivered_count)
        self.assertEqual(0, self.patient.flush().delivered_count)

    def test_flushes_that_time_out_leave_no_waiters(self):
        for _ in range(200):
            self.patient.send("t", self.RECORD)
            self.assertEqual(1, len(self.patient.flush(0).unknown))
        self.assertEqual([], self.waiting())

    def test_each_listener_is_called_and_a_waiting_caller_returns(self):
        received = []
        all_heard = threading.Semaphore(0)

        def listener(delivery):
            received.append(delivery.message_id)
            all_heard.release()

        def repeat():
            for _ in range(3):
                self.patient.publish("t", [self.RECORD], **AWAY)
                self.patient.send("t", self.RECORD, on_delivery=listener)
            self.broker.reconnect()

        answered = []
        publish = threading.Thread(
            target=lambda: answered.append(self.patient.publish("t", [self.RECORD], timeout=3600)), daemon=True
        )
        publish.start()
        self.wait_until(lambda: self.patient.health().outstanding_messages)
        repeating = threading.Thread(target=repeat, daemon=True)
        repeating.start()
        while publish.is_alive() or repeating.is_alive():
            self.clock.advance(0.005)
            publish.join(0.001)
        self.assertTrue(answered[0].ok)
        for _ in range(3):
            self.assertTrue(all_heard.acquire(timeout=50))
        self.assertEqual([b"mine"] * 3, received)


class SameIdInFlightTest(ProducerCase):
    RECORD = Record(b"v", message_id=b"mine")

    def test_a_message_in_flight_is_not_refused_with_its_bulk(self):
        producer = self.warm_producer(budget_messages=2)
        self.broker.disconnect()
        producer.send("t", self.RECORD)
        report = producer.publish("t", [self.RECORD, b"a", b"b"], **AWAY)
        self.assertEqual(([b"mine"], 2), ([each.message_id for each in report.unknown], len(report.failed)))
        self.broker.reconnect()
        producer.flush(3600)
        self.assertTrue(producer.retry(report, timeout=3600).ok)
        self.assertEqual([b"a", b"b", b"v"], sorted(self.values()))

    def test_a_flush_reports_a_message_although_another_caller_has_a_listener_for_it(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        reported = []
        producer.send("t", self.RECORD)
        producer.send("t", self.RECORD, on_delivery=reported.append)
        report = producer.close(0)
        self.assertEqual([b"mine"], [each.message_id for each in report.unknown])
        self.assertEqual([b"mine"], [each.message_id for each in reported])


class SameIdTest(ProducerCase):
    """Several callers publish a message under the same id while the budget has no room."""

    RECORD = Record(b"v", message_id=b"mine")

    def setUp(self):
        super().setUp()
        self.crowded = self.warm_producer(budget_messages=1)
        self.broker.disconnect()
        self.assertEqual(1, len(self.crowded.publish("t", [b"first"], **AWAY).unknown))

    # Rule 4
    def test_with_room_one_caller_sends_the_message_and_the_others_attach_to_it(self):
        reports = []

        def publish():
            reports.append(self.crowded.publish("t", [self.RECORD], timeout=3600))

        threads = [threading.Thread(target=publish, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.wait_until(lambda: len(self.crowded._table.waiters) == len(threads))
        self.broker.inject("produce", Delay(0.01))
        self.broker.reconnect()
        while any(thread.is_alive() for thread in threads):
            self.clock.advance(0.005)
            threads[0].join(0.001)
        self.assertEqual([True] * 3, [report.ok for report in reports])

    def test_without_room_every_caller_is_refused_and_the_id_stays_free(self):
        for _ in range(2):
            self.assertIsInstance(self.crowded.publish("t", [self.RECORD], **AWAY).failed[0].error, QueueFull)
        self.broker.reconnect()
        self.assertTrue(self.crowded.publish("t", [self.RECORD]).ok)
        self.assertEqual([b"first", b"v"], self.values())

    def test_an_interrupt_without_room_is_reported_and_leaves_the_id_free(self):
        with mock.patch.object(self.crowded._serving, "wait", interrupt):
            self.assertRaises(KeyboardInterrupt, self.crowded.publish, "t", [self.RECORD])
        self.assertIsInstance(self.crowded.flush(0).unknown[0].error, DeliveryAbandoned)
        self.assertIsInstance(self.crowded.publish("t", [self.RECORD], **AWAY).failed[0].error, QueueFull)


def interrupt(*_arguments):
    raise KeyboardInterrupt
