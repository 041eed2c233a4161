# SPDX-License-Identifier: Apache-2.0
"""A processor whose client does not return from a call: it ends with the reason, and polls until then."""

import math
import threading

from fixtures import MonkeyPatch

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import FatalError, RetriableError
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import Hang
from monasca_common.kafka.transport.memory import LoseAnswer
from monasca_common.tests.unit.kafka.processor.processor_case import GROUP, ProcessorCase, Running
from monasca_common.tests.unit.kafka.transactional_memory import (
    TransactionalMemoryConsumer,
    TransactionalMemoryProducer,
)

TIMEOUT = 20.0
SECONDS = 50.0  # seconds of real time


class ConsumerHangsTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.broker.clear_faults)

    def test_a_commit_that_never_returns_ends_the_run(self):
        self.fill(b"1")
        self.broker.inject("commit", Hang(), nth=2)  # the first commit stores the start offset of the group
        running = self.start(lambda batch: None)
        self.until(lambda: running.processor.ignored_errors["CommitUnknown"])
        self.until(lambda: running.ended, step=2.0)
        self.assertIsInstance(running.error, FatalError)
        self.assertIn("commit has not returned", str(running.error))

    def test_a_stop_ends_at_its_deadline_while_a_call_waits_for_the_brokers(self):
        self.broker.inject("committed", Hang())
        running = self.start(lambda batch: None)
        self.until(lambda: running.consumer.health().oldest_call_seconds > 0.1, step=0.01)
        began, stopper = (
            self.clock.monotonic(),
            threading.Thread(target=running.processor.stop, args=(0.5,), daemon=True),
        )
        stopper.start()
        self.until(lambda: not stopper.is_alive() and running.ended, step=0.001)
        self.assertLess(self.clock.monotonic() - began, 4.0)  # the call has 5 s, and the client another 5 s
        self.assertIsNone(running.error)
        self.assertFalse(running.consumer.health().poisoned)

    def test_a_start_offset_that_remains_unknown_ends_the_run(self):
        self.broker.inject("committed", Hang())
        self.assertIsInstance(self.failure(self.start(lambda batch: None)), FatalError)


class ListenerHangsTest(ProcessorCase):
    def test_a_stop_returns_although_the_rebalance_listener_does_not(self):
        called, released = threading.Event(), threading.Event()

        class Hanging(RebalanceListener):
            def assigned(self, partitions):
                called.set()
                released.wait(SECONDS)

        consumer = self.consumer()
        consumer.listener = Hanging()
        running = self.start(lambda batch: None, consumer=consumer)
        self.addCleanup(released.set)
        self.until(called.is_set)
        self.useFixture(MonkeyPatch("monasca_common.kafka.processor.shutdown._GRACE_SECONDS", 0.01))
        with self.assertLogs("monasca_common.kafka.processor.shutdown", "WARNING") as logs:
            report = running.processor.stop(0)
        self.assertIn("a rebalance listener or a hook has not returned", logs.output[0])
        self.assertEqual((False, True), (running.ended, report.clean))
        released.set()
        self.until(lambda: running.ended)


class TransactionCase(ProcessorCase):
    listener = None

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
        self.reader = KafkaConsumer(reader, TransactionalMemoryConsumer(reader), listener=self.listener)
        self.addCleanup(self.unhurried, lambda: self.reader.close(0))

    def run_transactions(self, **choices):
        processor = Processor(
            self.reader, lambda part: [("out", b"output")], producer=self.transactional, transactional=True, **choices
        )
        running = Running(processor, self.reader)
        self.addCleanup(lambda: running.ended or self.stop(running, 0))
        return running


class TransactionHangsTest(TransactionCase):
    def run_to_hang(self, what):
        self.client.hanging.add(what)
        self.fill(b"1", b"2")
        running = self.run_transactions()
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

    # Rule 20
    def test_polling_continues_while_a_call_hangs(self):
        running = self.run_to_hang("offsets")
        self.pass_time(TIMEOUT / 2)
        self.assertFalse(running.ended)
        self.assertGreater(self.transactional.health().oldest_call_seconds, TIMEOUT / 4)
        self.until(lambda: self.reader.health().seconds_since_poll < 2.0, step=0)


class OpenTest(TransactionCase):
    def setUp(self):
        super().setUp()
        self.unanswered, self.opened = 0, 0
        self.client.init_transactions = self.open

    def open(self, timeout):
        self.opened += 1
        if self.opened <= self.unanswered:
            raise RetriableError("no response", name="_TIMED_OUT")

    def test_opening_transactions_is_repeated_until_a_response(self):
        self.unanswered = 2
        self.fill(b"1")
        self.run_transactions()
        self.until(lambda: "commit" in self.client.asked)
        self.assertEqual(3, self.opened)

    def test_a_stop_ends_the_opening_of_transactions(self):
        self.unanswered = 1000
        running = self.run_transactions()
        self.until(lambda: self.opened > 1)
        self.stop(running)
        self.assertEqual([], self.broker.members(GROUP))


class AbortDuringAssignmentTest(TransactionCase):
    """A transaction is aborted on the handler's thread while the polling thread is in the listener's `assigned`."""

    partitions = 2

    def setUp(self):
        self.listener = SlowListener()
        super().setUp()

    def test_the_inputs_of_the_aborted_transaction_are_read_again_and_committed(self):
        other = self.consumer()
        self.until(lambda: other.poll(timeout=0) or len(other.assignment()) == 2)
        running = self.run_transactions(hooks=[self.listener])
        self.until(lambda: other.poll(timeout=0) is None or len(self.reader.assignment()) == 1)
        (mine,) = self.reader.assignment()
        self.client.send_offsets = self.listener.refuse
        self.fill(b"1", partition=mine.partition)
        self.until(self.listener.in_transaction.is_set, step=0)
        self.listener.slow = True
        self.unhurried(lambda: other.close(0))
        self.until(lambda: self.listener.aborted.is_set() or running.processor._shutdown.requested, step=0)
        del self.client.send_offsets
        self.listener.finish.set()

        self.until(lambda: self.client.asked[-1] == "commit" or running.ended)

        self.assertFalse(running.ended, running.error)
        self.assertEqual(1, self.client.asked.count("abort"))


class SlowListener(Hook, RebalanceListener):
    """`assigned` returns once the transaction, which fails as soon as `assigned` is running, was aborted."""

    def __init__(self):
        self.slow = False
        self.in_transaction = threading.Event()
        self.assigning = threading.Event()
        self.aborted = threading.Event()
        self.finish = threading.Event()

    def assigned(self, partitions):
        if self.slow:
            self.assigning.set()
            self.finish.wait(SECONDS)

    def refuse(self, offsets, group_metadata, timeout):
        self.in_transaction.set()
        self.assigning.wait(SECONDS)
        raise RetriableError("no response", name="_TIMED_OUT")

    def after_commit(self, results):
        if any(results.values()):
            self.aborted.set()


class Witness(RebalanceListener):
    def __init__(self):
        self.lost_partitions = []

    def lost(self, partitions):
        self.lost_partitions.extend(partitions)


class UnansweredCommitTest(ProcessorCase):
    # Rule 14
    def test_a_commit_without_a_response_costs_no_membership_even_with_a_short_poll_interval(self):
        self.fill(b"1")
        # the first commit stores the start offset
        self.broker.inject("commit", LoseAnswer(math.inf), nth=2, count=None)
        listener = Witness()
        consumer = self.consumer(max_poll_interval_seconds=4, stop_timeout_seconds=2)
        consumer.listener = listener
        seen: list[bytes] = []
        running = self.start(lambda part: seen.extend(part.values), consumer=consumer)
        reported = running.processor.ignored_errors
        self.until(lambda: reported["CommitUnknown"] >= 3 or listener.lost_partitions, step=0.01)
        self.assertEqual(([], [b"1"]), (listener.lost_partitions, seen))
