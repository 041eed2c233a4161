# SPDX-License-Identifier: Apache-2.0
"""Positions stored elsewhere: dead letters and offsets without a message advance them before Kafka's commit."""

import threading

from monasca_common.kafka import failpoints, plugins
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import ConfigurationError, DeadLetterLimit, HandlerError, Poison, ReadFrom, RetryLater
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.processor import Processor
from monasca_common.tests.unit.kafka.processor.processor_case import GROUP, IN, ProcessorCase

IN_1 = TopicPartition("in", 1)


class Positions:
    """A database that stores a position by compare-and-swap, and fails the next ``failing_calls`` calls."""

    def __init__(self):
        self.next = 0
        self.rows = []
        self.claims = []
        self.failing_calls = 0
        self.asked = 0

    def handle(self, part):
        bad = {index: f"row {value!r}" for index, value in enumerate(part.values) if value.startswith(b"bad")}
        if bad:
            raise Poison("bad rows", reasons=bad)
        self.move(part.start_offset, part.next_offset)
        self.rows += part.values

    def accounted(self, partition, start, end):
        self.asked += 1
        if self.failing_calls:
            self.failing_calls -= 1
            raise RetryLater
        self.claims.append((start, end))
        self.move(start, end)

    def move(self, start, end):
        if start > self.next:
            raise ReadFrom(self.next)
        self.next = max(self.next, end)


class Gate:
    """A handler that blocks until the test opens it."""

    def __init__(self):
        self.entered, self._open = threading.Event(), threading.Event()
        self.open = self._open.set

    def __call__(self, part):
        self.entered.set()
        self._open.wait(50)


class FromPositions(RebalanceListener):
    def __init__(self, positions):
        self.positions = positions

    def assigned(self, partitions):
        return dict.fromkeys(partitions, self.positions.next)


class AccountingCase(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.positions = Positions()

    def begin(self, *, batch_size=10, dead_letters=True, **choices):
        """Start a run at the database's position, like a restarted process."""
        settings = self.kafka.consumer_settings("in", GROUP, batch_size=batch_size)
        consumer = plugins.memory_consumer(settings, listener=FromPositions(self.positions))
        self.addCleanup(self.unhurried, lambda: consumer.close(0))
        self.current = consumer
        choices = {"accounted": self.positions.accounted, **choices}
        return self.start(self.positions.handle, consumer=consumer, dead_letters=dead_letters, **choices)

    def end(self, running):
        self.stop(running)
        self.unhurried(lambda: self.current.close(1))

    def letters(self):
        return self.values("in.dlq")


class DeadLettersMoveThePositionTest(AccountingCase):
    # Rule 17
    def test_five_restarts_over_two_bad_messages_write_two_dead_letters(self):
        self.fill(b"bad1", b"bad2")
        for _ in range(5):
            running = self.begin()
            self.until(lambda: self.positions.next == 2)
            self.pass_time(3)
            self.end(running)
        self.assertEqual([b"bad1", b"bad2"], self.letters())
        self.assertEqual(2, self.committed())

    def test_without_the_callback_every_restart_writes_the_dead_letters_again(self):
        self.fill(b"bad1", b"bad2")
        for restarts in range(1, 4):
            running = self.begin(accounted=None)
            self.until(lambda count=restarts: len(self.letters()) == 2 * count)
            self.end(running)
        self.assertEqual(0, self.positions.next)

    def test_the_handler_moves_the_position_past_dead_letters_of_its_batch(self):
        self.fill(b"bad0", b"bad1", b"2", b"bad3", b"4")
        self.begin()
        self.until(lambda: self.committed() == 5)
        self.assertEqual([], self.positions.claims)
        self.assertEqual(([b"2", b"4"], 5), (self.positions.rows, self.positions.next))

    def test_messages_after_an_unhandled_one_wait_for_it(self):
        self.fill(b"0", b"bad1")
        self.begin()
        self.until(lambda: self.committed() == 2)
        self.assertEqual([], self.positions.claims)

    def test_a_dead_letter_waits_for_an_earlier_message_whose_output_is_refused(self):
        self.fill(b"0", b"1", b"bad")
        claims = []

        def handler(message):
            if message.value == b"bad":
                raise Poison("bad")
            return [("out", Record(b"x" * (5_000_000 if message.offset == 0 else 1)))]

        self.start(handler, per_message=True, accounted=lambda _, start, end: claims.append((start, end)))
        self.until(lambda: self.committed() == 3)
        self.assertEqual([(0, 1), (2, 3)], claims)

    # Rule 17
    def test_kafkas_commit_waits_for_the_database_and_the_dead_letter_is_not_sent_again(self):
        self.positions.failing_calls = 1000
        self.fill(b"bad0", b"bad1")
        self.begin()
        self.until(lambda: self.positions.asked > 3)
        self.pass_time(5)
        self.assertEqual((0, [b"bad0", b"bad1"]), (self.committed(), self.letters()))
        self.positions.failing_calls = 0
        self.until(lambda: self.committed() == 2)
        self.assertEqual((2, [b"bad0", b"bad1"]), (self.positions.next, self.letters()))

    def test_the_database_is_retried_with_pauses(self):
        self.positions.failing_calls = 1000
        self.fill(b"bad")
        self.begin()
        self.until(lambda: self.positions.asked)
        self.pass_time(60)
        self.assertLess(self.positions.asked, 30)

    def test_a_stop_does_not_wait_for_the_database(self):
        self.positions.failing_calls = 1000
        self.fill(b"bad")
        running = self.begin()
        self.until(lambda: self.positions.asked > 5)
        began = self.clock.monotonic()
        report = self.stop(running, 300)
        self.assertLess(self.clock.monotonic() - began, 200)
        self.assertEqual({IN: 1}, dict(report.left))
        self.assertEqual((0, 0), (self.committed(), self.positions.next))

    def test_pending_accounting_of_a_lost_member_is_left_to_the_next_owner(self):
        self.positions.failing_calls = 1000
        self.fill(b"bad")
        self.begin()
        self.until(lambda: self.positions.asked > 5)
        other = self.consumer()
        self.until(lambda: other.poll(1, 0) is not None and IN in other.assignment() | self.current.assignment())
        self.broker.expire_member(GROUP, self.broker.members(GROUP)[0])
        self.until(lambda: other.poll(1, 0) is not None and IN in other.assignment())
        self.assertEqual((0, [b"bad"]), (self.committed(), self.letters()))

    def test_a_stop_finishes_current_accounting(self):
        entered, leave = threading.Event(), threading.Event()

        def slow(partition, start, end):
            entered.set()
            leave.wait(50)
            self.positions.accounted(partition, start, end)

        self.fill(b"bad")
        running = self.begin(accounted=slow)
        self.until(entered.is_set)
        stopper = threading.Thread(target=running.processor.stop, daemon=True)
        stopper.start()
        self.until(lambda: running.processor._shutdown.requested)
        leave.set()
        self.until(lambda: running.ended)
        self.assertEqual((1, 1), (self.positions.next, self.committed()))

    def test_batches_before_a_limit_are_accounted_for(self):
        self.fill(b"bad0", b"bad1", b"bad2", b"bad3")
        running = self.begin(batch_size=2, dead_letters=DeadLetters(max_consecutive=3))
        self.assertIsInstance(self.failure(running), DeadLetterLimit)
        self.assertEqual((2, 2, 3), (self.positions.next, self.committed(), len(self.letters())))

    def test_a_crash_before_the_accounting_repeats_the_dead_letter_under_its_id(self):
        self.fill(b"bad")
        with failpoints.armed("processor.after_dead_letter", "raise"):
            running = self.begin()
            self.assertIsInstance(self.failure(running), FailPointReached)
        self.unhurried(lambda: self.current.close(1))
        self.assertEqual(0, self.positions.next)
        self.begin()
        self.until(lambda: self.committed() == 1)
        ids = [message.message_id for message in self.broker.records("in.dlq")]
        self.assertEqual((2, 1), (len(ids), len(set(ids))))

    def test_a_crash_after_the_accounting_repeats_no_dead_letter(self):
        self.fill(b"bad", b"bad")
        with failpoints.armed("processor.after_accounting", "raise"):
            running = self.begin()
            self.assertIsInstance(self.failure(running), FailPointReached)
        self.unhurried(lambda: self.current.close(1))
        self.assertEqual((2, 0), (self.positions.next, self.committed()))
        self.begin()
        self.fill(b"good")
        self.until(lambda: self.committed() == 3)
        self.assertEqual(2, len(self.letters()))

    def test_a_position_that_was_set_back_is_read_again_from_there(self):
        self.fill(b"1", b"bad", b"3")
        self.begin(batch_size=1)
        self.until(lambda: self.committed() == 3)
        self.positions.next, self.positions.rows = 0, []
        self.fill(b"bad")
        self.until(lambda: self.positions.next == 4 and self.committed() == 4)
        self.assertEqual([b"1", b"3"], self.positions.rows)

    def test_any_other_error_of_the_callback_ends_the_run_with_it(self):
        def broken(partition, start, end):
            raise ZeroDivisionError

        self.fill(b"bad")
        running = self.begin(accounted=broken)
        error = self.failure(running)
        self.assertIsInstance(error, HandlerError)
        self.assertIsInstance(error.__cause__, ZeroDivisionError)
        self.assertEqual(0, self.committed())

    def test_stored_positions_require_order_by_partition_and_no_transaction(self):
        for choices in ({"order": "key"}, {"transactional": True}):
            refused = self.assertRaises(
                ConfigurationError,
                Processor,
                self.consumer(),
                self.positions.handle,
                accounted=self.positions.accounted,
                producer=self.producer,
                **choices,
            )
            self.assertIn(next(iter(choices)), str(refused))


class RevokedTest(AccountingCase):
    """A second member joins, so that one of two partitions is revoked from the first, whose messages are all bad."""

    partitions = 2

    def setUp(self):
        super().setUp()
        self.moved = {}
        self.revoked = {}  # the committed offset of each partition when it was revoked
        self.asked = []
        self.asked_back = threading.Event()
        for partition in range(2):
            self.fill(b"bad", partition=partition)

    def both_ask(self, accounted):
        """Start the first member, whose two dead letters are sent and whose ``accounted`` was called for both
        partitions."""
        case = self

        class Listener(RebalanceListener):
            def revoked(self, partitions, deadline):
                case.revoked |= {each: case.committed(each) for each in partitions}

        def noted(partition, start, end):
            self.asked.append(partition)
            accounted(partition, start, end)

        # A long time, because virtual time runs ahead of threads that a busy machine delays.
        settings = self.kafka.consumer_settings("in", GROUP, stop_timeout_seconds=100.0)
        consumer = plugins.memory_consumer(settings, listener=Listener())
        self.addCleanup(self.unhurried, lambda: consumer.close(0))
        running = self.start(self.positions.handle, consumer=consumer, accounted=noted, threads=2)
        self.until(lambda: len(set(self.asked)) == 2)
        revoked = running.processor.revoked

        def asked_back(partitions, deadline):
            self.asked_back.set()
            revoked(partitions, deadline)

        running.processor.revoked = asked_back
        return consumer

    def take_one(self, meanwhile=lambda: None):
        """Return the partition that the second member gets; ``meanwhile`` is called once the first must release it."""
        other = self.consumer()
        self.until(lambda: other.poll(1, 0) is not None and self.asked_back.is_set())
        meanwhile()
        self.until(lambda: other.poll(1, 0) is not None and other.assignment())
        (taken,) = other.assignment()
        return taken

    def test_current_accounting_is_finished_and_committed(self):
        database = Gate()

        def slow(partition, start, end):
            database(None)
            self.moved[partition] = end

        self.both_ask(slow)
        taken = self.take_one(database.open)
        self.assertEqual({taken: 1}, self.revoked)
        self.assertEqual({IN: 1, IN_1: 1}, self.moved)

    def test_an_unavailable_database_does_not_delay_a_revoke(self):
        def unavailable(partition, start, end):
            raise RetryLater(after=3600)

        consumer = self.both_ask(unavailable)
        began = self.clock.monotonic()
        taken = self.take_one()
        self.assertLess(self.clock.monotonic() - began, consumer.settings.stop_timeout_seconds / 2)
        self.assertEqual({taken: 0}, self.revoked)
        self.assertEqual(1, self.asked.count(taken))


class EndOfTheLogTest(AccountingCase):
    """Tests of offsets without a message: control records, aborted and compacted messages."""

    def skip(self, count=1):
        self.broker.skip_offsets("in", 0, count)

    def test_positions_move_past_offsets_after_the_last_message(self):
        self.fill(b"0", b"1")
        self.skip(2)
        self.begin()
        self.until(lambda: self.committed() == 4)
        self.assertEqual((4, [b"0", b"1"]), (self.positions.next, self.positions.rows))

    def test_positions_move_even_if_no_message_was_received(self):
        self.skip(3)
        self.begin()
        self.until(lambda: self.committed() == 3)
        self.assertEqual(3, self.positions.next)

    def test_without_stored_positions_the_commit_to_kafka_moves(self):
        for order in ("partition", "key"):
            self.fill(b"x")
            self.skip()
            end = self.broker.watermarks(IN)[1]
            self.current = self.consumer()
            running = self.start(lambda part: None, consumer=self.current, order=order, threads=2)
            self.until(lambda end=end: self.committed() == end)
            self.end(running)

    def test_positions_wait_for_earlier_messages(self):
        self.fill(b"0")
        self.skip()
        go_on = threading.Event()

        def slow(part):
            go_on.wait(50)
            self.positions.handle(part)

        consumer = self.consumer()
        self.start(slow, consumer=consumer, accounted=self.positions.accounted)
        self.pass_time(5)
        self.assertEqual((0, 0), (self.positions.next, self.committed()))
        go_on.set()
        self.until(lambda: self.committed() == 2)

    def test_a_later_end_of_the_log_leaves_unfinished_messages_uncommitted(self):
        self.fill(b"0")
        self.skip()
        gate = Gate()
        self.start(gate, order="key", threads=2)
        self.until(gate.entered.is_set)
        self.skip()  # another transaction is aborted
        self.pass_time(3)
        self.assertEqual(0, self.committed())
        gate.open()
        self.until(lambda: self.committed() == 3)

    def test_a_later_end_does_not_hide_unfinished_work_at_a_stop(self):
        self.fill(b"0")
        self.skip()
        gate = Gate()
        running = self.start(gate)
        self.until(gate.entered.is_set)
        self.skip()
        self.pass_time(3)
        report = self.stop(running, 1)
        gate.open()
        self.assertEqual({IN: 1}, dict(report.left))

    def test_kafkas_commit_waits_for_the_database(self):
        self.positions.failing_calls = 1000
        self.skip(2)
        self.begin()
        self.until(lambda: self.positions.asked > 3)
        self.assertEqual(0, self.committed())
        self.positions.failing_calls = 0
        self.until(lambda: self.committed() == 2)

    def test_messages_after_the_end_are_read_without_a_gap(self):
        self.fill(b"0")
        self.skip()
        self.begin()
        self.until(lambda: self.committed() == 2)
        self.fill(b"2")
        self.until(lambda: self.committed() == 3)
        self.assertEqual(([b"0", b"2"], 3), (self.positions.rows, self.positions.next))

    def test_a_start_after_retention_emptied_the_log_loses_nothing_and_has_no_lag(self):
        self.fill(b"0", b"1")
        self.skip()
        running = self.begin()
        self.until(lambda: self.committed() == 3)
        self.end(running)
        self.broker.delete_records("in", 0, 3)
        running = self.begin()
        self.until(lambda: self.current.lag(0) == {IN: 0})
        self.fill(b"3")
        self.until(lambda: self.committed() == 4)
        self.assertIsNone(running.error)
        self.assertEqual([b"0", b"1", b"3"], self.positions.rows)

    def test_a_commit_older_than_the_position_in_the_database_advances_without_new_messages(self):
        self.fill(b"0", b"1", b"2")
        self.positions.next = 3  # the rows are stored, but Kafka's offset is not committed
        self.begin()
        self.until(lambda: self.committed() == 3)
        self.assertEqual(([], []), (self.positions.rows, self.positions.claims))

    def test_the_lag_at_the_end_is_none(self):
        self.fill(b"0")
        self.skip(5)
        self.begin()
        self.until(lambda: self.committed() == 6)
        self.assertEqual({TopicPartition("in", 0): 0}, self.current.lag(0))
