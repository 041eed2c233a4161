# SPDX-License-Identifier: Apache-2.0
"""A transaction commits only if each message sent in it was delivered, and a producer has one at a time."""

import contextlib
from unittest import mock

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import MessageTooLarge, MisuseError, RetriableError, TransactionError
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transaction import Transaction
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase
from monasca_common.tests.unit.kafka.transactional_memory import (
    TransactionalMemoryConsumer,
    TransactionalMemoryProducer,
)

TOO_LARGE = Record(b"x" * 2_000_000)  # the producer refuses it; the client never gets it


class TransactionalProducerCase(ProducerCase):
    def setUp(self):
        super().setUp()
        self.transactional = self.open()

    def open(self, **settings):
        settings = self.kafka.producer_settings(transactional_id="mine", **settings)

        def open_transport(batch_bytes, on_error):
            self.client = TransactionalMemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)
            return self.client

        producer = KafkaProducer(settings, open_transport)
        self.addCleanup(producer.close, 0)
        return producer

    def transact(self, *actions):
        """Call each action in one transaction, with the transaction."""
        with self.transactional.transaction() as transaction:
            for action in actions:
                action(transaction)

    def assert_aborted(self, *actions):
        error = self.assertRaises(TransactionError, self.transact, *actions)
        self.assertNotIn("commit", self.client.asked)
        self.assertEqual("abort", self.client.asked[-1])
        return error


class UndeliveredTest(TransactionalProducerCase):
    def test_an_undelivered_message_with_a_listener_aborts_the_transaction(self):
        heard = []
        error = self.assert_aborted(lambda transaction: transaction.send("t", TOO_LARGE, on_delivery=heard.append))
        self.assertIsInstance(error.report.failed[0].error, MessageTooLarge)
        self.wait_until(lambda: heard)
        self.assertIsInstance(heard[0].error, MessageTooLarge)
        self.transact(lambda transaction: transaction.send("t", b"next"))
        self.assertEqual(([b"next"], "commit"), (self.values(), self.client.asked[-1]))

    def test_a_message_with_a_listener_and_without_an_outcome_in_time_aborts_the_transaction(self):
        self.kafka = self.useFixture(MemoryKafka())  # whose time passes
        self.kafka.broker.create_topic("t", 1)
        self.kafka.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        self.transactional = self.open(transaction_timeout_seconds=0.05)
        error = self.assert_aborted(lambda transaction: transaction.send("t", b"a", on_delivery=[].append))
        self.assertEqual(1, len(error.report.unknown))

    def test_an_undelivered_message_that_another_flush_has_reported_aborts_the_transaction(self):
        reports = []
        self.assert_aborted(
            lambda transaction: transaction.send("t", TOO_LARGE),
            lambda _: reports.append(self.at_once(lambda: self.transactional.flush(3600))),
        )
        self.assertEqual(1, len(reports[0].failed))

    def test_a_message_that_fails_after_another_flush_has_reported_it_in_flight_aborts_the_transaction(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        self.assert_aborted(
            lambda transaction: transaction.send("t", TOO_LARGE),
            lambda _: self.assertEqual(1, len(self.transactional.flush(0).unknown)),
            lambda _: self.broker.clear_faults(),
        )

    def test_a_message_that_a_retry_delivers_is_committed(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        self.transact(
            lambda transaction: transaction.send("t", b"a"),
            lambda _: self.transactional.retry(self.transactional.flush(3600)).raise_for_undelivered(),
        )
        self.assertEqual(([b"a"], "commit"), (self.values(), self.client.asked[-1]))

    def test_a_message_in_flight_that_another_flush_has_reported_is_committed_once_it_is_delivered(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        self.transact(
            lambda transaction: transaction.send("t", Record(b"a")),
            lambda _: self.assertEqual(1, len(self.transactional.flush(0).unknown)),
            lambda _: self.broker.clear_faults(),
        )
        self.assertEqual(([b"a"], "commit"), (self.values(), self.client.asked[-1]))

    def test_the_caller_of_publish_decides_about_undelivered_messages(self):
        self.transact(lambda _: self.assertEqual(1, len(self.transactional.publish("t", [TOO_LARGE]).failed)))
        self.assertEqual("commit", self.client.asked[-1])

    def test_a_message_of_an_aborted_transaction_does_not_abort_the_next_one(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)

        def send_and_fail(transaction):
            transaction.send("t", Record(b"a"), on_delivery=[].append)
            transaction.send("t", Record(b"b"))
            self.transactional.flush(0)
            self.broker.clear_faults()
            raise ZeroDivisionError

        self.assertRaises(ZeroDivisionError, self.transact, send_and_fail)
        self.transact(lambda transaction: transaction.send("t", b"next"))
        self.assertEqual("commit", self.client.asked[-1])


class OneAtATimeTest(TransactionalProducerCase):
    def test_another_transaction_cannot_begin_while_one_is_open(self):
        def enter_another(_transaction):
            self.assertRaises(MisuseError, self.transact)
            self.at_once(lambda: self.assertRaises(MisuseError, self.transact))

        for value in (b"1", b"2"):
            self.transact(lambda transaction, value=value: transaction.send("t", value), enter_another)
        self.assertEqual(["begin", "produce", "commit", "begin", "produce", "commit"], self.client.asked[1:])
        self.assertEqual([b"1", b"2"], self.values())

    def test_another_transaction_cannot_begin_while_one_begins(self):
        client, begin = self.client, self.client.begin_transaction

        def begin_both():
            self.at_once(lambda: self.assertRaises(MisuseError, self.transact))
            begin()

        client.begin_transaction = begin_both
        self.transact()
        self.assertEqual(["init", "begin", "commit"], client.asked)

    def test_a_transaction_that_does_not_begin_is_not_open(self):
        begin, abort = self.client.begin_transaction, self.client.abort_transaction
        for error in (KeyboardInterrupt(), RetriableError("late", name="_TIMED_OUT")):
            self.client.begin_transaction = self.client.abort_transaction = mock.Mock(side_effect=error)
            self.assertRaises((KeyboardInterrupt, TransactionError), self.transact)
        self.client.begin_transaction, self.client.abort_transaction = begin, abort
        self.transact(lambda transaction: transaction.send("t", b"a"))
        self.assertEqual(["init", "abort", "begin", "produce", "commit"], self.client.asked)

    def test_a_transaction_whose_exit_is_interrupted_is_aborted_by_the_next_one(self):
        def interrupted(*_arguments):
            raise KeyboardInterrupt

        with mock.patch.object(Transaction, "__exit__", interrupted), contextlib.suppress(KeyboardInterrupt):
            self.transact(lambda transaction: transaction.send("t", TOO_LARGE))
        self.transact(lambda transaction: transaction.send("t", b"a"))
        self.assertEqual(["init", "begin", "abort", "begin", "produce", "commit"], self.client.asked)


class InputsTest(TransactionalProducerCase):
    # Rule 20
    def test_inputs_are_read_again_if_commit_offsets_is_called_before_an_exception(self):
        self.broker.create_topic("in", 1)
        self.producer().publish("in", [b"1"]).raise_for_undelivered()
        settings = self.kafka.consumer_settings("in")
        consumer = KafkaConsumer(settings, TransactionalMemoryConsumer(settings))
        self.addCleanup(consumer.close, 0)

        def fail(_transaction):
            raise ZeroDivisionError

        def commit_first(transaction):
            transaction.commit_offsets(consumer, batch)

        batch = consumer.poll(timeout=3600)
        self.assertRaises(ZeroDivisionError, self.transact, commit_first, fail)
        self.assertEqual([b"1"], [message.value for message in consumer.poll(timeout=3600)])
