# SPDX-License-Identifier: Apache-2.0
import sqlalchemy as sa
from sqlalchemy import event

from monasca_common.alarms.evaluation import EvaluationSpan
from monasca_common.pipeline.evaluate import passes
from monasca_common.pipeline.evaluate.definitions import load_definitions
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.pipeline.evaluate.test_passes import PassesContract

#: The columns in which copies of an alarm differ, with their values for a copy.
_OWN = {
    "alarm": "id=id, match_key=match_key",
    "sub_alarm": "alarm_id=id",
    "alarm_part": "alarm_id=id, match_key=match_key",
    "alarm_window": "match_key=match_key",
}


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlCrashTest"
)
class PostgresqlPassesTest(PassesContract, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.settings = self.database.settings
        self.offset_store = OffsetStore(self.settings.connection)
        self.open_alarms()

    def test_a_page_reads_only_its_part_of_the_tables(self):
        alarms = self.alarms("avg(m) > 1")
        self.copy(alarms.ids[0], 20_000)
        with self.offset_store.writing() as connection:
            passes.prefer_indexes(connection)
            statements = []
            event.listen(connection, "before_cursor_execute", lambda *each: statements.append(each[2:4]))
            span = EvaluationSpan(30_000, 90_000, 90_000, 30_000)
            rows = passes.next_alarms(connection, span, "5", 400)
            definitions = load_definitions(connection, [alarms.definition.id])
            self.assertEqual(400, len(passes.load_alarms(connection, rows, definitions, span)))
            plans = [self.plan(connection, *each) for each in statements]
        self.assertIn("alarm_window_pkey", "".join(plans))
        for table in ("alarm", "sub_alarm", "alarm_part", "alarm_window"):
            self.assertNotIn(f"Seq Scan on {table} ", "".join(f"{plan} " for plan in plans))

    def copy(self, alarm_id, count):
        """Create this number of copies of the alarm, each with a window."""
        copies = "SELECT md5(i::text) AS id, decode(md5(i::text), 'hex') AS match_key"
        windows = "window_start, windows, record_count, sums, least, greatest, newest, readings"
        with self.offset_store.writing() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO alarm_window SELECT sub_expression_id, match_key, 0, 0, 1, '1.0', 1, 1, 1000, '' "
                    "FROM alarm_part"
                )
            )
            for table, others in (
                ("alarm", "tenant, definition_id, match_values, state, state_updated, updated, created"),
                ("sub_alarm", "sub_expression_id, state, current_values, windows, empty_evaluations"),
                ("alarm_part", "sub_expression_id"),
                ("alarm_window", f"sub_expression_id, {windows}"),
            ):
                own = _OWN[table].split(", ")
                columns = ", ".join(f"n.{each.partition('=')[2]}" for each in own)
                names = ", ".join(each.partition("=")[0] for each in own)
                rows = f"WITH n AS ({copies} FROM generate_series(1, {count}) AS i) SELECT {columns}, {others}"
                connection.execute(sa.text(f"INSERT INTO {table} ({names}, {others}) {rows} FROM {table}, n"))
            connection.execute(sa.text("ANALYZE"))

    def plan(self, connection, statement, parameters):
        raw = connection.connection.dbapi_connection
        return "\n".join(row[0] for row in raw.execute(f"EXPLAIN {statement}", parameters))
