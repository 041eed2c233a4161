# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification`` with the subcommands ``test``, ``list``, ``show`` and ``resend``."""

import json

import fixtures
from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import AddressKeys
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.settings import database_settings
from monasca_common.cli.main import main
from monasca_common.notification.deferred import DeferredNotifications
from monasca_common.notification.ledger import Ledger, NextStep
from monasca_common.notification.notification import group_of, notification_of
from monasca_common.notification.stages import Deferral
from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.notification.receivers import HttpReceiver, change

NOW_MS = 1_790_000_000_123


class NotificationTestTest(CommandCase):
    command = ("notification", "test")
    configuration = "[notification]\nallowed_networks = 127.0.0.1/32\n"

    def setUp(self):
        super().setUp()
        self.receiver = HttpReceiver()
        self.addCleanup(self.receiver.close)

    def test_the_id_of_the_test_message_is_printed(self):
        status, out, err = self.run_command("--type", "WEBHOOK", "--address", self.receiver.url())

        [(_, headers, body)] = self.receiver.requests
        self.assertEqual((0, f"sent: {headers['Idempotency-Key']} (responded with 200)\n", ""), (status, out, err))
        self.assertEqual("Test of a notification method", json.loads(body)["alarm_name"])

    def test_a_local_address_is_refused_unless_allowed(self):
        arguments = ("--type", "webhook", "--address", self.receiver.url("/t0ken"))
        status, out, err = self.run_command(*arguments, text="[DEFAULT]\n")

        self.assertEqual((1, ""), (status, out))
        self.assertIn("monasca-common notification test: notifications must not be sent to 127.0.0.1: ", err)
        self.assertIn("(the address is 127.0.0.1)", err)  # requested by the operator
        self.assertNotIn("t0ken", err)
        self.assertEqual([], self.receiver.requests)

    def test_a_failing_receiver_and_an_unknown_type_are_reported(self):
        self.receiver.answer = self.receiver.answers(500)
        status, _, err = self.run_command("--type", "webhook", "--address", self.receiver.url())
        self.assertEqual(1, status)
        self.assertIn("responded with 500", err)
        status, _, err = self.run_command("--type", "fax", "--address", "1")
        self.assertEqual(1, status)
        self.assertIn("type=fax is not known", err)

    def test_a_type_and_an_address_are_required(self):
        for arguments in ((), ("--type", "webhook"), ("--address", "x")):
            self.assertEqual(2, self.run_command(*arguments)[0], arguments)


class LedgerCommandCase(CommandCase):
    keys = Fernet.generate_key().decode()

    def setUp(self):
        super().setUp()
        self.receiver = HttpReceiver()
        self.addCleanup(self.receiver.close)
        folder = self.useFixture(fixtures.TempDir()).path
        self.configuration = (
            f"[notification]\nallowed_networks = 127.0.0.1/32\n[alarms]\naddress_keys = {self.keys}\n"
            f"[database]\nconnection = sqlite:///{folder}/monasca.sqlite\n"
        )
        self.assertEqual(0, main(["db", "upgrade", "--config-file", self.path_of(self.configuration)]))
        self.database = AlarmsDatabase(database_settings(self.configured(self.configuration)))
        self.addCleanup(self.database.close)
        self.ledger = Ledger(self.database)
        methods = NotificationMethods(self.database, AddressKeys([self.keys]))
        self.method = methods.create("t1", NotificationMethod("hook", "WEBHOOK", self.receiver.url("/t0ken")), 1)

    def record(self, state="given up", answer="responded with 503", *, alarm="a1", method=None, at_ms=NOW_MS):
        notification = notification_of(change(alarm_id=alarm), method or self.method.id)
        self.ledger.begin(notification, method or self.method.id, 1, at_ms)
        if state != "sending":
            self.ledger.finish(notification, state, at_ms + 1, answer)
        return notification

    def json(self, *arguments):
        status, out, err = self.run_command(*arguments, "-f", "json")
        self.assertEqual((0, ""), (status, err))
        return json.loads(out)

    def shown(self, notification):
        self.command = ("notification", "show")
        return self.json(notification.id)


class NotificationListTest(LedgerCommandCase):
    command = ("notification", "list")

    def test_tables_and_json_list_the_newest_first_without_addresses(self):
        first, second = self.record(), self.record("sent", "responded with 200", alarm="a2", at_ms=NOW_MS + 1)
        status, out, err = self.run_command("-f", "value")
        self.assertEqual((0, ""), (status, err))
        rows = out.splitlines()
        self.assertEqual([second.id, first.id], [row.split()[0] for row in rows])
        self.assertIn(f"WEBHOOK http://127.0.0.1:{self.receiver.port}/…", rows[0])
        self.assertNotIn("t0ken", out)
        self.assertEqual([second.id, first.id], [each["id"] for each in self.json()])

    def test_notifications_are_filtered_by_tenant_alarm_method_state_and_time(self):
        first, second = self.record(), self.record("sent", alarm="a2", at_ms=NOW_MS + 60_000)
        for arguments, expected in (
            (("--tenant", "t1"), [second, first]),
            (("--tenant", "t2"), []),
            (("--alarm", "a2"), [second]),
            (("--method", self.method.id), [second, first]),
            (("--state", "sent"), [second]),
            (("--state", "sent", "--state", "given up"), [second, first]),
            (("--since", "2026-09-21T14:14:00Z"), [second]),
            (("--until", "2026-09-21T14:14:00Z"), [first]),
            (("--limit", "1"), [second]),
        ):
            self.assertEqual([each.id for each in expected], [each["id"] for each in self.json(*arguments)], arguments)

    def test_without_messages_there_is_no_row(self):
        self.assertEqual([], self.json())


class NotificationShowTest(LedgerCommandCase):
    command = ("notification", "show")

    def test_each_failed_attempt_is_shown(self):
        notification = self.record("failed")
        self.assertIn("2026-09-21T14:13:20.124+00:00  responded with 503", self.run_command(notification.id)[1])
        shown = self.json(notification.id)
        self.assertEqual(("failed", "responded with 503"), (shown["state"], shown["failures"][0]["answer"]))
        self.assertEqual("2026-09-21T14:13:20.123+00:00", shown["created"])

    def test_a_missing_item_is_an_error(self):
        status, out, err = self.run_command("x")
        self.assertEqual((1, ""), (status, out))
        self.assertIn("there is no notification with the id 'x'", err)


class NotificationResendTest(LedgerCommandCase):
    command = ("notification", "resend")

    def test_a_resent_notification_keeps_its_id_and_its_attempts(self):
        for before, attempts in (("given up", 2), ("sent", 2), ("failed", 2)):
            notification = self.record(before, alarm=before)
            self.command = ("notification", "resend")
            self.assertEqual(
                (0, f"sent: {notification.id} (responded with 200)\n", ""), self.run_command(notification.id)
            )
            self.assertEqual(notification.id, self.receiver.requests[-1][1]["Idempotency-Key"])
            self.assertEqual(before, json.loads(self.receiver.requests[-1][2])["alarm_id"])
            shown = self.shown(notification)
            self.assertEqual(
                ("sent", attempts, "responded with 200"), (shown["state"], shown["attempts"], shown["answer"])
            )

    def test_a_failure_is_reported_and_recorded(self):
        self.receiver.answer = self.receiver.answers(500)
        # Retries of failed notifications keep the number of previous attempts.
        for before, attempts in (("given up", 2), ("sent", 2), ("failed", 1)):
            notification = self.record(before, alarm=before)
            self.command = ("notification", "resend")
            status, out, err = self.run_command(notification.id)
            self.assertEqual((1, ""), (status, out))
            self.assertIn("responded with 500", err)
            self.assertNotIn("t0ken", err)
            shown = self.shown(notification)
            self.assertEqual((before, attempts), (shown["state"], shown["attempts"]))
            self.assertIn("responded with 500", shown["failures"][-1]["answer"])

    def test_a_group_of_notifications_is_resent_as_a_whole(self):
        group = group_of([notification_of(change(alarm_id=alarm), self.method.id) for alarm in ("a1", "a2")])
        self.ledger.begin(group, self.method.id, 1, NOW_MS)
        self.ledger.finish(group, "sent", NOW_MS)
        self.assertEqual(0, self.run_command(group.id)[0])
        [(_, headers, body)] = self.receiver.requests
        self.assertEqual(group.id, headers["Idempotency-Key"])
        self.assertEqual({"a1", "a2"}, {each["alarm_id"] for each in json.loads(body)["alarms"]})

    def test_the_members_of_a_group_that_is_sent_again_end(self):
        members = [notification_of(change(alarm_id=alarm), self.method.id) for alarm in ("a1", "a2")]
        deferred = DeferredNotifications(self.database)
        for member in members:
            deferred.defer(member, self.method.id, Deferral("held", NOW_MS, "", "group"), NOW_MS)
        deferred.release(deferred.members("group"), self.method.id, NOW_MS)
        group = group_of(members)
        self.ledger.begin(group, self.method.id, 1, NOW_MS)
        self.ledger.finish(group, "given up", NOW_MS, "responded with 500")

        self.assertEqual(0, self.run_command(group.id)[0])

        self.assertEqual({"sent"}, {self.shown(each)["state"] for each in (group, *members)})
        self.assertIsNone(deferred.message(group.id))

    def test_a_pending_attempt_of_a_resent_notification_does_nothing(self):
        notification = self.record("failed")
        self.run_command(notification.id)
        self.assertIs(NextStep.NOTHING, self.ledger.begin(notification, self.method.id, 2, NOW_MS))

    def test_a_notification_in_progress_is_resent_only_with_force(self):
        notification = self.record("sending")
        status, _, err = self.run_command(notification.id)
        self.assertEqual((1, []), (status, self.receiver.requests))
        self.assertIn("an attempt is in progress", err)
        self.assertEqual(0, self.run_command(notification.id, "--force")[0])

    def test_a_test_message_that_cannot_be_sent_is_reported(self):
        for notification_id, reason in (
            ("x", "there is no notification"),
            (self.record(method="gone").id, "there is no notification method with the id 'gone'"),
        ):
            status, _, err = self.run_command(notification_id)
            self.assertEqual(1, status)
            self.assertIn(reason, err)
