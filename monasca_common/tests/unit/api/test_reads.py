# SPDX-License-Identifier: Apache-2.0
"""GET over a real SQLite file: shapes, codes, and pages that lose and repeat nothing."""

from urllib.parse import parse_qsl, urlsplit

import falcon
from falcon import testing

from monasca_common.api import metric_lists
from monasca_common.api.options import ApiSettings
from monasca_common.api.problems import serialize_error
from monasca_common.api.query import iso
from monasca_common.api.reads import add_read_routes
from monasca_common.models.rows import AlarmTransition
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.errors import (
    NotSupported,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.storage.testing.scenario import claim, make_series, measurement, message_id
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_BASE_MS = 1_790_000_000_000
_START = iso(_BASE_MS)
_PAGE_LIMIT = 50
_METRICS, _NAMES = "/v2.0/metrics", "/v2.0/metrics/names"
_DIMENSIONS, _VALUES = "/v2.0/metrics/dimensions/names", "/v2.0/metrics/dimensions/names/values"
_MEASUREMENTS, _STATISTICS = "/v2.0/metrics/measurements", "/v2.0/metrics/statistics"


class _Tenant:
    def process_request(self, request, _response):
        request.context.tenant = request.get_header("X-Project-Id") or "tenant"


def application(reader):
    app = falcon.App(middleware=[_Tenant()])
    app.set_error_serializer(serialize_error)
    app.add_route(_METRICS, metric_lists.Metrics(reader, _PAGE_LIMIT))
    add_read_routes(app, reader, ApiSettings(page_limit=_PAGE_LIMIT))
    return testing.TestClient(app)


class ReadsCase(SqliteTestCase):
    """cpu has three series of four rows, at the same four times; mem has one."""

    def setUp(self):
        super().setUp()
        self.cpu = [make_series("cpu", host=host, zone=zone) for host, zone in (("a", "1"), ("b", "1"), ("c", "2"))]
        self.mem = make_series("mem", host="a", bank="0")
        self._next = 0
        self.store(
            *(
                measurement(series=one, value=float(10 * n + t), time_ms=_BASE_MS + 1000 * t)
                for n, one in enumerate(self.cpu)
                for t in range(4)
            ),
            measurement(series=self.mem, value=7, value_meta='{"why": "é"}', time_ms=_BASE_MS),
        )
        reader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        self.client = application(reader)

    def store(self, *rows, kind=Kind.METRICS):
        offsets = range(self._next, self._next + len(rows))
        self._next = offsets.stop
        with self.database.storage().open_writer() as writer:
            writer.write(claim(offsets.start, offsets.stop), Rows(kind, rows, offsets, tuple(map(message_id, offsets))))

    def get(self, path, expected=200, *, tenant="tenant", **parameters):
        result = self.client.simulate_get(path, params=parameters, params_csv=True, headers={"X-Project-Id": tenant})
        self.assertEqual(expected, result.status_code, result.text)
        self.assertEqual("application/json", result.headers["content-type"])
        return result.json

    def elements(self, path, **parameters):
        return self.get(path, **parameters)["elements"]

    def pages(self, path, **parameters):
        """Of every page its elements, following the links named next."""
        found = []
        while parameters is not None:
            body = self.get(path, **parameters)
            found.append(body["elements"])
            following = [link["href"] for link in body["links"] if link["rel"] == "next"]
            parameters = dict(parse_qsl(urlsplit(following[0]).query)) if following else None
        return found


class MetricListsTest(ReadsCase):
    def test_a_metric_is_shown_with_id_name_and_dimensions_alone(self):
        (found,) = self.elements(_METRICS, name="mem")
        self.assertEqual({"id": self.mem.id.hex(), "name": "mem", "dimensions": {"host": "a", "bank": "0"}}, found)

    def test_metrics_are_filtered(self):
        def found(**parameters):
            return {one["id"] for one in self.elements(_METRICS, **parameters)}

        a, b, c = (one.id.hex() for one in self.cpu)
        self.assertEqual({a, b, c}, found(name="cpu"))
        self.assertEqual({a, c}, found(name="cpu", dimensions="host:a|c"))
        self.assertEqual({self.mem.id.hex()}, found(dimensions="host,bank"))
        self.assertEqual({a, b, c}, found(start_time=iso(_BASE_MS + 1), end_time=iso(_BASE_MS + 2000)))
        self.assertEqual(set(), found(tenant="other"))

    def test_self_is_the_url_and_there_is_no_next_when_all_is_shown(self):
        body = self.get(_METRICS, name="cpu", limit="3")
        (link,) = body["links"]
        self.assertEqual("self", link["rel"])
        self.assertEqual("http://falconframework.org/v2.0/metrics?name=cpu&limit=3", link["href"])

    def test_next_is_the_url_with_another_offset(self):
        first, second = self.get(_METRICS, dimensions="host", limit="2"), None
        (link,) = [link["href"] for link in first["links"] if link["rel"] == "next"]
        asked = dict(parse_qsl(urlsplit(link).query))
        self.assertEqual({"offset": first["elements"][-1]["id"], "dimensions": "host", "limit": "2"}, asked)
        second = self.get(_METRICS, **asked)
        (link,) = second["links"]
        self.assertEqual("self", link["rel"])
        self.assertEqual(4, len({one["id"] for one in first["elements"] + second["elements"]}))

    def test_pages_of_every_size_hold_every_element_once(self):
        for path, parameters in (
            (_METRICS, {}),
            (_NAMES, {}),
            (_DIMENSIONS, {}),
            (_VALUES, {"dimension_name": "host"}),
        ):
            whole = self.elements(path, **parameters)
            for limit in range(1, len(whole) + 1):
                pages = self.pages(path, limit=str(limit), **parameters)
                self.assertEqual(whole, [one for page in pages for one in page])
                self.assertEqual(-(-len(whole) // limit), len(pages))

    def test_names_are_sorted_and_may_be_filtered(self):
        self.assertEqual([{"name": "cpu"}, {"name": "mem"}], self.elements(_NAMES))
        self.assertEqual([{"name": "mem"}], self.elements(_NAMES, dimensions="bank:0"))
        self.assertEqual([{"name": "cpu"}], self.elements(_NAMES, start_time=iso(_BASE_MS + 1)))
        self.assertEqual([{"name": "mem"}], self.elements(_NAMES, offset="d"))

    def test_dimension_names_and_values_of_all_metrics_or_of_one(self):
        self.assertEqual(["bank", "host", "zone"], [one["dimension_name"] for one in self.elements(_DIMENSIONS)])
        self.assertEqual(
            [{"dimension_name": "bank"}, {"dimension_name": "host"}], self.elements(_DIMENSIONS, metric_name="mem")
        )
        self.assertEqual([{"dimension_value": "a"}], self.elements(_VALUES, metric_name="mem", dimension_name="host"))
        self.assertEqual(
            ["a", "b", "c"], [one["dimension_value"] for one in self.elements(_VALUES, dimension_name="host")]
        )

    def test_an_unknown_metric_has_no_dimensions_and_is_no_error(self):
        self.assertEqual([], self.elements(_DIMENSIONS, metric_name="none"))
        self.assertEqual([], self.elements(_VALUES, metric_name="none", dimension_name="host"))

    def test_values_of_no_dimension_are_refused_in_the_clients_shape(self):
        body = self.get(_VALUES, 422)
        self.assertEqual({"error"}, set(body))
        self.assertEqual({"code", "title", "message"}, set(body["error"]))
        self.assertEqual((422, "Unprocessable Entity"), (body["error"]["code"], body["error"]["title"]))
        self.assertIn("dimension_name", body["error"]["message"])


class MeasurementsTest(ReadsCase):
    def test_one_metric_is_shown_with_its_rows(self):
        (found,) = self.elements(_MEASUREMENTS, name="mem", start_time=_START)
        self.assertEqual(
            {
                "id": self.mem.id.hex(),
                "name": "mem",
                "dimensions": {"host": "a", "bank": "0"},
                "columns": ["timestamp", "value", "value_meta"],
                "measurements": [[_START, 7.0, {"why": "é"}]],
            },
            found,
        )

    def test_several_metrics_need_to_be_told_apart(self):
        body = self.get(_MEASUREMENTS, 409, name="cpu", start_time=_START)
        self.assertIn("merge_metrics", body["error"]["message"])
        self.get(_STATISTICS, 409, name="cpu", start_time=_START, statistics="avg")
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, dimensions="host:b")
        self.assertEqual([10.0, 11.0, 12.0, 13.0], [row[1] for row in found["measurements"]])

    def test_a_metric_without_rows_in_the_time_asked_for_does_not_count(self):
        self.store(measurement(series=make_series("cpu", host="old"), time_ms=_BASE_MS - 60_000))
        end = iso(_BASE_MS - 1)
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=iso(_BASE_MS - 60_000), end_time=end)
        self.assertEqual({"host": "old"}, found["dimensions"])

    def test_merged_metrics_keep_every_row_and_have_no_dimensions(self):
        (found,) = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, merge_metrics="true")
        self.assertEqual({}, found["dimensions"])
        self.assertEqual(
            [iso(_BASE_MS + 1000 * t) for t in range(4) for _ in range(3)], [r[0] for r in found["measurements"]]
        )
        self.assertEqual({10.0 * n + t for n in range(3) for t in range(4)}, {r[1] for r in found["measurements"]})

    def test_groups_have_the_dimensions_that_they_are_grouped_by(self):
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, group_by="zone")
        self.assertEqual({(("zone", "1"),): 8, (("zone", "2"),): 4}, _row_counts(found))
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, group_by="zone,host")
        self.assertEqual([4, 4, 4], [len(one["measurements"]) for one in found])
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, group_by="*", merge_metrics="true")
        self.assertEqual({one.id.hex() for one in self.cpu}, {one["id"] for one in found})

    def test_series_without_a_dimension_are_a_group_of_their_own(self):
        self.store(measurement(series=make_series("cpu", rack="1"), time_ms=_BASE_MS))
        found = self.elements(_MEASUREMENTS, name="cpu", start_time=_START, group_by="zone")
        self.assertEqual({(("zone", "1"),): 8, (("zone", "2"),): 4, (): 1}, _row_counts(found))

    def test_pages_of_every_size_hold_every_row_once_and_count_rows(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}, {"dimensions": "host:a"}):
            asked = {"name": "cpu", "start_time": _START, **how}
            whole = _rows(self.elements(_MEASUREMENTS, **asked))
            for limit in range(1, len(whole) + 1):
                pages = self.pages(_MEASUREMENTS, limit=str(limit), **asked)
                self.assertEqual(whole, [row for page in pages for row in _rows(page)], (how, limit))
                self.assertTrue(all(len(_rows(page)) == limit for page in pages[:-1]), (how, limit))
                self.assertEqual(-(-len(whole) // limit), len(pages), (how, limit))

    def test_a_page_goes_on_right_although_a_series_came_meanwhile(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}):
            asked = {"name": "cpu", "start_time": _START, "limit": "5", **how}
            first = self.get(_MEASUREMENTS, **asked)
            offset = dict(parse_qsl(urlsplit(first["links"][1]["href"]).query))["offset"]
            before = _rows(self.elements(_MEASUREMENTS, **{**asked, "limit": "50", "offset": offset}))
            for n in range(8):
                new = make_series("cpu", host=f"new{n}", zone="0", how=str(how))
                self.store(measurement(series=new, value=-1, time_ms=_BASE_MS))
            after = _rows(self.elements(_MEASUREMENTS, **{**asked, "limit": "50", "offset": offset}))
            self.assertEqual(*([row for row in rows if row[2] != -1] for rows in (before, after)), how)

    def test_an_offset_may_be_a_time_alone(self):
        (found,) = self.elements(
            _MEASUREMENTS, name="cpu", start_time=_START, merge_metrics="true", offset=iso(_BASE_MS + 1000)
        )
        self.assertEqual({iso(_BASE_MS + 2000), iso(_BASE_MS + 3000)}, {row[0] for row in found["measurements"]})

    def test_what_the_offset_leaves_nothing_of_is_an_empty_page(self):
        asked = {"name": "mem", "start_time": _START}
        self.assertEqual([], self.elements(_MEASUREMENTS, **asked, offset=f"{self.mem.id.hex()}_{_START}"))
        self.assertEqual([], self.elements(_MEASUREMENTS, **asked, offset=f"{'ff' * 16}_{_START}"))
        self.assertEqual([], self.elements(_STATISTICS, **asked, statistics="avg", offset=f"{'ff' * 16}_{_START}"))

    def test_nothing_stored_is_an_empty_list(self):
        self.assertEqual([], self.elements(_MEASUREMENTS, name="none", start_time=_START))
        self.assertEqual([], self.elements(_STATISTICS, name="none", start_time=_START, statistics="avg"))
        self.assertEqual([], self.elements(_MEASUREMENTS, name="none", start_time=_START, merge_metrics="true"))

    def test_more_series_than_a_page_has_elements_are_refused(self):
        rows = [measurement(series=make_series("many", n=str(n)), time_ms=_BASE_MS) for n in range(_PAGE_LIMIT + 1)]
        self.store(*rows)
        body = self.get(_MEASUREMENTS, 422, name="many", start_time=_START, merge_metrics="true")
        self.assertIn("narrow", body["error"]["message"])

    def test_codes_of_what_is_missing_or_wrong(self):
        for path in (_MEASUREMENTS, _STATISTICS):
            good = {"name": "mem", "start_time": _START, "statistics": "avg"}
            for wrong, code in (
                ({"name": ""}, 422),
                ({"name": "x" * 256}, 422),
                ({"start_time": ""}, 422),
                ({"start_time": "now"}, 422),
                ({"end_time": _START}, 400),
                ({"limit": "0"}, 422),
                ({"offset": "1_2"}, 422),
                ({"dimensions": ":x"}, 422),
            ):
                self.get(path, code, **{**good, **wrong})


class StatisticsTest(ReadsCase):
    def test_columns_are_those_asked_for_and_values_are_floats(self):
        (found,) = self.elements(
            _STATISTICS,
            name="cpu",
            start_time=_START,
            statistics="SUM,avg,Count,max,min",
            merge_metrics="true",
            period="2",
        )
        self.assertEqual({"id", "name", "dimensions", "columns", "statistics"}, set(found))
        self.assertEqual(["timestamp", "sum", "avg", "count", "max", "min"], found["columns"])
        self.assertEqual({}, found["dimensions"])
        self.assertEqual(
            [[_START, 63.0, 10.5, 6.0, 21.0, 0.0], [iso(_BASE_MS + 2000), 75.0, 12.5, 6.0, 23.0, 2.0]],
            found["statistics"],
        )
        self.assertEqual({float}, {type(value) for row in found["statistics"] for value in row[1:]})

    def test_a_window_is_five_minutes_unless_said_otherwise_and_empty_ones_are_left_out(self):
        self.store(measurement(series=self.mem, value=9, time_ms=_BASE_MS + 900_000))
        (found,) = self.elements(_STATISTICS, name="mem", start_time=iso(_BASE_MS - 1000), statistics="max")
        self.assertEqual([[iso(_BASE_MS - 1000), 7.0], [iso(_BASE_MS + 899_000), 9.0]], found["statistics"])

    def test_unknown_or_no_statistics_are_refused(self):
        self.get(_STATISTICS, 422, name="mem", start_time=_START)
        self.get(_STATISTICS, 422, name="mem", start_time=_START, statistics="avg,mode")
        self.get(_STATISTICS, 422, name="mem", start_time=_START, statistics="avg", period="0")

    def test_pages_of_every_size_hold_every_window_once_and_may_end_within_an_element(self):
        for how in ({"merge_metrics": "true"}, {"group_by": "zone"}, {"group_by": "*"}):
            asked = {"name": "cpu", "start_time": _START, "statistics": "avg,count", "period": "1", **how}
            whole = _rows(self.elements(_STATISTICS, **asked))
            for limit in range(1, len(whole) + 1):
                pages = self.pages(_STATISTICS, limit=str(limit), **asked)
                self.assertEqual(whole, [row for page in pages for row in _rows(page)], (how, limit))
                self.assertEqual(-(-len(whole) // limit), len(pages), (how, limit))

    def test_the_offset_is_id_and_timestamp(self):
        asked = {"name": "mem", "start_time": iso(_BASE_MS - 2000), "statistics": "avg", "period": "1", "limit": "1"}
        self.store(measurement(series=self.mem, value=9, time_ms=_BASE_MS + 5000))
        links = self.get(_STATISTICS, **asked)["links"]
        offset = dict(parse_qsl(urlsplit(links[1]["href"]).query))["offset"]
        self.assertEqual(f"{self.mem.id.hex()}_{_START}", offset)

    def test_an_offset_that_is_a_time_keeps_the_windows_where_they_are(self):
        asked = {"name": "cpu", "start_time": _START, "statistics": "count", "period": "2", "group_by": "*"}
        found = self.elements(_STATISTICS, **asked, offset=iso(_BASE_MS + 500))
        self.assertEqual([[[iso(_BASE_MS + 2000), 2.0]]] * 3, [one["statistics"] for one in found])


class AlarmReadsTest(ReadsCase):
    def test_lists_of_what_does_not_exist_yet_are_empty(self):
        for path in ("alarm-definitions", "notification-methods", "alarms"):
            body = self.get(f"/v2.0/{path}")
            self.assertEqual(({"links", "elements"}, []), (set(body), body["elements"]))
        count = self.get("/v2.0/alarms/count")
        self.assertEqual((["count"], [[0]]), (count["columns"], count["counts"]))
        self.assertEqual("self", count["links"][0]["rel"])

    def test_the_history_of_all_alarms_and_of_one(self):
        self.store(*(_transition(n) for n in range(3)), kind=Kind.ALARM_HISTORY)
        found = self.elements("/v2.0/alarms/state-history")
        self.assertEqual([f"alarm-{n}" for n in range(3)], [one["alarm_id"] for one in found])
        self.assertEqual(found, self.elements("/v2.0/alarms/state-history/"))
        (one,) = self.elements("/v2.0/alarms/alarm-1/state-history")
        self.assertEqual(found[1], one)
        self.assertEqual(
            {
                "id": one["id"],
                "alarm_id": "alarm-1",
                "metrics": [{"name": "cpu", "dimensions": {"host": "1"}}],
                "old_state": "OK",
                "new_state": "ALARM",
                "reason": "because",
                "reason_data": "{}",
                "timestamp": iso(_BASE_MS + 1),
                "sub_alarms": [
                    {
                        "sub_alarm_expression": {"metric_definition": {"dimensions": {"camelCase": "x"}}, "period": 60},
                        "sub_alarm_state": "ALARM",
                        "current_values": [1.5],
                    }
                ],
            },
            one,
        )
        self.assertEqual([found[2]], self.elements("/v2.0/alarms/state-history", dimensions="host:2"))
        self.assertEqual(found[1:], self.elements("/v2.0/alarms/state-history", start_time=iso(_BASE_MS + 1)))
        self.assertEqual([], self.elements("/v2.0/alarms/state-history", tenant="other"))
        pages = self.pages("/v2.0/alarms/state-history", limit="1")
        self.assertEqual(found, [one for page in pages for one in page])


class FailingReadsTest(SqliteTestCase):
    def test_what_storage_cannot_do_is_told_by_code_and_without_its_secrets(self):
        class Failing:
            def names(self, _which, _page):
                raise self.error

        reader = Failing()
        client = application(reader)
        for error, code, retry in (
            (StorageUnavailable("host db.internal refused"), 503, True),
            (SchemaMismatch("no such table"), 503, True),
            (QueryTimeout("too slow"), 503, True),
            (QueryTooLarge("too much"), 422, False),
            (NotSupported("write only"), 501, False),
            (StorageError("odd"), 500, False),
        ):
            reader.error = error
            result = client.simulate_get(_NAMES)
            self.assertEqual((code, code), (result.status_code, result.json["error"]["code"]))
            self.assertEqual(retry, "retry-after" in result.headers)
            self.assertNotIn("db.internal", result.text)

    def test_a_database_that_does_not_exist_yet_is_503(self):
        reader = self.empty_database().storage().open_reader()
        self.addCleanup(reader.close)
        self.assertEqual(503, application(reader).simulate_get(_METRICS).status_code)


def _transition(number):
    expression = '{"metricDefinition": {"dimensions": {"camelCase": "x"}}, "period": 60}'
    sub = f'[{{"subAlarmExpression": {expression}, "subAlarmState": "ALARM", "currentValues": [1.5]}}]'
    metrics = f'[{{"name": "cpu", "dimensions": {{"host": "{number}"}}}}]'
    states = ("OK", "ALARM", "LOW", "because", None, None)
    return AlarmTransition(_BASE_MS + number, "tenant", f"alarm-{number}", "d", "n", *states, metrics, sub)


def _rows(elements):
    return [(one["id"], *row) for one in elements for row in one.get("measurements", one.get("statistics"))]


def _row_counts(elements):
    return {tuple(one["dimensions"].items()): len(one["measurements"]) for one in elements}
