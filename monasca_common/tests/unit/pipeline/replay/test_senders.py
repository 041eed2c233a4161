# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from oslotest import base

from monasca_common.kafka.message import Message
from monasca_common.pipeline.replay import senders
from monasca_common.storage.base import Kind
from monasca_common.storage.errors import RowsRefused, StorageUnavailable, TooMuchAtOnce
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage


class StoredFilesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.storage = MemoryStorage()
        self.filing = senders._FileWriter(self.storage.open_writer(), "a.parquet", Kind.METRICS, keeps_offsets=False)

    def write(self, count):
        return self.filing.write(
            [Message("metrics", 0, offset, None, None, envelopes.metric(offset), ()) for offset in range(count)]
        )

    def test_a_batch_that_is_too_slow_is_stored_in_parts(self):
        self.storage.faults += [TooMuchAtOnce("too slow")] * 2
        self.assertEqual(8, self.write(8)["stored"])
        self.assertEqual([float(n) for n in range(8)], [row.value for row in self.storage.rows])
        self.assertGreater(len(self.storage.claims), 1)

    def test_refused_rows_are_also_skipped_in_parts(self):
        self.storage.faults += [TooMuchAtOnce("too slow"), RowsRefused({1: "too old"})]
        counts = self.write(8)
        self.assertEqual(Counter(stored=7, refused=1), +counts)
        self.assertEqual([0.0, *map(float, range(2, 8))], [row.value for row in self.storage.rows])

    def test_a_single_row_that_is_too_slow_ends_the_replay(self):
        self.storage.faults += [TooMuchAtOnce("too slow")] * 9
        self.assertRaises(StorageUnavailable, self.write, 8)

    def test_archived_logs_with_message_ids_are_stored_by_id(self):
        filing = senders._FileWriter(self.storage.open_writer(), "a.parquet", Kind.LOGS, keeps_offsets=False)
        own = (("message-id", b"x" * 32),)
        messages = [Message("log", 0, 0, None, None, b"{", own)]
        messages += [Message("log", 0, n, None, None, envelopes.log(n), own if n == 2 else ()) for n in (1, 2, 3)]
        self.storage.faults += [RowsRefused({0: "too old"})]
        self.assertEqual(Counter(stored=2, refused=1, unreadable=1), +filing.write(messages))
        self.assertEqual([True, False], self.storage.by_id)
