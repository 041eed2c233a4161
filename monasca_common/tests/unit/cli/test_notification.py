# SPDX-License-Identifier: Apache-2.0
"""``notification test``: a message as the service would send one."""

import json

from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.notification.receivers import HttpReceiver


class NotificationTestTest(CommandCase):
    command = ("notification", "test")
    configuration = "[notification]\nallowed_networks = 127.0.0.1/32\n"

    def setUp(self):
        super().setUp()
        self.receiver = HttpReceiver()
        self.addCleanup(self.receiver.close)

    def test_the_id_is_printed_by_which_the_receiver_knows_it(self):
        status, out, err = self.run_command("--type", "WEBHOOK", "--address", self.receiver.url())

        [(_, headers, body)] = self.receiver.requests
        self.assertEqual((0, f"sent: {headers['Idempotency-Key']}\n", ""), (status, out, err))
        self.assertEqual("Test of a notification method", json.loads(body)["alarm_name"])

    def test_an_address_on_this_machine_is_refused_where_nothing_allows_it(self):
        arguments = ("--type", "webhook", "--address", self.receiver.url("/t0ken"))
        status, out, err = self.run_command(*arguments, text="[DEFAULT]\n")

        self.assertEqual((1, ""), (status, out))
        self.assertIn("monasca-common notification test: 127.0.0.1 leads to 127.0.0.1", err)
        self.assertNotIn("t0ken", err)
        self.assertEqual([], self.receiver.requests)

    def test_a_receiver_that_fails_and_a_type_that_nobody_knows_are_told(self):
        self.receiver.answer = self.receiver.answers(500)
        status, _, err = self.run_command("--type", "webhook", "--address", self.receiver.url())
        self.assertEqual(1, status)
        self.assertIn("answered 500", err)
        status, _, err = self.run_command("--type", "fax", "--address", "1")
        self.assertEqual(1, status)
        self.assertIn("type=fax is not known", err)
