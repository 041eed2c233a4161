# SPDX-License-Identifier: Apache-2.0
"""The in-flight table: how messages are settled, and how much of the budget they use until then."""

import dataclasses
import random
import sys
import threading
import time
import tracemalloc
from collections import deque
from itertools import accumulate
from unittest import mock

from oslotest import base

from monasca_common.kafka.errors import (
    DeliveryAbandoned,
    DeliveryTimeout,
    LargerThanBudget,
    QueueFull,
    RetriableError,
    TransportError,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.outgoing import size_of
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import (
    Bulk,
    DeliveryAttempt,
    Table,
    Waiter,
    all_over,
    next_attempt,
)
from monasca_common.kafka.transport.base import Outcomes, ProducerTransport, UndeliveredMessage, message_id
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.tests.threads import run_together

REJECTED = TransportError("no", code=19, name="NOT_ENOUGH_REPLICAS")
PREFIX = b"prefix-----"
GIVEN_UP = DeliveryTimeout("given up")


def plain_size(record):
    return size_of(record, record.key)


class TableCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.clock.advance(1000)
        self.table = self.new_table()
        self.topics = {}

    def new_table(self, *, max_messages=1000, max_bytes=1_000_000):
        table = Table(max_messages=max_messages, max_bytes=max_bytes)
        table.clock = self.clock
        return table

    def new_bulk(self, *values, topic="t"):
        size = sum(plain_size(Record(value)) for value in values)
        return Bulk(self.table, topic, PREFIX, values=list(values), size=size, next=len(values))

    def bulk(self, *values, topic="t"):
        """Return a reserved bulk, or `None` if there is no room."""
        bulk = self.new_bulk(*values, topic=topic)
        return bulk if self.table.reserve(bulk) else None

    def send(self, value=b"x", topic="t"):
        """Return the sequence of a plain send that has room."""
        sequence = self.take(value, topic)
        while sequence is None:  # the first send, or another thread closed the reservation
            size = plain_size(Record(value))
            self.topics[topic] = self.table.open_sends(topic, PREFIX, size, ProducerTransport, 1_000_000)
            sequence = self.take(value, topic)
        return sequence

    def take(self, value, topic):
        reservation, size = self.topics.get(topic), plain_size(Record(value))
        if reservation is None:
            return None
        with reservation.lock:
            if reservation.next == reservation.end or size > reservation.left:
                return None
            reservation.next += 1
            reservation.left -= size
            return reservation.next - 1

    def attempts(self, *values, topic="t", message_id=None):
        """Return the attempts of a bulk that is not reserved."""
        bulk = Bulk(self.table, topic, PREFIX)
        for value in values:
            bulk.add(DeliveryAttempt(bulk, Record(value), message_id, plain_size(Record(value))))
        return list(bulk.attempts.values())

    def reserve(self, attempts):
        for bulk in dict.fromkeys(attempt.bulk for attempt in attempts):
            self.assertTrue(self.table.reserve(bulk))

    def waiter(self, is_over):
        waiter = Waiter(is_over)
        self.table.waiters[waiter] = None
        self.table.wake_waiters()
        return waiter

    def outcomes(self, delivered=(), refused=(), error=REJECTED):
        """Build outcomes. ``delivered`` and ``refused``: sequences and values. An offset is the sequence plus 1000."""
        ordered = sorted(delivered)
        return Outcomes(
            [sequence for sequence, _ in ordered],
            [0] * len(ordered),
            [1000 + sequence for sequence, _ in ordered],
            list(accumulate(len(value) for _, value in ordered)),
            [UndeliveredMessage(sequence, error, value, None) for sequence, value in refused],
        )

    def settle(self, *delivered, refused=(), error=REJECTED):
        self.table.settle(self.outcomes(delivered, refused, error))

    def flush(self):
        """Return the number of delivered sends, and the sends that are undelivered or in flight."""
        bulks = self.table.unfinished(of_sends=True)
        with self.table.lock:
            delivered, attempts = self.table.take_report(bulks)
            self.table.reported(attempts)
        left = [attempt for attempt in attempts if attempt.outcome is not Outcome.DELIVERED]
        return delivered + len(attempts) - len(left), left

    def room(self):
        self.table.close_sends()  # otherwise it includes reservations of sends
        return self.table.messages, self.table.bytes

    def of(self, bulk):
        """Return the messages of a bulk as (sequence, value)."""
        return list(enumerate(bulk.values, bulk.first))


class SettleTest(TableCase):
    def test_one_batch_of_outcomes_settles_several_bulks_and_sends_of_several_topics(self):
        first = self.bulk(b"a", b"bb")
        sent = [self.send(b"s1"), self.send(b"u1", topic="u"), self.send(b"s2"), self.send(b"u2", topic="u")]
        second = self.bulk(b"ccc", topic="u")
        messages = [*self.of(first), *zip(sent, (b"s1", b"u1", b"s2", b"u2"), strict=True), *self.of(second)]
        self.assertEqual(7, self.table.in_flight()[0])
        self.settle(*messages)
        self.assertEqual([True, True, {}, {}], [first.over, second.over, first.attempts, second.attempts])
        self.assertEqual((4, []), self.flush())
        self.assertEqual(((0, 0), 0), (self.room(), self.table.in_flight()[0]))
        self.assertEqual([], self.table.unfinished())

    def test_one_bulk_is_settled_by_several_batches_in_any_order(self):
        bulk = self.bulk(b"a", b"bb", b"ccc")
        a, b, c = self.of(bulk)
        for batch in ([b], [c], [a]):
            self.assertFalse(bulk.over)
            self.settle(*batch)
        self.assertTrue(bulk.over)
        self.assertEqual((0, 0), self.room())
        found = [
            (delivery.index, delivery.offset, delivery.message_id)
            for delivery in DeliveryReport({}, bulk=bulk).delivered
        ]
        self.assertEqual(
            [(index, 1000 + seq, message_id(PREFIX, seq)) for index, (seq, _) in enumerate((a, b, c))], found
        )

    def test_sequences_that_the_table_does_not_know_settle_nothing(self):
        bulk = self.bulk(b"a")
        [(sequence, _)] = self.of(bulk)
        self.settle((sequence + 1, b"never reserved"), (10**6, b"nor this"), refused=[(10**7, b"nor that")])
        self.assertEqual(1, self.table.in_flight()[0])
        self.settle((sequence, b"a"), (sequence + 1, b"never reserved"))
        self.assertEqual(((0, 0), 0), (self.room(), self.table.in_flight()[0]))

    def test_a_sequence_of_a_send_that_is_not_reserved_yet_settles_nothing(self):
        sequence = self.send(b"a")
        self.settle(refused=[(sequence + 1, b"not reserved")])
        self.assertEqual(1, self.table.in_flight()[0])

    def test_a_late_report_does_not_change_an_outcome(self):
        bulk = self.bulk(b"a", b"b")
        a, b = self.of(bulk)
        sent = self.send(b"s")
        self.settle(a)
        self.table.give_up_bulks(self.table.unfinished(), Outcome.UNKNOWN, GIVEN_UP)
        self.settle(b, (sent, b"s"), refused=[a])
        report = DeliveryReport(self.table.attempts_of(bulk), bulk=bulk)
        self.assertEqual(([0], [1]), ([d.index for d in report.delivered], [d.index for d in report.unknown]))
        delivered, [undelivered] = self.flush()
        self.assertEqual((0, Outcome.UNKNOWN, sent), (delivered, undelivered.outcome, undelivered.sequence))
        self.assertEqual((0, 0), self.room())

    def test_a_rejected_message_of_a_bulk_has_its_own_outcome_and_the_others_are_delivered(self):
        bulk = self.bulk(b"a", b"bb", b"ccc")
        a, b, c = self.of(bulk)
        self.settle(a, refused=[b])
        self.assertFalse(bulk.over)
        self.settle(c)
        report = DeliveryReport(self.table.attempts_of(bulk), bulk=bulk)
        self.assertEqual(([0, 2], [1]), ([d.index for d in report.delivered], [d.index for d in report.failed]))
        self.assertEqual((2, (0, 0)), (report.delivered_count, self.room()))

    def test_a_plain_send_in_flight_takes_at_most_32_bytes(self):
        count = 20_000
        self.table = self.new_table(max_messages=count * 10, max_bytes=count * 1_000_000)
        self.send()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            self.send()
        after, _ = tracemalloc.get_traced_memory()
        self.assertEqual(count + 1, self.table.in_flight()[0])
        self.assertLess((after - before) / count, 32)

    def test_only_undelivered_messages_have_their_own_objects(self):
        bulk = self.bulk(*[b"x"] * 100)
        messages = self.of(bulk)
        self.settle(*messages[:50], refused=[messages[50]])
        self.settle(*messages[51:])
        self.assertEqual([50], list(bulk.attempts))

    def test_a_bulk_of_delivered_messages_keeps_no_value(self):
        bulk = self.bulk(b"a", b"b")
        self.settle(*self.of(bulk))
        self.assertEqual([], bulk.values)

    def test_a_message_that_the_broker_had_already_is_delivered_without_an_offset(self):
        bulk = self.bulk(b"a")
        self.table.settle(Outcomes([bulk.first], [0], [-1], [1]))
        [delivery] = DeliveryReport({}, bulk=bulk).delivered
        self.assertEqual((0, None), (delivery.partition, delivery.offset))

    def test_settled_messages_are_not_waited_for(self):
        bulk = self.bulk(b"a")
        self.assertFalse(self.waiter(all_over([bulk])).over)
        self.settle(*self.of(bulk))
        self.assertTrue(self.waiter(all_over([bulk])).over)

    def test_each_caller_that_waits_for_a_message_is_woken(self):
        attempts = self.attempts(b"a", b"b")
        self.reserve(attempts)
        waiters = [self.waiter(all_over(attempts)), self.waiter(all_over(attempts[:1]))]
        self.settle((attempts[0].sequence, b"a"))
        self.assertEqual([False, True], [waiter.over for waiter in waiters])
        self.settle((attempts[1].sequence, b"b"))
        self.assertTrue(waiters[0].over)

    def test_a_caller_is_woken_for_a_message_of_another_producer(self):
        of_another = Table(max_messages=1, max_bytes=1000)
        bulk = Bulk(of_another, "t", PREFIX, values=[b"a"], size=plain_size(Record(b"a")), next=1)
        of_another.reserve(bulk)
        waiter = self.waiter(all_over([bulk]))
        of_another.settle(self.outcomes([(bulk.first, b"a")]))
        self.assertFalse(waiter.over)
        self.settle()
        self.assertTrue(waiter.over)


class OutcomeTest(TableCase):
    def outcome_of_a_rejection(self):
        [attempt] = self.attempts(b"a")
        self.reserve([attempt])
        self.settle(refused=[(attempt.sequence, b"a")])
        return attempt.outcome

    def test_a_rejection_is_failed(self):
        self.assertIs(Outcome.FAILED, self.outcome_of_a_rejection())

    # Rule 5
    def test_a_rejection_is_unknown_after_a_connection_error_since_the_message_was_queued(self):
        bulk = self.bulk(b"a")
        self.table.note_trouble(TransportError("cut"))
        self.settle(refused=self.of(bulk))
        self.assertEqual([Outcome.UNKNOWN], [each.outcome for each in bulk.attempts.values()])

    # Rule 5
    def test_an_error_that_the_client_may_not_report_again_counts_for_half_a_minute(self):
        self.table.note_trouble(TransportError("cut"))
        self.clock.advance(34)
        self.table.close_sends()
        self.assertIs(Outcome.UNKNOWN, self.outcome_of_a_rejection())
        self.clock.advance(2)
        self.table.close_sends()
        self.assertIs(Outcome.FAILED, self.outcome_of_a_rejection())

    # Rule 5
    def test_the_rejection_of_a_message_that_was_unknown_before_is_unknown(self):
        [attempt] = self.attempts(b"a", message_id=b"own")
        self.reserve([attempt])
        self.table.give_up_bulks(self.table.unfinished(), Outcome.UNKNOWN, GIVEN_UP)
        again = next_attempt(attempt, Bulk(self.table, "t", None))
        again.bulk.add(again)
        self.reserve([again])
        self.settle(refused=[(again.sequence, b"a")])
        self.assertEqual((Outcome.UNKNOWN, b"own"), (again.outcome, again.message_id))

    # Rule 5
    def test_a_rejected_message_with_an_attached_retry_is_unknown(self):
        [first] = self.attempts(b"a", message_id=b"own")
        [retry] = self.attempts(b"a", message_id=b"own")
        retry.doubtful = True
        self.reserve([first])
        self.reserve([retry])
        self.assertIs(first, retry.latest)
        self.settle(refused=[(first.sequence, b"a")])
        self.assertIs(Outcome.UNKNOWN, first.outcome)

    # Rule 4
    def test_a_message_attaches_only_to_one_with_its_id_on_its_topic(self):
        first, second = self.attempts(b"a", b"b", message_id=b"own")
        [third] = self.attempts(b"c", message_id=b"own")
        [elsewhere] = self.attempts(b"d", topic="u", message_id=b"own")
        self.reserve([first, second, third, elsewhere])
        self.assertEqual([first, first, elsewhere], [each.latest for each in (second, third, elsewhere)])
        self.settle((first.sequence, b"a"), (elsewhere.sequence, b"d"))
        self.assertTrue(first.bulk.over and third.bulk.over and elsewhere.bulk.over)
        [again] = self.attempts(b"e", message_id=b"own")
        self.reserve([again])
        self.assertIs(again, again.latest)

    def test_a_send_is_not_retriable_if_the_client_does_not_return_its_bytes(self):
        self.send(b"a")
        self.table.give_up_bulks(self.table.unfinished(), Outcome.UNKNOWN, DeliveryAbandoned("closed"))
        _, [attempt] = self.flush()
        self.assertFalse(attempt.is_worth_sending)
        self.assertIn("cannot be sent again", str(attempt.error))

    def test_messages_purged_after_a_fatal_error_have_that_error(self):
        self.table.finished = TransportError("fenced", fatal=True)
        sequence = self.send(b"a")
        self.settle(refused=[(sequence, b"a")], error=TransportError("purged", name="_PURGE_QUEUE"))
        _, [attempt] = self.flush()
        self.assertEqual((Outcome.UNKNOWN, b"a"), (attempt.outcome, attempt.record.value))
        self.assertIn("fenced", str(attempt.error))


class RoomTest(TableCase):
    def new_table(self, **limits):
        return super().new_table(**{"max_messages": 4, "max_bytes": 10_000} | limits)

    # Rule 8
    def test_room_is_reserved_for_a_whole_bulk_or_not_at_all(self):
        self.bulk(*[b"x"] * 3)
        self.assertIsNone(self.bulk(b"x", b"x"))
        self.assertFalse(self.table.reserve(self.attempts(b"x", b"x")[0].bulk))
        self.assertEqual(3, self.table.messages)
        self.assertIsNotNone(self.bulk(b"x"))

    def test_room_is_free_as_soon_as_a_message_is_settled(self):
        bulk = self.bulk(b"a", b"bb")
        before = self.table.bytes
        a, b = self.of(bulk)
        self.settle(b)
        self.assertEqual((1, before - plain_size(Record(b"bb"))), self.room())
        self.settle(refused=[a])
        self.assertEqual((0, 0), self.room())

    def test_unused_reservations_of_sends_are_free_for_others(self):
        self.table = self.new_table(max_messages=10, max_bytes=10_000)
        for topic in "tu":
            self.send(topic=topic)
        bulk = self.bulk(*[b"x"] * 7)
        self.assertEqual((9, 7), (self.table.in_flight()[0], bulk.in_flight))
        self.send(topic="t")
        self.assertIsNone(self.take(b"x", "u"))
        self.assertIsNone(self.bulk(b"x"))
        self.assertEqual(10, self.room()[0])

    def test_a_reservation_has_room_for_no_more_than_the_budget(self):
        self.table = self.new_table(max_messages=3, max_bytes=1000)
        sizes = [plain_size(Record(b"x" * length)) for length in (0, 100, 250, 500)]
        for size in sizes:
            reservation = self.table.open_sends("t", PREFIX, size, ProducerTransport, 1_000_000)
            self.assertLessEqual((reservation.end - reservation.next, reservation.left), (3, 1000))
        self.assertEqual((0, 0), self.room())
        self.table.shut()
        reservation = self.table.open_sends("t", PREFIX, 1, ProducerTransport, 1_000_000)
        self.assertEqual(reservation.next, reservation.end)

    def test_undelivered_sends_keep_their_room_until_a_flush_reports_them(self):
        sequence = self.send(b"a")
        self.settle(refused=[(sequence, b"a")])
        self.assertEqual(1, self.table.messages)
        self.flush()
        self.assertEqual((0, 0), self.room())

    def test_messages_keep_their_room_until_their_last_listener_returned(self):
        attempts = self.attempts(b"a", b"b")
        for attempt in attempts:
            attempt.listeners += [lambda _: None] * 2
        self.reserve(attempts)
        self.settle((attempts[0].sequence, b"a"), refused=[(attempts[1].sequence, b"b")])
        self.assertEqual((2, 0), (self.table.messages, self.table.in_flight()[0]))
        for messages in (2, 1, 1, 0):
            _, attempt = self.table.due.popleft()
            self.table.listener_returned(attempt)
            self.assertEqual(messages, self.table.messages)
        self.assertEqual(0, self.table.bytes)

    def room_for(self, *values):
        """Start a caller that waits for room."""
        bulk = self.new_bulk(*values)
        return self.waiter(lambda: self.table.has_room(bulk) or not self.table.can_have_room(bulk))

    def test_a_caller_is_woken_once_its_room_is_free(self):
        bulk = self.bulk(*[b"x"] * 4)
        one, two = self.room_for(b"x"), self.room_for(b"x", b"x")
        messages = self.of(bulk)
        self.assertEqual((False, False), (one.over, two.over))
        self.settle(messages[0])
        self.assertEqual((True, False), (one.over, two.over))
        self.settle(refused=[messages[1]])
        self.assertEqual((True, True), (one.over, two.over))

    def test_a_bulk_that_has_room_or_never_can_have_it_does_not_wait(self):
        self.assertTrue(self.room_for(*[b"x"] * 4).over)
        self.assertTrue(self.room_for(*[b"x"] * 5).over)
        self.assertTrue(self.room_for(b"x" * 10_001).over)

    def test_a_caller_that_waits_is_woken_when_the_table_is_shut(self):
        self.bulk(*[b"x"] * 4)
        room = self.room_for(b"x")
        self.table.shut()
        self.assertTrue(room.over)
        self.assertIsNone(self.bulk(b"a"))
        self.assertIsInstance(self.table.refuse(self.new_bulk(b"a")), DeliveryAbandoned)

    def test_a_refusal_for_lack_of_room_has_the_numbers_and_uses_no_room(self):
        attempts = self.attempts(b"a", b"x" * 10_000)
        self.table.refuse(attempts[0].bulk)
        self.assertEqual([QueueFull, LargerThanBudget], [type(attempt.error) for attempt in attempts])
        self.assertIn("no room for 2 messages of", str(attempts[0].error))
        self.assertEqual([Outcome.FAILED] * 2, [attempt.outcome for attempt in attempts])
        self.assertEqual((0, 0), self.room())


class AgeTest(TableCase):
    def test_the_age_belongs_to_the_oldest_message_in_flight(self):
        old = self.bulk(b"a", b"b")
        self.clock.advance(5)
        self.table.close_sends()
        young = self.send(b"s")
        self.assertEqual(5, self.table.in_flight()[2])
        self.settle((young, b"s"), refused=self.of(old)[:1])
        self.assertEqual(5, self.table.in_flight()[2])
        self.settle(*self.of(old)[1:])
        self.assertEqual(0, self.table.in_flight()[2])

    def test_sends_have_their_own_age_after_the_clock_advances(self):
        first = self.send(b"a")
        self.clock.advance(7)
        self.table.close_sends()
        self.send(b"b")
        self.assertEqual(7, self.table.in_flight()[2])
        self.settle((first, b"a"))
        self.assertEqual(0, self.table.in_flight()[2])

    def test_a_reservation_that_ends_during_a_count_is_counted_correctly(self):
        """Another thread settles between the reads of a bulk and of its reservation."""
        in_flight, looks = Bulk.in_flight.fget, []

        def ended(bulk):
            looks.append(bulk)
            if len(looks) == 1:
                self.table.close_sends()
            return in_flight(bulk)

        self.send(b"a")
        with mock.patch.object(Bulk, "in_flight", property(ended)):
            messages, size, _ = self.table.in_flight()
        self.assertEqual((1, plain_size(Record(b"a"))), (messages, size))


class FlushTest(TableCase):
    def test_a_flush_counts_delivered_sends_once_and_lists_the_others(self):
        sent = [self.send(b"%d" % number) for number in range(4)]
        self.settle((sent[0], b"0"), (sent[1], b"1"), refused=[(sent[2], b"2")])
        delivered, rest = self.flush()
        self.assertEqual((2, sent[2:]), (delivered, [attempt.sequence for attempt in rest]))
        self.settle((sent[3], b"3"))
        self.assertEqual((0, []), self.flush())
        self.assertEqual((0, 0), self.room())

    def test_a_send_reported_in_flight_is_retriable_when_the_client_returns_it(self):
        sequence = self.send(b"a")
        _, [attempt] = self.flush()
        self.assertIsNone(attempt.record)
        self.settle(refused=[(sequence, b"a")])
        self.assertEqual((b"a", True), (attempt.record.value, attempt.is_worth_sending))
        self.assertEqual(((0, 0), (0, [])), (self.room(), self.flush()))

    def test_a_flush_reports_neither_bulks_nor_messages_with_a_listener(self):
        bulk = self.bulk(b"a", b"b")
        [received] = self.attempts(b"c")
        received.listeners.append(lambda _: None)
        self.reserve([received])
        self.settle(self.of(bulk)[0], refused=[self.of(bulk)[1], (received.sequence, b"c")])
        self.assertEqual((0, []), self.flush())

    def test_a_flush_counts_a_delivered_message_with_a_listener(self):
        [received] = self.attempts(b"c")
        received.listeners.append(lambda _: None)
        self.reserve([received])
        self.settle((received.sequence, b"c"))
        self.assertEqual((1, []), self.flush())

    def test_the_next_flush_reports_messages_of_an_interrupted_one(self):
        sent = [self.send(b"a"), self.send(b"b"), self.send(b"c")]
        self.settle((sent[0], b"a"), refused=[(sent[1], b"b")])
        delivered, rest = self.flush()
        self.table.report_later(delivered, rest)
        self.settle((sent[2], b"c"))
        delivered, rest = self.flush()
        self.assertEqual((2, [sent[1]]), (delivered, [attempt.sequence for attempt in rest]))
        self.assertEqual((0, 0), self.room())

    def test_the_time_of_an_interrupted_flush_is_linear_in_its_messages(self):
        self.table = self.new_table(max_messages=50_000, max_bytes=100_000_000)
        bulk = self.bulk(*[b"v"] * 50_000)
        self.settle(refused=self.of(bulk))
        attempts = list(bulk.attempts.values())
        began = time.monotonic()
        self.table.report_later(0, attempts)
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual((0, attempts), self.flush())


class AbandonTest(TableCase):
    def test_an_interrupted_bulk_is_reported_by_the_next_flush(self):
        bulk = self.bulk(b"a", b"b", b"c")
        a, b, c = self.of(bulk)
        self.settle(a, refused=[b])
        self.table.interrupt([bulk])
        self.settle(c)
        delivered, rest = self.flush()
        self.assertEqual(1, delivered)
        self.assertEqual(
            {b"b": Outcome.FAILED, b"c": Outcome.UNKNOWN}, {attempt.record.value: attempt.outcome for attempt in rest}
        )
        self.assertEqual((0, 0), self.room())

    def test_interrupted_messages_are_reported_whether_they_were_reserved_or_not(self):
        reserved, refused, delivered = self.attempts(b"a", b"b", b"c")
        [fresh] = self.attempts(b"d")
        self.reserve([reserved, refused, delivered])
        self.settle((delivered.sequence, b"c"), refused=[(refused.sequence, b"b")])
        self.table.interrupt([reserved.bulk, fresh.bulk])
        count, rest = self.flush()
        self.assertEqual((1, {reserved, refused, fresh}), (count, set(rest)))
        self.assertEqual((0, 0), self.room())

    def test_interrupted_messages_take_room_until_a_flush_reports_them(self):
        bulk = self.bulk(b"a", b"bb")
        room = self.room()
        self.table.interrupt([bulk])
        self.assertEqual(room, self.room())
        delivered, rest = self.flush()
        self.assertEqual((0, 2), (delivered, len(rest)))
        self.assertEqual((0, 0), self.room())

    def test_a_message_that_interrupted_calls_and_a_send_share_is_reported_once(self):
        for is_refused in (False, True):
            [first] = self.attempts(b"a", message_id=b"own")
            self.reserve([first])
            for _ in range(2):
                [again] = self.attempts(b"a", message_id=b"own")
                self.table.interrupt([again.bulk])
            [sent] = self.attempts(b"a", message_id=b"own")
            sent.for_flush = True
            self.reserve([sent])
            self.settle(refused=[(first.sequence, b"a")] * is_refused)
            self.assertEqual((0, [first]), self.flush())
            self.settle(refused=[(first.sequence, b"a")])
            self.assertEqual((0, 0), self.room())

    # Rule 5
    def test_a_send_that_the_client_did_not_accept_is_failed_even_after_connection_errors(self):
        sequence = self.send(b"a")
        self.table.note_trouble(TransportError("cut"))
        refused = UndeliveredMessage(sequence, RetriableError("full"), b"a", None, taken=False)
        self.table.settle(Outcomes(undelivered=[refused]))
        _, [attempt] = self.flush()
        self.assertEqual((Outcome.FAILED, b"a"), (attempt.outcome, attempt.record.value))
        self.assertEqual((0, 0), self.room())

    def test_a_returned_message_is_settled_without_a_search_of_delivered_ones(self):
        class Unsearched(list):
            def __getitem__(self, at):
                found = super().__getitem__(at)
                return Unsearched(found) if isinstance(at, slice) else found

            def __contains__(self, sequence):
                raise AssertionError("a search for each message takes minutes if many were returned")

        sequences = [self.send(b"a") for _ in range(4)]
        outcomes = self.outcomes([(each, b"a") for each in sequences[::2]], [(each, b"a") for each in sequences[1::2]])
        outcomes.sequences = Unsearched(outcomes.sequences)
        self.table.settle(outcomes)
        count, undelivered = self.flush()
        self.assertEqual((2, 2), (count, len(undelivered)))

    # Rule 9
    def test_a_send_that_was_interrupted_is_unknown_unless_it_was_delivered(self):
        first, second = self.send(b"a"), self.send(b"b")
        interrupted = [
            UndeliveredMessage(sequence, TransportError("interrupted"), value, None, taken=None)
            for sequence, value in ((first, b"a"), (second, b"b"))
        ]
        outcomes = self.outcomes([(first, b"a")])
        self.table.settle(dataclasses.replace(outcomes, undelivered=interrupted))
        count, [attempt] = self.flush()
        self.assertEqual((1, Outcome.UNKNOWN, b"b"), (count, attempt.outcome, attempt.record.value))
        self.assertEqual((0, 0), self.room())

    def test_an_interrupted_message_attaches_to_the_one_in_flight_under_its_id(self):
        [first] = self.attempts(b"a", message_id=b"own")
        self.reserve([first])
        [again] = self.attempts(b"a", message_id=b"own")
        self.table.interrupt([again.bulk])
        self.assertIs(first, again.latest)
        [third] = self.attempts(b"a", message_id=b"own")
        self.reserve([third])
        self.assertIs(first, third.latest)
        self.settle((first.sequence, b"a"))
        self.assertEqual((1, []), self.flush())
        self.assertEqual((0, 0), self.room())

    def test_a_message_that_a_flush_reports_while_its_listener_runs_frees_its_room_once(self):
        for report in (self.flush, lambda: self.table.report_later(*self.table.take_report(()))):
            [attempt] = self.attempts(b"a")
            attempt.for_flush = True
            attempt.listeners.append(print)
            self.reserve([attempt])
            self.settle(refused=[(attempt.sequence, b"a")])
            report()
            self.table.listener_returned(attempt)
            self.flush()
            self.assertEqual((0, 0), self.room())

    def test_an_interrupt_while_a_listener_runs_leaves_the_room_to_the_listener(self):
        [attempt] = self.attempts(b"a")
        attempt.listeners.append(print)
        self.reserve([attempt])
        self.settle(refused=[(attempt.sequence, b"a")])
        self.table.interrupt([attempt.bulk])
        self.assertEqual(1, self.room()[0])
        self.table.listener_returned(attempt)
        self.assertEqual((0, 0), self.room())
        self.assertEqual((0, []), self.flush())


class RandomTest(TableCase):
    """Random calls against a model that has one entry for each message."""

    def test_the_table_agrees_with_a_simple_model(self):
        for seed in range(30):
            self.start(seed)
            for _ in range(150):
                self.random.choice(
                    (
                        self.do_bulk,
                        self.do_send,
                        self.do_send,
                        self.do_attempt,
                        self.do_settle,
                        self.do_flush,
                        self.do_tick,
                    )
                )()
                if self.random.random() < 0.5:
                    self.assertEqual(self.model_room(), self.room(), f"seed {seed}")
                self.assertEqual(len(self.in_flight), self.table.in_flight()[0], f"seed {seed}")
            self.do_settle(everything=True)
            self.do_flush()
            self.assertEqual(((0, 0), [], 0), (self.room(), self.table.unfinished(), self.table.in_flight()[0]))

    def start(self, seed):
        self.random = random.Random(seed)
        self.table = self.new_table()
        self.topics = {}
        self.in_flight = {}  # sequence: (value, whether a flush reports it)
        self.undelivered = {}  # sequence: value; sends that no flush has reported
        self.delivered = 0
        self.bulks = []

    def model_room(self):
        values = [value for value, _ in self.in_flight.values()] + list(self.undelivered.values())
        return len(values), sum(plain_size(Record(value)) for value in values)

    def value(self):
        return b"x" * self.random.randrange(20)

    def topic(self):
        return self.random.choice("tuv")

    def do_bulk(self):
        bulk = self.bulk(*[self.value() for _ in range(self.random.randrange(1, 20))], topic=self.topic())
        self.bulks.append(bulk)
        self.in_flight |= {sequence: (value, False) for sequence, value in self.of(bulk)}

    def do_send(self):
        value = self.value()
        self.in_flight[self.send(value, topic=self.topic())] = value, True

    def do_attempt(self):
        [attempt] = self.attempts(self.value(), topic=self.topic())
        attempt.for_flush = self.random.random() < 0.5
        self.reserve([attempt])
        self.in_flight[attempt.sequence] = attempt.record.value, attempt.for_flush

    def do_settle(self, *, everything=False):
        share = 1.0 if everything else self.random.choice((0.1, 0.9))
        delivered, refused = [], []
        for sequence, (value, for_flush) in list(self.in_flight.items()):
            if self.random.random() > share:
                continue
            del self.in_flight[sequence]
            if self.random.random() < 0.9:
                delivered.append((sequence, value))
                self.delivered += for_flush
            else:
                refused.append((sequence, value))
                if for_flush:
                    self.undelivered[sequence] = value
        self.settle(*delivered, (10**9, b"unknown"), refused=refused)

    def do_flush(self):
        delivered, rest = self.flush()
        reported = {sequence for sequence, (_, for_flush) in self.in_flight.items() if for_flush} | set(
            self.undelivered
        )
        self.assertEqual((self.delivered, reported), (delivered, {attempt.sequence for attempt in rest}))
        self.assertEqual(len(reported), len(rest))
        for sequence, (value, _) in self.in_flight.items():
            self.in_flight[sequence] = value, False
        self.delivered, self.undelivered = 0, {}

    def do_tick(self):
        self.clock.advance(self.random.random())
        self.table.close_sends()


class ThreadsTest(TableCase):
    def test_the_messages_of_a_bulk_are_listed_with_the_lock(self):
        """The serving thread adds undelivered messages."""
        table = self.table

        class Listed(dict):
            def values(self):
                assert table.lock._is_owned()
                return super().values()

            def items(self):
                assert table.lock._is_owned()
                return super().items()

        [attempt] = self.attempts(b"a")
        bulk = attempt.bulk
        bulk.attempts = Listed(bulk.attempts)
        self.reserve([attempt])
        self.assertFalse(bulk.all_over()())
        self.assertEqual([], table.unfinished(of_sends=True))
        self.assertEqual({0: attempt}, table.attempts_of(bulk))
        table.interrupt([bulk])
        self.assertTrue(bulk.all_over()())


class SwitchingThreadsTest(TableCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)

    # Rule 9
    def test_threads_can_reserve_while_another_thread_settles(self):
        waiting, over = deque(), threading.Event()

        def settle():
            while not over.is_set() or waiting:
                self.settle(*[waiting.popleft() for _ in range(len(waiting))])

        def send(topic):
            waiting.extend((self.send(b"x", topic=topic), b"x") for _ in range(5000))

        settling = threading.Thread(target=settle, daemon=True)
        settling.start()
        run_together(send, "tuv")
        over.set()
        settling.join(50)
        self.assertEqual(((15000, []), (0, 0)), (self.flush(), self.room()))
