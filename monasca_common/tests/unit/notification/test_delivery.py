# SPDX-License-Identifier: Apache-2.0
"""What is recorded and published of an attempt: nothing that stops another, and nothing that tenants must not read."""

import threading
from functools import partial

import sqlalchemy as sa
from oslotest import base

from monasca_common.notification.calm import CalmRules
from monasca_common.notification.errors import SendFailed, SendPostponed, SendRefused
from monasca_common.notification.handlers import _at_once
from monasca_common.notification.retries import Retry
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.calm_contract import CalmCase, _read, _values
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class AttemptTest(CalmCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.method_id = self.method()

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


class SupersededTest(CalmCase, SqliteTestCase):
    """Retries whose alarm has changed since."""

    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.method_id = self.method()
        self.people.fails = True
        [(_, self.failed)] = _values(self.changes(_read("alarm-state-transitions", self.alarm("a1").message)))
        self.people.fails = False
        self.clock.now_ms += 5000

    def states(self):
        table = tables.notification
        return [tuple(row) for row in self.alarms_database.rows(sa.select(table.c.new_state, table.c.state))]

    def retry(self, handler=None):
        self.assertEqual([], list((handler or self.retries)(_read("retry-notifications", self.failed))))

    def test_a_retry_does_not_overtake_a_newer_change(self):
        self.tell(self.alarm("a1", "OK"))
        self.retry()
        self.assertEqual(["a1:OK"], self.told())
        self.assertEqual({("ALARM", "superseded"), ("OK", "sent")}, set(self.states()))
        self.assertEqual({"sent": 1, "failed attempts": 1, "superseded": 1}, dict(self.delivery.counts))

    def test_an_alarm_that_came_again_is_notified_by_its_newer_change(self):
        self.tell(self.alarm("a1", "OK"))
        self.clock.now_ms += 1
        self.tell(self.alarm("a1", "ALARM"))
        self.retry()
        self.assertEqual(["a1:OK", "a1:ALARM"], self.told())

    def test_a_retry_of_an_alarm_that_has_not_changed_or_is_not_known_is_sent(self):
        self.write(tables.alarm.delete())
        self.retry()
        self.assertEqual(["a1:ALARM"], self.told())

    def test_an_operator_keeps_all(self):
        self.tell(self.alarm("a1", "OK"))
        self.retry(self.keeping)
        self.assertEqual(["a1:OK", "a1:ALARM"], self.told())

    def test_a_sent_notification_stays_sent_whatever_becomes_of_its_alarm_and_its_method(self):
        self.retry()
        self.alarm("a1", "OK")
        self.retry()
        self.write(tables.alarm.delete())
        self.methods.delete("t1", self.method_id)
        self.retry()
        self.assertEqual([("ALARM", "sent")], self.states())

    def test_a_group_is_sent_without_its_superseded_changes(self):
        self.start(CalmRules(("definition",), 1000))
        self.tell(self.alarm("a2"))
        self.tell(self.alarm("a3"))
        self.clock.now_ms += 1000
        self.releases.release_due(self.producer)
        self.alarm("a3", "OK")
        self.deliver()
        [(notice, _)] = self.people.taken
        self.assertEqual(["a2"], [each.alarm_id for each in notice.changes])
        self.assertEqual([], self.held())


class MethodsOfOneChangeTest(base.BaseTestCase):
    def test_they_are_sent_at_once_by_a_bounded_number_of_threads(self):
        helpers, names, both = threading.BoundedSemaphore(1), set(), threading.Barrier(2, timeout=50)

        def work(number):
            names.add(threading.get_ident())
            if number < 2:
                both.wait()
            return number

        works = [partial(work, number) for number in range(16)]
        self.assertEqual(list(range(16)), _at_once(works, helpers))
        self.assertEqual(2, len(names))
        self.assertTrue(helpers.acquire(blocking=False))
