# SPDX-License-Identifier: Apache-2.0
import hashlib

from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.models import log
from monasca_common.models.metric import MetricDecoder
from monasca_common.persister.account import Account, State, Status
from monasca_common.persister.handler import RowsHandler, message_ids
from monasca_common.persister.starts import StoredStarts
from monasca_common.persister.writers import Writers
from monasca_common.storage.base import Claim, Kind
from monasca_common.storage.errors import RangeBeyondNext, RowsRefused, TopicMismatch
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage

TP = TopicPartition("metrics", 3)


class Raw:
    """As much of a client's message as the handler needs."""

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


def batch(*values, first=0, start=None, headers=()):
    raws = [Raw(first + index, value, headers) for index, value in enumerate(values)]
    return PartitionBatch(TP, 1, raws, start)


class HandlerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.storage = MemoryStorage()
        self.writers = Writers(self.storage)
        self.account = Account(Status("metrics-0", Kind.METRICS), SystemClock())
        self.ends = []
        self.account.begin(lambda: self.ends.append(True))
        self.starts = StoredStarts(self.writers, self.account)
        self.starts.topic_ids = {"metrics": "id-1"}
        self.handler = self.handler_of(Kind.METRICS, MetricDecoder().decode_all)

    def handler_of(self, kind, decode):
        return RowsHandler(kind, "g", decode, self.writers, self.starts, self.account)

    def test_a_batch_becomes_rows_and_its_whole_range_is_claimed(self):
        self.handler(batch(envelopes.metric(1), envelopes.metric(2), first=7, start=5))
        self.assertEqual([1.0, 2.0], [row.value for row in self.storage.rows])
        self.assertEqual([Claim("g", "metrics", 3, "id-1", 5, 9)], self.storage.claims)
        self.assertEqual(2, self.account.status({}).counters.stored)

    def test_what_is_no_envelope_is_poison_each_with_its_reason_and_nothing_is_stored(self):
        poison = self.assertRaises(Poison, self.handler, batch(envelopes.metric(1), b"{", envelopes.metric(2), None))
        self.assertEqual((1, 3), poison.indices)
        self.assertNotEqual(poison.reasons[1], poison.reasons[3])
        self.assertEqual([], self.storage.rows)

    def test_rows_that_the_database_refuses_are_poison_at_their_positions(self):
        self.storage.faults.append(RowsRefused({1: "too old"}))
        poison = self.assertRaises(Poison, self.handler, batch(envelopes.metric(1), envelopes.metric(2)))
        self.assertEqual({1: "too old"}, poison.reasons)

    def test_a_database_that_is_away_is_waited_for_and_told(self):
        self.storage.away(1)
        self.assertRaises(RetryLater, self.handler, batch(envelopes.metric(1)))
        self.assertEqual(State.WAITING_FOR_DATABASE, self.account.status({}).state)
        self.handler(batch(envelopes.metric(1)))
        self.assertEqual(State.RUNNING, self.account.status({}).state)

    def test_a_range_beyond_what_is_stored_is_read_again_from_there(self):
        self.storage.faults += [RangeBeyondNext("metrics", 3, 100, 40)]
        again = self.assertRaises(ReadFrom, self.handler, batch(envelopes.metric(1)))
        self.assertEqual(40, again.offset)

    def test_another_topic_of_the_same_name_ends_the_consumer_and_dead_letters_nothing(self):
        mismatch = TopicMismatch("metrics", "id-0", "id-1")
        self.storage.faults.append(mismatch)
        self.assertRaises(RetryLater, self.handler, batch(envelopes.metric(1)))
        self.assertIs(mismatch, self.account.failure)
        self.assertEqual([True], self.ends)

    def test_what_is_below_the_stored_offset_is_skipped(self):
        self.handler(batch(envelopes.metric(1), envelopes.metric(2)))
        self.handler(batch(envelopes.metric(2), envelopes.metric(3), first=1))
        self.assertEqual([1.0, 2.0, 3.0], [row.value for row in self.storage.rows])
        self.assertEqual(1, self.account.status({}).counters.skipped)

    def test_a_message_id_comes_from_the_header_or_else_from_the_place(self):
        part = PartitionBatch(
            TP, 1, [Raw(4, b"", [("message-id", b"\x01\x02")]), Raw(5, b"", [("other", b"x")]), Raw(6, b"", None)]
        )
        self.assertEqual([b"\x01\x02", b"metrics/3/5", b"metrics/3/6"], message_ids(part))
        self.assertEqual([message.message_id for message in part], message_ids(part))

    def test_a_message_id_that_no_index_takes_stands_as_its_hash(self):
        ids = [b"x" * 255, b"x" * 256, b"x" * 3000, b"y" * 3000]
        first = PartitionBatch(TP, 1, [Raw(n, b"", [("message-id", value)]) for n, value in enumerate(ids)])
        kept = message_ids(first)
        self.assertEqual(ids[0], kept[0])
        self.assertEqual([hashlib.sha256(value).digest() for value in ids[1:]], kept[1:])
        again = PartitionBatch(TP, 1, [Raw(n + 9, b"", [("message-id", value)]) for n, value in enumerate(ids)])
        self.assertEqual(kept, message_ids(again))

    def test_a_place_is_never_replaced(self):
        place = TopicPartition("t" * 249, 2_147_483_647)
        part = PartitionBatch(place, 1, [Raw(10**18, b"", None)])
        self.assertEqual([message.message_id for message in part], message_ids(part))
        self.assertGreater(len(message_ids(part)[0]), 255)

    def test_kinds_without_a_natural_key_are_written_with_message_ids(self):
        self.handler_of(Kind.LOGS, log.decode_all)(batch(envelopes.log(1), envelopes.log(2)))
        self.assertEqual([b"metrics/3/0", b"metrics/3/1"], self.storage.message_ids)


class WritersTest(base.BaseTestCase):
    def test_a_writer_is_used_again_and_two_at_once_are_two(self):
        storage = MemoryStorage()
        writers = Writers(storage)
        with writers.lend() as first:
            pass
        with writers.lend() as again, writers.lend() as second:
            self.assertIs(first, again)
            self.assertIsNot(again, second)
        self.assertEqual(2, storage.opened)

    def test_one_that_is_at_work_is_closed_when_it_comes_back(self):
        storage = MemoryStorage()
        writers = Writers(storage)
        with writers.lend():
            writers.close()
            self.assertEqual(0, storage.closed)
        self.assertEqual(1, storage.closed)
