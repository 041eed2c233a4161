# SPDX-License-Identifier: Apache-2.0
"""The operation, the usage and the setter of ``examples/spread``."""

import sys
from pathlib import Path

import fixtures

from monasca_common.pipeline import components
from monasca_common.tests.unit.pipeline.component_fixture import InstalledComponents
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PipelineCase,
    envelope,
    pre_row,
    shipped_row,
    specifications,
)

EXAMPLE = Path(__file__).parents[4] / "examples" / "spread"
NAMING = ["set_aggregated_metric_name", "set_aggregated_period"]


class ExampleComponentsTest(PipelineCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(EXAMPLE), *sys.path]))
        import spread

        self.useFixture(InstalledComponents(components.OPERATIONS, spread=spread.SPREAD))
        self.useFixture(InstalledComponents(components.USAGES, count_records=spread.COUNT_RECORDS))
        self.useFixture(InstalledComponents(components.SETTERS, scale_quantity=spread.SCALE_QUANTITY))

    def quantity(self, *values, usage="fetch_quantity", setters=(), **parameters):
        row = shipped_row("mem_total_all", aggregation_group_by_list=["host"], **parameters)
        params = row["aggregation_params_map"]
        params["aggregation_pipeline"] |= {"usage": usage, "setters": [*setters, *NAMING]}
        if usage == "count_records":
            del params["usage_fetch_operation"]
        specs = specifications([pre_row("cpu", "mem_total_all")], [row])
        sent = [envelope(timestamp=60_000, value=value, dimensions={"hostname": "a"}) for value in values]
        return self.usage(specs, sent).quantity

    def test_a_specification_can_name_the_operation(self):
        self.assertEqual(6.0, self.quantity(4, 1, 7, usage_fetch_operation="spread"))

    def test_a_specification_can_name_the_usage_and_the_setter(self):
        self.assertEqual(1.5, self.quantity(1, 2, 3, usage="count_records", setters=["scale_quantity"], scale_by="0.5"))
