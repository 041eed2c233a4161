# SPDX-License-Identifier: Apache-2.0
"""Transactions on a real Kafka: messages and offsets become visible together or not at all, from one producer at a
time."""

import uuid

from monasca_common.kafka.errors import ConfigurationError, FencedError, TransactionError
from monasca_common.kafka.message import Batch, Record
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase


class TestTransactions(ProducerCase):
    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()

    def transactional(self, transactional_id=None):
        return self.producer(transactional_id=transactional_id or f"transactional-{uuid.uuid4().hex[:12]}")

    def seen(self):
        """Return the values of a reader of committed data up to a record that is sent now."""
        self.producer().publish(self.topic, [b"end"], timeout=SECONDS).raise_for_undelivered()
        return sorted(set(self.read(self.topic).values()) - {b"end"})

    def source_with(self, *values):
        """Return a topic with each value in a separate partition, its consumer, and the first batch with all values."""
        source = self.fixture.topic(len(values))
        records = [Record(value, partition=number) for number, value in enumerate(values)]
        self.producer().publish(source, records, timeout=SECONDS).raise_for_undelivered()
        consumer = self.consumer(source)
        parts = []

        def all_there():
            parts.extend(consumer.poll(timeout=0.2).partitions)
            return len(parts) == len(values)

        self.wait_until(all_there)
        return source, consumer, Batch(tuple(parts))

    def test_an_undelivered_message_aborts_the_transaction(self):
        producer = self.transactional()

        def with_a_large_one():
            with producer.transaction() as transaction:
                transaction.send(self.topic, b"good")
                transaction.send(self.topic, b"x" * 2_000_000)

        self.assertRaises(TransactionError, with_a_large_one)
        with producer.transaction() as transaction:
            transaction.send(self.topic, b"next")
        self.assertEqual([b"next"], self.seen())

    # Rule 20
    def test_inputs_revoked_in_the_meantime_abort_the_transaction(self):
        source, consumer, batch = self.source_with(b"1", b"2")
        other = self.consumer(source, group=consumer.settings.group_id)

        def taken():
            consumer.poll(timeout=0.1)
            other.poll(timeout=0.1)
            return other.assignment() and len(consumer.assignment()) == 1

        def revoked():
            with self.transactional().transaction() as transaction:
                transaction.send(self.topic, b"from the old owner")
                self.wait_until(taken)
                transaction.commit_offsets(consumer, batch)

        self.assertRaises(TransactionError, revoked)
        self.assertEqual([], self.seen())

    # Rule 20
    def test_the_second_producer_of_a_transactional_id_fences_the_first(self):
        first, second = self.transactional("same"), self.transactional("same")
        with first.transaction() as transaction:
            transaction.send(self.topic, b"first")
        with second.transaction() as transaction:
            transaction.send(self.topic, b"second")

        def fenced():
            with first.transaction() as transaction:
                transaction.send(self.topic, b"fenced")

        self.assertRaises(FencedError, fenced)
        self.assertEqual([b"first", b"second"], self.seen())

    def test_a_producer_without_a_transactional_id_names_the_missing_option(self):
        refusal = self.assertRaises(ConfigurationError, self.producer().transaction)
        self.assertIn("transactional_id", str(refusal))
