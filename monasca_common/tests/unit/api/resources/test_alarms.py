# SPDX-License-Identifier: Apache-2.0
import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms import alarm_queries
from monasca_common.alarms.alarm_queries import GROUPS, SORTS, WhichAlarms
from monasca_common.alarms.database import Slice, Sort
from monasca_common.api.query import iso
from monasca_common.models.rows import AlarmTransition
from monasca_common.storage.base import Kind
from monasca_common.storage.sql import schema
from monasca_common.tests.unit.api.alarms_contract import AlarmsContract, same_change
from monasca_common.tests.unit.api.api_case import ApiCase
from monasca_common.tests.unit.api.reads_case import BASE_MS, ReadsCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestAlarmsInSqlite(AlarmsContract, SqliteTestCase):
    pass


class TestIndexes(SqliteTestCase):
    """Query plans of SQLite."""

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


class TestWithoutADatabase(ApiCase):
    def test_requests_for_alarms_are_answered_501(self):
        for resource in ("alarm-definitions", "alarms", "notification-methods", "notifications", "silences"):
            self.assertEqual(501, self.client.simulate_get(f"/v2.0/{resource}/a").status_code, resource)
        for resource in ("alarm-definitions", "alarms", "notification-methods", "silences"):
            self.assertEqual(501, self.client.simulate_delete(f"/v2.0/{resource}/a").status_code, resource)


class TestAlarmHistory(ReadsCase):
    def test_the_history_of_all_alarms_and_of_one(self):
        self.store(*(_transition(n) for n in range(3)), kind=Kind.ALARM_HISTORY)
        found = self.elements("/v2.0/alarms/state-history")
        self.assertEqual([f"alarm-{n}" for n in range(3)], [one["alarm_id"] for one in found])
        self.assertEqual(found, self.elements("/v2.0/alarms/state-history/"))
        (one,) = self.elements("/v2.0/alarms/alarm-1/state-history")
        self.assertEqual(found[1], one)
        self.assertEqual(
            {
                "id": one["id"],
                "alarm_id": "alarm-1",
                "metrics": [{"id": None, "name": "cpu", "dimensions": {"host": "1"}}],
                "old_state": "OK",
                "new_state": "ALARM",
                "reason": "because",
                "reason_data": "{}",
                "timestamp": iso(BASE_MS + 1),
                "sub_alarms": [
                    {
                        "sub_alarm_expression": {
                            "function": "MAX",
                            "metric_name": "cpu",
                            "dimensions": {"camelCase": "x"},
                            "period": 60,
                        },
                        "sub_alarm_state": "ALARM",
                        "current_values": [1.5],
                    }
                ],
            },
            one,
        )
        self.assertEqual([found[2]], self.elements("/v2.0/alarms/state-history", dimensions="host:2"))
        self.assertEqual(found[1:], self.elements("/v2.0/alarms/state-history", start_time=iso(BASE_MS + 1)))
        self.assertEqual([], self.elements("/v2.0/alarms/state-history", tenant="other"))
        pages = self.pages("/v2.0/alarms/state-history", limit="1")
        self.assertEqual(found, [one for page in pages for one in page])


def _transition(number):
    metric = '{"id": "", "name": "cpu", "dimensions": {"camelCase": "x"}}'
    expression = f'{{"function": "MAX", "metricDefinition": {metric}, "period": 60}}'
    sub = f'[{{"subAlarmExpression": {expression}, "subAlarmState": "ALARM", "currentValues": [1.5]}}]'
    metrics = f'[{{"name": "cpu", "dimensions": {{"host": "{number}"}}}}]'
    states = ("OK", "ALARM", "LOW", "because", None, None)
    return AlarmTransition(BASE_MS + number, "tenant", f"alarm-{number}", "d", "n", *states, metrics, sub)
