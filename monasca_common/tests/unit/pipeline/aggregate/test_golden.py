# SPDX-License-Identifier: Apache-2.0
"""Aggregate metrics of real clouds, and expect the results of the tests of monasca-transform, except for its `latest`
rates."""

import json

from monasca_common import pipeline
from monasca_common.models.metric import MetricDecoder
from monasca_common.pipeline.aggregate.output import output
from monasca_common.tests.unit.pipeline import pipeline_case
from monasca_common.tests.unit.pipeline.pipeline_case import aggregates, golden, partials_of, pre_row, shipped_row

POD = "pod.net.in_bytes_sec"


def only(row, *event_types):
    rows = [pre_row(event_type, row["metric_id"], required=["creation_time"]) for event_type in event_types]
    return pipeline_case.specifications(rows, [row])


class GoldenTest(pipeline_case.PipelineCase):
    def assert_close(self, expected, usage):
        self.assertAlmostEqual(expected, usage.quantity, delta=1e-9 * abs(expected))

    def test_memory_is_aggregated_by_each_operation(self):
        expected = {"latest": 1024, "oldest": 4096, "max": 8192, "min": 1024, "avg": 3840, "sum": 15360}
        for operation, quantity in expected.items():
            specs = only(shipped_row("mem_total_all", usage_fetch_operation=operation), "mem.total_mb")
            usage = self.usage(specs, golden("mem_and_pod_metrics.jsonl"))
            self.assert_close(quantity, usage)
            reported = output(pipeline_case.PUBLISHER, specs.transforms["mem_total_all"], usage, 0, version_ms=0)
            self.assertEqual(
                {
                    "record_count": "4",
                    "firstrecord_timestamp_string": "2016-01-20 16:40:00",
                    "lastrecord_timestamp_string": "2016-01-20 16:40:46",
                },
                json.loads(reported.value)["metric"]["value_meta"],
            )

    def test_memory_is_aggregated_by_host(self):
        row = shipped_row("mem_total_all", setter_rollup_group_by_list=["host"])
        usage = self.usage(only(row, "mem.total_mb"), golden("mem_and_pod_metrics.jsonl"))
        self.assertEqual("mini-mon", usage.column("host"))
        self.assertEqual("all", usage.column("tenant_id"))

    def test_cores_are_aggregated_by_host_and_rolled_up(self):
        by_host = self.usages(
            only(shipped_row("cpu_total_host"), "cpu.total_logical_cores"), golden("cpu_metrics.jsonl")
        )
        self.assertEqual(
            {"test-cp1-comp0333-mgmt": (9.0, 6), "test-cp1-comp0027-mgmt": (6.0, 7)},
            {usage.column("host"): (usage.quantity, usage.count) for usage in by_host},
        )
        usage = self.usage(only(shipped_row("cpu_total_all"), "cpu.total_logical_cores"), golden("cpu_metrics.jsonl"))
        self.assertEqual((15.0, 13), (usage.quantity, usage.count))

    def test_utilisation_is_computed_by_host(self):
        specs = only(shipped_row("cpu_util_host"), "cpu.total_logical_cores", "cpu.idle_perc")
        usages = self.usages(specs, golden("cpu_metrics.jsonl"))
        self.assertEqual(
            {"test-cp1-comp0333-mgmt": (4.9665, 6), "test-cp1-comp0027-mgmt": (2.1677, 7)},
            {usage.column("host"): (round(usage.quantity, 4), usage.count) for usage in usages},
        )

    def test_utilisation_is_rolled_up_by_each_operation(self):
        for operation, quantity in {"avg": 7.134214285714285, "latest": 7.77, "oldest": 9.52}.items():
            row = shipped_row("cpu_util_all", usage_fetch_operation=operation)
            usage = self.usage(only(row, "cpu.total_logical_cores", "cpu.idle_perc"), golden("cpu_metrics.jsonl"))
            self.assert_close(quantity, usage)
            self.assertEqual(13, usage.count)

    def test_pods_are_aggregated_in_total_by_namespace_and_by_app(self):
        grouped = ["tenant_id", "dimensions#app", "dimensions#namespace", "dimensions#pod_name"]
        for by, value, quantity, count in (
            ([], None, 145.88, 6),
            (["dimensions#namespace"], "website", 22.94, 3),
            (["dimensions#app"], "junk", 122.94, 3),
        ):
            row = shipped_row(
                "mem_total_all",
                aggregated_metric_name="pod.net.in_bytes_sec_agg",
                aggregation_group_by_list=grouped,
                setter_rollup_group_by_list=by,
                dimension_list=["aggregation_period", *grouped[1:]],
            )
            specs = only(row, POD)
            usages = self.usages(specs, golden("mem_and_pod_metrics.jsonl"))
            (usage,) = (usage for usage in usages if not by or usage.column(by[0]) == value)
            self.assert_close(quantity, usage)
            self.assertEqual(count, usage.count)
            shown = output(pipeline_case.PUBLISHER, specs.transforms["mem_total_all"], usage, 0, version_ms=0)
            dimensions = dict.fromkeys(("app", "namespace", "pod_name"), "all") | {"aggregation_period": "hourly"}
            if by:
                dimensions[by[0].removeprefix("dimensions#")] = value
            self.assertEqual(dimensions, json.loads(shown.value)["metric"]["dimensions"])

    def test_a_dimension_without_a_prefix_has_the_value_all(self):
        row = shipped_row("mem_total_all", dimension_list=["aggregation_period", "host", "interface", "pod_name"])
        specs = only(row, "mem.total_mb")
        usage = self.usage(specs, golden("mem_and_pod_metrics.jsonl"))
        shown = output(pipeline_case.PUBLISHER, specs.transforms["mem_total_all"], usage, 0, version_ms=0)
        dimensions = dict.fromkeys(("host", "interface", "pod_name"), "all") | {"aggregation_period": "hourly"}
        self.assertEqual(dimensions, json.loads(shown.value)["metric"]["dimensions"])


class SecondStageTest(pipeline_case.PipelineCase):
    """All shipped specifications at once, with all golden data."""

    def setUp(self):
        super().setUp()
        self.specs = pipeline.load()
        messages = golden("cpu_metrics.jsonl") + golden("mem_and_pod_metrics.jsonl")
        self.aggregates = aggregates(self.specs, partials_of(self.specs, messages))

    def test_ten_minute_windows_are_combined_into_an_hour(self):
        found = {
            metric_id: usage
            for (metric_id, _), aggregate in self.aggregates.items()
            for usage in aggregate.usages
            if usage.column("host") == "all"
        }
        self.assertAlmostEqual(14.75, found["cpu_total_all"].quantity, delta=14.75e-9)
        self.assertAlmostEqual(7.321444444444444, found["cpu_util_all"].quantity, delta=7e-9)
        self.assertEqual([13, 13], [found["cpu_total_all"].count, found["cpu_util_all"].count])
        self.assertEqual(3840.0, found["mem_total_all"].quantity)

    def test_aggregated_metrics_can_be_stored(self):
        values = [
            output(pipeline_case.PUBLISHER, self.specs.transforms[metric_id], usage, period_ms, version_ms=1_500).value
            for (metric_id, period_ms), aggregate in self.aggregates.items()
            for usage in aggregate.usages
        ]
        self.assertEqual(9, len(values))
        decoded = MetricDecoder().decode_all(values)
        self.assertEqual({}, decoded.errors)
        self.assertEqual({1500}, {row.version for row in decoded.rows})
        cores = next(
            row
            for row in decoded.rows
            if row.series.name == "cpu.total_logical_cores_agg" and row.series.dimensions["host"] == "all"
        )
        self.assertEqual(1_457_366_400_000, cores.time_ms)  # 2016-03-07 16:00 UTC, the start of the hour
        self.assertEqual({"aggregation_period": "hourly", "host": "all", "project_id": "all"}, cores.series.dimensions)
