# SPDX-License-Identifier: Apache-2.0
"""The size of responses. Tests with PostgreSQL inherit the mixin, too."""

import json
from unittest import mock

from monasca_common.api import paging
from monasca_common.api.query import iso
from monasca_common.models.rows import AlarmTransition
from monasca_common.storage.base import Kind
from monasca_common.tests.contracts.storage.scenario import make_series, measurement
from monasca_common.tests.unit.api.reads_case import BASE_MS, START, Reads, following
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

MAX_BYTES = 800
_UNBOUNDED_BYTES = 16 * 1024 * 1024
_METRICS, _HISTORY = "/v2.0/metrics", "/v2.0/alarms/state-history"
_MEASUREMENTS, _STATISTICS = f"{_METRICS}/measurements", f"{_METRICS}/statistics"
_CPU = {"name": "cpu", "start_time": START}
_SUMS = {**_CPU, "statistics": "sum,count", "period": "1"}
_LISTS: tuple[tuple[str, dict[str, str]], ...] = (
    (_METRICS, {}),
    (f"{_METRICS}/names", {}),
    (f"{_METRICS}/dimensions/names", {}),
    (f"{_METRICS}/dimensions/names/values", {"dimension_name": "note"}),
    (_HISTORY, {}),
)
_ROWS = tuple(
    (path, {**asked, **how})
    for path, asked in ((_MEASUREMENTS, _CPU), (_STATISTICS, _SUMS))
    for how in ({"group_by": "*"}, {"group_by": "zone"}, {"merge_metrics": "true"}, {"dimensions": "n:3"})
)


class AnswersContract(Reads):
    """cpu has 20 series of 4 rows, with dimensions and value_meta of up to 200 bytes; there are 40 other metrics."""

    page_limit = 1000

    def setUp(self):
        super().setUp()
        every = [make_series("cpu", n=str(n), zone=str(n % 3), note="é" * 5 * n) for n in range(1, 21)]
        self.store(
            *(
                measurement(
                    series=one,
                    value=float(n),
                    value_meta=json.dumps({"why": "x" * 20 * (n % 10)}),
                    time_ms=BASE_MS + 1000 * t,
                )
                for n, one in enumerate(every)
                for t in range(4)
            ),
            *(
                measurement(series=make_series(f"name.{n:03}.{'x' * n}", **{f"key-{n:03}": "1"}), time_ms=BASE_MS)
                for n in range(40)
            ),
        )
        self.store(*(transition(n, reason="because " * n) for n in range(20)), kind=Kind.ALARM_HISTORY)
        self.patch(paging, "MAX_ANSWER_BYTES", MAX_BYTES)

    def unbounded(self, path, **parameters):
        """Return the elements of a response without a size limit."""
        with mock.patch.object(paging, "MAX_ANSWER_BYTES", _UNBOUNDED_BYTES):
            return self.elements(path, **parameters)

    def test_next_links_return_each_element_once_within_the_size_limit(self):
        for path, asked in _LISTS:
            with self.subTest(path):
                whole = self.unbounded(path, **asked)
                pages = self.bounded_pages(path, **asked)
                self.assertEqual(whole, [one for page in pages for one in page])
                self.assertGreater(len(pages), 1)

    def test_next_links_return_each_row_once_within_the_size_limit(self):
        for path, asked in _ROWS:
            for limit in ("1000", "3"):
                with self.subTest((path, asked, limit)):
                    whole = rows(self.unbounded(path, **asked))
                    pages = self.bounded_pages(path, limit=limit, **asked)
                    self.assertEqual(whole, [row for page in pages for row in rows(page)])
                    self.assertTrue(all(map(rows, pages)), "a page is empty")
                    self.assertGreater(len(pages), 1 if "group_by" in asked else 0)

    def test_pages_after_an_offset_contain_the_later_rows_of_each_element(self):
        for path, asked, time_ms, count in (
            (_MEASUREMENTS, _CPU, BASE_MS + 2000, 20),
            (_MEASUREMENTS, {**_CPU, "end_time": iso(BASE_MS + 3000)}, BASE_MS + 2999, 20),
            (_STATISTICS, _SUMS, BASE_MS + 1999, 40),
            (_STATISTICS, {**_SUMS, "period": "2"}, BASE_MS + 1000, 20),
        ):
            with self.subTest((path, asked)):
                asked = {**asked, "group_by": "*"}
                whole = rows(self.unbounded(path, **asked))
                expected = [row for row in whole if row[1] > iso(time_ms)]
                pages = self.bounded_pages(path, offset=iso(time_ms), **asked)
                self.assertEqual((count, expected), (len(expected), [row for page in pages for row in rows(page)]))

    def test_an_element_larger_than_a_response_is_refused_with_the_offset_after_it(self):
        long = make_series("cpu", n="long", note="x" * MAX_BYTES)
        self.store(measurement(series=long, time_ms=BASE_MS))
        self.store(transition(7, alarm="long", reason="x" * MAX_BYTES), kind=Kind.ALARM_HISTORY)
        for path, asked in ((_METRICS, {"name": "cpu"}), (_MEASUREMENTS, {**_CPU, "group_by": "*"}), (_HISTORY, {})):
            with self.subTest(path):
                whole = self.unbounded(path, **asked)
                self.assertEqual(21, len(whole))
                found, refused = [], 0
                parameters = asked
                while parameters is not None:
                    result = self.result(path, None, **parameters)
                    if result.status_code == 200:
                        found += result.json["elements"]
                        parameters = following(result.json)
                        continue
                    refused += 1
                    message = result.json["error"]["message"]
                    self.assertEqual(422, result.status_code)
                    self.assertIn(f"of at most {MAX_BYTES} bytes): skip it with offset=", message)
                    parameters = {**asked, "offset": message.rpartition("offset=")[2]}
                self.assertEqual(1, refused)
                self.assertEqual({one["id"] for one in whole} - {one["id"] for one in found}, {self.id_of(path, long)})

    def test_dimensions_count_towards_the_size_if_they_are_shown(self):
        self.assertEqual(1, len(self.get(_STATISTICS, merge_metrics="true", **{**_SUMS, "period": "60"})["elements"]))
        body = self.get(_STATISTICS, 422, group_by="note", **{**_SUMS, "period": "60"})
        self.assertIn(f"or {MAX_BYTES} bytes of dimensions", body["error"]["message"])

    def test_a_history_after_a_time_before_1970_starts_with_the_first_transition(self):
        whole = self.unbounded(_HISTORY)
        for offset in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59Z", "1900-01-01", "0001-01-01", "1970-01-01"):
            self.assertEqual(whole, self.unbounded(_HISTORY, offset=offset), offset)
        for path, asked in ((_MEASUREMENTS, _CPU), (_STATISTICS, _SUMS)):
            asked = {**asked, "merge_metrics": "true"}
            behind = self.unbounded(path, offset="1969-12-31T23:59:59Z", **asked)
            self.assertEqual(self.unbounded(path, **asked), behind)

    def test_a_malformed_transition_is_returned_unchanged_and_matches_no_filter(self):
        odd = (
            '["text", 5, null, [1], {"a": 1}]',
            '[{"dimensions": "abc"}]',
            '[{"dimensions": ["host"]}, {"dimensions": null}, {"dimensions": 5}]',
            '[{"dimensions": {"host": 5}}, {"dimensions": {"host": {"a": ["x"]}}}]',
            '[{"subAlarmExpression": "text", "subAlarmState": 5}, {"subAlarmExpression": {"metricDefinition": []}}]',
            '{"host": "a"}',
            '"text"',
            "null",
            f"[{10**308}, {-(10**30)}]",
        )
        rows = [transition(100 + n, alarm=f"odd-{n}", metrics=text, sub_alarms=text) for n, text in enumerate(odd)]
        rows.append(transition(199, alarm="great", sub_alarms="[1e308, -1e300]"))
        good = transition(200, alarm="good", metrics='[7, {"dimensions": {"host": "a", "zone": "1"}}]')
        self.store(*rows, good, kind=Kind.ALARM_HISTORY)
        shown = {one["alarm_id"]: one for one in self.unbounded(_HISTORY)}
        for number, text in enumerate(odd):
            self.assertEqual(json.loads(text), shown[f"odd-{number}"]["metrics"], text)
        self.assertEqual(["text", 5, None, [1], {"a": 1}], shown["odd-0"]["sub_alarms"])
        self.assertEqual([1e308, -1e300], list(map(float, shown["great"]["sub_alarms"])))
        for dimensions in ("host:a", "host:a|b", "host,zone", "host:" + "|".join(["a", *map(str, range(20))])):
            with self.subTest(dimensions):
                found = self.unbounded(_HISTORY, dimensions=dimensions)
                self.assertEqual(["good"], [one["alarm_id"] for one in found])
        self.unbounded(_HISTORY, dimensions="host")

    def id_of(self, path, series):
        if path != _HISTORY:
            return series.id.hex()
        history = self.unbounded(_HISTORY)
        return next(one["id"] for one in history if one["alarm_id"] == "long")

    def bounded_pages(self, path, **asked):
        pages = []
        for result in self.results(path, **asked):
            elements = result.content.partition(b'"elements":[')[2]
            self.assertLessEqual(len(elements), MAX_BYTES + len(b"]}"))
            pages.append(result.json["elements"])
        return pages


def rows(elements):
    return [(one["id"], *map(str, row)) for one in elements for row in one.get("measurements", one.get("statistics"))]


def transition(number, *, alarm=None, reason="because", metrics="[]", sub_alarms="[]"):
    states = ("OK", "ALARM", "LOW", reason, None, None)
    return AlarmTransition(
        BASE_MS + number, "tenant", alarm or f"alarm-{number}", "d", "n", *states, metrics, sub_alarms
    )


class TestAnswersFromSqlite(AnswersContract, SqliteTestCase):
    pass
