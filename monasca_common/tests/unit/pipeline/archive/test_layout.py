# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.writer import LATEST_MS

SIX_MS = 1_767_247_200_000


class LayoutTest(base.BaseTestCase):
    def test_folders_have_the_names_of_hive_partitions(self):
        self.assertEqual("topic=metrics/date=2026-01-01/hour=6", layout.hour_folder("metrics", SIX_MS))
        self.assertEqual("topic=a/date=1970-01-01/hour=0", layout.hour_folder("a", 0))
        self.assertEqual("topic=a/date=9999-12-31/hour=23", layout.hour_folder("a", LATEST_MS // HOUR_MS * HOUR_MS))

    @given(st.integers(0, LATEST_MS // HOUR_MS))
    def test_the_hour_of_a_folder_is_read_back(self, hour):
        folder = layout.hour_folder("metrics", hour * HOUR_MS).removeprefix("topic=metrics/")
        self.assertEqual(hour * HOUR_MS, layout.hour_of(folder))

    def test_an_hour_of_two_digits_is_read(self):
        self.assertEqual(SIX_MS, layout.hour_of("date=2026-01-01/hour=06"))

    def test_other_folders_have_no_hour(self):
        for folder in ("date=2026-01-01", "date=2026-13-01/hour=06", "date=2026-01-01/hour=24", "x/hour=06", ""):
            self.assertIsNone(layout.hour_of(folder))

    def test_names_sort_by_offset(self):
        offsets = [Offsets(2, 9, 10), Offsets(2, 11, 99), Offsets(2, 100, 1000), Offsets(10, 0, 1)]
        names = [layout.file_name(each, batch) for each, batch in zip(offsets, "dcba", strict=True)]
        self.assertEqual(names, sorted(names))

    def test_the_staging_folder_is_hidden(self):
        self.assertTrue(layout.staging_folder("metrics", "b").startswith("_"))
