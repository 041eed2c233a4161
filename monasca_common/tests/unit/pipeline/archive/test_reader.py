# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.pipeline.archive import layout, reader
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.reader import Selection
from monasca_common.pipeline.archive.store import Store


class SelectionTest(base.BaseTestCase):
    def test_a_range_includes_its_first_and_excludes_its_last_bound(self):
        selection = Selection(from_ms=10, to_ms=20)
        for first, last, has in ((0, 9, False), (0, 10, True), (19, 30, True), (20, 30, False), (0, 100, True)):
            self.assertEqual(has, selection.has_time(first, last))
        self.assertTrue(Selection().has_time(0, 0))


class FindFilesTest(base.BaseTestCase):
    def test_only_files_of_selected_hours_are_found(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        hours = [hour * HOUR_MS for hour in (0, 23, 24, 25, 100)]
        for hour_ms in hours:
            hour = folder / layout.hour_folder("metrics", hour_ms)
            hour.mkdir(parents=True)
            (hour / layout.file_name(Offsets(0, 1, 2), "ab")).write_bytes(b"1234")
            (hour / "_SUCCESS").write_bytes(b"")
        (folder / "topic=metrics/notes").mkdir()
        (folder / "topic=other/date=1970-01-01/hour=00").mkdir(parents=True)
        store = Store(str(folder))
        for bounds, found in (
            ({}, hours),
            ({"from_ms": 24 * HOUR_MS - 1, "to_ms": 25 * HOUR_MS}, hours[1:3]),
            ({"from_ms": 24 * HOUR_MS, "to_ms": 25 * HOUR_MS + 1}, hours[2:4]),
            ({"from_ms": 101 * HOUR_MS}, []),
        ):
            files = reader.find_files(store, "metrics", Selection(**bounds))
            name = layout.file_name(Offsets(0, 1, 2), "ab")
            self.assertEqual([f"{layout.hour_folder('metrics', hour_ms)}/{name}" for hour_ms in found], files)
        self.assertEqual([], reader.find_files(store, "none", Selection()))
