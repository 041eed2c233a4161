# SPDX-License-Identifier: Apache-2.0
"""A processor whose client does not come back from a call: it ends, says why, and never stops polling before that."""

from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.errors import FatalError
from monasca_common.kafka.processor import Processor
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.testing import Hang
from monasca_common.tests.unit.kafka.processor.processor_case import GROUP, ProcessorCase, Running
from monasca_common.tests.unit.kafka.transactional_memory import (
    TransactionalMemoryConsumer,
    TransactionalMemoryProducer,
)

TIMEOUT = 20.0


class ConsumerHangsTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.broker.clear_faults)

    def test_a_commit_that_never_comes_back_ends_the_run(self):
        self.fill(b"1")
        self.broker.inject("commit", Hang(), nth=2)  # the first writes down where the group starts
        running = self.start(lambda batch: None)
        self.until(lambda: running.processor.ignored_errors["CommitUnknown"])
        self.until(lambda: running.ended, step=2.0)
        self.assertIsInstance(running.error, FatalError)
        self.assertIn("commit has not come back", str(running.error))

    def test_a_start_that_is_never_told_ends_the_run(self):
        self.broker.inject("committed", Hang())
        self.assertIsInstance(self.failure(self.start(lambda batch: None)), FatalError)


class TransactionHangsTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        settings = self.kafka.producer_settings(transactional_id="id", transaction_timeout_seconds=TIMEOUT)

        def open_transport(batch_bytes, on_error):
            self.client = TransactionalMemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)
            self.addCleanup(self.client.returned.set)
            return self.client

        self.transactional = KafkaProducer(settings, open_transport)
        self.addCleanup(self.unhurried, lambda: self.transactional.close(0))
        reader = self.kafka.consumer_settings("in", GROUP)
        self.reader = KafkaConsumer(reader, TransactionalMemoryConsumer(reader))
        self.addCleanup(self.unhurried, lambda: self.reader.close(0))

    def run_to_hang(self, what):
        self.client.hanging.add(what)
        self.fill(b"1", b"2")
        processor = Processor(
            self.reader, lambda part: [("out", b"made of it")], producer=self.transactional, transactional=True
        )
        running = Running(processor, self.reader)
        self.addCleanup(lambda: running.ended or self.stop(running, 0))
        self.until(lambda: what in self.client.asked)
        return running

    def ends_with_fatal_error(self, what):
        error = self.failure(self.run_to_hang(what))
        self.assertIsInstance(error, FatalError)
        self.assertTrue(self.transactional.health().poisoned)
        return error

    def test_each_call_of_a_transaction_ends_the_run(self):
        self.assertIn("send_offsets_to_transaction", str(self.ends_with_fatal_error("offsets")))

    def test_a_commit_that_hangs_is_neither_aborted_nor_read_again(self):
        self.ends_with_fatal_error("commit")
        self.assertEqual(["produce", "offsets", "commit"], self.client.asked[2:])

    def test_transactions_that_cannot_be_opened_end_the_run_before_anything_is_read(self):
        self.ends_with_fatal_error("init")
        self.assertEqual(["init"], self.client.asked)
        self.assertEqual([], self.broker.members(GROUP))

    def test_polling_goes_on_while_a_call_hangs(self):
        running = self.run_to_hang("offsets")
        self.pass_time(TIMEOUT / 2)
        self.assertFalse(running.ended)
        self.assertGreater(self.transactional.health().oldest_call_seconds, TIMEOUT / 4)
        self.until(lambda: self.reader.health().seconds_since_poll < 2.0, step=0)
