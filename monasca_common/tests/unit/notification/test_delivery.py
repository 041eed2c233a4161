# SPDX-License-Identifier: Apache-2.0
"""What is recorded and published of an attempt: nothing that stops another, and nothing that tenants must not read."""

import sqlalchemy as sa

from monasca_common.notification.errors import SendFailed, SendPostponed, SendRefused
from monasca_common.notification.retries import Retry
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.calm_contract import CalmCase, _read, _values
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class AttemptTest(CalmCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.method()

    def attempt_that_raises(self, error):
        """What is recorded of it, and its retry."""

        def send(_notice, _address):
            raise error

        self.people.send = send
        [(_, value)] = _values(self.changes(_read("alarm-state-transitions", self.alarm("a1").message)))
        [(reason, failures)] = self.alarms_database.rows(
            sa.select(tables.notification.c.reason, tables.notification.c.failures)
        )
        return reason, failures, Retry.read(value)

    def test_signs_that_no_database_and_no_json_takes_stop_nothing(self):
        with self.assertLogs("monasca_common", "WARNING") as logged:
            reason, failures, retry = self.attempt_that_raises(SendFailed("answered \ud800 and \0"))
        self.assertIn("answered ? and ?", str(logged.output))
        self.assertEqual(("answered ? and ?", "answered ? and ?"), (reason, retry.reason))
        self.assertIn("answered ? and ?", failures)
        self.assertEqual(2, retry.attempt)

    def test_what_operators_alone_may_know_is_logged_and_not_recorded(self):
        error = SendRefused("x leads where notifications may not go", detail="to 10.0.0.7")
        with self.assertLogs("monasca_common", "WARNING") as logged:
            recorded = self.attempt_that_raises(error)
        self.assertNotIn("10.0.0.7", str(recorded))
        self.assertIn("(to 10.0.0.7)", str(logged.output))

    def test_a_look_up_that_was_not_begun_is_no_attempt(self):
        _, failures, retry = self.attempt_that_raises(SendPostponed("earlier look-ups of hosts have not ended", 5.0))
        self.assertEqual((None, 1), (failures, retry.attempt))
        self.people.send = lambda *_: "taken"
        self.clock.now_ms += 5000
        self.assertEqual([], list(self.retries(_read("retry-notifications", retry.record().value))))
        columns = (tables.notification.c[name] for name in ("state", "attempts", "repeats"))
        self.assertEqual([("sent", 1, 0)], self.alarms_database.rows(sa.select(*columns)))

    def test_a_notifier_that_does_not_know_where_it_leads_sends_nevertheless(self):
        def destination(_address):
            raise KeyError("a flaw")

        self.people.destination = destination
        self.tell(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.told())
