# SPDX-License-Identifier: Apache-2.0
"""Files as Spark's executors write and read them, without Kafka."""

from datetime import UTC, datetime
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.pipeline.archive import reader
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.reader import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writer import stage_files
from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark
from monasca_common.tests.unit.persister import envelopes

HEADERS = [("a", b"1"), ("a", None)]
SCHEMA = (
    "partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key string, value binary>>"
)


class StageFilesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.folder))
        self.spark = self.useFixture(SharedSpark()).session

    def write(self, *rows):
        """Return the staged files of records with (partition, offset, hour or value)."""
        records = [
            (
                partition,
                offset,
                datetime.fromtimestamp(7000 + offset, UTC),
                b"k",
                envelopes.metric(0, time_ms=last * HOUR_MS) if isinstance(last, int) else last,
                HEADERS if offset % 2 else None,
            )
            for partition, offset, last in rows
        ]
        frame = self.spark.createDataFrame(records, SCHEMA).coalesce(1)
        return stage_files(frame, self.store, "metrics", "abc")

    def files(self, *rows):
        """Return (hour, partition, first offset, last offset, records) of each file."""
        return sorted(
            (file.hour_ms // HOUR_MS, file.offsets.partition, file.offsets.first, file.offsets.last, file.records)
            for file in self.write(*rows).files
        )

    def read(self, file, **selection):
        found = reader.read(self.store, file.staged, Selection(**selection))
        return [message for part in found for message in reader.messages("metrics", part)]

    def test_records_of_one_hour_are_one_file(self):
        staged = self.write((0, 1, 5), (0, 2, 5), (0, 4, 5))
        (file,) = staged.files
        self.assertEqual((5 * HOUR_MS, 3, 0), (file.hour_ms, file.records, staged.undated))
        self.assertEqual((self.folder / file.staged).stat().st_size, file.size_bytes)
        self.assertEqual([1, 2, 4], [message.offset for message in self.read(file)])

    def test_each_hour_and_partition_has_its_own_file(self):
        found = self.files((0, 1, 5), (0, 2, 6), (0, 3, 5), (1, 1, 5))
        self.assertEqual([(5, 0, 1, 3, 2), (5, 1, 1, 1, 1), (6, 0, 2, 2, 1)], found)

    def test_an_undated_record_is_counted_and_is_in_kafkas_hour(self):
        staged = self.write((0, 1, 5), (0, 2, b"x"))
        self.assertEqual(1, staged.undated)
        self.assertEqual([1 * HOUR_MS, 5 * HOUR_MS], sorted(file.hour_ms for file in staged.files))

    def test_no_records_create_no_file(self):
        staged = self.write()
        self.assertEqual(((), 0), (staged.files, staged.undated))

    # Rule 38
    def test_more_hours_than_open_files_are_all_archived(self):
        hours = 50
        found = self.files(*((0, turn * hours + hour, hour) for turn in range(3) for hour in range(hours)))
        self.assertEqual(hours, len({hour for hour, *_ in found}))
        self.assertEqual(3 * hours, sum(records for *_, records in found))
        self.assertEqual((0, 3 * hours - 1), (min(first for _, _, first, *_ in found), max(one[3] for one in found)))

    def test_archived_messages_are_equal_to_those_of_kafka(self):
        values = [envelopes.metric(0, time_ms=5 * HOUR_MS), envelopes.metric(0, time_ms=6 * HOUR_MS), b"x", None]
        staged = self.write(*((0, number, value) for number, value in enumerate(values, 1)))
        messages = sorted(
            (message for file in staged.files for message in self.read(file)), key=lambda message: message.offset
        )
        self.assertEqual(values, [message.value for message in messages])
        self.assertEqual([7_001_000, 7_002_000, 7_003_000, 7_004_000], [message.timestamp_ms for message in messages])
        self.assertEqual([tuple(HEADERS), (), tuple(HEADERS), ()], [message.headers for message in messages])
        self.assertEqual({("metrics", 0, b"k")}, {(one.topic, one.partition, one.key) for one in messages})

    def test_a_range_includes_its_beginning_and_not_its_end(self):
        (file,) = self.write(*((0, offset, 5) for offset in range(3))).files
        for selection, count in (
            ({"from_ms": 5 * HOUR_MS}, 3),
            ({"from_ms": 5 * HOUR_MS + 1}, 0),
            ({"to_ms": 5 * HOUR_MS}, 0),
            ({"to_ms": 5 * HOUR_MS + 1}, 3),
        ):
            self.assertEqual(count, len(self.read(file, **selection)), selection)
