# SPDX-License-Identifier: Apache-2.0
"""Alarms. Tests with PostgreSQL inherit the mixin, too."""

import hashlib
import json

import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms import alarm_queries, alarm_tables
from monasca_common.alarms.alarm_metrics import add_metrics
from monasca_common.alarms.alarm_queries import SORTS, WhichAlarms
from monasca_common.alarms.database import Slice, Sort
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.api import paging
from monasca_common.api.query import iso
from monasca_common.kafka.transport.memory.injection import Fail
from monasca_common.models import alarm as wire
from monasca_common.models.rows import AlarmTransition
from monasca_common.storage.base import Kind
from monasca_common.storage.sql import schema, tables
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase
from monasca_common.tests.unit.api.reads_case import BASE_MS, ReadsCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

PATH = "/v2.0/alarms"
DEFINITIONS = "/v2.0/alarm-definitions"
TOPIC = "alarm-state-transitions"
GROUPS = (
    "alarm_definition_id",
    "name",
    "state",
    "severity",
    "link",
    "lifecycle_state",
    "metric_name",
    "dimension_name",
    "dimension_value",
)


class AlarmsContract(AlarmsCase):
    def setUp(self):
        super().setUp()
        self.kafka.broker.create_topic(TOPIC, 1)

    def definition(self, name="d", severity="LOW", tenant="t1"):
        body = {"name": name, "severity": severity, "expression": "max(cpu) > 0", "description": f"of {name}"}
        return self.ask("POST", DEFINITIONS, body, 201, tenant=tenant)["id"]

    def alarm(self, alarm_id, definition, *metrics, tenant="t1", **changes):
        """Create an alarm like the evaluator. ``metrics``: names and dimensions."""
        digest = hashlib.blake2b(alarm_id.encode(), digest_size=16).digest()
        row = {
            "id": alarm_id,
            "tenant": tenant,
            "definition_id": definition,
            "match_key": digest,
            "match_values": [],
            "state": "UNDETERMINED",
            "lifecycle_state": None,
            "link": None,
            "state_updated": NOW_MS,
            "updated": NOW_MS,
            "created": NOW_MS,
            **changes,
        }
        series = [
            {"alarm_id": alarm_id, "series_id": bytes([n]) * 16, "tenant": tenant, "name": name, "dimensions": dims}
            for n, (name, dims) in enumerate(metrics or [("cpu", {"host": alarm_id})])
        ]
        sub = {
            "alarm_id": alarm_id,
            "sub_expression_id": "s",
            "state": row["state"],
            "current_values": [],
            "windows": 0,
            "empty_evaluations": 0,
        }

        def work(connection):
            connection.execute(tables.alarm.insert(), [row])
            add_metrics(connection, series)
            connection.execute(tables.sub_alarm.insert(), [sub])

        self.alarms_database.write(work)

    def ids(self, query="", path=PATH):
        return " ".join(each["id"] for each in self.elements(path, query=query))

    def rows(self, table):
        return self.alarms_database.rows(sa.select(table))

    def published(self):
        return [
            (dict(record.headers)["message-id"], json.loads(record.value))
            for record in self.kafka.broker.records(TOPIC)
        ]

    def test_an_alarm_is_shown_with_its_definition_and_its_metrics(self):
        definition = self.definition("é", "HIGH")
        self.alarm(
            "a", definition, ("cpu", {"host": "x"}), ("mem", {}), state="ALARM", link="http://l", created=NOW_MS - 1
        )
        url = "http://falconframework.org/v2.0"
        expected = {
            "id": "a",
            "links": [
                {"rel": "self", "href": f"{url}/alarms/a"},
                {"rel": "state-history", "href": f"{url}/alarms/a/state-history"},
            ],
            "alarm_definition": {
                "id": definition,
                "name": "é",
                "severity": "HIGH",
                "links": [{"rel": "self", "href": f"{url}/alarm-definitions/{definition}"}],
            },
            "metrics": [{"name": "cpu", "dimensions": {"host": "x"}}, {"name": "mem", "dimensions": {}}],
            "state": "ALARM",
            "lifecycle_state": None,
            "link": "http://l",
            "state_updated_timestamp": iso(NOW_MS),
            "updated_timestamp": iso(NOW_MS),
            "created_timestamp": iso(NOW_MS - 1),
        }
        self.assertEqual(expected, self.get(f"{PATH}/a"))
        listed = self.get(PATH)
        self.assertEqual(({"links", "elements"}, [expected]), (set(listed), listed["elements"]))

    def test_lists_and_counts_are_filtered(self):
        low, high = self.definition("low"), self.definition("high", "HIGH")
        self.alarm("a", low, ("cpu", {"host": "x", "zone": "1"}), state="OK", lifecycle_state="OPEN")
        self.alarm("b", high, ("cpu", {"host": "y"}), ("mem", {"zone": "1"}), state="ALARM", link="http://s.com/a?b")
        self.alarm("c", high, ("mem", {"host": "x"}), state_updated=NOW_MS + 5)
        for query, expected in (
            ("", "a b c"),
            (f"alarm_definition_id={high}", "b c"),
            ("alarm_definition_id=none", ""),
            ("metric_name=cpu", "a b"),
            ("metric_name=cpu&metric_dimensions=host:y", "b"),
            ("metric_dimensions=host:x", "a c"),
            ("metric_dimensions=host:x|y", "a b c"),
            ("metric_dimensions=zone", "a b"),
            ("metric_dimensions=host:x,zone", "a"),
            ("metric_dimensions=host:y,zone:1", ""),
            ("state=ok", "a"),
            ("state=ALARM", "b"),
            ("state=undetermined|OK", "a c"),
            ("severity=LOW", "a"),
            ("severity=HIGH|low", "a b c"),
            ("severity=CRITICAL", ""),
            ("lifecycle_state=OPEN", "a"),
            ("link=http://s.com/a%3Fb", "b"),
            (f"state_updated_start_time={iso(NOW_MS + 5)}", "c"),
            (f"state_updated_timestamp={iso(NOW_MS + 5)}", "a b c"),
            ("state=OK&severity=HIGH", ""),
        ):
            self.assertEqual(expected, self.ids(query), query)
            self.assertEqual([[len(expected.split())]], self.get(f"{PATH}/count", query=query)["counts"], query)
        for wrong in (
            "state=no",
            "severity=LOW|no",
            "sort_by=no",
            "offset=x",
            "state_updated_start_time=x",
            f"metric_dimensions={'x' * 256}",
            f"metric_dimensions=k:{'x' * 256}",
            f"metric_name={'x' * 256}",
        ):
            self.ask("GET", PATH, None, 422, query=wrong)
            if "sort_by" not in wrong:
                self.ask("GET", f"{PATH}/count", None, 422, query=wrong)

    def test_alarms_are_sorted_by_the_given_keys(self):
        b, a = self.definition("B", "CRITICAL"), self.definition("a", "LOW")
        self.alarm("1", a, state="ALARM", lifecycle_state="3", link="2", created=NOW_MS + 2, state_updated=NOW_MS + 1)
        self.alarm("2", b, state="OK", lifecycle_state="2", link="2", created=NOW_MS + 1, state_updated=NOW_MS + 2)
        self.alarm("3", a, lifecycle_state="4", link="1", updated=NOW_MS - 1)
        self.alarm("4", a, state="OK", lifecycle_state="é")
        by_definition = "2 1 3 4" if b < a else "1 3 4 2"
        for sort_by, expected in (
            ("alarm_id desc", "4 3 2 1"),
            ("alarm_definition_id", by_definition),
            ("alarm_definition_name", "2 1 3 4"),
            ("state", "2 4 3 1"),
            ("state desc,alarm_id desc", "1 3 4 2"),
            ("severity", "1 3 4 2"),
            ("lifecycle_state", "2 1 3 4"),
            ("link,lifecycle_state", "4 3 2 1"),
            ("link desc", "1 2 3 4"),
            ("state_updated_timestamp", "3 4 1 2"),
            ("updated_timestamp", "3 1 2 4"),
            ("created_timestamp desc", "1 2 3 4"),
        ):
            self.assertEqual(expected, self.ids(f"sort_by={sort_by.replace(' ', '%20')}"), sort_by)
        self.assertEqual("1 2 3 4", self.ids())
        found = self.get(PATH, query="offset=1&limit=2&sort_by=alarm_id")
        self.assertEqual(["2", "3"], [each["id"] for each in found["elements"]])
        (following,) = [link["href"] for link in found["links"] if link["rel"] == "next"]
        self.assertEqual({"offset=3", "limit=2", "sort_by=alarm_id"}, set(following.partition("?")[2].split("&")))

    def test_metrics_of_alarms_after_a_page_limited_in_bytes_are_not_read(self):
        definition, count = self.definition(), 150
        for n in range(count):
            self.alarm(f"{n:03}", definition, ("cpu", {"host": "x" * 100_000}))
        self.patch(paging, "MAX_ANSWER_BYTES", 1024 * 1024)
        asked = self.statements("FROM alarm_metric")
        found = self.get(PATH)
        self.assertEqual([f"{n:03}" for n in range(10)], [each["id"] for each in found["elements"]])
        self.assertIn("offset=10", found["links"][1]["href"])
        self.assertTrue(0 < sum(len(parameters) for _, parameters in asked) < count, asked)
        self.assertEqual(["010"], [each["id"] for each in self.elements(PATH, query="offset=10&limit=1")])

    def test_counts_are_grouped(self):
        low, high = self.definition("low"), self.definition("high", "HIGH")
        self.alarm("a", low, ("cpu", {"host": "x"}), ("cpu", {"host": "y"}), state="OK", link="l")
        self.alarm("b", high, ("cpu", {"host": "x"}), ("mem", {"host": "x", "bank": "0"}), state="ALARM")
        self.alarm("c", high, ("mem", {}), state="ALARM")

        def counts(query):
            found = self.get(f"{PATH}/count", query=query)
            self.assertEqual({"links", "columns", "counts"}, set(found))
            return found["columns"], found["counts"]

        self.assertEqual((["count"], [[3]]), counts(""))
        self.assertEqual((["count", "state"], [[2, "ALARM"], [1, "OK"]]), counts("group_by=state"))
        self.assertEqual([[2, "HIGH", "high"], [1, "LOW", "low"]], counts("group_by=severity%2Cname")[1])
        self.assertEqual([[2, None], [1, "l"]], counts("group_by=link")[1])
        self.assertEqual([[2, "cpu"], [2, "mem"]], counts("group_by=metric_name")[1])
        self.assertEqual(
            [[1, "bank", "0"], [2, "host", "x"], [1, "host", "y"]], counts("group_by=dimension_name,dimension_value")[1]
        )
        names = "metric_name,dimension_name,dimension_value"
        every = [[2, "cpu", "host", "x"], [1, "cpu", "host", "y"], [1, "mem", "bank", "0"], [1, "mem", "host", "x"]]
        self.assertEqual((["count", *names.split(",")], every), counts(f"group_by={names}"))
        self.assertEqual(every[1:3], counts(f"group_by={names}&offset=1&limit=2")[1])
        links = self.get(f"{PATH}/count", query=f"group_by={names}&limit=2")["links"]
        self.assertIn("offset=2", links[1]["href"])
        self.assertEqual([[1, "HIGH"]], counts("group_by=severity&state=ALARM&metric_dimensions=bank")[1])
        self.assertEqual([[0, None, None]], counts("group_by=state,name&severity=MEDIUM")[1])
        self.assertEqual(["count", *GROUPS], counts(f"group_by={','.join(GROUPS)}")[0])
        self.assertIn("group_by must be any of", self.message("GET", f"{PATH}/count", None, 422, query="group_by=no"))

    def test_a_state_set_by_a_client_is_published_once_with_all_fields(self):
        definition = self.definition("d", "HIGH")
        self.alarm("a", definition, ("cpu", {"host": "x"}), state="OK")
        self.now_ms = NOW_MS + 10
        body = {"state": "ALARM", "lifecycle_state": "OPEN", "link": "http://somesite.com"}
        changed = self.ask("PUT", f"{PATH}/a", body)
        self.assertEqual(body, {name: changed[name] for name in body})
        self.assertEqual((iso(NOW_MS + 10),) * 2, (changed["state_updated_timestamp"], changed["updated_timestamp"]))
        self.assertEqual(changed, self.get(f"{PATH}/a"))
        ((message_id, reported),) = self.published()
        self.assertEqual(same_change(new_state="ALARM", time_ms=NOW_MS + 10).message_id, message_id)
        self.assertEqual(
            {
                "tenantId": "t1",
                "alarmId": "a",
                "alarmDefinitionId": definition,
                "alarmName": "d",
                "alarmDescription": "of d",
                "actionsEnabled": True,
                "stateChangeReason": "Alarm state updated via API",
                "severity": "HIGH",
                "link": "http://somesite.com",
                "lifecycleState": "OPEN",
                "oldState": "OK",
                "newState": "ALARM",
                "timestamp": NOW_MS + 10,
                "subAlarms": [],
                "metrics": [{"name": "cpu", "dimensions": {"host": "x"}}],
                "metrics_total": 1,
            },
            reported["alarm-transitioned"],
        )
        decoded = wire.decode_all([json.dumps(reported).encode()])
        self.assertEqual(({}, "ALARM"), (decoded.errors, decoded.rows[0].new_state))
        self.assertEqual([], self.rows(tables.alarm_outbox))
        self.ask("PATCH", f"{PATH}/a", {"state": "ALARM"})
        self.assertEqual(1, len(self.published()))
        for state in ("OK", "ALARM"):  # within the same millisecond
            self.ask("PATCH", f"{PATH}/a", {"state": state})
        times = [reported["alarm-transitioned"]["timestamp"] for _, reported in self.published()]
        self.assertEqual([NOW_MS + 10, NOW_MS + 11, NOW_MS + 12], times)

    def test_unacknowledged_transitions_stay_in_the_outbox_until_the_next_change(self):
        self.alarm("a", self.definition(), state="OK")
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=TOPIC)
        self.ask("PATCH", f"{PATH}/a", {"state": "ALARM"})
        (left,) = self.rows(tables.alarm_outbox)
        self.assertEqual("a", left.key)
        self.ask("PATCH", f"{PATH}/a", {"state": "OK"})
        self.assertEqual([], self.rows(tables.alarm_outbox))
        reported = [reported["alarm-transitioned"]["newState"] for _, reported in self.published()]
        self.assertEqual(["ALARM", "OK"], reported)

    def test_a_change_is_published_after_the_previous_one_is_acknowledged(self):
        self.alarm("a", self.definition(), state="OK")
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=TOPIC, count=2)
        for state in ("ALARM", "OK"):
            self.ask("PATCH", f"{PATH}/a", {"state": state})
        self.assertEqual([], self.published())
        self.ask("PATCH", f"{PATH}/a", {"state": "ALARM"})
        reported = [reported["alarm-transitioned"]["newState"] for _, reported in self.published()]
        self.assertEqual(["ALARM", "OK", "ALARM"], reported)

    def test_a_large_alarm_is_published_with_a_part_of_its_metrics_and_their_count(self):
        self.alarm("a", self.definition(), *[("cpu", {"host": "x" * 6000})] * 200, state="OK")
        self.ask("PATCH", f"{PATH}/a", {"state": "ALARM"})
        ((_, reported),) = self.published()
        change = reported["alarm-transitioned"]
        self.assertEqual(200, change["metrics_total"])
        self.assertEqual([{"name": "cpu", "dimensions": {"host": "x" * 6000}}] * 43, change["metrics"])

    def test_a_change_publishes_the_messages_of_its_alarm_only(self):
        definition = self.definition()
        self.alarm("a", definition, state="OK")
        self.alarm("b", definition, state="OK")
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic=TOPIC)
        self.ask("PATCH", f"{PATH}/a", {"state": "ALARM"})
        self.ask("PATCH", f"{PATH}/b", {"state": "ALARM"})
        self.assertEqual(["a"], [row.key for row in self.rows(tables.alarm_outbox)])
        self.assertEqual(["b"], [reported["alarm-transitioned"]["alarmId"] for _, reported in self.published()])

    def test_alarms_with_many_metrics_are_loaded_one_at_a_time(self):
        definition = self.definition()
        for alarm_id in "abc":
            self.alarm(alarm_id, definition, *[("cpu", {"host": f"{number}"}) for number in range(3)])
        self.patch(alarm_tables, "_METRICS_A_STEP", 8)
        loaded, metrics = [], alarm_queries.metrics
        self.patch(alarm_queries, "metrics", lambda alarm_ids: loaded.append(alarm_ids) or metrics(alarm_ids))
        self.assertEqual([3, 3, 3], [len(alarm["metrics"]) for alarm in self.elements(PATH)])
        self.patch(alarm_tables, "_METRICS_A_STEP", 9)
        self.assertEqual([3, 3, 3], [len(alarm["metrics"]) for alarm in self.elements(PATH)])
        self.assertEqual([["a"], ["b"], ["c"], ["a", "b", "c"]], loaded)

    def test_violations_are_refused(self):
        self.alarm("a", self.definition(), state="OK", link="l")
        path = f"{PATH}/a"
        before = self.get(path)
        whole = {"state": "OK", "lifecycle_state": None, "link": None}
        for changes, place in (
            ({"state": "ok"}, "state is not one of"),
            ({"lifecycle_state": "x" * 51}, "lifecycle_state has 51"),
            ({"link": "x" * 513}, "link has 513"),
            ({"link": "a\0"}, "link has a NUL"),
            ({"link": 5}, "$.link"),
        ):
            for method in ("PUT", "PATCH"):
                self.assertIn(place, self.message(method, path, whole | changes, 422), changes)
        for name in whole:
            self.assertIn(name, self.message("PUT", path, {k: v for k, v in whole.items() if k != name}, 422))
        self.ask("PUT", path, whole | {"state": None}, 422)
        self.ask("PUT", path, b"{", 400)
        self.assertEqual(before, self.get(path))
        self.assertEqual("l", self.ask("PATCH", path, {"link": None, "lifecycle_state": "x"})["link"])
        self.assertIsNone(self.ask("PUT", path, whole)["link"])
        self.assertEqual([], self.published())

    def test_deleting_an_alarm_deletes_all_its_rows(self):
        definition = self.definition()
        self.alarm("a", definition)
        self.alarm("b", definition)
        version = self.rows(tables.alarm_definitions_version)[0].version
        self.assertIsNone(self.ask("DELETE", f"{PATH}/a", expected=204))
        self.assertEqual("b", self.ids())
        for table in (tables.alarm_metric, tables.alarm_dimension, tables.sub_alarm):
            self.assertEqual(["b"], [row.alarm_id for row in self.rows(table)])
        self.assertEqual(version + 1, self.rows(tables.alarm_definitions_version)[0].version)
        for method, body in (("GET", None), ("PUT", {"state": "OK", "lifecycle_state": None, "link": None})):
            self.assertIn("there is no alarm with", self.message(method, f"{PATH}/a", body, 404))
        for method, body in (("PATCH", {"state": "OK"}), ("DELETE", None)):
            self.ask(method, f"{PATH}/a", body, 404)

    def series_of(self, *alarm_ids, sub="s"):
        """Create alarms that each have their own series and a common one."""
        keys = {alarm_id: alarm_id.encode() * 16 for alarm_id in (*alarm_ids, "+")}
        series = [
            {
                "sub_expression_id": sub,
                "series_id": key,
                "match_key": key,
                "match_values": [],
                "dimensions": {},
                "seen": 1,
            }
            for key in keys.values()
        ]
        parts = [
            {"alarm_id": alarm_id, "sub_expression_id": sub, "match_key": key}
            for alarm_id in alarm_ids
            for key in (keys[alarm_id], keys["+"])
        ]
        window = {"window_start": 0, "windows": 0, "record_count": 1, "sums": "1.0", "least": 1, "greatest": 1}
        window |= {"sub_expression_id": sub, "match_key": keys["+"], "newest": 1, "readings": ""}

        def work(connection):
            connection.execute(tables.alarm_series.insert(), series)
            connection.execute(tables.alarm_part.insert(), parts)
            connection.execute(tables.alarm_window.insert(), [window])

        self.alarms_database.write(work)

    def test_series_of_a_deleted_alarm_are_new_unless_another_alarm_has_them(self):
        definition = self.definition()
        self.alarm("a", definition)
        self.alarm("b", definition)
        self.series_of("a", "b")
        self.ask("DELETE", f"{PATH}/a", expected=204)
        self.assertEqual({"b"}, {row.alarm_id for row in self.rows(tables.alarm_part)})
        self.assertEqual({b"b" * 16, b"+" * 16}, {row.match_key for row in self.rows(tables.alarm_series)})

    def test_deleting_a_definition_deletes_its_series_and_windows(self):
        gone, kept = self.definition("gone"), self.definition("kept")
        subs = {row.definition_id: row.id for row in self.rows(tables.alarm_sub_expression)}
        for alarm_id, definition in (("a", gone), ("b", kept)):
            self.alarm(alarm_id, definition)
            self.series_of(alarm_id, sub=subs[definition])
        self.ask("DELETE", f"{DEFINITIONS}/{gone}", expected=204)
        for table in (tables.alarm_series, tables.alarm_window, tables.alarm_part):
            self.assertEqual({subs[kept]}, {row.sub_expression_id for row in self.rows(table)})

    def test_deleting_a_definition_deletes_its_alarms(self):
        gone, kept = self.definition("gone"), self.definition("kept")
        self.alarm("a", gone)
        self.alarm("b", kept)
        self.ask("DELETE", f"{DEFINITIONS}/{gone}", expected=204)
        self.assertEqual("b", self.ids())
        for table in (tables.alarm_metric, tables.alarm_dimension, tables.sub_alarm):
            self.assertEqual(["b"], [row.alarm_id for row in self.rows(table)])

    def test_rows_of_other_tenants_are_not_accessible(self):
        self.alarm("a", self.definition(), link="l")
        self.assertEqual([], self.elements(PATH, tenant="t2"))
        self.assertEqual([[0]], self.get(f"{PATH}/count", tenant="t2")["counts"])
        for query in ("metric_name=cpu", "metric_dimensions=host", "severity=LOW"):
            self.assertEqual([], self.elements(PATH, tenant="t2", query=query))
        body = {"state": "OK", "lifecycle_state": None, "link": None}
        for method, asked in (("GET", None), ("PUT", body), ("PATCH", {"state": "OK"}), ("DELETE", None)):
            self.ask(method, f"{PATH}/a", asked, 404, tenant="t2")
        self.assertEqual(("UNDETERMINED", "l"), (self.get(f"{PATH}/a")["state"], self.get(f"{PATH}/a")["link"]))
        self.assertEqual([], self.published())


def same_change(**changes):
    values = {
        "tenant": "t",
        "alarm_id": "a",
        "definition_id": "d",
        "name": "n",
        "description": "",
        "severity": "LOW",
        "actions_enabled": True,
        "old_state": "OK",
        "new_state": "ALARM",
        "reason": "r",
        "time_ms": 5,
        "link": None,
        "lifecycle_state": None,
        "metrics": (),
    }
    return AlarmChange(**{**values, **changes})


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
        for group in set(alarm_queries.GROUPS) - {"link"}:
            plan = self.explained(alarm_queries.counts(WhichAlarms("t"), [group], Slice(100)))
            self.assertIn("COVERING INDEX alarm_", plan, group)
            self.assertNotIn("SCAN alarm", plan, group)

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
    def test_requests_for_alarms_get_status_501(self):
        for resource in ("alarm-definitions", "alarms", "notification-methods", "notifications", "silences"):
            self.assertEqual(501, self.client.simulate_get(f"/v2.0/{resource}/a").status_code, resource)
        for resource in ("alarm-definitions", "alarms", "notification-methods", "silences"):
            self.assertEqual(501, self.client.simulate_delete(f"/v2.0/{resource}/a").status_code, resource)


class TestAlarmHistory(ReadsCase):
    def test_the_history_of_all_alarms_or_of_one_is_listed(self):
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
