# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.pipeline.archive import layout, reader
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.reader import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.patterns import Pattern
from monasca_common.tests.unit.persister import envelopes

VALUES = [envelopes.metric(1), envelopes.alarm(1), envelopes.log(1), envelopes.event(1), b"{", None, b"7"]


def wanted(**patterns):
    return Selection(**{name: Pattern(text) for name, text in patterns.items()}).wanted(VALUES)


class SelectionTest(base.BaseTestCase):
    def test_a_name_is_that_of_a_metric_an_alarm_or_an_events_type(self):
        self.assertEqual([True] + [False] * 6, wanted(name="cpu[.]percent"))
        self.assertEqual([False, True] + [False] * 5, wanted(name="name"))
        self.assertEqual([False] * 3 + [True] + [False] * 3, wanted(name="made"))

    def test_a_pattern_is_of_the_whole(self):
        self.assertEqual([False] * 7, wanted(name="cpu"))
        self.assertEqual([True] + [False] * 6, wanted(name="cpu.*"))

    def test_tenants_are_found_where_each_kind_has_them(self):
        self.assertEqual([True] * 4 + [False] * 3, wanted(tenant="t"))
        self.assertEqual([True] + [False] * 6, wanted(tenant="t|u", name="cpu.*"))
        self.assertEqual([False] * 7, wanted(tenant="u"))

    def test_bounds_include_the_first_and_not_the_last(self):
        selection = Selection(from_ms=10, to_ms=20)
        for first, last, has in ((0, 9, False), (0, 10, True), (19, 30, True), (20, 30, False), (0, 100, True)):
            self.assertEqual(has, selection.has_time(first, last))
        self.assertTrue(Selection().has_time(0, 0))


class FindFilesTest(base.BaseTestCase):
    def test_only_the_hours_that_may_have_what_is_wanted_are_looked_into(self):
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
