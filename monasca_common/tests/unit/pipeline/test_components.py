# SPDX-License-Identifier: Apache-2.0
import sys
from dataclasses import replace
from pathlib import Path

import fixtures

from monasca_common import pipeline
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline import components
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PipelineCase,
    envelope,
    pre_row,
    shipped_row,
    specifications,
)

PARAMETERS = "aggregation_params_map"
NAMING = ["set_aggregated_metric_name", "set_aggregated_period"]
SPREAD = pipeline.OperationComponent(
    fetch=lambda partial: partial.greatest - partial.least, combine=lambda quantities: max(quantities) - min(quantities)
)


def scaled(transform, rows):
    return [replace(row, quantity=row.quantity * float(transform.parameters["scale_by"])) for row in rows]


def counted(transform, partials):
    rows = [
        pipeline.Usage((), "NA", float(partial.count), partial.count, partial.first_ms, partial.last_ms)
        for partial in partials.values()
    ]
    return pipeline.Aggregate(tuple(rows))


def row(usage="fetch_quantity", setters=("rollup_quantity", *NAMING), without=(), **parameters):
    made = shipped_row("mem_total_all", **parameters)
    of = made[PARAMETERS]
    of["aggregation_pipeline"] = of["aggregation_pipeline"] | {"usage": usage, "setters": list(setters)}
    for field in without:
        of.pop(field)
    return made


def one_of(transform_row):
    return specifications([pre_row("cpu", "mem_total_all")], [transform_row])


def cpu(value, host="a", minute=1):
    return envelope(timestamp=minute * 60_000, value=value, dimensions={"hostname": host})


class InstalledComponents(fixtures.Fixture):
    """Components that a test defines, found as if their entry points were installed.

    ``found``: the components of a namespace by name; an exception represents a broken package.
    """

    def __init__(self, namespace, **found):
        super().__init__()
        self._namespace = namespace
        self._found = found

    def _setUp(self):
        real_names, real_entry_point = components.names, components.entry_point

        def names(namespace):
            added = self._found if namespace == self._namespace else ()
            return tuple(sorted({*real_names(namespace), *added}))

        def entry_point(namespace, name, **options):
            if namespace != self._namespace or name not in self._found:
                return real_entry_point(namespace, name, **options)
            found = self._found[name]
            if isinstance(found, ConfigurationError):
                raise found
            return found

        for name, replacement in (("names", names), ("entry_point", entry_point)):
            self.useFixture(fixtures.MonkeyPatch(f"{components.__name__}.{name}", replacement))


class ComponentsTest(PipelineCase):
    def fault(self, transform_row):
        error = self.assertRaises(pipeline.InvalidSpecifications, one_of, transform_row)
        (fault,) = error.faults
        return fault

    def test_an_operation_of_another_package_computes_and_combines_quantities(self):
        self.useFixture(InstalledComponents(components.OPERATIONS, spread=SPREAD))
        messages = [cpu(1), cpu(5), cpu(2, "b"), cpu(9, "b")]

        fetched = one_of(row(usage_fetch_operation="spread", setter_rollup_operation="sum"))
        combined = one_of(row(usage_fetch_operation="max", setter_rollup_operation="spread"))

        self.assertEqual(4 + 7, self.usage(fetched, messages).quantity)
        self.assertEqual(9 - 5, self.usage(combined, messages).quantity)

    def test_the_second_stage_can_use_an_operation_of_another_package(self):
        self.useFixture(InstalledComponents(components.OPERATIONS, spread=SPREAD))
        two_stages = row(
            stages=2,
            pre_hourly_operation="spread",
            pre_hourly_group_by_list=[],
            usage_fetch_operation="sum",
            setter_rollup_operation="sum",
        )

        usage = self.usage(one_of(two_stages), [cpu(1), cpu(5), cpu(10, minute=11)])

        self.assertEqual(10 - 6, usage.quantity)

    def test_a_usage_of_another_package_replaces_the_included_one(self):
        self.useFixture(InstalledComponents(components.USAGES, count=pipeline.UsageComponent(counted, operations=())))

        usage = self.usage(one_of(row("count", NAMING, without=["usage_fetch_operation"])), [cpu(1), cpu(5)])

        self.assertEqual(2, usage.quantity)

    def test_setters_with_parameters_run_in_the_order_of_the_specification(self):
        self.useFixture(InstalledComponents(components.SETTERS, scale=pipeline.SetterComponent(scaled, ("scale_by",))))

        transform_row = row(setters=["rollup_quantity", "scale", *NAMING], scale_by="0.5", usage_fetch_operation="sum")

        self.assertEqual(3, self.usage(one_of(transform_row), [cpu(1), cpu(5)]).quantity)

    def test_a_parameter_of_a_component_is_required(self):
        self.useFixture(InstalledComponents(components.SETTERS, scale=pipeline.SetterComponent(scaled, ("scale_by",))))

        fault = self.fault(row(setters=["scale", *NAMING]))

        self.assertEqual((f"{PARAMETERS}.scale_by", "is required"), (fault.field, fault.rule))

    def test_a_parameter_that_no_component_uses_is_refused(self):
        self.assertIn("is not a known field", self.fault(row(scale_by="2")).rule)

    def test_an_operation_that_only_fetches_is_refused_as_a_rollup(self):
        fault = self.fault(row(setter_rollup_operation="latest"))

        self.assertEqual("must be one of avg, max, min, sum, not 'latest'", fault.rule)

    def test_a_broken_component_is_reported_and_others_can_be_used(self):
        broken = ConfigurationError("operation=p95: the plugin cannot be loaded: install numpy")
        self.useFixture(InstalledComponents(components.OPERATIONS, p95=broken))

        self.assertIn("install numpy", self.fault(row(usage_fetch_operation="p95")).rule)
        self.assertIn("avg, latest, max, min, oldest, sum,", self.fault(row(usage_fetch_operation="x")).rule)

    def test_an_unknown_name_is_refused_with_the_known_names(self):
        for load, known in (
            (components.operation, "avg, latest, max, min, oldest, sum"),
            (components.usage, "calculate_rate, fetch_quantity, fetch_quantity_util"),
            (components.setter, "rollup_quantity, set_aggregated_metric_name, set_aggregated_period"),
        ):
            self.assertIn(
                f"=no is not known: use one of {known}", str(self.assertRaises(ConfigurationError, load, "no"))
            )


EXAMPLE = Path(__file__).parents[4] / "examples" / "spread"


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
