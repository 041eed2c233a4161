# SPDX-License-Identifier: Apache-2.0
"""The notifier in ``examples`` is installed as a package and sends to a real receiver."""

import fixtures

from monasca_common.alarms import notification_methods
from monasca_common.alarms.notification_methods import NotificationMethod, faults
from monasca_common.kafka import entry_point
from monasca_common.notification.errors import AddressRefused, SendFailed
from monasca_common.notification.notification import notification_of
from monasca_common.notification.notifiers.plugins import load_notifiers
from monasca_common.tests.example_case import ExampleCase
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.unit.notification.test_notifiers import NotifierCase


class NtfyNotifierTest(NotifierCase, ExampleCase):
    type = "ntfy"

    def setUp(self):
        super().setUp()
        for folder in self.installed("ntfy_notifier"):
            self.useFixture(fixtures.PythonPathEntry(str(folder)))
        for cached in (notification_methods.plugins, entry_point):
            cached.cache_clear()
            self.addCleanup(cached.cache_clear)
        self.server = self.receiver()

    def test_the_notifier_posts_to_the_server_with_the_id_of_the_notification(self):
        notification = notification_of(change(severity="CRITICAL"), "m1")

        self.assertEqual("responded with 200", self.notifier().send(notification, self.server.url("/alarms")))

        headers, document = self.posted(self.server)
        self.assertEqual(notification.id, headers["Idempotency-Key"])
        self.assertEqual(
            ("alarms", "ALARM: cpu is busy", 5), tuple(document[name] for name in ("topic", "title", "priority"))
        )
        self.assertIn("Thresholds were exceeded", document["message"])

    def test_a_failure_of_the_server_is_retriable(self):
        self.server.answer = self.server.answers(500)
        failure = self.assertRaises(
            SendFailed, self.notifier().send, notification_of(change(), "m1"), self.server.url("/alarms")
        )
        self.assertEqual(500, failure.status)

    def test_a_private_network_must_be_allowed(self):
        notifier = load_notifiers(self.configured(""), self.type)[0]
        self.assertRaises(AddressRefused, notifier.send, notification_of(change(), "m1"), self.server.url("/alarms"))

    def test_the_api_accepts_the_type_and_refuses_an_invalid_address(self):
        self.assertIn("NTFY", notification_methods.types())
        [(_, rule)] = faults(NotificationMethod("phone", "NTFY", "https://ntfy.sh/a/b"))
        self.assertIn("is not the URL of a topic", rule)
        self.assertEqual([], list(faults(NotificationMethod("phone", "NTFY", "https://ntfy.sh/alarms"))))
