# SPDX-License-Identifier: Apache-2.0
import fixtures

from monasca_common.pipeline import Partial, Reading, group_text
from monasca_common.pipeline.aggregate import usage_table
from monasca_common.pipeline.aggregate.batch import MissingColumns
from monasca_common.pipeline.spark import staging
from monasca_common.storage.sql.tables import aggregate_staging
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row, specifications


class MissingColumnsChecks:
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        row = shipped_row("mem_total_all", aggregated_metric_name="cpu", aggregation_group_by_list=["host", "zone"])
        self.specifications = specifications([pre_row("cpu", "cpu")], [row | {"metric_id": "cpu"}])
        self.transform = self.specifications.transforms["cpu"]
        self.missing = MissingColumns(self.specifications)

    def check(self, *hosts):
        """Check a batch with groups of these hosts, all in the zone ``z``."""
        with self.offset_store.writing() as connection:
            values = {"host": hosts, "zone": ["z"] * len(hosts)}
            groups = list(zip(*(values[column] for column in self.transform.group_by), strict=True))
            partial = Partial.of(Reading(0.0, 0, 0, 1.0))
            rows = [usage_table.staged_row(self.transform.id, 0, group_text(group), partial) for group in groups]
            staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 1, rows, 0)
            self.missing.check(connection, "b", [1], [self.transform.id, "unknown@1"])
            staging.clear(connection, aggregate_staging, "b", 0)
        return self.log.output

    def test_a_column_that_no_metric_of_a_batch_has_is_named_with_the_places_that_are_searched(self):
        output = self.check("NA")

        for part in ("cpu is grouped by host", "dimensions#hostname or value_meta#host", "dimensions#host"):
            self.assertIn(part, output)
        self.assertNotIn("zone", output)

    def test_a_column_that_one_metric_has_is_not_named(self):
        self.assertEqual("", self.check("NA", "a"))

    def test_a_column_is_named_once(self):
        self.check("NA")
        self.assertEqual(1, self.check("NA").count("grouped by"))


class MissingColumnsTest(MissingColumnsChecks, DatabaseCase):
    pass
