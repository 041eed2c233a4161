# SPDX-License-Identifier: Apache-2.0
"""Alarm definitions. Tests with PostgreSQL inherit the mixin, too."""

import sqlite3
from unittest import mock

import sqlalchemy as sa

from monasca_common.alarms import definitions
from monasca_common.alarms.database import Slice
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import DefinitionFilter
from monasca_common.api import paging
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

PATH = "/v2.0/alarm-definitions"
METHODS = "/v2.0/notification-methods"
PLAIN = {"name": "cpu", "expression": "max(cpu.system_perc) > 0"}
WHOLE = {
    **PLAIN,
    "description": "d",
    "match_by": ["device"],
    "severity": "LOW",
    "actions_enabled": True,
    "alarm_actions": [],
    "ok_actions": [],
    "undetermined_actions": [],
}


class AlarmDefinitionsContract(AlarmsCase):
    def method(self, name="mail", tenant="t1"):
        body = {"name": name, "type": "EMAIL", "address": "root@localhost"}
        return self.ask("POST", METHODS, body, 201, tenant=tenant)["id"]

    def stored(self, table, *columns):
        statement = sa.select(*(table.c[name] for name in columns)).order_by(*(table.c[name] for name in columns))
        return [tuple(row) for row in self.alarms_database.rows(statement)]

    def sub_expressions(self):
        """Return (id, position, windows) by the start of the text."""
        table = tables.alarm_sub_expression
        return {
            (row.position, row.function, row.metric_name): (row.id, row.windows)
            for row in self.alarms_database.rows(sa.select(table))
        }

    def version(self):
        return self.alarms_database.rows(sa.select(tables.alarm_definitions_version.c.version))[0][0]

    def test_definitions_are_created_read_listed_replaced_updated_and_deleted(self):
        method = self.method()
        made = self.ask("POST", PATH, PLAIN, 201)
        path = f"{PATH}/{made['id']}"
        expected = {
            "id": made["id"],
            "links": [{"rel": "self", "href": f"http://falconframework.org{path}"}],
            **WHOLE,
            "description": "",
            "match_by": [],
            "deterministic": False,
        }
        self.assertEqual(expected, made)
        self.assertEqual(made, self.get(path))
        listed = self.get(PATH)
        self.assertEqual(({"links", "elements"}, [made]), (set(listed), listed["elements"]))
        changes = {
            "name": "other",
            "expression": "min(cpu.system_perc) < 0",
            "description": "dé",
            "severity": "HIGH",
            "actions_enabled": False,
            "alarm_actions": [method],
            "ok_actions": [method],
            "undetermined_actions": [method],
        }
        self.assertEqual(made | changes, self.ask("PUT", path, {**WHOLE, **changes, "match_by": []}))
        back = {"severity": "low", "actions_enabled": "true", "ok_actions": [], "name": None, "alarm_actions": None}
        now = made | changes | {"severity": "LOW", "actions_enabled": True, "ok_actions": []}
        self.assertEqual(now, self.ask("PATCH", path, back))
        self.assertEqual(now, self.get(path))
        self.assertIsNone(self.ask("DELETE", path, expected=204))
        for asked, body in (("GET", None), ("PUT", WHOLE), ("PATCH", {"name": "a"}), ("DELETE", None)):
            self.assertIn("there is no alarm definition", self.message(asked, path, body, 404))
        for table in (tables.alarm_definition, tables.alarm_sub_expression, tables.alarm_action):
            self.assertEqual([], self.alarms_database.rows(sa.select(table)))

    def test_violations_are_refused_with_their_places(self):
        violations = (
            ({"name": ""}, "name must not be empty"),
            ({"name": "x" * 256}, "name has 256"),
            ({"name": "a\0"}, "name has a NUL"),
            ({"description": "x" * 256}, "description has 256"),
            ({"severity": "INVALID"}, "severity is not one of"),
            ({"expression": "avg(mem_total_mb{dev=\\usr\\local\\bin}) gt 0"}, "expression is wrong at character"),
            ({"expression": "max(a, 59) > 0"}, "positive multiple of 60"),
            ({"expression": "max(a) > 0 times 20161"}, "must not exceed 1209600 s"),
            ({"expression": "max(a) > 0 and min(b, 604800) < 1 times 3"}, "has 3 periods of 604800 s"),
            ({"expression": ""}, "expression is wrong"),
            ({"expression": "(" * 100_000}, "16384"),
            ({"match_by": ["a", "a"]}, "match_by has a duplicate entry"),
            ({"match_by": ["_a"]}, "match_by[0]"),
            ({"match_by": "hostname"}, "$.match_by"),
            ({"alarm_actions": ["x" * 51]}, "alarm_actions[0] has 51"),
            ({"ok_actions": ["bad"]}, "ok_actions[0] is not the id of a notification method"),
            ({"undetermined_actions": ["bad", "bad"]}, "undetermined_actions has a duplicate entry"),
            ({"actions_enabled": "perhaps"}, "$.actions_enabled"),
        )
        self.assert_refused(PATH, PLAIN, violations, ("name", "expression"))

    def test_rows_after_a_page_limited_in_bytes_are_not_read(self):
        expression = "max(cpu) > 0" + " " * 16_000
        for n in range(150):
            self.ask("POST", PATH, {"name": f"{n:03}", "expression": expression}, 201)
        self.patch(paging, "MAX_ANSWER_BYTES", 1024 * 1024)
        asked = self.statements("FROM alarm_action")
        found = self.get(PATH, query="sort_by=name")
        shown = [each["name"] for each in found["elements"]]
        self.assertEqual([f"{n:03}" for n in range(len(shown))], shown)
        self.assertTrue(0 < sum(len(parameters) for _, parameters in asked) < 150, asked)
        following = self.elements(PATH, query=f"sort_by=name%20desc&offset={len(shown)}&limit=55")
        expected = [f"{n:03}" for n in range(149 - len(shown), 94 - len(shown), -1)]
        self.assertEqual(expected, [each["name"] for each in following])

    def test_a_definition_is_deterministic_if_all_sub_expressions_are(self):
        log, cpu = "count(log.error{hostname=a},deterministic) > 0", "max(cpu{hostname=a}) > 1"
        for n, (expression, expected) in enumerate(
            ((log, True), (f"{log} AND {log}", True), (f"{cpu} AND {log}", False))
        ):
            made = self.ask("POST", PATH, {"name": str(n), "expression": expression}, 201)
            self.assertEqual((expected, expression), (made["deterministic"], made["expression"]))

    def test_put_requires_all_nine_members(self):
        path = f"{PATH}/{self.ask('POST', PATH, WHOLE, 201)['id']}"
        for name in WHOLE:
            self.assertIn(name, self.message("PUT", path, {k: v for k, v in WHOLE.items() if k != name}, 422))
            self.ask("PUT", path, WHOLE | {name: None}, 422)
        self.ask("PUT", path, WHOLE)

    def test_metrics_and_match_by_cannot_change(self):
        body = {**WHOLE, "expression": "max(cpu{a=b}) > 1 and max(mem) > 2", "match_by": ["x", "y"]}
        path = f"{PATH}/{self.ask('POST', PATH, body, 201)['id']}"
        for expression in (
            "max(cpu{a=b}) > 1",
            "max(cpu{a=b}) > 1 and max(mem) > 2 and max(mem) > 3",
            "max(cpu{a=c}) > 1 and max(mem) > 2",
            "max(cpu) > 1 and max(mem) > 2",
            "max(cpu{a=b}) > 1 and max(cpu{a=b}) > 2",
        ):
            self.assertIn(
                "expression cannot have different metrics", self.message("PATCH", path, {"expression": expression}, 422)
            )
        for match_by in (["x"], [], ["x", "z"]):
            self.assertIn("match_by cannot change", self.message("PATCH", path, {"match_by": match_by}, 422))
            self.ask("PUT", path, body | {"match_by": match_by}, 422)
        changed = self.ask(
            "PATCH", path, {"match_by": ["y", "x"], "expression": "min(mem, 120) < 2.5 times 3 or cpu{a=b} <= 1"}
        )
        self.assertEqual(["x", "y"], changed["match_by"])

    def test_sub_expressions_keep_their_ids_and_windows_restart_if_function_or_period_change(self):
        expression = "max(cpu) > 1 and max(cpu) > 2 and avg(mem) > 3"
        path = f"{PATH}/{self.ask('POST', PATH, {**PLAIN, 'expression': expression}, 201)['id']}"
        before = self.sub_expressions()
        ids = [before[0, "max", "cpu"][0], before[1, "max", "cpu"][0], before[2, "avg", "mem"][0]]
        self.ask("PATCH", path, {"expression": "avg(mem) <= 4 or max(cpu) > 7 or min(cpu) > 2"})
        self.assertEqual(
            {(0, "avg", "mem"): (ids[2], 0), (1, "max", "cpu"): (ids[0], 0), (2, "min", "cpu"): (ids[1], 1)},
            self.sub_expressions(),
        )
        self.ask("PATCH", path, {"expression": "avg(mem, 120) <= 4 or max(cpu) > 7 times 2 or min(cpu) > 2"})
        self.assertEqual(
            {(0, "avg", "mem"): (ids[2], 1), (1, "max", "cpu"): (ids[0], 1), (2, "min", "cpu"): (ids[1], 1)},
            self.sub_expressions(),
        )

    def test_each_accepted_change_increments_the_version(self):
        self.assertEqual(0, self.version())
        made = self.ask("POST", PATH, PLAIN, 201)
        other = self.ask("POST", PATH, {**PLAIN, "name": "b"}, 201)
        self.ask("PATCH", f"{PATH}/{made['id']}", {"name": "c"})
        self.assertEqual(3, self.version())
        self.ask("PATCH", f"{PATH}/{made['id']}", {"name": "b"}, 409)
        self.ask("PATCH", f"{PATH}/{made['id']}", {"match_by": ["b"]}, 422)
        self.ask("PUT", f"{PATH}/none", WHOLE, 404)
        self.assertEqual(3, self.version())
        self.ask("DELETE", f"{PATH}/{other['id']}", expected=204)
        self.assertEqual(4, self.version())

    def test_names_are_unique_per_tenant(self):
        self.ask("POST", PATH, PLAIN, 201)
        self.assertIn("another alarm definition has this name", self.message("POST", PATH, PLAIN, 409))
        self.ask("POST", PATH, PLAIN, 201, tenant="t2")

    def test_definitions_and_methods_of_other_tenants_are_not_accessible(self):
        made = self.ask("POST", PATH, WHOLE, 201)
        path = f"{PATH}/{made['id']}"
        self.assertEqual([], self.elements(PATH, tenant="t2"))
        for asked, body in (("GET", None), ("PUT", WHOLE), ("PATCH", {"name": "b"}), ("DELETE", None)):
            self.ask(asked, path, body, 404, tenant="t2")
        self.ask("POST", PATH, {**PLAIN, "alarm_actions": [self.method()]}, 422, tenant="t2")
        self.assertEqual([made], self.elements(PATH))

    def test_deleting_a_method_removes_it_from_actions(self):
        kept, gone = self.method("kept"), self.method("gone")
        body = {**PLAIN, "alarm_actions": [gone, kept], "ok_actions": [gone]}
        path = f"{PATH}/{self.ask('POST', PATH, body, 201)['id']}"
        self.assertEqual([gone, kept], self.get(path)["alarm_actions"])
        self.ask("DELETE", f"{METHODS}/{gone}", expected=204)
        self.assertEqual(([kept], []), (self.get(path)["alarm_actions"], self.get(path)["ok_actions"]))
        self.ask("PATCH", path, {"ok_actions": [gone]}, 422)

    def test_definitions_are_filtered(self):
        for name, expression, severity in (
            ("a", "max(cpu{host=a,zone=1}) > 1", "LOW"),
            ("b", "max(cpu{host=b}) > 1 or max(mem{zone=1}) > 2", "HIGH"),
            ("é", "max(cpu{host=https://x.y:80/}) > 1", "MEDIUM"),
            ("d", "max(cpu) > 1", "CRITICAL"),
        ):
            self.ask("POST", PATH, {"name": name, "expression": expression, "severity": severity}, 201)
        for query, expected in (
            ("", "abdé"),
            ("name=a", "a"),
            ("name=%C3%A9", "é"),
            ("name=none", ""),
            ("severity=low", "a"),
            ("severity=LOW|high", "ab"),
            ("dimensions=host:a", "a"),
            ("dimensions=host:a|b", "ab"),
            ("dimensions=host", "abé"),
            ("dimensions=zone:1", "ab"),
            ("dimensions=host,zone:1", "a"),
            ("dimensions=host:b,zone:1", ""),
            ("dimensions=host:https://x.y:80/", "é"),
            ("dimensions=zone:1&severity=HIGH", "b"),
            ("unknown=1", "abdé"),
        ):
            found = self.elements(PATH, query=f"{query}&sort_by=name")
            self.assertEqual(expected, "".join(each["name"] for each in found), query)
        for query in ("severity=false", "severity=LOW|false", "severity=|", "sort_by=random", "offset=x"):
            self.ask("GET", PATH, None, 422, query=query)

    def test_a_list_is_sorted_by_code_point_and_paged_by_rows(self):
        for name, severity in (("11", "MEDIUM"), ("14", "MEDIUM"), ("12", "LOW"), ("13", "MEDIUM"), ("B", "CRITICAL")):
            self.now_ms += 1
            self.ask("POST", PATH, {**PLAIN, "name": name, "severity": severity}, 201)

        def names(query):
            return [each["name"] for each in self.elements(PATH, query=query)]

        self.assertEqual(["B", "12", "14", "13", "11"], names("sort_by=severity%20asc,name%20desc,id"))
        self.assertEqual(["11", "14", "12", "13", "B"], names("sort_by=created_at"))
        self.assertEqual(["B", "13", "12", "14", "11"], names("sort_by=updated_at%20desc"))
        self.assertEqual(["12", "13"], names("sort_by=name&limit=2&offset=1"))
        found = self.get(PATH, query="offset=1&limit=2")
        (following,) = [link["href"] for link in found["links"] if link["rel"] == "next"]
        self.assertEqual({"offset=3", "limit=2"}, set(following.partition("?")[2].split("&")))
        ids = [each["id"] for each in self.elements(PATH)]
        self.assertEqual(sorted(ids), ids)

    def test_a_concurrent_change_is_read_completely_or_not_at_all(self):
        method = self.method()
        made = self.ask("POST", PATH, PLAIN, 201)
        path = f"{PATH}/{made['id']}"
        for read in (lambda: self.get(path), lambda: self.elements(PATH)[0]):
            before = self.get(path)
            waiting = [{"name": before["name"] + "x", "alarm_actions": [] if before["alarm_actions"] else [method]}]

            def change(_connection, _cursor, statement, *_rest, waiting=waiting):
                if waiting and "FROM alarm_action" in statement:
                    self.ask("PATCH", path, waiting.pop())

            sa.event.listen(sa.Engine, "before_cursor_execute", change)
            self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", change)
            self.assertEqual(before, read())
            self.assertEqual(([], before["name"] + "x"), (waiting, self.get(path)["name"]))

    def test_the_text_null_is_not_null(self):
        path = f"{PATH}/{self.ask('POST', PATH, PLAIN, 201)['id']}"
        for name in ("actions_enabled", "match_by", "alarm_actions"):
            self.assertIn(name, self.message("PATCH", path, {name: "null"}, 422))
            self.assertIn(name, self.message("POST", PATH, {**PLAIN, "name": "other", name: "null"}, 422))
            self.ask("PATCH", path, {name: None})
        self.assertEqual("null", self.ask("PATCH", path, {"name": "null"})["name"])

    def test_a_change_parses_its_expression_once(self):
        path = f"{PATH}/{self.ask('POST', PATH, PLAIN, 201)['id']}"
        with mock.patch.object(definitions, "parse", wraps=definitions.parse) as parse:
            self.ask("PATCH", path, {"expression": "max(cpu.system_perc) > 5"})
        self.assertEqual([mock.call("max(cpu.system_perc) > 5")], parse.mock_calls)


class TestAlarmDefinitions(AlarmDefinitionsContract, SqliteTestCase):
    def test_a_filter_by_dimensions_reads_no_other_tenants_sub_expressions(self):
        asked = self.statements("alarm_sub_expression")
        which = DefinitionFilter("t", dimensions={"host": ("a",)})
        list(AlarmDefinitions(self.alarms_database).iter_found(which, (), Slice(100)))
        (found,) = asked
        connection = sqlite3.connect(f"{self.folder}/monasca.sqlite")
        self.addCleanup(connection.close)
        plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {found[0]}", found[1]))
        self.assertIn("alarm_sub_expression_by_definition", plan)
        self.assertNotIn("SCAN alarm_sub_expression", plan)
