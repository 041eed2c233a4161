# SPDX-License-Identifier: Apache-2.0
"""What is read for a chart, and how it is drawn."""

import io
import urllib.error
from urllib.parse import parse_qs, urlsplit

import msgspec
from oslotest import base

from monasca_common.operations.dashboard.drawing import drawn, nice_ticks, thinned
from monasca_common.operations.dashboard.metric_charts import (
    ChartQuestion,
    ChartSeries,
    MetricChart,
    StateBand,
    iso,
    read_chart,
    state_bands,
)
from monasca_common.operations.dashboard.metrics_api import ApiReader, ApiUnavailable

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
ALARM = {
    "id": "a1",
    "alarm_definition": {"name": "cpu high"},
    "metrics": [{"name": "cpu", "dimensions": {"hostname": "web"}}],
    "state": "OK",
    "created_timestamp": iso(NOW_MS - 2 * HOUR_MS),
}


class AnsweringApi:
    """Stands for urllib's opener: answers by path; notes what was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def open(self, request, timeout):
        parts = urlsplit(request.full_url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append((parts.path, query, request.headers, timeout))
        answer = self.answers.get(parts.path.rpartition("/")[2], [])
        if isinstance(answer, Exception):
            raise answer
        pages = answer if answer and isinstance(answer[0], list) else [answer]
        number = int(query.get("offset", 0))
        links = [{"rel": "next", "href": f"{request.full_url}&offset={number + 1}"}] if number + 1 < len(pages) else []
        return io.BytesIO(msgspec.json.encode({"links": links, "elements": pages[number]}))


def series(identity, *points, host="web", field="measurements"):
    rows = [[iso(moment), value, {}] for moment, value in points]
    return {"id": identity, "dimensions": {"hostname": host}, field: rows}


class ReadChartTest(base.BaseTestCase):
    def read(self, question, api, deadline=float("inf")):
        return read_chart(ApiReader(api, "http://api", "token", deadline), question, (), NOW_MS)

    def test_measurements_are_read_with_the_token_of_the_user(self):
        api = AnsweringApi(
            metrics=[{"dimensions": {"hostname": "web"}}, {"dimensions": {"hostname": "db", "disk": "sda"}}],
            measurements=[series("1", (NOW_MS - 60_000, 1.5), (NOW_MS, 2))],
        )
        chart = self.read(ChartQuestion("cpu", {"hostname": "web"}, 360), api)
        self.assertEqual({"disk": ("sda",), "hostname": ("db", "web")}, chart.values)
        self.assertEqual(((NOW_MS - 60_000, 1.5), (NOW_MS, 2.0)), chart.series[0].points)
        asked = {path: (query, headers) for path, query, headers, _ in api.asked}
        query, headers = asked["/v2.0/metrics/measurements"]
        self.assertEqual("token", headers["X-auth-token"])
        self.assertEqual(("hostname:web", iso(NOW_MS - 6 * HOUR_MS)), (query["dimensions"], query["start_time"]))

    def test_a_value_that_the_query_of_the_api_cannot_hold_is_chosen_here(self):
        name = "web, the|old one"
        api = AnsweringApi(
            measurements=[series("1", (NOW_MS, 1), host=name), series("2", (NOW_MS, 2))],
            alarms=[ALARM, {**ALARM, "id": "a2", "metrics": [{"name": "cpu", "dimensions": {"hostname": name}}]}],
        )
        chart = self.read(ChartQuestion("cpu", {"hostname": name, "disk": "sda"}), api)
        asked = {path: query for path, query, _, _ in api.asked}
        self.assertEqual("disk:sda,hostname", asked["/v2.0/metrics/measurements"]["dimensions"])
        self.assertEqual([name], [each.dimensions["hostname"] for each in chart.series])
        self.assertIn("/v2.0/alarms/a2/state-history", asked)
        self.assertNotIn("/v2.0/alarms/a1/state-history", asked)

    def test_averages_come_from_the_api_and_aggregates_are_the_second_metric(self):
        api = AnsweringApi(
            statistics=[series("1", (NOW_MS, 3), field="statistics")], measurements=[series("2", (NOW_MS, 4))]
        )
        chart = self.read(ChartQuestion("cpu", function="avg", period=900, beside="cpu_agg"), api)
        self.assertEqual((3.0, 4.0), (chart.series[0].points[0][1], chart.beside[0].points[0][1]))
        query = next(query for path, query, *_ in api.asked if path.endswith("statistics"))
        self.assertEqual(("avg", "900"), (query["statistics"], query["period"]))

    def test_aggregates_with_other_dimensions_are_shown_too(self):
        api = AnsweringApi()
        self.read(ChartQuestion("cpu", {"hostname": "web"}, beside="cpu_agg"), api)
        asked = [query for path, query, *_ in api.asked if query.get("name") == "cpu_agg"]
        self.assertEqual(["hostname:web", None], [query.get("dimensions") for query in asked])

    def test_a_series_on_two_pages_is_one_series(self):
        api = AnsweringApi(measurements=[[series("1", (NOW_MS - 2000, 1))], [series("1", (NOW_MS - 1000, 2))]])
        (one,) = self.read(ChartQuestion("cpu"), api).series
        self.assertEqual([1, 2], [value for _, value in one.points])

    def test_series_that_are_not_shown_are_noted(self):
        many = [series(str(number), (NOW_MS, number), host=f"h{number}") for number in range(20)]
        chart = self.read(ChartQuestion("cpu"), AnsweringApi(measurements=many))
        self.assertEqual(8, len(chart.series))
        self.assertIn("20 series", chart.notes[0])

    def alarms(self, *states):
        return [{**ALARM, "id": f"a{number}", "state": state} for number, state in enumerate(states)]

    def test_alarms_that_are_not_shown_are_noted(self):
        for states, note in (
            (("ALARM", "OK", "OK"), ()),
            (("ALARM", "OK", "OK", "OK"), ("3 of 4 alarms on cpu are shown: choose dimensions.",)),
        ):
            chart = self.read(ChartQuestion("cpu"), AnsweringApi(alarms=self.alarms(*states)))
            self.assertEqual(["ALARM", "OK", "OK"], [band.state for band in chart.bands])
            self.assertEqual(note, chart.notes)

    def test_the_api_is_asked_for_the_worst_state_first(self):
        api = AnsweringApi(alarms=[self.alarms("ALARM", "OK", "OK"), self.alarms("OK")])
        chart = self.read(ChartQuestion("cpu"), api)
        ((query, _, _),) = (each[1:] for each in api.asked if each[0] == "/v2.0/alarms")
        self.assertEqual("state desc", query["sort_by"])
        self.assertEqual(("3 of more than 3 alarms on cpu are shown: choose dimensions.",), chart.notes)

    def refusal(self, answer, **options):
        api = AnsweringApi(metrics=answer)
        return str(self.assertRaises(ApiUnavailable, self.read, ChartQuestion("cpu"), api, **options))

    def test_errors_of_the_api_are_shown_in_words(self):
        self.assertIn("does not answer: refused", self.refusal(urllib.error.URLError("refused")))
        body = io.BytesIO(b'{"error": {"message": "name is too long"}}')
        self.assertIn("name is too long", self.refusal(urllib.error.HTTPError("u", 422, "", {}, body)))
        self.assertIn("token", self.refusal(urllib.error.HTTPError("u", 401, "", {}, io.BytesIO())))
        self.assertIn("takes too long", self.refusal([], deadline=0))


class BandsTest(base.BaseTestCase):
    def bands(self, *changes, **alarm):
        history = [
            {"timestamp": iso(NOW_MS - ago * 60_000), "old_state": old, "new_state": new} for ago, old, new in changes
        ]
        found = state_bands({**ALARM, **alarm}, history, NOW_MS - HOUR_MS, NOW_MS)
        return [(band.state, (NOW_MS - band.start_ms) // 60_000, (NOW_MS - band.end_ms) // 60_000) for band in found]

    def test_states_follow_each_other_in_minutes_before_now(self):
        self.assertEqual(
            [("OK", 60, 30), ("ALARM", 30, 10), ("OK", 10, 0)], self.bands((10, "ALARM", "OK"), (30, "OK", "ALARM"))
        )

    def test_without_a_change_it_has_the_state_that_it_has(self):
        self.assertEqual([("OK", 60, 0)], self.bands())

    def test_alarms_of_one_definition_are_labeled_by_the_common_dimensions_of_their_metrics(self):
        disks = [{"name": "cpu", "dimensions": {"hostname": "web", "disk": disk}} for disk in ("a", "b")]
        for metrics, label in (
            (disks, "cpu high (hostname web)"),
            (disks[:1], "cpu high (disk a, hostname web)"),
            ([{"name": "cpu", "dimensions": {}}], "cpu high"),
        ):
            (band,) = state_bands({**ALARM, "metrics": metrics}, [], NOW_MS - HOUR_MS, NOW_MS)
            self.assertEqual(label, band.alarm)

    def test_an_alarm_has_no_state_before_its_creation(self):
        self.assertEqual([("OK", 20, 0)], self.bands(created_timestamp=iso(NOW_MS - 20 * 60_000)))


class DrawingTest(base.BaseTestCase):
    def chart(self, *found, bands=()):
        return MetricChart(ChartQuestion("cpu"), NOW_MS - HOUR_MS, NOW_MS, series=found, bands=bands)

    def test_time_increases_to_the_right_and_values_upwards(self):
        points = ((NOW_MS - HOUR_MS, 0.0), (NOW_MS, 10.0))
        chart = drawn(self.chart(ChartSeries("cpu", {"hostname": "web"}, points)))
        (line,) = chart.lines
        self.assertEqual([(chart.left, chart.floor), (chart.right, chart.top)], list(line.dots))
        self.assertEqual(("cpu (hostname web)", "10"), (line.label, line.last))
        self.assertEqual("One series with 2 points, from 0 to 10.", chart.summary)
        self.assertEqual(["10", "0"], [row.value for row in chart.listed])

    def test_a_chart_without_measurements_is_not_an_error(self):
        self.assertEqual("No measurements in this time.", drawn(self.chart()).summary)
        self.assertEqual("none", drawn(self.chart(ChartSeries("cpu", {}, ()))).lines[0].last)

    def test_a_band_has_a_word_and_its_place(self):
        band = StateBand("cpu high", "ALARM", NOW_MS - HOUR_MS // 2, NOW_MS)
        (shown,) = drawn(self.chart(ChartSeries("cpu", {}, ((NOW_MS, 1.0),)), bands=(band,))).bands
        self.assertEqual((530, 460, "ALARM"), (shown.x, shown.width, shown.state))
        self.assertIn("cpu high: ALARM from", shown.label)

    def test_ticks_are_round_numbers_around_the_measurements(self):
        self.assertEqual([0, 2, 4, 6, 8, 10], nice_ticks(0.3, 9.7))
        self.assertEqual([-1, 0, 1], [nice_ticks(-1, 1)[0], 0, nice_ticks(-1, 1)[-1]])
        for low, high in ((5, 5), (0, 0), (-3, -3), (1e-9, 2e-9), (0, 1e12)):
            ticks = nice_ticks(low, high)
            self.assertLessEqual(ticks[0], low)
            self.assertGreaterEqual(ticks[-1], high)
            self.assertLess(len(ticks), 12)

    def test_values_of_any_size_have_an_axis(self):
        unlimited = 9223372036854771712.0  # as a control group says it
        for values in ((unlimited,), (unlimited, unlimited), (0.0, 5e-324), (-1e308, 1e308), (1e17, -5e-324), (1e300,)):
            points = tuple((NOW_MS - number, value) for number, value in enumerate(values))
            chart = drawn(self.chart(ChartSeries("limit", {}, points)))
            self.assertGreater(len({tick.at for tick in chart.rows}), 1, values)
            self.assertNotRegex(chart.lines[0].points, "nan|inf")

    def test_of_many_points_the_peaks_stay(self):
        points = [(number, float(number == 7777)) for number in range(20_000)]
        kept = thinned(points)
        self.assertLess(len(kept), 1100)
        self.assertIn((7777, 1.0), kept)
        self.assertEqual(sorted(kept), kept)
