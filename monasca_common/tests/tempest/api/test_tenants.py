# SPDX-License-Identifier: Apache-2.0
"""Tenants see and change only their own data, even with equal names and with the ids of another tenant."""

from tempest.lib import exceptions

from monasca_common.tests.tempest.api.monitoring_case import MonitoringCase
from monasca_common.tests.tempest.api.test_metrics import LONG_AGO


class TestTenants(MonitoringCase):
    def test_equal_series_of_two_tenants_are_separate(self):
        metric = self.name()
        for client, value in ((self.client, 1.0), (self.stranger, 2.0)):
            self.post(metric, value, client=client, host="a")
        for client, value in ((self.client, 1.0), (self.stranger, 2.0)):
            (found,) = self.wait_for(
                lambda client=client: client.elements("metrics/measurements", name=metric, start_time=LONG_AGO),
                bool,
                f"the measurement of {client.project}",
            )
            self.assertEqual([value], [row[1] for row in found["measurements"]])
            self.assertEqual(1, len(client.elements("metrics", name=metric)))

    def test_a_series_creates_no_alarm_for_another_tenants_definition(self):
        metric = self.name()
        other = self.define(f"last({metric}) > 0", client=self.stranger)
        definition = self.define(f"last({metric}) > 0")
        self.post(metric, 1, host="a")
        (alarm,) = self.alarms_of(definition)
        self.history(alarm["id"], 1)
        # If the other definition matched the series, the same batch created its alarm.
        self.assertEqual([], self.stranger.elements("alarms", alarm_definition_id=other["id"]))
        self.assertEqual([], self.stranger.elements("alarms", alarm_definition_id=definition["id"]))
        self.assertEqual([[0]], self.stranger.find("alarms/count", metric_name=metric)["counts"])
        self.assertEqual([], self.stranger.elements("alarms/state-history"))
        self._is_hidden(f"alarms/{alarm['id']}", {"state": "OK"})
        self.assertEqual("ALARM", self.client.find(f"alarms/{alarm['id']}")["state"])

    def test_other_tenants_cannot_find_definitions_and_notification_methods(self):
        definition = self.define(f"{self.name()} > 0")
        method = self.client.make(
            "notification-methods", {"name": self.name("method"), "type": "EMAIL", "address": "a@example.com"}
        )
        for path, found in (("alarm-definitions", definition), ("notification-methods", method)):
            self.assertNotIn(found["id"], [each["id"] for each in self.stranger.elements(path)])
            self._is_hidden(f"{path}/{found['id']}", {"name": "theirs"})
            self.assertEqual(found["name"], self.client.find(f"{path}/{found['id']}")["name"])

    def test_names_are_unique_only_within_a_tenant(self):
        definition = self.define(f"{self.name()} > 0")
        same = {"name": definition["name"], "expression": definition["expression"]}
        self.assertRaises(exceptions.Conflict, self.client.make, "alarm-definitions", same)
        self.assertEqual(definition["name"], self.stranger.make("alarm-definitions", same)["name"])

    def test_a_notification_method_of_another_tenant_is_refused_as_an_action(self):
        method = self.stranger.make(
            "notification-methods", {"name": self.name("method"), "type": "EMAIL", "address": "a@example.com"}
        )
        body = {"name": self.name("definition"), "expression": "a > 0", "alarm_actions": [method["id"]]}
        self.assertRaises(exceptions.UnprocessableEntity, self.client.make, "alarm-definitions", body)

    def _is_hidden(self, path, change):
        for call, arguments in (
            (self.stranger.find, [path]),
            (self.stranger.change, [path, change]),
            (self.stranger.delete, [path]),
        ):
            self.assertRaises(exceptions.NotFound, call, *arguments)
