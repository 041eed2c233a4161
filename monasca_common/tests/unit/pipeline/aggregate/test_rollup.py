# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from hypothesis import given
from oslotest import base

from monasca_common.pipeline.aggregate import rollup
from monasca_common.pipeline.aggregate.output import output
from monasca_common.pipeline.aggregate.rollup import aggregate
from monasca_common.pipeline.windows import period_start_ms
from monasca_common.tests.unit.pipeline import pipeline_case
from monasca_common.tests.unit.pipeline.aggregate.test_against_reference import BOUNDS, random_messages, random_rows
from monasca_common.tests.unit.pipeline.pipeline_case import (
    HOUR_MS,
    aggregates,
    envelope,
    partials_of,
    pre_row,
    shipped_row,
    specifications,
)

MINUTES_MS = 60_000


def fetching(metric_id="mem_total_all", **parameters):
    return specifications([pre_row("cpu", metric_id)], [shipped_row(metric_id, **parameters)])


def cpu(minute, value, host="a", **dimensions):
    return envelope(timestamp=minute * MINUTES_MS, value=value, dimensions={"hostname": host, **dimensions})


class UsageTest(pipeline_case.PipelineCase):
    def test_the_higher_partition_and_offset_is_used_for_equal_times(self):
        messages = [(cpu(1, 10), 0, 7), (cpu(1, 20), 1, 3), (cpu(1, 30), 1, 2)]
        for operation in ("latest", "oldest"):
            specs = fetching(usage_fetch_operation=operation)
            for order in (messages, messages[::-1]):
                self.assertEqual(20, self.usage(specs, order).quantity)

    def test_missing_columns_are_na_and_rolled_up_columns_are_all(self):
        plain = shipped_row("mem_total_all", aggregation_group_by_list=["host"])
        plain["aggregation_params_map"]["aggregation_pipeline"]["setters"] = [
            "set_aggregated_metric_name",
            "set_aggregated_period",
        ]
        usage = self.usage(specifications([pre_row("cpu", "mem_total_all")], [plain]), [cpu(1, 1)])
        self.assertEqual(("a", "NA"), (usage.column("host"), usage.column("tenant_id")))
        usage = self.usage(fetching(aggregation_group_by_list=["host", "zone"]), [cpu(1, 1)])
        self.assertEqual(("all", "all"), (usage.column("host"), usage.column("zone")))

    def test_a_specification_can_name_a_project_or_a_tenant(self):
        for by in (["tenant_id"], ["project_id"], ["project_id", "tenant_id"]):
            specs = fetching(
                aggregation_group_by_list=by, setter_rollup_group_by_list=by, dimension_list=["project_id"]
            )
            usage = self.usage(specs, [cpu(1, 1, project_id="p")])
            reported = output(pipeline_case.PUBLISHER, specs.transforms["mem_total_all"], usage, 0, version_ms=0)
            self.assertIn(b'"dimensions":{"project_id":"p"}', reported.value)

    def test_a_rolled_up_sum_is_exact(self):
        usage = self.usage(fetching(), [cpu(1, 1e16, "a"), cpu(1, 1, "b"), cpu(1, -1e16, "c")])
        self.assertEqual(1.0, usage.quantity)


class UtilisationTest(pipeline_case.PipelineCase):
    def utilised(self, *idle):
        row = shipped_row(
            "cpu_util_host", usage_fetch_util_quantity_event_type="cpu", usage_fetch_util_idle_perc_event_type="idle"
        )
        specs = specifications([pre_row("cpu", "cpu_util_host"), pre_row("idle", "cpu_util_host")], [row])
        idles = [envelope("idle", 2, value, dimensions={"hostname": host}) for host, value in idle]
        return {usage.column("host"): usage.quantity for usage in self.usages(specs, [cpu(0, 8), cpu(0, 4), *idles])}

    def test_utilisation_is_the_part_that_is_not_idle(self):
        self.assertEqual({"a": 4.5}, self.utilised(("a", 20), ("a", 30)))

    def test_a_missing_or_zero_idle_gives_the_total(self):
        self.assertEqual({"a": 6}, self.utilised())
        self.assertEqual({"a": 6}, self.utilised(("a", 0)))

    def test_idle_values_without_a_total_give_no_row(self):
        self.assertEqual({"a": 6}, self.utilised(("b", 50)))

    def test_a_sum_of_utilisations_beyond_a_float_of_either_sign_is_omitted_and_counted(self):
        rows = [pre_row(f"cpu.{name}", "cpu_util_all") for name in ("total_logical_cores", "idle_perc")]
        specs = specifications(rows, [shipped_row("cpu_util_all", stages=2)])
        values = (("total_logical_cores", 1e200, "a"), ("total_logical_cores", 1e200, "b"))
        values += (("idle_perc", -1e200, "a"), ("idle_perc", 1e200, "b"))
        messages = [envelope(f"cpu.{name}", 1, value, dimensions={"hostname": host}) for name, value, host in values]
        (found,) = aggregates(specs, partials_of(specs, messages)).values()
        self.assertEqual(((), Counter({rollup.NOT_FINITE: 1})), (found.usages, found.dropped))


class RateTest(pipeline_case.PipelineCase):
    def rate(self, *messages, stages=1, **parameters):
        row = shipped_row("swift_usage_rate", stages=stages, **parameters)
        specs = specifications([pre_row("cpu", "swift_usage_rate")], [row])
        (aggregate,) = aggregates(specs, partials_of(specs, messages)).values()
        return aggregate

    def test_oldest_and_latest_are_rolled_up_and_compared(self):
        aggregate = self.rate(cpu(1, 60, mount="x"), cpu(2, 5, mount="x"), cpu(1, 40, mount="y"), cpu(3, 20, mount="y"))
        (usage,) = aggregate.usages
        self.assertEqual((75.0, 4), (usage.quantity, usage.count))
        self.assertEqual((MINUTES_MS, 3 * MINUTES_MS), (usage.first_ms, usage.last_ms))

    def test_a_rate_from_zero_gives_no_row_and_is_counted(self):
        aggregate = self.rate(cpu(1, 0), cpu(2, 5))
        self.assertEqual(((), {"zero_oldest": 1}), (aggregate.usages, dict(aggregate.dropped)))

    def test_a_window_without_a_rate_is_counted_and_skipped(self):
        aggregate = self.rate(cpu(1, 0), cpu(2, 9), cpu(11, 10), cpu(12, 8), cpu(21, 7), cpu(22, 5), stages=2)
        (usage,) = aggregate.usages
        self.assertEqual((50.0, 4), (usage.quantity, usage.count))
        self.assertEqual({"zero_oldest": 1}, dict(aggregate.dropped))

    def test_each_group_has_its_own_rate(self):
        aggregate = self.rate(
            cpu(1, 10, "a"),
            cpu(2, 5, "a"),
            cpu(1, 0, "b"),
            cpu(1, 10, "c"),
            cpu(2, 20, "c"),
            setter_rollup_group_by_list=["host"],
        )
        self.assertEqual({"a": 50.0, "c": -100.0}, {usage.column("host"): usage.quantity for usage in aggregate.usages})
        self.assertEqual(1, aggregate.dropped["zero_oldest"])

    def test_the_rate_of_an_hour_compares_its_oldest_and_latest_values(self):
        messages = [cpu(1, 100), cpu(2, 1), cpu(11, 7), cpu(25, 50), cpu(29, 40)]
        for order in (messages, messages[::-1]):
            (usage,) = self.rate(*order, stages=2).usages
            self.assertEqual((60.0, 5), (usage.quantity, usage.count))


class StagesTest(pipeline_case.PipelineCase):
    MESSAGES = (cpu(1, 10), cpu(2, 20), cpu(3, 30), cpu(11, 80))

    def test_with_one_stage_all_records_have_the_same_weight(self):
        self.assertEqual(35, self.usage(fetching(), self.MESSAGES).quantity)

    def test_with_two_stages_all_windows_have_the_same_weight(self):
        for operation, quantity in {"avg": 50, "sum": 100, "max": 80, "min": 20}.items():
            usage = self.usage(fetching(stages=2, pre_hourly_operation=operation), self.MESSAGES)
            self.assertEqual((quantity, 4, MINUTES_MS), (usage.quantity, usage.count, usage.first_ms))

    def test_the_second_stage_keeps_the_columns_that_it_groups_by(self):
        specs = fetching(
            stages=2,
            aggregation_group_by_list=["dimensions#mount"],
            setter_rollup_group_by_list=["dimensions#mount"],
            pre_hourly_group_by_list=["dimensions#mount"],
        )
        usages = self.usages(specs, [cpu(1, 1, mount="x"), cpu(11, 3, mount="x"), cpu(12, 9, mount="y")])
        self.assertEqual({"x": 2.0, "y": 9.0}, {usage.column("dimensions#mount"): usage.quantity for usage in usages})

    def test_periods_start_at_hours_and_days_of_utc(self):
        for period, length_ms in (("hourly", HOUR_MS), ("daily", 24 * HOUR_MS)):
            specs = fetching(aggregation_period=period)
            start = 20_000 * 24 * HOUR_MS
            messages = [envelope(timestamp=start + after) for after in (-1, 0, length_ms - 1, length_ms)]
            found = aggregates(specs, partials_of(specs, messages))
            self.assertEqual(
                {start - length_ms: 1, start: 2, start + length_ms: 1},
                {period_ms: aggregate.usages[0].count for (_, period_ms), aggregate in found.items()},
            )

    def test_partials_of_two_periods_are_refused(self):
        specs = fetching()
        partials = partials_of(specs, [cpu(1, 1), cpu(61, 1)])
        self.assertRaises(ValueError, aggregate, specs.transforms["mem_total_all"], partials)

    def test_zero_partials_give_zero_rows(self):
        transform = fetching().transforms["mem_total_all"]
        self.assertEqual((), aggregate(transform, []).usages)

    def test_a_quantity_beyond_the_range_of_floats_gives_no_row_and_is_counted(self):
        row = shipped_row(
            "cpu_util_host", usage_fetch_util_quantity_event_type="cpu", usage_fetch_util_idle_perc_event_type="idle"
        )
        specs = specifications([pre_row("cpu", "cpu_util_host"), pre_row("idle", "cpu_util_host")], [row])
        messages = [envelope("cpu", 0, 1e280), envelope("idle", 0, 1e280)]
        (aggregate,) = aggregates(specs, partials_of(specs, messages)).values()
        self.assertEqual(((), {"not_finite": 1}), (aggregate.usages, dict(aggregate.dropped)))


def periods(specs, messages):
    """Yield the partials of each transform and period, in any order."""
    found = {}
    for key, partial in partials_of(specs, messages, bounds=BOUNDS):
        transform = specs.find(key.specification_id)
        period_ms = period_start_ms(transform.period, key.window_ms)
        found.setdefault((transform.metric_id, period_ms), []).append((key, partial))
    return found


def in_order(usages):
    return sorted(usages, key=lambda usage: (usage.group, usage.first_ms))


class BlocksTest(base.BaseTestCase):
    @given(random_rows(), random_messages())
    def test_random_specifications_and_data_have_the_rows_of_the_reference(self, rows, messages):
        specs = specifications(*rows)
        for (metric_id, _), partials in periods(specs, messages).items():
            transform = specs.transforms[metric_id]
            whole = aggregate(transform, partials)
            kept = rollup.kept_columns(transform)
            partials.sort(key=lambda each: [each[0].group[position] for position in kept])
            dropped = Counter()
            found = in_order(rollup.rows(transform, partials, dropped))
            self.assertEqual((in_order(whole.usages), whole.dropped), (found, dropped))

    def test_columns_dropped_by_a_stage_do_not_separate_blocks(self):
        def kept(metric_id, **parameters):
            row = shipped_row(metric_id, **parameters)
            return rollup.kept_columns(specifications([pre_row("cpu", metric_id)], [row]).transforms[metric_id])

        by = {"aggregation_group_by_list": ["host", "zone", "event_type"]}
        self.assertEqual((0,), kept("cpu_total_host", **by))
        self.assertEqual((), kept("mem_total_all", **by))
        self.assertEqual((1,), kept("mem_total_all", **by, setter_rollup_group_by_list=["zone", "region"]))
        self.assertEqual((0,), kept("cpu_util_host", **by, setter_rollup_group_by_list=["host", "event_type"]))
