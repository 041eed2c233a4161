# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a real Kafka and Spark: what it publishes is what the plain reference says."""

import json

from monasca_common.tests.functional.pipeline_case import KafkaPipelineCase, expected
from monasca_common.tests.unit.pipeline.pipeline_case import SHIPPED, golden, pre_row, shipped_row, specifications

POD = "pod.net.in_bytes_sec"
CORES, IDLE = "cpu.total_logical_cores", "cpu.idle_perc"
GROUPED = ["tenant_id", "dimensions#app", "dimensions#namespace", "dimensions#pod_name"]


def shipped(name):
    return [json.loads(line) for line in SHIPPED.joinpath(name).read_text().splitlines()]


def first_stages():
    """The golden data's first stages, each under a name of its own: pre-transform rows and transform rows."""
    rows, fed = [], {}

    def add(name, metric_id, *event_types, **parameters):
        row = shipped_row(metric_id, **{"aggregated_metric_name": name, **parameters})
        rows.append(row | {"metric_id": name})
        for event_type in event_types:
            fed.setdefault(event_type, []).append(name)

    for operation in ("latest", "oldest", "max", "min", "avg", "sum"):
        add(f"mem_{operation}", "mem_total_all", "mem.total_mb", usage_fetch_operation=operation)
    add("cores_host", "cpu_total_host", CORES)
    add("cores_all", "cpu_total_all", CORES)
    add("util_host", "cpu_util_host", CORES, IDLE)
    for operation in ("avg", "latest", "oldest"):
        add(f"util_{operation}", "cpu_util_all", CORES, IDLE, usage_fetch_operation=operation)
    for name, by in {"nothing": [], "namespace": ["dimensions#namespace"], "app": ["dimensions#app"]}.items():
        add(
            f"pod_{name}",
            "mem_total_all",
            POD,
            aggregation_group_by_list=GROUPED,
            setter_rollup_group_by_list=by,
            dimension_list=["aggregation_period", *GROUPED[1:]],
        )
    return [pre_row(event_type, *names, required=["creation_time"]) for event_type, names in fed.items()], rows


class GoldenTest(KafkaPipelineCase):
    """Metrics of real clouds, through Kafka; compare unit/pipeline/test_golden.py."""

    def test_both_stages_of_the_golden_data(self):
        pre_rows, rows = first_stages()
        shipped_pre_rows, shipped_rows = shipped("pre_transform_specs.jsonl"), shipped("transform_specs.jsonl")
        fed = {row["event_type"]: row["metric_id_list"] for row in pre_rows}
        # An event type has one row: those of the shipped ones get the first stages' names as well.
        for row in shipped_pre_rows:
            row["metric_id_list"] += fed.pop(row["event_type"], [])
        pre_rows = shipped_pre_rows + [row for row in pre_rows if row["event_type"] in fed]
        rows += shipped_rows
        specs = specifications(pre_rows, rows)
        messages = self.publish(golden("cpu_metrics.jsonl") + golden("mem_and_pod_metrics.jsonl"))
        aggregation = self.aggregation(specs)

        report = aggregation.step()

        self.assertEqual((109, 0, 0), (report.offsets, report.behind, report.rejected))
        found = self.stored(specs)
        self.assertEqual(expected(pre_rows, rows, messages), found)
        self.assert_golden({(key[0], dict(key[2:]).get("host")): row for key, row in found.items()}, found)
        # What was published lies in the topic that is read, and is no input.
        self.assertEqual(len(found), report.published.messages)
        again = aggregation.step()
        self.assertEqual((len(found), 0, 0), (again.offsets, again.records, again.published.messages))
        self.assertEqual([], self.read(self.dlq, 1))

    def assert_golden(self, of, found):
        memory = {"latest": 1024, "oldest": 4096, "max": 8192, "min": 1024, "avg": 3840, "sum": 15360}
        for operation, quantity in memory.items():
            ((row,),) = [[row for key, row in found.items() if key[0] == f"mem_{operation}"]]
            self.assertEqual((quantity, "4", "2016-01-20 16:40:00", "2016-01-20 16:40:46"), row)
        hosts = ("test-cp1-comp0333-mgmt", "test-cp1-comp0027-mgmt")
        self.assertEqual([(9, "6"), (6, "7")], [of["cores_host", host][:2] for host in hosts])
        self.assertEqual((15, "13"), of["cores_all", "all"][:2])
        self.assertEqual([4.9665, 2.1677], [round(of["util_host", host][0], 4) for host in hosts])
        for operation, quantity in {"avg": 7.134214, "latest": 7.77, "oldest": 9.52}.items():
            self.assertEqual((quantity, "13"), of[f"util_{operation}", "all"][:2])
        pods = {
            (key[0], dict(key[2:])["namespace"], dict(key[2:])["app"]): row
            for key, row in found.items()
            if key[0].startswith("pod_")
        }
        self.assertEqual((145.88, "6"), pods["pod_nothing", "all", "all"][:2])
        self.assertEqual((22.94, "3"), pods["pod_namespace", "website", "all"][:2])
        self.assertEqual((122.94, "3"), pods["pod_app", "all", "junk"][:2])
        # Second stages, as they are shipped.
        self.assertEqual((14.75, "13"), of["cpu.total_logical_cores_agg", "all"][:2])
        self.assertEqual((7.321444, "13"), of["cpu.utilized_logical_cores_agg", "all"][:2])
        self.assertEqual((3840, "4"), of["mem.total_mb_agg", "all"][:2])


class GoldenPostgresqlTest(GoldenTest):
    """The executors stage."""

    database = "postgresql"
