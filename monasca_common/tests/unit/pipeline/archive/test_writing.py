# SPDX-License-Identifier: Apache-2.0
"""Files as a task writes them, without Spark."""

from pathlib import Path
from unittest import mock

import fixtures
import pyarrow as pa
import pyarrow.parquet as pq
from oslotest import base

from monasca_common.pipeline.archive import reading, writing
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.selection import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writing import HourWriters
from monasca_common.tests.unit.persister import envelopes

HEADERS = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]


def batch(rows):
    """Of (partition, offset, hour or value)."""
    values = [envelopes.metric(0, time_ms=last * HOUR_MS) if isinstance(last, int) else last for *_, last in rows]
    count = len(rows)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch(
        {
            "partition": pa.array([row[0] for row in rows], pa.int32()),
            "offset": pa.array([row[1] for row in rows], pa.int64()),
            "timestamp": pa.array([7_000_000 + row[1] * 1000 for row in rows], pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([HEADERS, None] * (count // 2) + [HEADERS] * (count % 2), header),
        }
    )


class HourWritersTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.folder))

    def write(self, *batches):
        """(hour, partition, first, last, records, undated) of each file, and its rows."""
        writers = HourWriters(self.store, "s/7", "metrics", "zstd")
        for one in batches:
            writers.add(batch(one))
        told = writers.finish()
        self.assertEqual(len(told), len(list(self.folder.rglob("*.parquet"))))
        files = []
        for path, hour, partition, first, last, records, size_bytes, undated in told:
            self.assertEqual(size_bytes, self.store.size(path))
            offsets = pq.read_table(self.folder / path).column("offset").to_pylist()
            self.assertEqual((records, first, last), (len(offsets), offsets[0], offsets[-1]))
            self.assertEqual(sorted(offsets), offsets)
            files.append((hour, partition, first, last, records, undated))
        return sorted(files)

    def test_records_of_one_hour_are_one_file(self):
        self.assertEqual([(5, 0, 1, 4, 3, 0)], self.write([(0, 1, 5), (0, 2, 5)], [(0, 4, 5)]))

    def test_hours_and_partitions_are_files_of_their_own(self):
        rows = [(0, 1, 5), (0, 2, 6), (0, 3, 5), (1, 1, 5)]
        self.assertEqual([(5, 0, 1, 3, 2, 0), (5, 1, 1, 1, 1, 0), (6, 0, 2, 2, 1, 0)], self.write(rows))

    def test_an_undated_record_is_counted_and_is_in_kafkas_hour(self):
        self.assertEqual([(0, 0, 2, 2, 1, 1), (5, 0, 1, 1, 1, 0)], sorted(self.write([(0, 1, 5), (0, 2, b"x")])))

    def test_nothing_is_no_file(self):
        self.assertEqual([], self.write())
        self.assertEqual([], self.write([]))

    def test_of_many_hours_few_files_are_open_and_no_record_is_lost(self):
        with mock.patch.object(writing, "_OPEN_FILES", 2), mock.patch.object(writing, "_HELD_BYTES", 1):
            files = self.write(*([(0, turn * 5 + hour, hour) for hour in range(5)] for turn in range(3)))
        self.assertEqual(15, sum(records for *_, records, _ in files))
        self.assertGreater(len(files), 5)
        offsets = [offset for _, _, first, last, _, _ in files for offset in (first, last)]
        self.assertEqual((0, 14), (min(offsets), max(offsets)))

    def test_what_is_read_back_is_what_was_read_from_kafka(self):
        rows = [(0, 1, 5), (0, 2, 6), (0, 3, b"x"), (0, 4, None)]
        self.write(rows)
        messages = sorted(
            (message for path in self.folder.rglob("*.parquet") for message in self.read(path)),
            key=lambda message: message.offset,
        )
        wanted = batch(rows)
        self.assertEqual(wanted.column("value").to_pylist(), [message.value for message in messages])
        self.assertEqual([7001, 7002, 7003, 7004], [message.timestamp_ms for message in messages])
        kept = (("a", b"1"), ("a", None))
        self.assertEqual([kept, (), kept, ()], [message.headers for message in messages])
        self.assertEqual({("metrics", 0, b"k")}, {(one.topic, one.partition, one.key) for one in messages})

    def read(self, path, **selection):
        found = reading.read(self.store, str(path.relative_to(self.folder)), Selection(**selection))
        return [message for part in found for message in reading.messages("metrics", part)]

    def test_a_range_includes_its_beginning_and_not_its_end(self):
        self.write([(0, offset, 5) for offset in range(3)])
        (path,) = self.folder.rglob("*.parquet")
        for selection, count in (
            ({"from_ms": 5 * HOUR_MS}, 3),
            ({"from_ms": 5 * HOUR_MS + 1}, 0),
            ({"to_ms": 5 * HOUR_MS}, 0),
            ({"to_ms": 5 * HOUR_MS + 1}, 3),
        ):
            self.assertEqual(count, len(self.read(path, **selection)), selection)
        self.assertEqual(3, reading.count_records(self.store, str(path.relative_to(self.folder))))
