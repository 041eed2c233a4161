# SPDX-License-Identifier: Apache-2.0
"""After a fatal error, the producer reports that it is finished, and continues with another client."""

import threading
from typing import Any
from unittest import mock

from monasca_common.kafka.errors import (
    ClosedError,
    DeliveryAbandoned,
    FatalError,
    FencedError,
    MisuseError,
    TransactionError,
    TransportError,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.transport.base import Outcomes
from monasca_common.kafka.transport.memory import Fail, MemoryProducer
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase
from monasca_common.tests.unit.kafka.transactional_memory import TransactionalMemoryProducer


class FinishedTest(ProducerCase):
    def finished(self, **settings):
        """Return a producer, and the report of the message at which its client failed."""
        producer = self.warm_producer(**settings)
        self.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        report = producer.publish("t", [b"a"], **AWAY)
        self.wait_until(lambda: producer.health().finished)
        self.wait_until_settled(producer)
        return producer, report

    def test_health_reports_the_refusal(self):
        producer, _ = self.finished()
        self.assertTrue(producer.health().finished)
        self.assertFalse(self.producer().health().finished)

    def test_later_messages_fail_immediately(self):
        producer, _ = self.finished()
        for records in ([b"b"], [Record(b"b")]):
            self.assertIsInstance(producer.publish("t", records, timeout=3600).failed[0].error.cause, FatalError)

    # Rule 6
    def test_reports_cannot_be_retried_before_the_producer_is_reopened(self):
        producer, report = self.finished()
        self.assertFalse(report.retriable)
        producer.reopen()
        self.assertTrue(report.retriable)
        self.assertTrue(producer.retry(report).ok)
        self.assertFalse(producer.health().finished)
        self.assertIsNone(producer.health().last_error)
        self.assertEqual([b"a"], self.values())

    def test_a_retry_by_another_producer_sends_the_message_as_before(self):
        _, report = self.finished()
        self.assertTrue(self.producer().retry(report).ok)
        self.assertEqual(self.ids(), [report.unknown[0].message_id])

    def test_ids_continue_and_room_is_free(self):
        producer, _ = self.finished(budget_messages=2)
        producer.reopen()
        sent = [producer.send("t", b"b"), producer.send("t", b"c")]
        self.assertEqual(2, producer.flush().delivered_count)
        self.assertEqual(sent, self.ids())
        self.assertEqual((0, 0), (producer.health().outstanding_messages, producer.health().outstanding_bytes))


class ReopenTest(ProducerCase):
    # Rule 6
    def test_messages_in_flight_are_unknown_and_the_old_client_does_not_deliver_them(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        sent = producer.send("t", b"a")
        report = producer.publish("t", [b"b"], **AWAY)
        producer.reopen()
        flushed = producer.flush(0)
        self.assertEqual([sent], [delivery.message_id for delivery in flushed.unknown])
        self.assertIsInstance(flushed.unknown[0].error, DeliveryAbandoned)
        self.broker.reconnect()
        again = producer.retry(report)
        self.assertTrue(again.ok)
        self.assertEqual([b"b"], self.values())

    def test_messages_published_during_a_reopen_go_to_the_new_client(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        producer.send("t", b"a")
        purged, published, reports = threading.Event(), threading.Event(), []
        transport = producer._clients.main
        purge = transport.purge

        def slow_purge():
            purged.set()
            published.wait(50)
            purge()

        transport.purge = slow_purge

        def publish():
            purged.wait(50)
            reports.append(producer.publish("t", [b"b", Record(b"c")], timeout=3600))

        reopening = threading.Thread(target=producer.reopen, daemon=True)
        publishing = threading.Thread(target=publish, daemon=True)
        for thread in (reopening, publishing):
            thread.start()
        self.assertTrue(purged.wait(50))
        self.wait_until(lambda: producer.health().outstanding_messages == 3 or reports)
        published.set()
        self.wait_until(lambda: not reopening.is_alive())
        self.broker.reconnect()
        publishing.join(50)
        self.assertEqual([True], [report.ok for report in reports])
        self.assertEqual([b"b", b"c"], self.values())

    def test_an_error_of_the_earlier_client_does_not_count_for_the_new_one(self):
        producer = self.warm_producer()
        before = producer._clients.main
        producer.reopen()
        before._on_error(TransportError("late", fatal=True))
        self.assertEqual((False, None), (producer.health().finished, producer.health().last_error))
        self.assertTrue(producer.publish("t", [b"a"]).ok)

    def test_a_message_whose_topic_was_looked_up_before_goes_to_the_new_client(self):
        producer = self.warm_producer()
        self.assertIsNotNone(producer.send("t", b"before"))
        self.assertEqual(1, producer.flush().delivered_count)
        limit = producer._limits.ready["t"]
        producer.reopen()
        ready = producer._limits.ready

        class EarlierLimits(dict[str, Any]):
            """Returns the limit from before the reopening, like a thread that has already looked it up."""

            def get(self, topic, default=None):
                producer._limits.ready = ready
                return limit

            def __contains__(self, topic):
                producer._limits.ready = ready
                return True

        for send in (
            lambda: producer.send("t", b"a"),
            lambda: producer.send("t", Record(b"b")),
            lambda: producer.publish("t", [b"c"]),
        ):
            producer._limits.ready = EarlierLimits()
            send()
        self.assertEqual(2, producer.flush().delivered_count)
        self.assertEqual([b"before", b"a", b"b", b"c"], self.values())

    # Rule 9
    def test_a_reopen_interrupted_while_it_abandons_messages_continues_with_the_new_client(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        sent = producer.send("t", b"a")
        with (
            mock.patch.object(producer._clients.main, "purge"),  # a client that returns no messages
            mock.patch.object(producer._serving, "wait", side_effect=KeyboardInterrupt),
        ):
            self.assertRaises(KeyboardInterrupt, producer.reopen)
        self.broker.reconnect()
        self.assertEqual([sent], [delivery.message_id for delivery in producer.flush(0).unknown])
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"b"], timeout=3600)).ok)
        self.assertEqual([b"b"], self.values())

    def test_a_closed_producer_is_not_opened_again(self):
        producer = self.producer()
        producer.close()
        self.assertRaises(ClosedError, producer.reopen)

    def test_reopening_initializes_transactions_first_and_keeps_the_client_after_a_failure(self):
        settings = self.kafka.producer_settings(transactional_id="mine")
        calls = []

        class Transactional(MemoryProducer):
            def init_transactions(self, timeout):
                calls.append(self)
                if len(calls) == 1:
                    raise TransportError("fenced")

        producer = KafkaProducer(
            settings,
            lambda batch_bytes, on_error: Transactional(settings, batch_bytes=batch_bytes, on_error=on_error),
        )
        self.addCleanup(producer.close, 0)
        before = producer._clients.main
        self.assertRaises(TransportError, producer.reopen)
        self.assertIs(before, producer._clients.main)
        self.assertTrue(producer.publish("t", [b"a"]).ok)
        producer.reopen()
        self.assertEqual(2, len(calls))
        producer.transaction()
        self.assertEqual(2, len(calls))


class OpenTransactionTest(ProducerCase):
    def setUp(self):
        super().setUp()
        settings = self.kafka.producer_settings(transactional_id="mine")
        self.clients = []

        def open_transport(batch_bytes, on_error):
            self.clients.append(TransactionalMemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error))
            return self.clients[-1]

        self.opened = KafkaProducer(settings, open_transport)
        self.addCleanup(self.opened.close, 0)

    def test_a_producer_is_not_reopened_while_a_transaction_is_open(self):
        with self.opened.transaction() as transaction:
            transaction.send("t", b"a")
            self.opened.transaction()  # another transaction, whose block is not entered
            self.assertIn("leave its block", str(self.assertRaises(MisuseError, self.opened.reopen)))
        self.assertEqual((1, [b"a"]), (len(self.clients), self.values()))

    def test_a_message_of_an_aborted_transaction_is_sent_again_although_its_outcome_is_late(self):
        record = Record(b"a", b"key", message_id=b"mine")
        client = self.clients[0]
        self.publish(Record(b"first"), timeout=60)

        def nothing(timeout):
            self.clock.advance(0.1)
            return Outcomes()

        with mock.patch.multiple(client, poll=nothing, flush=nothing):
            self.assertRaises(TransactionError, self.publish, record, timeout=0)
            self.assertRaises(TransactionError, self.publish, record, timeout=0)
        self.publish(record, timeout=60)
        self.assertEqual(["begin", "produce", "commit"], client.asked[-3:])
        self.assertEqual([b"mine"] * 3, self.ids()[1:])  # this client does not hide those of aborted transactions

    def publish(self, record, timeout):
        with self.opened.transaction():
            report = self.opened.publish("t", [record], timeout=timeout)
            if not report.ok:
                raise TransactionError("not delivered", report)

    def test_a_transaction_that_is_entered_while_it_is_reopened_keeps_its_client(self):
        entered = self.opened.transaction()

        def open_client():
            entered.__enter__()
            return mock.DEFAULT

        with mock.patch.object(self.opened._clients, "open", wraps=self.opened._clients.open) as opened:
            opened.side_effect = open_client
            self.assertRaises(MisuseError, self.opened.reopen)
        entered.send("t", b"a")
        entered.__exit__(None, None, None)
        self.assertEqual([b"a"], self.values())
        self.assertEqual("commit", self.clients[0].asked[-1])

    def test_a_producer_can_be_reopened_after_a_transaction_with_any_outcome(self):
        self.clients[0].commit_transaction = mock.Mock(side_effect=FencedError("another", name="_FENCED"))
        self.assertRaises(FencedError, self.transact)
        self.opened.reopen()
        self.transact()
        self.assertEqual(["init", "begin", "produce", "commit"], self.clients[1].asked)

    def transact(self):
        with self.opened.transaction() as transaction:
            transaction.send("t", b"a")


class RefusedTopicTest(ProducerCase):
    def setUp(self):
        super().setUp()
        self.broker.create_topic("u", 1)
        self.refused = self.warm_producer()
        self.refused.publish("u", [b"x" * 2_000_000])
        self.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"), topic="t")
        self.refused.publish("t", [b"a"])

    def error(self):
        error = self.refused.health().last_error
        return error and error.name

    def test_a_delivery_to_another_topic_does_not_clear_the_refusal(self):
        self.refused.publish("u", [b"a"])
        self.refused.send("u", b"a")
        self.refused.flush()
        self.assertEqual("TOPIC_AUTHORIZATION_FAILED", self.error())

    def test_a_bulk_delivered_to_the_topic_clears_it(self):
        self.refused.publish("t", [b"a"])
        self.assertIsNone(self.error())

    # Rule 6
    def test_a_plain_send_delivered_to_the_topic_clears_it(self):
        self.refused.send("t", b"a")
        self.refused.flush()
        self.assertIsNone(self.error())

    def test_the_second_of_two_refused_topics_is_still_reported(self):
        self.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"), topic="u")
        self.refused.publish("u", [b"a"])
        self.refused.publish("u", [b"a"])
        self.assertEqual("TOPIC_AUTHORIZATION_FAILED", self.error())
        self.refused.publish("t", [b"a"])
        self.assertIsNone(self.error())
