# SPDX-License-Identifier: Apache-2.0
"""The list of notifications. Tests with PostgreSQL inherit the mixin, too."""

from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import PLAIN, AddressKeys
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.sent_notifications import SENT_STATES
from monasca_common.notification.deferred import DeferredNotifications
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.notification import notification_of
from monasca_common.notification.stages import SILENCED, Deferral
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.api.api_case import NOW_MS
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

PATH = "/v2.0/notifications"
HOOK = NotificationMethod("hook", "WEBHOOK", "https://hooks.example.org/t0ken")


class NotificationsContract(AlarmsCase):
    def setUp(self):
        super().setUp()
        self.stored = Ledger(self.alarms_database)
        self.method = NotificationMethods(self.alarms_database, self.keys).create("t1", HOOK, 1)

    def record(self, alarm="a1", *, method=None, at_ms=NOW_MS, outcomes=(("sent", "responded with 200"),), **facts):
        """Store the notification of a change, with an attempt per outcome."""
        notification = notification_of(
            change(alarm_id=alarm, **{"time_ms": at_ms - 500, **facts}), method or self.method.id
        )
        for attempt, (state, answer) in enumerate(outcomes, 1):
            self.stored.begin(notification, method or self.method.id, attempt, at_ms)
            self.stored.finish(notification, state, at_ms + attempt, answer)
        return notification

    def ids(self, query="", **named):
        return [each["id"] for each in self.elements(PATH, query=query, **named)]

    def test_a_notification_is_returned_with_its_attempts_and_a_masked_address(self):
        outcomes = (("failed", "hooks.example.org responded with 503"), ("sent", "responded with 200"))
        notification = self.record(outcomes=outcomes)
        shown = {
            "id": notification.id,
            "links": [{"rel": "self", "href": f"http://falconframework.org{PATH}/{notification.id}"}],
            "alarm_id": "a1",
            "alarm_definition_id": "d1",
            "notification_method": {
                "id": self.method.id,
                "name": "hook",
                "type": "WEBHOOK",
                "address": "https://hooks.example.org/…",
            },
            "new_state": "ALARM",
            "alarm_timestamp": "2026-09-21T14:13:19.623Z",
            "state": "sent",
            "attempts": 2,
            "repeats": 0,
            "answer": "responded with 200",
            "failures": [{"timestamp": "2026-09-21T14:13:20.124Z", "answer": "hooks.example.org responded with 503"}],
            "created_timestamp": "2026-09-21T14:13:20.123Z",
            "updated_timestamp": "2026-09-21T14:13:20.125Z",
        }
        self.assertEqual(shown, self.get(f"{PATH}/{notification.id}"))
        self.assertEqual([shown], self.elements(PATH))

    def test_a_response_may_contain_any_characters(self):
        strange = "a\u2028b\x85c\x0c\r\nd \N{GRINNING FACE} \\"
        self.record(outcomes=(("failed", strange), ("failed", None), ("given up", strange)))
        [shown] = self.elements(PATH)
        self.assertEqual([strange, None, strange], [each["answer"] for each in shown["failures"]])
        self.assertEqual(strange, shown["answer"])

    def test_characters_that_databases_cannot_store_are_replaced_in_a_response(self):
        self.record(outcomes=(("failed", "a\0b"), ("given up", "c\udc80d" + "x" * 1000)))
        [shown] = self.elements(PATH)
        self.assertEqual("a?b", shown["failures"][0]["answer"])
        self.assertEqual("c?d", shown["answer"][:3])

    def test_a_suppressed_notification_has_its_reason(self):
        notification = notification_of(change(), self.method.id)
        deferral = Deferral(SILENCED, None, "silence x by ann: new disks")
        DeferredNotifications(self.alarms_database).defer(notification, self.method.id, deferral, NOW_MS)
        [shown] = self.elements(PATH)
        facts = {name: shown[name] for name in ("state", "attempts", "answer", "failures")}
        expected = {"state": "silenced", "attempts": 0, "answer": "silence x by ann: new disks", "failures": []}
        self.assertEqual(expected, facts)

    def test_notifications_of_other_tenants_are_not_accessible(self):
        notification = self.record()
        foreign = self.record(tenant="t2", alarm="a2")
        self.assertEqual([notification.id], self.ids())
        self.assertEqual([foreign.id], self.ids(tenant="t2"))
        [shown] = self.elements(PATH, tenant="t2")
        self.assertEqual([None] * 3, [shown["notification_method"][name] for name in ("name", "type", "address")])
        self.get(f"{PATH}/{foreign.id}", 404)
        self.assertIn("there is no notification", self.message("GET", f"{PATH}/x", None, 404))

    def test_a_deleted_method_is_returned_with_its_id(self):
        self.record(method="gone")
        [shown] = self.elements(PATH)
        self.assertEqual({"id": "gone", "name": None, "type": None, "address": None}, shown["notification_method"])

    def test_notifications_are_filtered(self):
        first = self.record()
        second = self.record("a2", at_ms=NOW_MS + 1000, outcomes=(("failed", "no"), ("given up", "no")))
        third = self.record("a2", method="m3", at_ms=NOW_MS + 2000, definition_id="d2")
        for query, expected in (
            ("", [third, second, first]),
            ("alarm_id=a2", [third, second]),
            ("alarm_definition_id=d2", [third]),
            (f"notification_method_id={self.method.id}", [second, first]),
            ("state=sent", [third, first]),
            ("state=given%20up", [second]),
            ("state=SENT%7Cgiven%20up", [third, second, first]),
            ("state=failed", []),
            ("start_time=2026-09-21T14:13:21.123Z", [third, second]),
            ("end_time=2026-09-21T14:13:21.123Z", [second, first]),
            ("start_time=2026-09-21T14:13:21Z&end_time=2026-09-21T14:13:22Z&alarm_id=a2", [second]),
        ):
            self.assertEqual([each.id for each in expected], self.ids(query), query)
        self.assertIn("state must be any of", self.message("GET", PATH, None, 422, query="state=lost"))
        self.assertIn(
            "end_time must be after",
            self.message("GET", PATH, None, 400, query="start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z"),
        )

    def test_the_offset_is_a_number_of_rows(self):
        notifications = [self.record(f"a{number}", at_ms=NOW_MS + number) for number in range(5)]
        found = self.get(PATH, query="limit=2&offset=1")
        self.assertEqual([notifications[3].id, notifications[2].id], [each["id"] for each in found["elements"]])
        (following,) = [link["href"] for link in found["links"] if link["rel"] == "next"]
        self.assertEqual({"offset=3", "limit=2"}, set(following.partition("?")[2].split("&")))
        self.ask("GET", PATH, None, 422, query="offset=x")

    def test_each_state_is_a_filter(self):
        for state in SENT_STATES:
            self.assertEqual([], self.ids(f"state={state.replace(' ', '%20')}"))


class TestNotifications(NotificationsContract, SqliteTestCase):
    keys = AddressKeys([Fernet.generate_key().decode()])

    def test_a_notification_is_returned_without_the_key_of_its_address(self):
        self.record()
        self.keys = PLAIN
        self.client = self.application()
        [shown] = self.elements(PATH)
        self.assertEqual("…", shown["notification_method"]["address"])
