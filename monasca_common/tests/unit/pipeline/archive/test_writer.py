# SPDX-License-Identifier: Apache-2.0
"""The files of a task and their footers, without Spark."""

from pathlib import Path

import fixtures
import pyarrow as pa
import pyarrow.parquet as pq
from oslotest import base

from monasca_common.pipeline.archive import reader
from monasca_common.pipeline.archive.reader import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writer import TaskFiles
from monasca_common.pipeline.errors import ArchiveDamaged

MICROSECOND = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def records(*places, value=b"x", dated=True):
    """Return records at (partition, offset, hour), in the form in which Spark passes them to a task."""
    partitions, offsets, hours = zip(*places, strict=True)
    count = len(places)
    return pa.record_batch(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([7_000] * count, MICROSECOND),
            "key": pa.array([b"k"] * count),
            "value": pa.array([value] * count, pa.binary()),
            "headers": pa.array([[{"key": "a", "value": b"1"}]] * count, HEADERS),
            "event_time": pa.array([5_000] * count, MICROSECOND),
            "of_hour": pa.array(hours, pa.int64()),
            "is_dated": pa.array([dated] * count),
        }
    )


class TaskFilesCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.root))

    def files(self, *batches, **bounds):
        files = TaskFiles(self.store, "_staging/topic=metrics/ab/17", **bounds)
        for batch in batches:
            files.add(batch)
        return files.close()


class TaskFilesTest(TaskFilesCase):
    def test_each_partition_and_hour_is_a_file_with_a_report_of_its_content(self):
        found = self.files(records((0, 5, 7), (1, 6, 7), (0, 6, 8)), records((0, 9, 7), dated=False))
        reports = {(each["partition"], each["hour"]): each for each in found}
        self.assertEqual({(0, 7), (1, 7), (0, 8)}, set(reports))
        counts = {name: reports[0, 7][name] for name in ("first", "last", "records", "undated", "newest")}
        self.assertEqual({"first": 5, "last": 9, "records": 2, "undated": 1, "newest": 5}, counts)
        for each in found:
            self.assertEqual(each["records"], pq.read_metadata(self.store.reading(each["path"])).num_rows)
            self.assertEqual(each["bytes"], (self.root / each["path"]).stat().st_size)

    def test_readers_of_parquet_do_not_see_staged_files(self):
        self.files(records((0, 5, 7)))
        staged = [path for path in self.root.rglob("*") if path.is_file()]
        self.assertEqual([".staged"], [path.suffix for path in staged])
        self.assertEqual([], list(self.root.glob("**/*.parquet")))

    def test_each_batch_is_a_row_group(self):
        many = [records(*((0, turn * 10 + number, number % 2) for number in range(10))) for turn in range(5)]
        found = self.files(*many)
        self.assertEqual([25, 25], [each["records"] for each in found])
        self.assertEqual([5, 5], [pq.ParquetFile(self.root / each["path"]).num_row_groups for each in found])

    def test_more_hours_than_open_files_create_more_files(self):
        turns = [records(*((0, turn * 9 + hour, hour) for hour in range(9))) for turn in range(3)]
        found = self.files(*turns, most_open=4)
        self.assertEqual(27, sum(each["records"] for each in found))
        self.assertEqual(set(range(9)), {each["hour"] for each in found})
        self.assertEqual(len(found), len({each["path"] for each in found}))
        tables = [pq.read_table(self.root / each["path"], columns=["offset"]) for each in found]
        self.assertEqual(list(range(27)), sorted(pa.concat_tables(tables).column("offset").to_pylist()))

    def test_a_truncated_file_is_an_error_with_its_path(self):
        (found,) = self.files(records((0, 5, 7), (0, 6, 7)))
        path = self.root / found["path"]
        whole = path.read_bytes()
        for length in (0, 3, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            batches = reader.read(self.store, found["path"], Selection())
            self.assertIn(str(path), str(self.assertRaises(ArchiveDamaged, list, batches)))
