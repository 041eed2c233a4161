# SPDX-License-Identifier: Apache-2.0
"""Posted metrics can be read: measurements, statistics, names and dimensions, page by page."""

import json
import time
from datetime import UTC, datetime
from typing import ClassVar

from tempest.lib import exceptions

from monasca_common.tests.checker import each_once
from monasca_common.tests.tempest.api.monitoring_case import READER, WRITER, MonitoringCase, MonitoringClient

LONG_AGO = "2020-01-01T00:00:00Z"
SERIES, ROWS = 5, 4


def iso(milliseconds):
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MetricsCase(MonitoringCase):
    """Each test has its own metric, ``self.metric``."""

    def setUp(self):
        super().setUp()
        self.metric = self.name()

    def measurements(self, count, client=None, **query):
        """Wait until all series together have this number of rows, and return the rows."""
        found = self.wait_for(
            lambda: (client or self.client).elements(
                "metrics/measurements", name=self.metric, start_time=LONG_AGO, group_by="*", **query
            ),
            lambda elements: sum(len(each["measurements"]) for each in elements) >= count,
            f"{count} measurements of {self.metric}",
        )
        return [row for each in found for row in each["measurements"]]


class TestReadBack(MetricsCase):
    def test_a_measurement_is_returned_as_it_was_posted(self):
        moment, meta = 1_600_000_000_123 + (int(time.time()) - 1_600_000_000) * 1000, {"message": "größer, 大"}
        body = {"name": self.metric, "dimensions": {"host": "a"}, "timestamp": moment, "value": -1.5e-7}
        self.client.make("metrics", {**body, "value_meta": meta})
        self.assertEqual([[iso(moment), -1.5e-7, meta]], self.measurements(1))

    def test_a_time_with_a_fraction_of_a_millisecond_is_accepted(self):
        moment = int(time.time() * 1000)
        self.client.make("metrics", {"name": self.metric, "timestamp": moment + 0.5, "value": 1})
        self.assertIn(self.measurements(1)[0][0], (iso(moment), iso(moment + 1)))

    def test_each_value_of_a_bulk_is_returned_once(self):
        moment = int(time.time() * 1000)
        self.client.make(
            "metrics",
            [
                {"name": self.metric, "dimensions": {"host": str(n % 7)}, "timestamp": moment + n, "value": n}
                for n in range(500)
            ],
        )
        rows = self.measurements(500)
        with each_once():
            self.assertEqual(list(range(500)), sorted(row[1] for row in rows))

    def test_statistics_are_computed_from_the_values(self):
        self.post(self.metric, 1, 2, 6, host="a")
        self.measurements(3)
        (found,) = self.client.elements(
            "metrics/statistics",
            name=self.metric,
            start_time=LONG_AGO,
            statistics="avg,min,max,sum,count",
            period=315_360_000,
        )
        self.assertEqual(["timestamp", "avg", "min", "max", "sum", "count"], found["columns"])
        self.assertEqual([3.0, 1.0, 6.0, 9.0, 3.0], found["statistics"][0][1:])

    def test_names_and_dimensions_are_listed(self):
        self.post(self.metric, 1, host="a", device="sda")
        self.measurements(1)
        query = {"metric_name": self.metric}
        self.assertIn({"name": self.metric}, self.client.elements("metrics/names"))
        self.assertEqual(
            [{"dimension_name": "device"}, {"dimension_name": "host"}],
            self.client.elements("metrics/dimensions/names", **query),
        )
        self.assertEqual(
            [{"dimension_value": "sda"}],
            self.client.elements("metrics/dimensions/names/values", dimension_name="device", **query),
        )


class TestPages(MetricsCase):
    def setUp(self):
        super().setUp()
        for number in range(SERIES):
            self.post(self.metric, *range(ROWS), host=f"host-{number}")
        self.measurements(SERIES * ROWS)

    def test_pages_of_series_have_each_series_once(self):
        whole = self.client.elements("metrics", name=self.metric)
        for limit in (1, 2, SERIES, SERIES + 1):
            pages = list(self.client.pages("metrics", name=self.metric, limit=limit))
            self.assertEqual(whole, [element for page in pages for element in page])
            self.assertEqual(-(-SERIES // limit), len(pages))

    def test_pages_of_measurements_have_each_row_once(self):
        found = []
        query = {"name": self.metric, "start_time": LONG_AGO, "group_by": "*"}
        for page in self.client.pages("metrics/measurements", limit=3, **query):
            rows = [(each["dimensions"]["host"], row[1]) for each in page for row in each["measurements"]]
            self.assertLessEqual(len(rows), 3)
            found += rows
        expected = [(f"host-{number}", float(value)) for number in range(SERIES) for value in range(ROWS)]
        self.assertEqual(expected, sorted(found))


class TestRefused(MetricsCase):
    def test_a_bulk_with_an_invalid_metric_stores_nothing(self):
        good = {"name": self.metric, "timestamp": int(time.time() * 1000), "value": 1}
        for bad in ({"name": ""}, {"value": None}, {"timestamp": None}, {"name": "a" * 256}, {"dimensions": {"a": ""}}):
            refused = [good, {**good, **bad}]
            self.assertRaises(exceptions.UnprocessableEntity, self.client.make, "metrics", refused)
        self.post(self.metric, 2)
        self.assertEqual([2.0], [row[1] for row in self.measurements(1)])

    def test_invalid_queries_are_refused(self):
        query = {"name": self.metric, "start_time": LONG_AGO}
        for path, changed in (
            ("metrics/measurements", {"start_time": ""}),
            ("metrics/measurements", {"name": "a" * 256}),
            ("metrics/statistics", {}),
            ("metrics/statistics", {"statistics": "median"}),
            ("metrics/dimensions/names/values", {}),
        ):
            self.assertRaises(exceptions.UnprocessableEntity, self.client.find, path, **query | changed)

    def test_several_series_are_not_merged_by_default(self):
        for host in ("a", "b"):
            self.post(self.metric, 1, host=host)
        self.measurements(2)
        query = {"name": self.metric, "start_time": LONG_AGO}
        self.assertRaises(exceptions.Conflict, self.client.find, "metrics/measurements", **query)
        self.assertEqual(1, len(self.client.elements("metrics/measurements", merge_metrics="true", **query)))


class TestRoles(MetricsCase):
    credentials: ClassVar = [
        ["writer", WRITER],
        ["stranger", WRITER],
        ["reader", READER],
        ["agent", "monasca-agent", "monitoring-delegate"],
    ]

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.reader, cls.agent = MonitoringClient(cls.os_reader), MonitoringClient(cls.os_agent)

    def metrics(self):
        return [{"name": self.metric, "timestamp": int(time.time() * 1000), "value": 1}]

    def test_a_read_only_role_can_read_but_not_write(self):
        self.assertEqual([], self.reader.elements("metrics", name=self.metric))
        self.assertRaises(exceptions.Unauthorized, self.reader.make, "metrics", self.metrics())
        definition = {"name": self.name("definition"), "expression": f"{self.metric} > 0"}
        self.assertRaises(exceptions.Unauthorized, self.reader.make, "alarm-definitions", definition)

    def test_an_agent_can_post_only_metrics_for_any_tenant(self):
        self.agent.make(f"metrics?tenant_id={self.client.project}", self.metrics())
        self.assertEqual(1, len(self.measurements(1)))
        self.assertRaises(exceptions.Unauthorized, self.agent.make, "logs", {"logs": [{"message": "a"}]})

    def test_other_roles_cannot_post_for_another_tenant(self):
        path = f"metrics?tenant_id={self.stranger.project}"
        self.assertRaises(exceptions.Forbidden, self.client.make, path, self.metrics())

    def test_requests_without_a_token_are_refused(self):
        answer, _ = self.client.raw_request(
            f"{self.client.base_url}/metrics", "POST", headers={}, body=json.dumps(self.metrics())
        )
        self.assertEqual("401", answer["status"])
