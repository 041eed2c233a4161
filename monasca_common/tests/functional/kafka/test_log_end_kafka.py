# SPDX-License-Identifier: Apache-2.0
"""The end of a real log: positions move past records that are not messages, but not past open transactions."""

import threading
import uuid

import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import OffsetOutOfRange
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.test_processor_kafka import SECONDS, ProcessorCase
from monasca_common.tests.periodic import periodic


class TestEndOfTheLog(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()
        self.upstream = self.transactional_producer()
        self.handled = []

    def transactional_producer(self):
        servers = self.cluster.client_options("admin")["bootstrap.servers"]
        settings = ProducerSettings(ConnectionSettings(servers), transactional_id=f"upstream-{uuid.uuid4().hex[:12]}")
        producer = plugins.kafka_producer(settings)
        self.addCleanup(producer.close, 5)
        return producer

    def put_in_a_transaction(self, *values):
        with self.upstream.transaction() as transaction:
            for value in values:
                transaction.send(self.topic, value)

    def begin(self, **choices):
        self.reader = self.consumer(self.topic)
        self.processor = Processor(self.reader, lambda part: self.handled.extend(part.values), **choices)
        self.failures = []
        self.thread = threading.Thread(target=self.run_until_it_ends, daemon=True)
        self.thread.start()
        self.addCleanup(self.thread.join, SECONDS)
        self.addCleanup(self.processor.stop, 5)

    def run_until_it_ends(self):
        try:
            self.processor.run()
        except Exception as error:
            self.failures.append(error)

    def end(self):
        self.processor.stop(5)
        self.thread.join(SECONDS)
        self.reader.close(5)

    def log_end(self):
        partition = TopicPartition(self.topic, 0)
        return self.admin.end_offsets([partition])[partition]

    def retention_empties_the_log(self):
        self.admin.delete_records({TopicPartition(self.topic, 0): self.log_end()})

    # Rule 17
    @periodic("the other tests of this class read to the end of such logs")
    def test_reading_resumes_without_loss_or_lag_after_retention_emptied_a_transactional_topic(self):
        self.put_in_a_transaction(b"1", b"2")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 3)  # two messages and the marker of their transaction
        self.end()
        self.retention_empties_the_log()
        self.begin()
        self.wait_until(lambda: self.reader.lag() == {TopicPartition(self.topic, 0): 0})
        self.put_in_a_transaction(b"3")
        # The log can have the same end until the marker of the transaction is written.
        self.wait_until(lambda: b"3" in self.handled)
        self.wait_until(lambda: self.committed(self.topic) == self.log_end())
        self.end()
        with each_once():
            self.assertEqual(([b"1", b"2", b"3"], []), (self.handled, self.failures))

    # Rule 17
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_stops_after_the_last_message_cannot_continue(self):
        self.useFixture(fixtures.MockPatchObject(KafkaConsumer, "take_ends", lambda consumer: {}))
        self.put_in_a_transaction(b"1", b"2")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 2)
        self.end()
        self.retention_empties_the_log()
        self.begin()
        self.wait_until(lambda: self.failures)
        self.assertIsInstance(self.failures[0], OffsetOutOfRange)

    # Rule 17
    def test_the_position_stops_before_an_open_transaction_and_passes_an_aborted_one(self):
        self.put_in_a_transaction(b"1")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 2)
        try:
            with self.upstream.transaction() as transaction:
                transaction.send(self.topic, b"aborted")
                self.upstream.flush(SECONDS).raise_for_undelivered()
                threading.Event().wait(2)  # a wrong position would be committed after one second
                self.assertEqual(2, self.committed(self.topic))
                raise InterruptedError
        except InterruptedError:
            pass
        self.wait_until(lambda: self.committed(self.topic) == 4)
        self.end()
        self.assertEqual(([b"1"], []), (self.handled, self.failures))

    @periodic("uses the mechanism that the preceding tests cover")
    def test_a_transactional_processor_moves_to_the_end_in_a_transaction(self):
        self.put_in_a_transaction(b"1", b"2")
        self.begin(producer=self.transactional_producer(), transactional=True)
        self.wait_until(lambda: self.committed(self.topic) == 3)
        self.end()
        self.assertEqual([], self.failures)

    @periodic("uses the mechanism that the preceding tests cover")
    def test_the_position_of_a_database_moves_to_the_end_before_kafkas_commit(self):
        claims = []

        def accounted(partition, start, end):
            claims.append((start, end, self.committed(self.topic)))

        self.put_in_a_transaction(b"1", b"2")
        self.begin(accounted=accounted)
        self.wait_until(lambda: self.committed(self.topic) == 3)
        self.end()
        ((start, end, committed),) = claims
        self.assertEqual((2, 3), (start, end))
        self.assertLess(committed, 3)
