# SPDX-License-Identifier: Apache-2.0
import hashlib

import fixtures
from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.kafka.message import MADE_ID_BYTES, Batch, PartitionBatch, TopicPartition
from monasca_common.models import log
from monasca_common.models.metric import MetricDecoder
from monasca_common.persister.decoder import EnvelopeDecoder
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus
from monasca_common.storage.base import Claim, Kind
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts, rows_of_kind, store_rows
from monasca_common.storage.errors import RangeBeyondNext, RowsRefused, TooMuchAtOnce, TopicMismatch
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.writer_pool import WriterPool
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage

TP = TopicPartition("metrics", 3)


class Raw:
    """The parts of a client's message that the handler uses."""

    def __init__(self, offset, value, headers=()):
        self._offset, self._value, self._headers = offset, value, headers

    def offset(self):
        return self._offset

    def value(self):
        return self._value

    def headers(self):
        return self._headers

    def key(self):
        return None

    def timestamp(self):
        return 1, 0


def message_ids(part):
    return rows_of_kind(Kind.LOGS, part, part.values).message_ids


class LinesDecoder:
    """Decodes messages of several lines; each is a row, except ``bad``."""

    def __call__(self, part, faults):
        values, positions, indexes = [], [], []
        for position, text in enumerate(part.values):
            for index, line in enumerate(text.splitlines()):
                if line == b"bad":
                    faults.add(part.offsets[position], index, "it is bad")
                    continue
                values.append(line.decode())
                positions.append(position)
                indexes.append(index)
        untimed = range(len(values))
        return rows_of_kind(Kind.LOGS, part, values, positions, indexes=indexes, untimed=untimed, dead=faults.reasons)


def batch(*values, first=0, start=None, headers=()):
    raws = [Raw(first + index, value, headers) for index, value in enumerate(values)]
    return PartitionBatch(TP, 1, raws, start)


class HandlerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.storage = MemoryStorage()
        self.writers = WriterPool(self.storage)
        self.health = MemberHealth(MemberStatus("metrics-0"), SystemClock())
        self.failures, self.written = [], []
        self.health.begin()
        self.health.starts_at({TP: 0})
        self.starts = StartOffsets(self.writers, self.health, self.failures.append)
        self.starts.topic_ids = {"metrics": "id-1"}
        self.handler = self.handler_of(Kind.METRICS, MetricDecoder().decode_all)

    def handler_of(self, kind, decode):
        return self.handler_with(EnvelopeDecoder(kind, EnvelopeReader(), decode))

    def handler_with(self, decoder):
        wrote = lambda written, seconds: self.written.append(written)  # noqa: E731
        parts = HandlerParts("g", self.writers, self.starts, self.health, self.failures.append)
        return BatchHandler(parts, {TP.topic: decoder}, store_rows, wrote)


class HandlerTest(HandlerCase):
    def test_a_batch_becomes_rows_and_its_whole_range_is_claimed(self):
        self.handler(batch(envelopes.metric(1), envelopes.metric(2), first=7, start=5))
        self.assertEqual([1.0, 2.0], [row.value for row in self.storage.rows])
        self.assertEqual([Claim("g", "metrics", 3, "id-1", 5, 9)], self.storage.claims)
        self.assertEqual([2], [each.stored for each in self.written])

    def test_invalid_envelopes_are_poison_with_their_reasons(self):
        poison = self.assertRaises(Poison, self.handler, batch(envelopes.metric(1), b"{", envelopes.metric(2), None))
        self.assertEqual((1, 3), poison.indices)
        self.assertNotEqual(poison.reasons[1], poison.reasons[3])
        self.assertEqual([], self.storage.rows)

    def test_rows_refused_by_the_database_are_poison_at_their_indices(self):
        with self.writers.writer():
            self.storage.faults.append(RowsRefused({1: "too old"}))
        poison = self.assertRaises(Poison, self.handler, batch(envelopes.metric(1), envelopes.metric(2)))
        self.assertEqual({1: "too old"}, poison.reasons)

    def test_an_unavailable_database_is_retried_and_reported(self):
        self.storage.away(1)
        self.assertRaises(RetryLater, self.handler, batch(envelopes.metric(1)))
        self.assertEqual(MemberState.WAITING_FOR_DATABASE, self.health.report(None).state)
        self.handler(batch(envelopes.metric(1)))
        self.assertEqual(MemberState.RUNNING, self.health.report(None).state)

    def test_a_batch_that_is_too_large_is_retried_in_parts(self):
        with self.writers.writer():
            self.storage.faults += [TooMuchAtOnce("too slow")] * 2
        four = batch(*map(envelopes.metric, range(4)), first=7, start=5)
        for _ in range(2):
            self.assertRaises(RetryLater, self.handler, four)
            self.assertEqual(MemberState.WAITING_FOR_DATABASE, self.health.report(None).state)
        self.handler(four)
        self.assertEqual((5, 8), (self.storage.claims[0].start, self.storage.claims[0].end))
        self.assertEqual(11, self.storage.claims[-1].end)
        self.assertEqual([0.0, 1.0, 2.0, 3.0], [row.value for row in self.storage.rows])
        self.assertEqual(4, sum(each.stored for each in self.written))
        self.assertEqual(MemberState.RUNNING, self.health.report(None).state)

    def test_a_range_after_the_stored_offset_is_read_again_from_it(self):
        self.storage.faults += [RangeBeyondNext("metrics", 3, 100, 40)]
        again = self.assertRaises(ReadFrom, self.handler, batch(envelopes.metric(1)))
        self.assertEqual(40, again.offset)

    def test_offsets_without_rows_advance_the_stored_offset(self):
        self.handler.accounted(TP, 0, 4)
        self.handler.accounted(TP, 0, 2)  # repeated after a crash, below the stored offset
        self.assertEqual(4, self.storage.next["g", *TP].next_offset)
        again = self.assertRaises(ReadFrom, self.handler.accounted, TP, 9, 10)
        self.assertEqual(4, again.offset)
        self.assertEqual([], self.storage.rows)

    def test_dead_letters_are_accounted_after_the_database_returns(self):
        self.storage.away(1)
        self.assertRaises(RetryLater, self.handler.accounted, TP, 0, 1)
        self.assertEqual(MemberState.WAITING_FOR_DATABASE, self.health.report(None).state)
        self.handler.accounted(TP, 0, 1)
        self.assertEqual(MemberState.RUNNING, self.health.report(None).state)

    def test_a_recreated_topic_ends_the_consumer_without_dead_letters(self):
        mismatch = TopicMismatch("metrics", "id-0", "id-1")
        self.storage.faults.append(mismatch)
        self.assertRaises(RetryLater, self.handler, batch(envelopes.metric(1)))
        self.assertEqual([mismatch], self.failures)

    def test_messages_below_the_stored_offset_are_skipped(self):
        self.handler(batch(envelopes.metric(1), envelopes.metric(2)))
        self.handler(batch(envelopes.metric(2), envelopes.metric(3), first=1))
        self.assertEqual([1.0, 2.0, 3.0], [row.value for row in self.storage.rows])
        self.assertEqual(1, self.written[-1].skipped)

    def test_a_message_id_is_the_header_or_derived_from_the_offset(self):
        part = PartitionBatch(
            TP, 1, [Raw(4, b"", [("message-id", b"\x01\x02")]), Raw(5, b"", [("other", b"x")]), Raw(6, b"", None)]
        )
        self.assertEqual([b"\x01\x02", b"metrics/3/5", b"metrics/3/6"], message_ids(part))
        self.assertEqual([message.message_id for message in part], message_ids(part))

    def test_a_message_id_too_long_for_an_index_is_hashed(self):
        ids = [b"x" * 255, b"x" * 256, b"x" * 3000, b"y" * 3000]
        first = PartitionBatch(TP, 1, [Raw(n, b"", [("message-id", value)]) for n, value in enumerate(ids)])
        kept = message_ids(first)
        self.assertEqual(ids[0], kept[0])
        self.assertEqual([hashlib.sha256(value).digest() for value in ids[1:]], kept[1:])
        again = PartitionBatch(TP, 1, [Raw(n + 9, b"", [("message-id", value)]) for n, value in enumerate(ids)])
        self.assertEqual(kept, message_ids(again))

    def test_an_id_derived_from_a_long_topic_name_is_unchanged(self):
        place = TopicPartition("t" * 249, 2_147_483_647)
        part = PartitionBatch(place, 1, [Raw(10**18, b"", None)])
        self.assertEqual([message.message_id for message in part], message_ids(part))
        self.assertGreater(len(message_ids(part)[0]), 255)

    def test_kinds_without_a_natural_key_are_written_with_message_ids(self):
        self.handler_of(Kind.LOGS, log.decode_all)(batch(envelopes.log(1), envelopes.log(2)))
        self.assertEqual([b"metrics/3/0", b"metrics/3/1"], self.storage.message_ids)

    def test_only_a_callers_id_is_the_key_of_an_untimed_row(self):
        own, made = [("message-id", b"x" * 32)], [("message-id", b"x" * MADE_ID_BYTES)]
        raws = [
            Raw(0, envelopes.log(0), own),
            Raw(1, envelopes.log(1, own_time=True), own),
            Raw(2, envelopes.log(2), made),
            Raw(3, envelopes.log(3)),
        ]
        self.handler_of(Kind.LOGS, log.decode_all)(PartitionBatch(TP, 1, raws))
        self.assertEqual([True, False, False, False], self.storage.by_id)

    def test_without_callers_ids_storage_receives_no_ids_as_keys(self):
        raws = [Raw(0, envelopes.log(0), [("message-id", b"x" * MADE_ID_BYTES)]), Raw(1, envelopes.log(1))]
        self.handler_of(Kind.LOGS, log.decode_all)(PartitionBatch(TP, 1, raws))
        self.assertEqual([], self.storage.by_id)


class ElementsTest(HandlerCase):
    """A decoder that returns several rows for each message."""

    def setUp(self):
        super().setUp()
        self.handler = self.handler_with(LinesDecoder())

    def dead_letters(self, part):
        """Handle a batch as a processor does, and return the reasons of its dead letters by position."""
        poison = self.assertRaises(Poison, self.handler, part)
        self.handler(part.without(poison.reasons))
        return poison.reasons

    def test_the_id_of_a_row_is_the_id_of_the_message_and_the_index(self):
        self.handler(batch(b"a\nb", b"c"))
        self.assertEqual([b"metrics/3/0/0", b"metrics/3/0/1", b"metrics/3/1/0"], self.storage.message_ids)

    def test_a_bad_element_is_a_dead_letter_without_its_siblings(self):
        reasons = self.dead_letters(batch(b"a\nbad\nc\nbad", b"d"))
        self.assertEqual({0: "element 1: it is bad; element 3: it is bad"}, reasons)
        self.assertEqual(["a", "c", "d"], self.storage.rows)
        self.assertEqual([b"metrics/3/0/0", b"metrics/3/0/2", b"metrics/3/1/0"], self.storage.message_ids)
        self.assertEqual(2, self.storage.next["g", *TP].next_offset)

    def test_siblings_are_not_stored_before_their_dead_letter_is_acknowledged(self):
        part = batch(b"a\nbad", b"b")
        poison = self.assertRaises(Poison, self.handler, part)
        self.assertEqual([], self.storage.rows)
        self.storage.away(1)
        self.assertRaises(RetryLater, self.handler, part.without(poison.reasons))
        self.handler(part.without(poison.reasons))
        self.assertEqual(["a", "b"], self.storage.rows)

    def test_siblings_without_other_messages_are_stored_with_the_offset(self):
        self.assertRaises(Poison, self.handler, batch(b"a\nbad", b"bad\nb"))
        self.handler.accounted(TP, 0, 2)
        self.handler.accounted(TP, 0, 2)
        self.assertEqual(["a", "b"], self.storage.rows)
        self.assertEqual(2, self.storage.next["g", *TP].next_offset)

    def test_an_element_that_the_database_refuses_is_a_dead_letter_without_its_siblings(self):
        with self.writers.writer():
            self.storage.faults.append(RowsRefused({1: "too old"}))
        self.assertEqual({0: "element 1: too old"}, self.dead_letters(batch(b"a\nb\nc", b"d")))
        self.assertEqual(["a", "c", "d"], self.storage.rows)
        self.assertEqual([True, True, False], self.storage.by_id)

    def test_a_sibling_that_the_database_refuses_stays_a_dead_letter_and_is_logged(self):
        logged = self.useFixture(fixtures.FakeLogger())
        self.assertRaises(Poison, self.handler, batch(b"a\nbad\nc"))
        with self.writers.writer():
            self.storage.faults.append(RowsRefused({1: "too old"}))
        self.handler.accounted(TP, 0, 1)
        self.assertEqual(["a"], self.storage.rows)
        self.assertIn("element 2 of the dead letter metrics/3/0 is not stored: too old", logged.output)

    def test_the_rows_of_a_message_are_in_one_transaction(self):
        with self.writers.writer():
            self.storage.faults += [TooMuchAtOnce("too slow")] * 2
        part = batch(b"a\nb\nc", b"d\ne\nf", b"g")
        for _ in range(2):
            self.assertRaises(RetryLater, self.handler, part)
        self.handler(part)
        self.assertEqual([(0, 1), (1, 2), (2, 3)], [(claim.start, claim.end) for claim in self.storage.claims])
        self.assertEqual(list("abcdefg"), self.storage.rows)


class OverlapTest(HandlerCase):
    """A session ended during a call: the call of the next assignment begins while the abandoned call is decoding."""

    def setUp(self):
        super().setUp()
        self.during, self.decode = [], LinesDecoder()
        self.handler = self.handler_with(self.decoder)
        self.part = batch(b"a\nbad", b"b")
        self.rest = self.part.without(self.assertRaises(Poison, self.handler, self.part).reasons)

    def decoder(self, part, faults):
        while self.during:
            self.during.pop()()
        return self.decode(part, faults)

    def lose(self):
        self.handler.after_lost([TP])
        self.handler.after_poll(Batch())

    def assigned_again(self):
        self.handler.after_poll(Batch((self.part,)))
        self.assertRaises(Poison, self.handler, self.part)

    def end(self):
        """End the call of the next assignment."""
        self.handler(self.rest)
        self.assertEqual(["a", "b"], self.storage.rows)
        self.assertEqual(2, self.storage.next["g", *TP].next_offset)
        self.assertEqual({}, self.handler._siblings[TP])

    def test_an_abandoned_call_stores_the_siblings_that_the_next_call_has_not_decoded_yet(self):
        self.during = [lambda: self.handler(self.rest)]
        self.assertRaises(Poison, self.handler, self.part)
        self.end()

    def test_an_abandoned_call_stores_the_siblings_of_the_next_call(self):
        self.during = [self.assigned_again, self.lose]
        self.handler(self.rest)
        self.end()

    def test_siblings_of_a_lost_partition_are_dropped_and_an_abandoned_call_does_not_skip_them(self):
        self.during = [self.lose]
        self.assertEqual(0, self.assertRaises(ReadFrom, self.handler, self.rest).offset)
        self.assertEqual(([], {}), (self.storage.rows, self.storage.next))
        self.assigned_again()
        self.end()

    def test_siblings_that_an_abandoned_call_keeps_after_a_revoke_are_dropped(self):
        self.handler.after_revoke([TP])
        self.during = [lambda: self.handler.after_poll(Batch())]
        self.assertRaises(Poison, self.handler, self.part)
        self.handler.after_poll(Batch())
        self.assertEqual({0: None}, self.handler._siblings[TP])
        self.assertRaises(ReadFrom, self.handler.accounted, TP, 0, 1)
        self.assigned_again()
        self.end()

    def test_a_message_without_a_fault_has_no_siblings_of_its_offset(self):
        self.handler(batch(b"c", b"d"))
        self.assertEqual(["c", "d"], self.storage.rows)


class WritersTest(base.BaseTestCase):
    def test_writers_are_reused_and_concurrent_callers_have_two(self):
        storage = MemoryStorage()
        writers = WriterPool(storage)
        with writers.writer() as first:
            pass
        with writers.writer() as again, writers.writer() as second:
            self.assertIs(first, again)
            self.assertIsNot(again, second)
        self.assertEqual(2, storage.opened)

    def test_a_lent_writer_is_closed_when_it_is_returned(self):
        storage = MemoryStorage()
        writers = WriterPool(storage)
        with writers.writer():
            writers.close()
            self.assertEqual(0, storage.closed)
        self.assertEqual(1, storage.closed)
