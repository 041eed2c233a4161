# SPDX-License-Identifier: Apache-2.0
"""The life of an alarm: definition, creation by a series, changes by measurements, windows and users, and deletion."""

import time

from tempest import config
from tempest.lib import exceptions
from testtools.content import text_content

from monasca_common.tests.tempest.api.monitoring_case import MonitoringCase
from monasca_common.tests.tempest.api.test_metrics import iso

CONF = config.CONF
WINDOW_MS = 60_000


def changes(history):
    return [(each["old_state"], each["new_state"]) for each in history]


class TestLifeCycle(MonitoringCase):
    def test_last_follows_the_newest_value_and_the_history_has_each_change_once(self):
        metric = self.name()
        definition = self.define(f"last({metric}) > 14", severity="HIGH")
        times = [self.post(metric, 1, host="a")]
        (alarm,) = self.alarms_of(definition)
        self.assertEqual("OK", alarm["state"])
        for value, count in ((20, 2), (3, 3)):
            times.append(self.post(metric, value, host="a"))
            self.history(alarm["id"], count)
        history = self.history(alarm["id"], 3)
        self.assertEqual([("UNDETERMINED", "OK"), ("OK", "ALARM"), ("ALARM", "OK")], changes(history))
        self.assertEqual([iso(moment) for moment in times], [each["timestamp"] for each in history])
        self.assertEqual(
            f"Thresholds were exceeded for the sub-alarms: last({metric}) > 14.0 with the values: [20.0]",
            history[1]["reason"],
        )
        (sub_alarm,) = history[1]["sub_alarms"]
        self.assertEqual(("ALARM", [20.0]), (sub_alarm["sub_alarm_state"], sub_alarm["current_values"]))
        pages = list(self.client.pages(f"alarms/{alarm['id']}/state-history", limit=1))
        self.assertEqual([[each] for each in history], pages)
        found = self.client.find(f"alarms/{alarm['id']}")
        self.assertEqual(("OK", "HIGH"), (found["state"], found["alarm_definition"]["severity"]))
        self.assertEqual([{"name": metric, "dimensions": {"host": "a"}}], found["metrics"])

    def test_each_value_of_match_by_has_its_alarm(self):
        metric = self.name()
        definition = self.define(f"max({metric}{{service=nova}}) > 10", match_by=["host"])
        for host, value in (("a", 11), ("b", 11), ("c", 1)):
            self.post(metric, value, service="nova", host=host)
        self.post(metric, 11, service="other", host="d")
        alarms = self.alarms_of(definition, 3)
        self.assertEqual(
            ["a", "b", "c"], sorted(each["dimensions"]["host"] for alarm in alarms for each in alarm["metrics"])
        )
        query = {"alarm_definition_id": definition["id"]}
        self.wait_for(
            lambda: self.client.elements("alarms", state="ALARM", **query),
            lambda found: len(found) == 2,
            "two hosts in ALARM, before their window has ended",
        )
        counted = self.client.find("alarms/count", group_by="dimension_value,severity", **query)
        self.assertEqual(["count", "dimension_value", "severity"], counted["columns"])
        self.assertIn([1, "c", "LOW"], counted["counts"])
        pages = list(self.client.pages("alarms", limit=2, sort_by="alarm_id", **query))
        self.assertEqual([2, 1], [len(page) for page in pages])
        self.assertEqual(sorted(each["id"] for each in alarms), [each["id"] for page in pages for each in page])

    def test_an_irrevocable_state_is_decided_soon_after_the_post(self):
        metric = self.name()
        definition = self.define(f"count({metric}, deterministic) > 10")
        self.post(metric, *range(5), host="a")
        (alarm,) = self.alarms_of(definition)
        self.assertEqual("OK", alarm["state"])
        self.post(metric, *range(40), host="a")  # enough measurements even if a minute ends between them
        posted = time.monotonic()
        self.wait_for(
            lambda: self.client.find(f"alarms/{alarm['id']}"),
            lambda found: found["state"] == "ALARM",
            "ALARM by the count",
        )
        took = time.monotonic() - posted
        self.assertLess(took, CONF.monasca_common.lateness_seconds)
        self.addDetail("measured", text_content(f"saw the state {took:.1f} s after the response to its post"))

    def test_a_state_set_by_hand_is_in_the_history_and_the_history_outlives_the_alarm(self):
        metric = self.name()
        definition = self.define(f"last({metric}) > 14")
        self.post(metric, 1, host="a")
        (alarm,) = self.alarms_of(definition)
        path = f"alarms/{alarm['id']}"
        changed = self.client.change(path, {"state": "ALARM", "lifecycle_state": "OPEN", "link": None}, whole=True)
        self.assertEqual(("ALARM", "OPEN"), (changed["state"], changed["lifecycle_state"]))
        history = self.history(alarm["id"], 2)
        self.assertEqual([("UNDETERMINED", "OK"), ("OK", "ALARM")], changes(history))
        self.assertEqual("Alarm state updated via API", history[1]["reason"])
        self.client.delete(path)
        self.assertRaises(exceptions.NotFound, self.client.find, path)
        everything = self.client.elements("alarms/state-history")
        self.assertEqual(history, [each for each in everything if each["alarm_id"] == alarm["id"]])

    def test_deleting_a_definition_deletes_its_alarms(self):
        metric = self.name()
        definition = self.define(f"last({metric}) > 14")
        self.post(metric, 1, host="a")
        (alarm,) = self.alarms_of(definition)
        self.client.delete(f"alarm-definitions/{definition['id']}")
        self.assertRaises(exceptions.NotFound, self.client.find, f"alarms/{alarm['id']}")
        self.assertRaises(exceptions.NotFound, self.client.find, f"alarm-definitions/{definition['id']}")


class TestWindows(MonitoringCase):
    def test_the_average_of_a_window_is_in_the_history_soon_after_it_is_due(self):
        metric = self.name()
        definition = self.define(f"avg({metric}) > 85")
        posted = self.post(metric, 80, 100, host="a")
        (alarm,) = self.alarms_of(definition)
        self.assertEqual("UNDETERMINED", alarm["state"])
        due_ms = (posted // WINDOW_MS + 1) * WINDOW_MS + CONF.monasca_common.delay_seconds * 1000
        (found,) = self.history(alarm["id"], 1)
        late = time.time() - due_ms / 1000
        self.assertEqual([("UNDETERMINED", "ALARM")], changes([found]))
        self.assertEqual(
            f"Thresholds were exceeded for the sub-alarms: avg({metric}) > 85.0 with the values: [90.0]",
            found["reason"],
        )
        self.assertGreaterEqual(late, 0)
        self.assertLess(late, CONF.monasca_common.lateness_seconds)
        self.addDetail("measured", text_content(f"saw the change {late:.1f} s after the window was due"))


class TestRefusedDefinitions(MonitoringCase):
    def test_invalid_expressions_are_refused_with_the_position(self):
        for expression in (
            "",
            "avg(a >",
            "median(a) > 1",
            "avg(a, 59) > 1",
            "avg(a) > 1 times 0",
            "avg(a{b=}) > 1",
            "avg(a{b=c,b=d}) > 1",
            "(" * 10_000 + "a > 1",
        ):
            self.assertRaises(exceptions.UnprocessableEntity, self.define, expression)

    def test_definitions_with_wrong_fields_are_refused(self):
        for fields in (
            {"name": "a" * 256},
            {"severity": "WORST"},
            {"match_by": "host"},
            {"alarm_actions": ["no-such-method"]},
            {"description": "a" * 256},
        ):
            self.assertRaises(exceptions.UnprocessableEntity, self.define, "a > 1", **fields)

    def test_the_metrics_of_a_definition_cannot_change(self):
        metric = self.name()
        definition = self.define(f"avg({metric}) > 85", match_by=["host"])
        path = f"alarm-definitions/{definition['id']}"
        for change in ({"expression": f"avg({self.name()}) > 85"}, {"match_by": ["device"]}):
            self.assertRaises(exceptions.UnprocessableEntity, self.client.change, path, change)
        changed = self.client.change(path, {"expression": f"max({metric}) > 90 times 2", "severity": "critical"})
        self.assertEqual(("CRITICAL", f"max({metric}) > 90 times 2"), (changed["severity"], changed["expression"]))

    def test_unknown_ids_and_filters_have_their_statuses(self):
        for path in ("alarms/none", "alarm-definitions/none", "notification-methods/none"):
            self.assertRaises(exceptions.NotFound, self.client.find, path)
        for path, query in (
            ("alarms", {"state": "GOOD"}),
            ("alarms", {"sort_by": "colour"}),
            ("alarms", {"offset": "a"}),
            ("alarms/count", {"group_by": "colour"}),
            ("alarm-definitions", {"severity": "WORST"}),
        ):
            self.assertRaises(exceptions.UnprocessableEntity, self.client.find, path, **query)
