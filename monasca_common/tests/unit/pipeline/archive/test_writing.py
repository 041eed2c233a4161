# SPDX-License-Identifier: Apache-2.0
"""Which files of a batch's folder are taken, and what their footers tell; without Spark."""

from pathlib import Path

import fixtures
import pyarrow as pa
import pyarrow.parquet as pq
from oslotest import base

from monasca_common.pipeline.archive import reading
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.selection import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writing import HourFiles
from monasca_common.pipeline.errors import ArchiveDamaged

PLACE = "of_partition=3/of_hour=7/is_dated=true"


class StagedTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.root))
        self.files = HourFiles(self.store, "metrics", "ab", "_staging/topic=metrics/ab", "zstd")

    def write(self, place, offsets):
        path = self.root / self.files.folder / place / "part-0.zstd.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"offset": pa.array(offsets, pa.int64())}), path)
        return path

    def test_a_file_is_known_by_its_place_and_its_footer(self):
        self.write(PLACE, [5, 9, 6])
        self.write("of_partition=0/of_hour=0/is_dated=false", [1, 2])
        staged = self.files._staged()
        self.assertEqual(
            [(0, Offsets(0, 1, 2), 2), (7 * HOUR_MS, Offsets(3, 5, 9), 3)],
            [(file.hour_ms, file.offsets, file.records) for file in staged.files],
        )
        self.assertEqual(2, staged.undated)

    def test_what_another_attempt_at_a_task_writes_meanwhile_is_not_taken(self):
        self.write(PLACE, [5, 6])
        self.write(f"_temporary/0/_temporary/attempt_1_m_000000_1/{PLACE}", [5, 6])
        self.assertEqual([Offsets(3, 5, 6)], [file.offsets for file in self.files._staged().files])

    def test_a_file_that_is_cut_is_told_by_its_name_and_not_by_a_format(self):
        path = self.write(PLACE, [5, 6])
        whole = path.read_bytes()
        name = str(path.relative_to(self.root))
        for length in (0, 3, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            for look in (reading.content, lambda *of: list(reading.read(*of, Selection()))):
                error = self.assertRaises(ArchiveDamaged, look, self.store, name)
                self.assertIn(str(path), str(error))
