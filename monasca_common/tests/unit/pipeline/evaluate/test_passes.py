# SPDX-License-Identifier: Apache-2.0
import sqlalchemy as sa
from sqlalchemy import event

from monasca_common.alarms.evaluation import EvaluationSpan
from monasca_common.pipeline.evaluate import passes
from monasca_common.pipeline.evaluate.definitions import load_definitions
from monasca_common.storage import StorageSettings
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.evaluate.passes_contract import PassesContract


class SqlitePassesTest(PassesContract, DatabaseCase):
    def setUp(self):
        super().setUp()
        self.settings = StorageSettings("sqlite", self.url)
        self.open_alarms()

    def test_a_page_reads_only_its_part_of_the_tables(self):
        """When a page read all windows of each alarm, a page of 2,000 alarms took 25 s."""
        alarms = self.alarms("avg(m) > 1", count=500)
        with self.offset_store.writing() as connection:
            window = "0, 0, 1, '1.0', 1, 1, 1000, ''"
            connection.execute(
                sa.text(f"INSERT INTO alarm_window SELECT sub_expression_id, match_key, {window} FROM alarm_part")
            )
            connection.execute(sa.text("ANALYZE"))
        with self.offset_store.writing() as connection:
            told = []
            event.listen(connection, "before_cursor_execute", lambda *each: told.append(each[2:4]))
            span = EvaluationSpan(30_000, 90_000, 90_000, 30_000)
            rows = passes.next_alarms(connection, span, "", 100)
            definitions = load_definitions(connection, [alarms.definition.id])
            self.assertEqual(100, len(passes.load_alarms(connection, rows, definitions, span)))
            raw = connection.connection.dbapi_connection
            plans = [step for each in told for (*_, step) in raw.execute(f"EXPLAIN QUERY PLAN {each[0]}", each[1])]
        self.assertIn("alarm_window", "".join(plans))
        for table in ("alarm", "sub_alarm", "alarm_part", "alarm_window"):
            self.assertNotIn(f"SCAN {table}", plans)
