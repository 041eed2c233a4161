# SPDX-License-Identifier: Apache-2.0
import json

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline import InvalidSpecifications, Rows, read, specification_table
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row


class SpecificationTableTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.pre_transforms = Rows("pre.jsonl", [json.dumps(pre_row("cpu", "cpu_all")), ""])
        self.row = shipped_row("mem_total_all", aggregated_metric_name="cpu_agg") | {"metric_id": "cpu_all"}

    def transforms(self, **changes):
        return Rows("trans.jsonl", ["", json.dumps(self.row | changes).encode()])

    def test_what_is_stored_is_read_as_it_was_given(self):
        given = specification_table.store(self.ledger, self.pre_transforms, self.transforms())
        self.assertEqual(given, read(*specification_table.stored(self.ledger)))
        self.assertEqual(["cpu_all"], list(given.transforms))

    def test_they_take_the_place_of_all_that_were_there(self):
        specification_table.store(self.ledger, self.pre_transforms, self.transforms())
        other = Rows("pre.jsonl", [json.dumps(pre_row("mem", "mem_all"))])
        specification_table.store(self.ledger, other, self.transforms(metric_id="mem_all"))
        found = read(*specification_table.stored(self.ledger))
        self.assertEqual(
            (["mem"], ["mem_all"]), ([row.event_type for row in found.pre_transforms], [*found.transforms])
        )

    def test_one_that_is_refused_changes_nothing_and_is_told_by_its_row(self):
        given = specification_table.store(self.ledger, self.pre_transforms, self.transforms())
        bad = self.transforms(metric_group="x", surprise=1)
        error = self.assertRaises(
            InvalidSpecifications, specification_table.store, self.ledger, self.pre_transforms, bad
        )
        self.assertIn("trans.jsonl row 2: surprise", str(error))
        self.assertEqual(given, read(*specification_table.stored(self.ledger)))

    def test_bytes_that_are_no_text_are_refused_as_a_file_of_them_is(self):
        line = self.pre_transforms.lines[0].encode().replace(b'"cpu"', b'"cp\xff"')
        bad = Rows("pre.jsonl", [line])
        refused = self.assertRaises(InvalidSpecifications, read, bad, self.transforms())
        error = self.assertRaises(InvalidSpecifications, specification_table.store, self.ledger, bad, self.transforms())
        self.assertEqual(str(refused), str(error))

    def test_a_database_without_any_is_told_with_the_remedy(self):
        error = self.assertRaises(ConfigurationError, specification_table.stored, self.ledger)
        self.assertIn("pipeline specifications load", str(error))

    def test_a_fault_in_the_database_names_the_table(self):
        specification_table.store(self.ledger, self.pre_transforms, self.transforms())
        with self.ledger.writing() as connection:
            connection.exec_driver_sql("UPDATE aggregate_specification SET content = '{' WHERE kind = 'transform'")
        error = self.assertRaises(InvalidSpecifications, read, *specification_table.stored(self.ledger))
        self.assertIn("aggregate_specification (transform) row 1", str(error))
