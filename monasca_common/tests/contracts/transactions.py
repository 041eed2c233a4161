# SPDX-License-Identifier: Apache-2.0
"""The contract of transactions: outputs and input offsets are committed together, or not at all."""

import contextlib

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.message import Batch, Record
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.tests.contracts.cluster import Capability, needs
from monasca_common.tests.contracts.scenario import Scenario


class Interruption(Exception):
    """Raised by tests to interrupt a transaction."""


class TransactionContract(Scenario):
    def transactional(self) -> KafkaProducer:
        return self.cluster.producer(transactional_id=self.cluster.name("transactional"))

    def consumer_and_input(self) -> tuple[KafkaConsumer, Batch]:
        self.publish(self.topic, [Record(b"in", partition=0)])
        consumer = self.cluster.consumer(self.topic, self.group)
        [batch] = self.await_batches(consumer, 1)
        return consumer, batch

    def values(self, topic: str, count: int) -> list[bytes | None]:
        """Return the first ``count`` committed values; hidden messages are missing from it."""
        with self.cluster.reader(topic) as reader:
            reader.seek_to_beginning()
            return [message.value for message in self.read(reader, count)]

    @needs(Capability.TRANSACTIONS)
    def test_messages_are_visible_once_they_are_committed(self) -> None:
        producer = self.transactional()
        with self.cluster.reader(self.topic) as reader:
            with producer.transaction() as transaction:
                transaction.send(self.topic, b"1", key=b"k")
                transaction.send(self.topic, b"2", key=b"k")
                producer.flush(self.cluster.patience_seconds)
                self.assertEqual(0, len(reader.poll(timeout=1.0)))
            self.assertEqual([b"1", b"2"], [message.value for message in self.read(reader, 2)])

    @needs(Capability.TRANSACTIONS)
    def test_aborted_messages_are_never_visible(self) -> None:
        producer = self.transactional()
        with contextlib.suppress(Interruption), producer.transaction() as transaction:
            transaction.send(self.topic, b"aborted", key=b"k")
            producer.flush(self.cluster.patience_seconds)
            raise Interruption
        with producer.transaction() as transaction:
            transaction.send(self.topic, b"committed", key=b"k")
        self.assertEqual([b"committed"], self.values(self.topic, 1))

    @needs(Capability.TRANSACTIONS)
    def test_inputs_are_committed_with_the_outputs(self) -> None:
        sink = self.cluster.new_topic()
        consumer, batch = self.consumer_and_input()
        with self.transactional().transaction() as transaction:
            transaction.commit_offsets(consumer, batch)
            transaction.send(sink, b"out")
        self.assertEqual([b"out"], self.values(sink, 1))
        consumer.close()
        self.publish(self.topic, [Record(b"next", partition=0)])
        again = self.cluster.consumer(self.topic, self.group)
        self.assertEqual([b"next"], [message.value for message in self.read(again, 1)])

    # Rule 20
    @needs(Capability.TRANSACTIONS)
    def test_an_abort_reads_the_inputs_again(self) -> None:
        sink = self.cluster.new_topic()
        consumer, batch = self.consumer_and_input()
        with contextlib.suppress(Interruption), self.transactional().transaction() as transaction:
            transaction.commit_offsets(consumer, batch)
            transaction.send(sink, b"out")
            raise Interruption
        self.assertEqual([b"in"], [message.value for message in self.read(consumer, 1)])
