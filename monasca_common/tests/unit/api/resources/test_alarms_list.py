# SPDX-License-Identifier: Apache-2.0
import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms import alarm_queries
from monasca_common.alarms.alarm_queries import GROUPS, SORTS, WhichAlarms
from monasca_common.alarms.database import Slice, Sort
from monasca_common.storage.sql import schema
from monasca_common.tests.unit.api.alarms_contract import AlarmsContract, same_change
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestAlarmsInSqlite(AlarmsContract, SqliteTestCase):
    pass


class TestIndexes(SqliteTestCase):
    """How SQLite would find alarms, whatever their number."""

    def plan(self, which, *sorts):
        return self.explained(alarm_queries.alarms(which, sorts, Slice(100)))

    def explained(self, statement):
        engine = schema.engine(self.database.settings.connection)
        compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
        with engine.connect() as connection:
            return " ".join(row[3] for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {compiled}")))

    def test_filters_use_indexes(self):
        for changes, index in (
            ({}, "alarm_by_"),
            ({"definition_id": "d"}, "alarm_by_"),
            ({"states": ("ALARM",)}, "alarm_by_state "),
            ({"lifecycle_state": "OPEN"}, "alarm_by_lifecycle_state"),
            ({"link": "l"}, "alarm_by_link"),
            ({"state_updated_since_ms": 5}, "alarm_by_state_updated"),
            ({"metric_name": "cpu"}, "alarm_metric_by_name"),
            ({"metric_name": "cpu", "dimensions": {"host": ("a",)}}, "alarm_dimension_by_pair"),
            ({"dimensions": {"host": ("a", "b")}}, "alarm_dimension_by_pair"),
            ({"dimensions": {"host": ()}}, "alarm_dimension_by_"),
            ({"dimensions": {"host": ("a",), "zone": ("b",)}}, "alarm_dimension_by_pair"),
            ({"severities": ("LOW",)}, "alarm_by_"),
        ):
            plan = self.plan(WhichAlarms("t", **changes))
            self.assertIn(index, plan, changes)
            self.assertNotIn("SCAN alarm", plan, changes)

    def test_counts_use_covering_indexes(self):
        for group in set(GROUPS) - {"link"}:
            plan = self.explained(alarm_queries.counts(WhichAlarms("t"), [group], Slice(100)))
            self.assertIn("COVERING INDEX alarm_", plan, group)
            self.assertNotIn("SCAN alarm", plan, group)
        for changes in ({"metric_name": "cpu"}, {"dimensions": {"host": ("a",)}}, {"dimensions": {"host": ()}}):
            plan = self.explained(alarm_queries.count(WhichAlarms("t", **changes)))
            self.assertIn("COVERING INDEX alarm_", plan, changes)
            self.assertNotIn("SEARCH alarm USING", plan, changes)

    def test_pages_in_index_order_are_not_sorted(self):
        indexed = set(SORTS) - {"alarm_definition_name", "state", "severity"}
        for field in indexed:
            plan = self.plan(WhichAlarms("t"), Sort(field))
            self.assertNotIn("TEMP B-TREE", plan, field)
        self.assertNotIn("TEMP B-TREE", self.plan(WhichAlarms("t")))


class TestChanges(base.BaseTestCase):
    def test_the_id_of_a_change_depends_only_on_alarm_time_and_new_state(self):
        self.assertEqual(same_change().message_id, same_change(reason="s", link="l", old_state="X").message_id)
        others = {
            same_change(**changes).message_id for changes in ({"alarm_id": "b"}, {"time_ms": 6}, {"new_state": "OK"})
        }
        self.assertEqual(3, len(others - {same_change().message_id}))
