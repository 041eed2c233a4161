# SPDX-License-Identifier: Apache-2.0
"""The operations, the usage and the setter of ``examples/percentiles``."""

import random
import sys
from pathlib import Path

import fixtures

from monasca_common import pipeline
from monasca_common.pipeline import components
from monasca_common.tests.unit.pipeline.component_fixture import InstalledComponents
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PipelineCase,
    envelope,
    pre_row,
    shipped_row,
    specifications,
)

EXAMPLE = Path(__file__).parents[4] / "examples" / "percentiles"
NAMING = ["set_aggregated_metric_name", "set_aggregated_period"]


def row(**pipeline_of):
    made = shipped_row("mem_total_all", usage_fetch_operation="p95", aggregation_group_by_list=["host"])
    of = made["aggregation_params_map"]
    of["aggregation_pipeline"] = of["aggregation_pipeline"] | {"setters": NAMING} | pipeline_of
    return made


def cpu(value, host="a"):
    return envelope(timestamp=60_000, value=value, dimensions={"hostname": host})


class PercentilesTest(PipelineCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(EXAMPLE), *sys.path]))
        import percentiles

        self.package = percentiles
        self.useFixture(InstalledComponents(components.OPERATIONS, p50=percentiles.P50, p95=percentiles.P95))
        chance = random.Random(1)
        self.values = [chance.lognormvariate(0, 2) for _ in range(5000)] + [-3.0, 0.0, 0.0]

    def specs(self, **pipeline_of):
        return specifications([pre_row("cpu", "mem_total_all")], [row(**pipeline_of)])

    def test_a_percentile_is_exact_to_one_percent(self):
        found = self.usage(self.specs(), [cpu(value) for value in self.values]).quantity

        expected = sorted(self.values)[int(0.95 * (len(self.values) - 1))]
        self.assertLess(abs(found - expected), 0.01 * expected)

    def test_the_same_records_are_the_same_bytes_however_they_are_split(self):
        sketch = self.package.P95.sketch
        parts = [sketch.of(self.values[start : start + 70]) for start in range(0, len(self.values), 70)]
        halves = [sketch.merge(parts[:9]), sketch.merge(parts[9:])]

        for merged in (sketch.merge(parts), sketch.merge(parts[::-1]), sketch.merge(halves)):
            self.assertEqual(sketch.of(self.values), merged)

    def test_partials_of_other_operations_are_other_partials(self):
        (fifty,) = specifications(
            [pre_row("cpu", "mem_total_all")],
            [row() | {"aggregation_params_map": row()["aggregation_params_map"] | {"usage_fetch_operation": "p50"}}],
        ).transforms.values()
        (ninety_five,) = self.specs().transforms.values()

        self.assertNotEqual(fifty.id, ninety_five.id)

    def test_its_usage_and_setter_take_their_place_in_a_specification(self):
        self.useFixture(InstalledComponents(components.USAGES, count_records=self.package.COUNT_RECORDS))
        self.useFixture(InstalledComponents(components.SETTERS, scale_quantity=self.package.SCALE_QUANTITY))
        made = row(usage="count_records", setters=["scale_quantity", *NAMING])
        made["aggregation_params_map"].pop("usage_fetch_operation")
        made["aggregation_params_map"]["scale_by"] = "0.5"

        specs = specifications([pre_row("cpu", "mem_total_all")], [made])

        self.assertEqual(1.5, self.usage(specs, [cpu(1), cpu(2), cpu(3)]).quantity)

    def test_a_specification_travels_with_the_names_alone(self):
        self.assertEqual({"p95"}, set(self.specs().sketches.values()))
        self.assertIsInstance(self.specs(), pipeline.Specifications)
