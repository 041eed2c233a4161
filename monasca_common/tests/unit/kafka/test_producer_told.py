# SPDX-License-Identifier: Apache-2.0
"""Whatever cuts a call short, somebody is told what became of each message."""

import dataclasses
import math
import threading

import fixtures

from monasca_common.kafka.errors import (
    AuthenticationError,
    DeliveryAbandoned,
    DeliveryTimeout,
    MessageTooLarge,
    QueueFull,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.memory import Fail, LoseAnswer
from monasca_common.tests.unit.kafka.producer_case import AWAY, ProducerCase


class InterruptedTest(ProducerCase):
    """Ctrl-C while messages are handed to the client: there is no report, so a flush and the close tell of them."""

    def interrupted(self, records):
        """A producer whose publish of these was interrupted when the first was handed over."""
        producer = self.warm_producer()
        self.addCleanup(self.close, producer)
        route = producer._routes.ready["t"]
        handed_over = []

        def produce(*arguments):
            if handed_over:
                raise KeyboardInterrupt
            handed_over.append(arguments)
            route.transport.produce(*arguments)

        producer._routes.ready["t"] = dataclasses.replace(route, produce=produce)
        self.assertRaises(KeyboardInterrupt, producer.publish, "t", records)
        producer._routes.ready["t"] = route
        return producer

    def close(self, producer):
        """The report of its close, for which virtual time passes."""
        reports = []
        thread = threading.Thread(target=lambda: reports.append(producer.close(0)), daemon=True)
        thread.start()
        while thread.is_alive():
            self.clock.advance(1)
            thread.join(0.005)
        return reports[0]

    def test_a_close_tells_of_a_plain_bulk(self):
        report = self.close(self.interrupted([b"a", b"b"]))
        self.assertEqual(2, report.delivered_count + len(report.unknown))

    def test_a_close_tells_of_records(self):
        report = self.close(self.interrupted([Record(b"a"), Record(b"b")]))
        self.assertEqual(2, report.delivered_count + len(report.unknown))

    def test_a_flush_tells_first_and_the_close_then_does_not(self):
        producer = self.interrupted([b"a", b"b"])
        report = producer.flush(0)
        self.assertEqual(2, report.delivered_count + len(report.unknown))
        self.assertEqual(0, len(self.close(producer).unknown))


class LimitTest(ProducerCase):
    def test_a_login_that_fails_at_first_does_not_do_away_with_a_topics_limit(self):
        self.broker.create_topic("small", 1, max_message_bytes=2000)
        self.broker.inject("metadata", Fail("SASL_AUTHENTICATION_FAILED"))
        producer = self.producer()
        report = producer.publish("small", [b"x" * 3000])
        self.assertIsInstance(report.failed[0].error, MessageTooLarge)
        self.assertIsInstance(producer.health().last_error, AuthenticationError)
        self.assertEqual([], self.values("small"))


class LeftTest(ProducerCase):
    """Nobody gets the report of a close that leaving a block makes."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka.producer"))

    def test_leaving_a_block_logs_how_many_sends_were_not_delivered(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        with self.producer() as producer:
            producer.send("t", b"payload")
            producer.send("t", b"payload")
        self.assertIn("closed with 1 messages that are not delivered (0 of them unknown)", self.log.output)
        self.assertNotIn("payload", self.log.output)

    def test_what_a_close_has_told_is_not_logged(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        with self.producer() as producer:
            producer.send("t", b"payload")
            self.assertEqual(1, len(producer.close().failed))
        self.assertEqual("", self.log.output)


class UsedAgainTest(ProducerCase):
    """What kept a delivered send in the book keeps a later one."""

    def busy_producer(self):
        """One that keeps what it may use again: it has a message on its way for as long as no time passes."""
        self.broker.create_topic("u", 1)
        producer = self.warm_producer()
        producer.publish("u", [b"x" * 2_000_000], timeout=3600)
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS", seconds=1))
        producer.send("u", b"on its way")
        return producer

    def sent(self, producer, value):
        """Its id, once it is settled."""
        others = producer.health().outstanding_messages
        message_id = producer.send("t", value)
        while producer.health().outstanding_messages > others:
            producer._pump.help()
        with producer._ledger.serving:  # whoever collected the answer is done with it
            return message_id

    def test_a_failure_is_told_under_its_own_id(self):
        producer = self.busy_producer()
        self.sent(producer, b"a")
        (kept,) = producer._ledger.spare
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        message_id = self.sent(producer, b"b")
        self.assertEqual([kept], producer._ledger._undelivered)
        report = producer.flush(0)
        self.assertEqual([message_id], [delivery.message_id for delivery in report.failed])
        self.assertEqual(1, report.delivered_count)

    def test_what_a_report_has_told_of_is_not_used_again(self):
        producer = self.busy_producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        message_id = self.sent(producer, b"a")
        report = producer.flush(0)
        for _ in range(3):
            self.sent(producer, b"b")
        self.assertEqual([message_id], [delivery.message_id for delivery in report.failed])
        producer.retry(report, **AWAY)
        self.assertEqual([b"b", b"b", b"b", b"a"], self.values())
        self.assertEqual(message_id, self.ids()[-1])

    def test_one_that_a_flush_left_on_its_way_is_not_used_again(self):
        producer = self.busy_producer()
        report = producer.flush(0)
        (delivery,) = report.unknown
        self.clock.advance(1)
        for _ in range(3):
            self.sent(producer, b"b")
        again = producer.retry(report)
        self.assertEqual([(delivery.message_id, "u")], [(each.message_id, each.topic) for each in again.delivered])


class SentAndPublishedTest(ProducerCase):
    """A message that was sent, and then published under the same id: both callers are told."""

    RECORD = Record(b"v", message_id=b"mine")

    def sent_and_published(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS", seconds=1))
        producer = self.warm_producer()
        producer.send("t", self.RECORD)
        self.assertEqual(1, len(producer.publish("t", [self.RECORD], **AWAY).unknown))
        return producer

    def test_a_flush_that_does_not_wait_tells_of_it_and_the_next_one_does_not(self):
        producer = self.sent_and_published()
        self.assertEqual([b"mine"], [delivery.message_id for delivery in producer.flush(0).unknown])
        self.assertEqual(0, len(producer.flush(0).unknown))

    def test_a_flush_tells_that_it_failed(self):
        producer = self.sent_and_published()
        self.clock.advance(1)
        self.assertEqual(1, len(self.at_once(lambda: producer.flush(0.1)).failed))


class AttachedTest(ProducerCase):
    """Several callers hand over a message under one id of theirs; the first alone is sent."""

    RECORD = Record(b"v", message_id=b"mine")

    def setUp(self):
        super().setUp()
        self.broker.inject("produce", LoseAnswer(math.inf), count=None)
        self.crowded = self.warm_producer(budget_messages=1)
        self.occupant = self.crowded.publish("t", [b"first"], **AWAY)

    def in_thread(self, call):
        """A thread in ``call``, and what it returned or raised."""
        ended = []

        def run():
            try:
                ended.append(call())
            except QueueFull as error:
                ended.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, ended

    def waiting_for_room(self, call):
        thread, ended = self.in_thread(call)
        while not self.crowded._ledger.waiting_for_room:
            thread.join(0.001)
        return thread, ended

    def meanwhile(self, call):
        """What ``call`` returned, beside somebody who waits for room and goes on waiting."""
        thread, ended = self.in_thread(call)
        self.time_passes(thread, step_seconds=0.005)
        return ended[0]

    def time_passes(self, thread, step_seconds=1):
        while thread.is_alive():
            self.clock.advance(step_seconds)
            thread.join(0.001)

    def test_a_publish_hears_that_the_send_it_attached_to_found_no_room(self):
        sending, ended = self.waiting_for_room(lambda: self.crowded.send("t", self.RECORD))
        attached = self.meanwhile(lambda: self.crowded.publish("t", [self.RECORD], **AWAY))
        self.assertIsInstance(attached.unknown[0].error, DeliveryTimeout)
        self.time_passes(sending)
        self.assertIsInstance(ended[0], QueueFull)
        self.assertIsInstance(self.crowded.retry(attached, **AWAY).failed[0].error, QueueFull)

    def test_a_flush_tells_of_a_send_that_attached_to_one_that_found_no_room(self):
        sending, _ = self.waiting_for_room(lambda: self.crowded.send("t", self.RECORD))
        self.meanwhile(lambda: self.crowded.send("t", self.RECORD))
        self.time_passes(sending)
        self.assertEqual([b"mine"], [delivery.message_id for delivery in self.crowded.flush(0).failed])

    def test_a_flush_tells_of_a_send_that_attached_to_a_publish(self):
        publishing, ended = self.waiting_for_room(lambda: self.crowded.publish("t", [self.RECORD], timeout=5))
        self.meanwhile(lambda: self.crowded.send("t", self.RECORD))
        self.time_passes(publishing)
        self.assertIsInstance(ended[0].failed[0].error, QueueFull)
        self.assertEqual([b"mine"], [delivery.message_id for delivery in self.crowded.flush(0).failed])

    def test_an_interrupt_while_there_is_no_room_is_told_and_leaves_the_id_free(self):
        pump = self.crowded._pump
        wait, pump.wait = pump.wait, interrupt
        self.assertRaises(KeyboardInterrupt, self.crowded.publish, "t", [self.RECORD])
        pump.wait = wait
        self.assertIsInstance(self.crowded.flush(0).failed[0].error, DeliveryAbandoned)
        self.assertIsInstance(self.crowded.publish("t", [self.RECORD], **AWAY).failed[0].error, QueueFull)


def interrupt(*_arguments):
    raise KeyboardInterrupt
