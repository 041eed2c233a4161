# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import tempfile
from pathlib import Path

from oslotest import base

from monasca_common import pipeline
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row, specifications

PARAMETERS = "aggregation_params_map"


class ShippedTest(base.BaseTestCase):
    def test_the_shipped_specifications_are_read_without_a_warning(self):
        specs = pipeline.load()
        self.assertEqual((17, 26, ()), (len(specs.pre_transforms), len(specs.transforms), specs.warnings))
        self.assertEqual(set(specs.transforms), {one for row in specs.pre_transforms for one in row.metric_ids})

    def test_the_shipped_specifications_can_be_sent_to_executors(self):
        specs = pipeline.load()
        sent = pickle.loads(pickle.dumps(specs))
        self.assertEqual(specs, sent)
        transform = specs.transforms["cpu_util_all"]
        self.assertEqual(transform, sent.find(transform.id))


class FaultsCase(base.BaseTestCase):
    def faults(self, rows=(), pre_rows=()):
        error = self.assertRaises(pipeline.InvalidSpecifications, specifications, pre_rows, rows)
        self.assertIsInstance(error, ConfigurationError)
        return [(fault.source, fault.row, fault.field, fault.rule) for fault in error.faults]

    def fault(self, rows=(), pre_rows=()):
        faults = self.faults(rows, pre_rows)
        self.assertEqual(1, len(faults), faults)
        return faults[0]

    def changed(self, metric_id="mem_total_all", *, without=None, **parameters):
        row = copy.deepcopy(shipped_row(metric_id, stages=2, **parameters))
        row[PARAMETERS].pop(without, None)
        return row


class TransformFaultsTest(FaultsCase):
    def assert_fault(self, field, rule, row):
        source, number, where, text = self.fault([row])
        self.assertEqual(("transform.jsonl", 1, f"{PARAMETERS}.{field}"), (source, number, where))
        self.assertIn(rule, text)

    def test_an_unknown_operation_is_refused_with_the_known_operations(self):
        row = self.changed(usage_fetch_operation="median")
        self.assert_fault("usage_fetch_operation", "one of avg, latest, max, min, oldest, sum, not 'median'", row)

    def test_a_utilisation_has_no_max_min_or_sum(self):
        for operation in ("max", "min", "sum"):
            row = self.changed("cpu_util_all", usage_fetch_operation=operation)
            self.assert_fault("usage_fetch_operation", f"one of avg, latest, oldest, not '{operation}'", row)

    def test_a_utilisation_names_its_two_event_types(self):
        for field in ("usage_fetch_util_quantity_event_type", "usage_fetch_util_idle_perc_event_type"):
            self.assert_fault(field, "is required", self.changed("cpu_util_all", without=field))

    def test_each_missing_field_is_reported(self):
        for field in (
            "aggregated_metric_name",
            "aggregation_period",
            "aggregation_group_by_list",
            "usage_fetch_operation",
            "setter_rollup_group_by_list",
            "setter_rollup_operation",
            "dimension_list",
            "pre_hourly_operation",
            "pre_hourly_group_by_list",
        ):
            self.assert_fault(field, "is required", self.changed(without=field))

    def test_a_misspelt_field_is_refused(self):
        self.assert_fault("filter_by", "is not a known field: write one of", self.changed(filter_by=[]))

    def test_an_unknown_column_is_refused_with_the_known_columns(self):
        for field in (
            "aggregation_group_by_list",
            "setter_rollup_group_by_list",
            "pre_hourly_group_by_list",
            "dimension_list",
        ):
            self.assert_fault(field, "[1] is not a known column ('pod')", self.changed(**{field: ["host", "pod"]}))

    def test_a_column_of_an_unknown_map_is_refused(self):
        self.assert_fault("dimension_list", "('extra#x')", self.changed(dimension_list=["extra#x"]))

    def test_an_invalid_regular_expression_is_refused_with_its_error(self):
        one = {"field_to_filter": "host", "filter_expression": "(", "filter_operation": "include"}
        row = self.changed(filter_by_list=[one])
        self.assert_fault("filter_by_list", "[0]: filter_expression '(' is not a regular expression", row)

    def test_an_unknown_filter_operation_is_refused(self):
        one = {"field_to_filter": "host", "filter_expression": "x", "filter_operation": "drop"}
        self.assert_fault("filter_by_list", "[0]: filter_operation", self.changed(filter_by_list=[one]))

    def test_a_period_shorter_than_the_partials_is_refused(self):
        self.assert_fault("aggregation_period", "ten minutes", self.changed(aggregation_period="minutely"))

    def test_an_unknown_component_is_refused(self):
        for name, value, rule in (
            ("usage", "host_metrics", "one of calculate_rate, fetch_quantity, fetch_quantity_util, not"),
            ("source", "batch", "one of streaming"),
            ("setters", ["rollup_quantity", "set_aggregated_metric_name", "set_aggregated_period", "x"], "[3] must be"),
            ("setters", ["set_aggregated_metric_name"], "must contain set_aggregated_period"),
            ("insert", ["prepare_data"], "must contain either insert_data_pre_hourly"),
        ):
            row = self.changed()
            row[PARAMETERS]["aggregation_pipeline"] = row[PARAMETERS]["aggregation_pipeline"] | {name: value}
            self.assert_fault(f"aggregation_pipeline.{name}", rule, row)

    def test_only_rates_can_be_combined_as_rates(self):
        self.assert_fault("pre_hourly_operation", "calculate_rate", self.changed(pre_hourly_operation="rate"))

    def test_two_dimensions_with_the_same_name_are_refused(self):
        self.assert_fault("dimension_list", "'host' more than once", self.changed(dimension_list=["host", "meta#host"]))

    def test_a_name_that_the_api_would_refuse_is_refused(self):
        self.assert_fault("aggregated_metric_name", "has <", self.changed(aggregated_metric_name="a<b"))

    # Rule 40
    def test_code_in_a_field_is_not_evaluated(self):
        path = Path(tempfile.gettempdir()) / "evaluated"
        row = self.changed(aggregation_group_by_list=[f"__import__('pathlib').Path({str(path)!r}).touch()"])
        self.assert_fault("aggregation_group_by_list", "is not a known column", row)
        self.assertFalse(path.exists())


class FilesTest(FaultsCase):
    # Rule 40
    def test_each_fault_of_both_files_is_reported_with_its_row(self):
        rows = [
            self.changed(usage_fetch_operation="x"),
            self.changed("vcpus_all"),
            self.changed("vcpus_all", dimension_list=7),
        ]
        pre_rows = [pre_row("a", "mem_total_all"), pre_row("b", "nobody", required=["tenant_id"]), {}]
        self.assertEqual(
            [
                ("pre.jsonl", 2, "metric_id_list[0]"),
                ("pre.jsonl", 2, "required_raw_fields_list"),
                ("pre.jsonl", 3, "event_type"),
                ("pre.jsonl", 3, "metric_id_list"),
                ("pre.jsonl", 3, "required_raw_fields_list"),
                ("transform.jsonl", 1, f"{PARAMETERS}.usage_fetch_operation"),
                ("transform.jsonl", 3, f"{PARAMETERS}.dimension_list"),
                ("transform.jsonl", 3, "metric_id"),
            ],
            sorted(fault[:3] for fault in self.faults(rows, pre_rows)),
        )

    def test_a_metric_id_without_a_transform_is_reported_with_the_remedy(self):
        source, row, field, rule = self.fault([], [pre_row("a", "nobody")])
        self.assertEqual(("pre.jsonl", 1, "metric_id_list[0]"), (source, row, field))
        self.assertEqual("'nobody' is not the metric_id of a row of transform.jsonl: add a row or remove the id", rule)

    def test_an_event_type_listed_twice_for_one_metric_id_is_refused(self):
        rows = [self.changed()]
        for pre_rows in (
            [pre_row("a", "mem_total_all", "mem_total_all")],
            [pre_row("a", "mem_total_all"), pre_row("a", "mem_total_all")],
        ):
            self.assertIn("count twice", self.fault(rows, pre_rows)[3])

    def test_a_required_field_of_the_old_form_is_refused_with_the_new_form(self):
        rule = self.fault([self.changed()], [pre_row("a", "mem_total_all", required=["resource_id"])])[3]
        self.assertIn("dimensions#resource_id", rule)

    def test_a_line_that_is_not_json_is_reported_with_file_and_row(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('\n{"event_type": \n')
            file.flush()
            error = self.assertRaises(pipeline.InvalidSpecifications, pipeline.load, Path(file.name))
        self.assertTrue(str(error).startswith(f"{file.name} row 2: is not JSON"), str(error))

    def test_rows_of_a_database_are_read_like_those_of_a_file(self):
        lines = [b'{"event_type": "a", "metric_id_list": ["m"], "required_raw_fields_list": []}']
        table = pipeline.JsonRows("table pre_transform_specification", lines)
        error = self.assertRaises(
            pipeline.InvalidSpecifications, pipeline.read, table, pipeline.JsonRows("transforms", [])
        )
        self.assertTrue(str(error).startswith("table pre_transform_specification row 1: metric_id_list[0]"), str(error))


class IdTest(base.BaseTestCase):
    """The id of a specification changes only if the layout of its partials changes."""

    def id_of(self, *, required=(), defaults=None, **parameters):
        row = shipped_row("mem_total_all", **parameters)
        pre_rows = [pre_row("mem.total_mb", "mem_total_all", required=required, **(defaults or {}))]
        return specifications(pre_rows, [row]).transforms["mem_total_all"].id

    # Rule 35
    def test_partials_of_another_layout_have_another_id(self):
        one = {"field_to_filter": "host", "filter_expression": "x", "filter_operation": "include"}
        ids = {
            self.id_of(),
            self.id_of(aggregation_group_by_list=["host"]),
            self.id_of(filter_by_list=[one]),
            self.id_of(filter_by_list=[one | {"filter_operation": "exclude"}]),
            self.id_of(required=["creation_time"]),
            self.id_of(defaults={"set_default_zone_to": "z"}),
        }
        self.assertEqual(6, len(ids))

    # Rule 35
    def test_operations_on_partials_do_not_change_the_id(self):
        self.assertEqual(
            self.id_of(),
            self.id_of(
                usage_fetch_operation="max", setter_rollup_group_by_list=["host"], dimension_list=["host"], stages=2
            ),
        )


class WarningsTest(base.BaseTestCase):
    def warnings(self, row, *event_types):
        return specifications([pre_row(one, row["metric_id"]) for one in event_types], [row]).warnings

    def assert_warns(self, text, *args):
        (warning,) = self.warnings(*args)
        self.assertIn(text, warning)

    def test_rows_that_would_replace_each_other_cause_a_warning(self):
        row = shipped_row("mem_total_all", setter_rollup_group_by_list=["host", "tenant_id"], dimension_list=["host"])
        self.assert_warns("differ only in tenant_id", row, "mem.total_mb")

    def test_a_rollup_by_a_column_that_the_usage_lacks_causes_a_warning(self):
        row = shipped_row("mem_total_all", setter_rollup_group_by_list=["region"])
        self.assert_warns("rolled up by region", row, "mem.total_mb")

    def test_a_utilisation_that_lacks_an_event_type_causes_a_warning(self):
        warning = "needs cpu.idle_perc, but no pre-transform row sends it"
        self.assert_warns(warning, shipped_row("cpu_util_all"), "cpu.total_logical_cores")

    def test_a_transform_without_input_causes_a_warning(self):
        self.assert_warns("never receives a record", shipped_row("mem_total_all"))

    def test_an_output_that_is_also_an_input_causes_a_warning(self):
        self.assert_warns("excluded as input", shipped_row("mem_total_all"), "mem.total_mb_agg")

    def test_a_dimension_without_a_prefix_causes_a_warning(self):
        grouped = ["host", "dimensions#interface"]
        row = shipped_row("mem_total_all", aggregation_group_by_list=grouped, dimension_list=["interface"])
        self.assert_warns("write dimensions#interface", row, "mem.total_mb")
