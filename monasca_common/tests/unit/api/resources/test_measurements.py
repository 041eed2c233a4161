# SPDX-License-Identifier: Apache-2.0
"""Tests of shapes, statuses and pages."""

import math
from urllib.parse import parse_qsl, urlsplit

from monasca_common.api.query import iso
from monasca_common.tests.contracts.storage.scenario import make_series, measurement
from monasca_common.tests.unit.api.reads_case import BASE_MS, PAGE_LIMIT, START, ReadsCase

_MEASUREMENTS, _STATISTICS = "/v2.0/metrics/measurements", "/v2.0/metrics/statistics"


class TestMeasurements(ReadsCase):
    def test_one_metric_is_shown_with_its_rows(self):
        (found,) = self.elements(_MEASUREMENTS, name="mem", start_time=START)
        self.assertEqual(
            {
                "id": self.mem.id.hex(),
                "name": "mem",
                "dimensions": {"host": "a", "bank": "0"},
                "columns": ["timestamp", "value", "value_meta"],
                "measurements": [[START, 7.0, {"why": "é"}]],
            },
            found,
        )

    def test_values_that_are_not_finite_are_returned_as_text_on_request(self):
        series = make_series("odd")
        values = (1.0, math.nan, math.inf, -math.inf)
        self.store(*(measurement(series=series, value=value, time_ms=BASE_MS + n) for n, value in enumerate(values)))
        asked = {"name": "odd", "start_time": START}
        (found,) = self.elements(_MEASUREMENTS, **asked)
        self.assertEqual([1.0], [row[1] for row in found["measurements"]])
        (found,) = self.elements(_MEASUREMENTS, non_finite="true", **asked)
        self.assertEqual([1.0, "NaN", "Infinity", "-Infinity"], [row[1] for row in found["measurements"]])
        (found,) = self.elements(_STATISTICS, statistics="count,max", **asked)
        self.assertEqual([START, 1.0, 1.0], found["statistics"][0])

    def test_several_series_require_merge_or_group_by(self):
        body = self.get(_MEASUREMENTS, 409, name="cpu", start_time=START)
        self.assertIn("merge_metrics", body["error"]["message"])
        self.get(_STATISTICS, 409, name="cpu", start_time=START, statistics="avg")
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=START, dimensions="host:b")
        self.assertEqual([10.0, 11.0, 12.0, 13.0], [row[1] for row in found["measurements"]])

    def test_a_series_without_rows_in_the_time_range_is_ignored(self):
        self.store(measurement(series=make_series("cpu", host="old"), time_ms=BASE_MS - 60_000))
        end = iso(BASE_MS - 1)
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=iso(BASE_MS - 60_000), end_time=end)
        self.assertEqual({"host": "old"}, found["dimensions"])

    def test_merged_metrics_keep_every_row_and_have_no_dimensions(self):
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=START, merge_metrics="true")
        self.assertEqual({}, found["dimensions"])
        self.assertEqual(
            [iso(BASE_MS + 1000 * t) for t in range(4) for _ in range(3)], [r[0] for r in found["measurements"]]
        )
        self.assertEqual({10.0 * n + t for n in range(3) for t in range(4)}, {r[1] for r in found["measurements"]})

    def test_groups_have_the_dimensions_that_they_are_grouped_by(self):
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=START, group_by="zone")
        self.assertEqual({(("zone", "1"),): 8, (("zone", "2"),): 4}, _row_counts(found))
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=START, group_by="zone,host")
        self.assertEqual([4, 4, 4], [len(one["measurements"]) for one in found])
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=START, group_by="*", merge_metrics="true")
        self.assertEqual({one.id.hex() for one in self.cpu}, {one["id"] for one in found})

    def test_series_without_a_dimension_are_one_group(self):
        self.store(measurement(series=make_series("cpu", rack="1"), time_ms=BASE_MS))
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=START, group_by="zone")
        self.assertEqual({(("zone", "1"),): 8, (("zone", "2"),): 4, (): 1}, _row_counts(found))

    def test_pages_of_each_size_contain_each_row_once(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}, {"dimensions": "host:a"}):
            asked = {"name": "cpu", "start_time": START, **how}
            whole = _rows(self.elements(_MEASUREMENTS, **asked))
            for limit in range(1, len(whole) + 1):
                pages = self.pages(_MEASUREMENTS, limit=str(limit), **asked)
                self.assertEqual(whole, [row for page in pages for row in _rows(page)], (how, limit))
                self.assertTrue(all(len(_rows(page)) == limit for page in pages[:-1]), (how, limit))
                self.assertEqual(-(-len(whole) // limit), len(pages), (how, limit))

    def test_a_page_continues_correctly_after_a_series_was_added(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}):
            asked = {"name": "cpu", "start_time": START, "limit": "5", **how}
            first = self.get(_MEASUREMENTS, **asked)
            offset = dict(parse_qsl(urlsplit(first["links"][1]["href"]).query))["offset"]
            before = _rows(self.elements(_MEASUREMENTS, **{**asked, "limit": "50", "offset": offset}))
            for n in range(8):
                new = make_series("cpu", host=f"new{n}", zone="0", how=str(how))
                self.store(measurement(series=new, value=-1, time_ms=BASE_MS))
            after = _rows(self.elements(_MEASUREMENTS, **{**asked, "limit": "50", "offset": offset}))
            self.assertEqual(*([row for row in rows if row[2] != -1] for rows in (before, after)), how)

    def test_an_offset_may_be_only_a_time(self):
        (found,) = self.elements(
            _MEASUREMENTS, name="cpu", start_time=START, merge_metrics="true", offset=iso(BASE_MS + 1000)
        )
        self.assertEqual({iso(BASE_MS + 2000), iso(BASE_MS + 3000)}, {row[0] for row in found["measurements"]})

    def test_an_offset_after_all_rows_returns_an_empty_page(self):
        asked = {"name": "mem", "start_time": START}
        self.assertEqual([], self.elements(_MEASUREMENTS, **asked, offset=f"{self.mem.id.hex()}_{START}"))
        self.assertEqual([], self.elements(_MEASUREMENTS, **asked, offset=f"{'ff' * 16}_{START}"))
        self.assertEqual([], self.elements(_STATISTICS, **asked, statistics="avg", offset=f"{'ff' * 16}_{START}"))

    def test_an_empty_database_returns_an_empty_list(self):
        self.assertEqual([], self.elements(_MEASUREMENTS, name="none", start_time=START))
        self.assertEqual([], self.elements(_STATISTICS, name="none", start_time=START, statistics="avg"))
        self.assertEqual([], self.elements(_MEASUREMENTS, name="none", start_time=START, merge_metrics="true"))

    def test_more_series_than_elements_of_a_page_are_refused(self):
        rows = [measurement(series=make_series("many", n=str(n)), time_ms=BASE_MS) for n in range(PAGE_LIMIT + 1)]
        self.store(*rows)
        body = self.get(_MEASUREMENTS, 422, name="many", start_time=START, merge_metrics="true")
        self.assertIn("restrict", body["error"]["message"])

    def test_missing_or_invalid_parameters_are_refused_with_their_statuses(self):
        for path in (_MEASUREMENTS, _STATISTICS):
            good = {"name": "mem", "start_time": START, "statistics": "avg"}
            for wrong, code in (
                ({"name": ""}, 422),
                ({"name": "x" * 256}, 422),
                ({"start_time": ""}, 422),
                ({"start_time": "now"}, 422),
                ({"end_time": START}, 400),
                ({"limit": "0"}, 422),
                ({"offset": "1_2"}, 422),
                ({"dimensions": ":x"}, 422),
            ):
                self.get(path, code, **{**good, **wrong})


class TestStatistics(ReadsCase):
    def test_the_columns_are_those_requested_and_values_are_floats(self):
        (found,) = self.elements(
            _STATISTICS,
            name="cpu",
            start_time=START,
            statistics="SUM,avg,Count,max,min",
            merge_metrics="true",
            period="2",
        )
        self.assertEqual({"id", "name", "dimensions", "columns", "statistics"}, set(found))
        self.assertEqual(["timestamp", "sum", "avg", "count", "max", "min"], found["columns"])
        self.assertEqual({}, found["dimensions"])
        self.assertEqual(
            [[START, 63.0, 10.5, 6.0, 21.0, 0.0], [iso(BASE_MS + 2000), 75.0, 12.5, 6.0, 23.0, 2.0]],
            found["statistics"],
        )
        self.assertEqual({float}, {type(value) for row in found["statistics"] for value in row[1:]})

    def test_a_period_is_five_minutes_by_default_and_empty_ones_are_omitted(self):
        self.store(measurement(series=self.mem, value=9, time_ms=BASE_MS + 900_000))
        (found,) = self.elements(_STATISTICS, name="mem", start_time=iso(BASE_MS - 1000), statistics="max")
        self.assertEqual([[iso(BASE_MS - 1000), 7.0], [iso(BASE_MS + 899_000), 9.0]], found["statistics"])

    def test_unknown_or_no_statistics_are_refused(self):
        self.get(_STATISTICS, 422, name="mem", start_time=START)
        self.get(_STATISTICS, 422, name="mem", start_time=START, statistics="avg,mode")
        self.get(_STATISTICS, 422, name="mem", start_time=START, statistics="avg", period="0")

    def test_pages_of_each_size_contain_each_window_once(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}):
            asked = {"name": "cpu", "start_time": START, "statistics": "avg,count", "period": "1", **how}
            whole = _rows(self.elements(_STATISTICS, **asked))
            for limit in range(1, len(whole) + 1):
                pages = self.pages(_STATISTICS, limit=str(limit), **asked)
                self.assertEqual(whole, [row for page in pages for row in _rows(page)], (how, limit))
                self.assertEqual(-(-len(whole) // limit), len(pages), (how, limit))

    def test_the_offset_is_id_and_timestamp(self):
        asked = {"name": "mem", "start_time": iso(BASE_MS - 2000), "statistics": "avg", "period": "1", "limit": "1"}
        self.store(measurement(series=self.mem, value=9, time_ms=BASE_MS + 5000))
        links = self.get(_STATISTICS, **asked)["links"]
        offset = dict(parse_qsl(urlsplit(links[1]["href"]).query))["offset"]
        self.assertEqual(f"{self.mem.id.hex()}_{START}", offset)

    def test_an_offset_that_is_a_time_does_not_move_windows(self):
        asked = {"name": "cpu", "start_time": START, "statistics": "count", "period": "2", "group_by": "*"}
        found = self.elements(_STATISTICS, **asked, offset=iso(BASE_MS + 500))
        self.assertEqual([[[iso(BASE_MS + 2000), 2.0]]] * 3, [one["statistics"] for one in found])


def _rows(elements):
    return [(one["id"], *row) for one in elements for row in one.get("measurements", one.get("statistics"))]


def _row_counts(elements):
    return {tuple(one["dimensions"].items()): len(one["measurements"]) for one in elements}
