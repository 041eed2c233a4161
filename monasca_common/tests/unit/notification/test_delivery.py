# SPDX-License-Identifier: Apache-2.0
"""Attempts, their retries and their records, which contain no text that a database refuses or tenants must not read."""

import contextlib
from unittest import mock

import sqlalchemy as sa

from monasca_common.kafka import Poison, RetryLater
from monasca_common.notification.errors import SendFailed, SendRefused
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.notification import notification_of
from monasca_common.notification.retries import Retry
from monasca_common.notification.stages import StageRules
from monasca_common.storage.errors import DuplicateKey, SchemaMismatch, StorageError, StorageUnavailable
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.notification_case import counts
from monasca_common.tests.unit.notification.test_stages_sqlite import MAX_ATTEMPTS, SECOND_MS, StagesCase, _read
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class AttemptTest(StagesCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.method_id = self.method()

    def attempt_that_raises(self, error):
        """Return the recorded reason and failures of an attempt that raises the error, and its retry."""

        def send(_notification, _address):
            raise error

        self.notifier.send = send
        self.changes(_read("alarm-state-transitions", self.alarm("a1").message))
        [(reason, failures)] = self.alarms_database.rows(
            sa.select(tables.notification.c.reason, tables.notification.c.failures)
        )
        return reason, failures, next(iter(self.scheduled()), None)

    def test_characters_that_databases_and_json_refuse_are_replaced(self):
        with self.assertLogs("monasca_common", "WARNING") as logged:
            reason, failures, retry = self.attempt_that_raises(SendFailed("answered \ud800 and \0"))
        self.assertIn("answered ? and ?", str(logged.output))
        self.assertEqual("answered ? and ?", reason)
        self.assertIn("answered ? and ?", failures)
        self.assertEqual(2, retry.attempt)

    # Rule 59
    def test_details_for_operators_are_logged_and_not_recorded(self):
        error = SendRefused("notifications must not be sent to x", detail="the address is 10.0.0.7")
        with self.assertLogs("monasca_common", "WARNING") as logged:
            recorded = self.attempt_that_raises(error)
        self.assertNotIn("10.0.0.7", str(recorded))
        self.assertIn("(the address is 10.0.0.7)", str(logged.output))

    def test_the_retry_after_of_a_receiver_does_not_delay_giving_up(self):
        def refuse(*_):
            raise SendFailed("responded with 503", after_seconds=86_400.0)

        self.notifier.send = refuse
        first, last = self.alarm("a1"), self.alarm("a2")
        self.changes(_read("alarm-state-transitions", first.message))
        [retry] = self.scheduled()
        self.assertEqual(self.clock.now_ms + 86_400_000, retry.due_ms)
        last = Retry(notification_of(last, self.method_id), self.method_id, MAX_ATTEMPTS, 0)
        self.assertIsNone(self.attempt(last))
        self.assertIn(("a2", "given up"), self.ledger())

    def test_only_temporary_database_errors_are_retried(self):
        refused = StorageError("a read failed: the value is too long")
        refused.__cause__ = sa.exc.DataError("INSERT", {}, ValueError())
        for error, raised in (
            (StorageUnavailable("the database is down"), RetryLater),
            (DuplicateKey("another process wrote the row"), RetryLater),
            (SchemaMismatch("run db upgrade"), SchemaMismatch),
            (StorageError("permission denied for table notification"), StorageError),
            (refused, Poison),
        ):
            with mock.patch.object(Ledger, "begin", side_effect=error):
                message = _read("alarm-state-transitions", self.alarm("a1").message)
                self.assertIs(raised, type(self.assertRaises(raised, self.changes, message)))

    def test_two_interrupted_resends_lose_no_retry(self):
        ledger = Ledger(self.alarms_database)
        _, _, retry = self.attempt_that_raises(SendFailed("responded with 500"))
        for is_forced in (False, True, True):
            self.assertTrue(ledger.resend(retry.notification.id, self.clock.now_ms, also_under_way=is_forced))
        self.notifier.send = lambda *_: "taken"
        self.clock.now_ms += 5000
        self.assertIsNone(self.attempt(retry))
        columns = (tables.notification.c[name] for name in ("state", "attempts", "repeats"))
        self.assertEqual([("sent", 2, 1)], self.alarms_database.rows(sa.select(*columns)))

    def test_a_notification_without_a_slot_waits_at_most_as_long_as_it_has_waited(self):
        method = self.methods.get("t1", self.method_id)
        retry = Retry(notification_of(self.alarm("a1"), self.method_id), self.method_id, 1, self.clock.now_ms)
        waits = []
        with mock.patch.object(self.delivery._slots, "slot", lambda *_: contextlib.nullcontext(None)):
            for waited_ms in (0, 100 * SECOND_MS, 2000 * SECOND_MS):
                self.clock.now_ms += waited_ms
                retry = self.delivery.attempt(retry, method)
                waits.append((retry.due_ms - self.clock.now_ms) / SECOND_MS)
        for wait, most in zip(waits, (1, 100, 600), strict=True):
            self.assertTrue(most / 2 <= wait <= most, waits)
        self.assertEqual(1, retry.attempt)

    def test_a_notifier_without_a_destination_sends(self):
        def destination(_address):
            raise KeyError("a flaw")

        self.notifier.destination = destination
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.sent())


class SupersededTest(StagesCase, SqliteTestCase):
    """Retries whose alarm has changed in the meantime."""

    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.method_id = self.method()
        self.notifier.fails = True
        self.changes(_read("alarm-state-transitions", self.alarm("a1").message))
        [self.failed] = self.scheduled()
        self.write(tables.notification_deferred.delete())
        self.notifier.fails = False
        self.clock.now_ms += 5000

    def states(self):
        table = tables.notification
        return [tuple(row) for row in self.alarms_database.rows(sa.select(table.c.new_state, table.c.state))]

    def retry(self):
        self.assertIsNone(self.attempt(self.failed))

    def test_a_retry_does_not_overtake_a_newer_change(self):
        self.handle(self.alarm("a1", "OK"))
        self.retry()
        self.assertEqual(["a1:OK"], self.sent())
        self.assertEqual({("ALARM", "superseded"), ("OK", "sent")}, set(self.states()))
        self.assertEqual({"sent": 1, "failed_attempts": 1, "superseded": 1}, counts(self.metrics.registry.collect()))

    def test_a_repeated_alarm_is_notified_by_its_newer_change(self):
        self.handle(self.alarm("a1", "OK"))
        self.clock.now_ms += 1
        self.handle(self.alarm("a1", "ALARM"))
        self.retry()
        self.assertEqual(["a1:OK", "a1:ALARM"], self.sent())

    def test_a_retry_does_not_follow_a_newer_change_although_its_method_has_no_action_for_the_current_state(self):
        action = tables.alarm_action
        self.write(action.delete().where(action.c.state == "UNDETERMINED"))
        self.handle(self.alarm("a1", "OK"))
        self.clock.now_ms += 1
        self.handle(self.alarm("a1", "UNDETERMINED"))
        self.retry()
        self.assertEqual(["a1:OK"], self.sent())

    def test_a_retry_does_not_follow_a_newer_change_although_its_alarm_was_deleted(self):
        self.handle(self.alarm("a1", "OK"))
        self.write(tables.alarm.delete())
        self.retry()
        self.assertEqual((["a1:OK"], {("ALARM", "superseded"), ("OK", "sent")}), (self.sent(), set(self.states())))

    def test_a_retry_of_an_unchanged_or_unknown_alarm_is_sent(self):
        self.write(tables.alarm.delete())
        self.retry()
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_retry_is_sent_if_its_method_has_no_action_for_the_new_state(self):
        action = tables.alarm_action
        self.write(action.delete().where(action.c.state == "UNDETERMINED"))
        self.handle(self.alarm("a1", "UNDETERMINED"))
        self.retry()
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_retry_is_sent_if_the_actions_of_the_new_state_are_disabled(self):
        self.write(tables.alarm_definition.update().values(actions_enabled=False))
        self.alarm("a1", "OK")
        self.retry()
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_return_to_ok_is_sent_if_the_previous_one_was_superseded(self):
        self.retry()
        self.notifier.fails = True
        self.changes(_read("alarm-state-transitions", self.alarm("a1", "OK").message))
        [self.failed] = self.scheduled()
        self.notifier.fails = False
        self.clock.now_ms += SECOND_MS
        self.silence({}, SECOND_MS)
        self.handle(self.alarm("a1"))
        self.retry()
        self.clock.now_ms += 1
        ended = self.alarm("a1", "OK")
        self.clock.now_ms += SECOND_MS
        self.handle(ended)
        self.assertEqual(["a1:ALARM", "a1:OK"], self.sent())

    def test_a_sent_notification_stays_sent_after_changes_of_its_alarm_and_method(self):
        self.retry()
        self.alarm("a1", "OK")
        self.retry()
        self.write(tables.alarm.delete())
        self.methods.delete("t1", self.method_id)
        self.retry()
        self.assertEqual([("ALARM", "sent")], self.states())

    def test_a_group_is_sent_without_its_superseded_changes(self):
        self.start(StageRules(("definition",), 1000))
        self.handle(self.alarm("a2"))
        self.handle(self.alarm("a3"))
        self.clock.now_ms += 1000
        self.releases.release_due()
        self.alarm("a3", "OK")
        self.deliver()
        [(notification, _)] = self.notifier.taken
        self.assertEqual(["a2"], [each.alarm_id for each in notification.changes])
        self.assertEqual([], self.held())

    def test_superseded_members_of_a_group_end_and_the_others_are_retried_with_its_id(self):
        self.start(StageRules(("definition",), 1000))
        for own_id in ("a2", "a3", "a4"):
            self.handle(self.alarm(own_id))
        self.clock.now_ms += 1000
        self.releases.release_due()
        self.alarm("a3", "OK")
        self.notifier.fails = True
        [first] = self.scheduled()
        following = self.attempt(first)
        self.notifier.fails = False
        self.assertEqual(
            (first.notification.id, 3, ["held", "held", "scheduled"]),
            (following.notification.id, following.members, self.held()),
        )
        self.alarm("a4", "OK")
        self.clock.now_ms = following.due_ms
        self.assertIsNone(self.attempt(following))
        [(notification, _)] = self.notifier.taken
        self.assertEqual(
            (first.notification.id, ["a2"]), (notification.id, [each.alarm_id for each in notification.changes])
        )
        self.assertEqual([], self.held())
        table = tables.notification
        statement = sa.select(table.c.alarm_id).where(table.c.state == "superseded").order_by(table.c.alarm_id)
        self.assertEqual([("a3",), ("a4",)], self.alarms_database.rows(statement))


class MethodsOfOneChangeTest(StagesCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.refused = StorageError("a value is too long")
        self.refused.__cause__ = sa.exc.DataError("INSERT", {}, ValueError())

    def assert_raised(self, expected, *errors):
        """Handle a change whose methods are notified with these errors, or none."""
        methods = {self.method(): error for error in errors}
        notified = []

        def notify(_change, method, _facts):
            notified.append(method.id)
            if (error := methods[method.id]) is not None:
                raise error

        message = _read("alarm-state-transitions", self.alarm("a1").message)
        with mock.patch.object(self.changes, "_notify", notify):
            self.assertRaises(expected, self.changes, message)
        self.assertEqual(sorted(methods), sorted(notified))

    def test_an_error_of_one_method_is_raised_after_the_others_are_notified(self):
        self.assert_raised(RetryLater, StorageUnavailable("the database is down"), None)

    def test_a_retriable_error_takes_precedence_over_a_dead_letter(self):
        errors = (self.refused, ValueError("a flaw"), StorageUnavailable("the database is down"))
        self.assert_raised(RetryLater, *errors)

    def test_an_error_of_the_schema_takes_precedence_over_a_dead_letter(self):
        self.assert_raised(SchemaMismatch, self.refused, SchemaMismatch("run db upgrade"))
