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
from monasca_common.kafka.transport.memory import Delay, Fail, LoseAnswer
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase


class InterruptedTest(ProducerCase):
    """Ctrl-C while messages are handed to the client: there is no report, so a flush and the close tell of them."""

    def interrupted(self, records):
        """A producer whose publish of these was interrupted as the second one was handed over."""
        producer = self.warm_producer()
        self.addCleanup(self.close, producer)
        limit = producer._client.limits.ready["t"]
        handed_over = []

        def produce(*arguments):
            if handed_over:
                raise KeyboardInterrupt
            handed_over.append(arguments)
            limit.transport.produce(*arguments)

        producer._client.limits.ready["t"] = dataclasses.replace(limit, produce=produce)
        self.assertRaises(KeyboardInterrupt, producer.publish, "t", records)
        producer._client.limits.ready["t"] = limit
        self.collect(producer)
        return producer

    def collect(self, producer):
        """Take in the answers that there are."""
        with producer._ledger.serving:
            producer._poller.poll_in_passing()

    def close(self, producer):
        """The report of its close, for which virtual time passes."""
        reports = []
        thread = threading.Thread(target=lambda: reports.append(producer.close(0)), daemon=True)
        thread.start()
        while thread.is_alive():
            self.clock.advance(1)
            thread.join(0.005)
        return reports[0]

    PLAIN = (b"a", b"b", b"c", b"d")
    RECORDS = tuple(Record(value) for value in PLAIN)

    # Rule 9
    def test_what_was_not_handed_over_is_failed_and_its_room_is_free(self):
        for records in (self.PLAIN, self.RECORDS):
            producer = self.interrupted(records)
            self.assertLessEqual(producer.health().outstanding_messages, 2)
            report = self.at_once(lambda producer=producer: producer.flush(0))
            self.assertEqual((1, 2, 1), (report.delivered_count, len(report.failed), len(report.unknown)))
            self.assertEqual({DeliveryAbandoned}, {type(delivery.error) for delivery in report.failed})

    def test_a_retry_of_what_the_flush_tells_sends_what_failed(self):
        for records in (self.PLAIN, self.RECORDS):
            producer = self.interrupted(records)
            report = producer.flush(0)
            producer.retry(report, **AWAY)
            self.collect(producer)
            again = producer.retry(report, **AWAY)
            self.assertEqual((3, 0, 1), (again.delivered_count, len(again.failed), len(again.unknown)))
        self.assertEqual([b"a", b"c", b"d"] * 2, self.values())

    def test_a_close_tells_of_all_and_that_the_client_never_had_the_one_that_was_being_handed_over(self):
        for records in (self.PLAIN, self.RECORDS):
            report = self.close(self.interrupted(records))
            self.assertEqual((1, 3, 0), (report.delivered_count, len(report.failed), len(report.unknown)))
            self.assertIn("the client never had it", str([delivery.error for delivery in report.failed]))

    def test_a_flush_tells_first_and_the_close_then_does_not(self):
        producer = self.interrupted(self.PLAIN)
        self.assertEqual(1, len(producer.flush(0).unknown))
        self.assertEqual((0, ()), ((report := self.close(producer)).delivered_count, report.failed + report.unknown))

    def test_a_send_that_is_interrupted_as_it_is_handed_over_is_told_by_the_close(self):
        producer = self.warm_producer()
        limit = producer._client.limits.ready["t"]
        producer._client.limits.ready["t"] = dataclasses.replace(limit, produce=interrupt)
        for record in (b"a", Record(b"b")):
            self.assertRaises(KeyboardInterrupt, producer.send, "t", record)
        self.assertEqual(2, len(self.close(producer).failed))

    # Rule 9
    def test_whatever_strikes_as_an_answer_is_taken_in_leaves_it_settled_once(self):
        """Ctrl-C in a callback: the client gives the answer once and never again."""
        self.broker.inject("produce", Delay(1))
        producer = self.warm_producer()
        producer.send("t", Record(b"a", message_id=b"mine"))
        ledger = producer._ledger
        tell = ledger._tell

        def struck(pending):
            ledger._tell = tell
            raise KeyboardInterrupt

        self.addCleanup(self.close, producer)
        producer._poller.stop(10)  # so that nobody else takes the answer in
        ledger._tell = struck
        self.clock.advance(1)
        self.assertRaises(KeyboardInterrupt, producer._poller.poll_in_passing)
        report = producer.flush(0)
        self.assertEqual((1, ()), (report.delivered_count, report.failed + report.unknown))
        self.assertEqual((0, 0), (producer.health().outstanding_messages, producer.health().outstanding_bytes))


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
            producer._poller.poll_in_passing()
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


class RepeatsInFlightTest(ProducerCase):
    """An id that is handed over again and again while Kafka is silent: only those who still wait are kept."""

    RECORD = Record(b"v", message_id=b"mine")

    def setUp(self):
        super().setUp()
        self.patient = self.warm_producer()
        self.broker.disconnect()

    def watchers(self):
        (pending,) = self.patient._ledger.outstanding
        return pending.watchers

    # Rule 4
    def test_callers_whose_time_is_over_leave_nothing_behind(self):
        for _ in range(200):
            self.assertEqual(1, len(self.patient.publish("t", [self.RECORD], **AWAY).unknown))
        self.assertLessEqual(len(self.watchers()), 1)

    def test_plain_sends_leave_one_watcher_and_a_flush_tells_of_the_message_once(self):
        for _ in range(200):
            self.patient.send("t", self.RECORD)
        self.assertEqual(1, len(self.watchers()))
        self.broker.reconnect()
        self.assertEqual(1, self.patient.flush().delivered_count)
        self.assertEqual(0, self.patient.flush().delivered_count)

    def test_flushes_whose_time_is_over_leave_nothing_behind(self):
        for _ in range(200):
            self.patient.send("t", self.RECORD)
            self.assertEqual(1, len(self.patient.flush(0).unknown))
        self.assertLessEqual(len(self.watchers()), 1)

    def test_each_listener_hears_and_a_caller_that_still_waits_is_answered(self):
        heard = []
        all_heard = threading.Semaphore(0)

        def listener(delivery):
            heard.append(delivery.message_id)
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
        while not self.patient._ledger.outstanding:
            publish.join(0.001)
        repeating = threading.Thread(target=repeat, daemon=True)
        repeating.start()
        while publish.is_alive() or repeating.is_alive():
            self.clock.advance(0.005)
            publish.join(0.001)
        self.assertTrue(answered[0].ok)
        for _ in range(3):
            self.assertTrue(all_heard.acquire(timeout=50))
        self.assertEqual([b"mine"] * 3, heard)


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
        while not self.crowded._ledger.budget.waiting:
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

    # Rule 4
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
        poller = self.crowded._poller
        wait, poller.wait = poller.wait, interrupt
        self.assertRaises(KeyboardInterrupt, self.crowded.publish, "t", [self.RECORD])
        poller.wait = wait
        self.assertIsInstance(self.crowded.flush(0).failed[0].error, DeliveryAbandoned)
        self.assertIsInstance(self.crowded.publish("t", [self.RECORD], **AWAY).failed[0].error, QueueFull)


def interrupt(*_arguments):
    raise KeyboardInterrupt
