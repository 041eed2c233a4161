# SPDX-License-Identifier: Apache-2.0
import json

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline import InvalidSpecifications, JsonRows, read
from monasca_common.pipeline.specification import table
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row


class SpecificationTableTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.pre_transforms = JsonRows("pre.jsonl", [json.dumps(pre_row("cpu", "cpu_all")), ""])
        self.row = shipped_row("mem_total_all", aggregated_metric_name="cpu_agg") | {"metric_id": "cpu_all"}

    def transforms(self, **changes):
        return JsonRows("trans.jsonl", ["", json.dumps(self.row | changes).encode()])

    def test_what_is_stored_is_read_as_it_was_given(self):
        given = table.store(self.offset_store, self.pre_transforms, self.transforms())
        self.assertEqual(given, read(*table.stored(self.offset_store)))
        self.assertEqual(["cpu_all"], list(given.transforms))

    def test_they_take_the_place_of_all_that_were_there(self):
        table.store(self.offset_store, self.pre_transforms, self.transforms())
        other = JsonRows("pre.jsonl", [json.dumps(pre_row("mem", "mem_all"))])
        table.store(self.offset_store, other, self.transforms(metric_id="mem_all"))
        found = read(*table.stored(self.offset_store))
        self.assertEqual(
            (["mem"], ["mem_all"]), ([row.event_type for row in found.pre_transforms], [*found.transforms])
        )

    def test_one_that_is_refused_changes_nothing_and_is_told_by_its_row(self):
        given = table.store(self.offset_store, self.pre_transforms, self.transforms())
        bad = self.transforms(metric_group="x", surprise=1)
        error = self.assertRaises(InvalidSpecifications, table.store, self.offset_store, self.pre_transforms, bad)
        self.assertIn("trans.jsonl row 2: surprise", str(error))
        self.assertEqual(given, read(*table.stored(self.offset_store)))

    def test_bytes_that_are_no_text_are_refused_as_a_file_of_them_is(self):
        line = self.pre_transforms.lines[0].encode().replace(b'"cpu"', b'"cp\xff"')
        bad = JsonRows("pre.jsonl", [line])
        refused = self.assertRaises(InvalidSpecifications, read, bad, self.transforms())
        error = self.assertRaises(InvalidSpecifications, table.store, self.offset_store, bad, self.transforms())
        self.assertEqual(str(refused), str(error))

    def test_a_database_without_any_is_told_with_the_remedy(self):
        error = self.assertRaises(ConfigurationError, table.stored, self.offset_store)
        self.assertIn("pipeline specifications load", str(error))

    def test_a_fault_in_the_database_names_the_table(self):
        table.store(self.offset_store, self.pre_transforms, self.transforms())
        with self.offset_store.writing() as connection:
            connection.exec_driver_sql("UPDATE aggregate_specification SET content = '{' WHERE kind = 'transform'")
        error = self.assertRaises(InvalidSpecifications, read, *table.stored(self.offset_store))
        self.assertIn("aggregate_specification (transform) row 1", str(error))
