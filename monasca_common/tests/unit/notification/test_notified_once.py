# SPDX-License-Identifier: Apache-2.0
"""Withheld, resent and interrupted notifications are sent once, whatever events occur in between."""

import contextlib
import itertools
from unittest import mock

import sqlalchemy as sa

from monasca_common.alarms.silences import Silences
from monasca_common.kafka import failpoints
from monasca_common.notification.ledger import FAILED, Ledger
from monasca_common.notification.notification import notification_of
from monasca_common.notification.notifiers.email import message_of
from monasca_common.notification.stages import StageRules
from monasca_common.notification.texts import Texts
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.notification_case import counts
from monasca_common.tests.unit.notification.test_stages_sqlite import (
    HOUR_MS,
    LEASE_MS,
    MINUTE_MS,
    SECOND_MS,
    StagesCase,
    _read,
)
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

DAY_MS = 24 * HOUR_MS


class OnceCase(StagesCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.define("d2", "disk")


class OnlyAlarmActionsTest(OnceCase):
    """A definition with only alarm_actions, for which an OK between two alarms leaves no row in the ledger."""

    def test_after_a_silence_the_alarm_is_sent_again(self):
        self.method(states=("ALARM",))
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.assertEqual(["a1:ALARM"], self.sent())
        self.clock.now_ms += DAY_MS
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.wait(2 * HOUR_MS)
        self.assertEqual([], self.sent())
        for _ in range(3):  # days after the silence
            self.clock.now_ms += DAY_MS
            self.handle(self.alarm("a1"))
            self.wait(SECOND_MS)
            self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.assertEqual(["a1:ALARM"] * 3, self.sent())

    def test_a_host_that_is_still_down_is_sent_at_the_end_of_the_silence(self):
        self.method(states=("ALARM",))
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.assertEqual(["a1:ALARM"], self.sent())
        self.clock.now_ms += DAY_MS
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.wait(HOUR_MS)
        self.assertEqual(["a1:ALARM"], self.sent())


class BusyReceiverTest(OnceCase):
    def test_an_alarm_that_waits_for_a_slot_is_sent_although_it_changes_during_a_silence(self):
        self.method()
        busy = mock.patch.object(self.delivery._slots, "slot", lambda *_: contextlib.nullcontext(None))
        with busy:
            self.changes(_read("alarm-state-transitions", self.alarm("a1").message))
        self.assertEqual([("a1", "held")], self.ledger())
        self.silence({}, HOUR_MS)
        for state in ("OK", "ALARM"):
            self.clock.now_ms += SECOND_MS
            self.changes(_read("alarm-state-transitions", self.alarm("a1", state).message))
        self.deliver()
        self.wait(HOUR_MS)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))


class DigestOfManyDefinitionsTest(OnceCase):
    rules = StageRules(max_per_minute=1)

    def test_removing_an_action_of_one_definition_removes_no_other_alarm_from_the_digest(self):
        method = self.method()
        self.act(method, "d2")
        self.handle(self.alarm("a0"))
        self.clock.now_ms += 1
        self.handle(self.alarm("b1", definition="d2"))
        self.clock.now_ms += 1
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("a2"))
        self.assertEqual(["a0:ALARM"], self.sent())
        action = tables.alarm_action  # the same as deleting d2
        self.write(action.delete().where(action.c.definition_id == "d2"))
        self.wait(MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM a2:ALARM"], self.sent())
        self.assertEqual({"held": 3, "sent": 2, "given_up": 1}, counts(self.metrics.registry.collect()))

    def test_removing_an_action_of_one_definition_removes_no_other_alarm_from_a_group(self):
        self.start(StageRules(group_by=("hostname",), group_wait_ms=SECOND_MS))
        method = self.method()
        self.act(method, "d2")
        self.handle(self.alarm("b1", definition="d2"))
        self.clock.now_ms += 1
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("a2"))
        action = tables.alarm_action
        self.write(action.delete().where(action.c.definition_id == "d2"))
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM a2:ALARM"], self.sent())


class ResendWhileRetriesWaitTest(OnceCase):
    def setUp(self):
        """Let an attempt and two resends fail."""
        super().setUp()
        method = self.method()
        made = self.alarm("a1")
        self.notifier.fails = True
        self.changes(_read("alarm-state-transitions", made.message))
        ledger, notification = Ledger(self.alarms_database), notification_of(made, method)
        for _ in range(2):  # like NotificationResend.act
            self.assertTrue(ledger.resend(notification.id, self.clock.now_ms))
            ledger.finish(notification, FAILED, self.clock.now_ms, "responded with 500")
            ledger.restore(notification.id, "failed")

    def test_failed_resends_do_not_change_the_retries(self):
        self.notifier.fails = False
        self.deliver()
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_failed_resends_do_not_prevent_giving_up(self):
        self.deliver()
        self.assertEqual([("a1", "given up")], self.ledger())


class ResendDuringGroupTest(OnceCase):
    rules = StageRules(group_by=("definition",), group_wait_ms=10 * SECOND_MS)

    def test_a_resend_that_fails_while_the_group_is_sent_loses_no_notification(self):
        method = self.method()
        made = self.alarm("a1")
        self.handle(made)
        ledger, notification = Ledger(self.alarms_database), notification_of(made, method)
        self.assertTrue(ledger.resend(notification.id, self.clock.now_ms))
        self.wait(10 * SECOND_MS)  # the group is due while the receiver of the resend hangs
        ledger.finish(notification, FAILED, self.clock.now_ms, "no response within 10 s")
        ledger.restore(notification.id, "held")
        self.wait(HOUR_MS)
        self.assertEqual(["a1:ALARM"], self.sent())


class SentBeforeGroupTest(OnceCase):
    def test_a_notification_sent_by_hand_during_a_silence_is_in_no_later_group(self):
        self.start(StageRules(group_by=("definition",), group_wait_ms=10 * SECOND_MS))
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.write(tables.notification.update().values(state="sent", attempts=1))  # resend
        self.wait(HOUR_MS)
        self.wait(10 * SECOND_MS)
        self.assertEqual(([], [("a1", "sent")]), (self.sent(), self.ledger()))

    def test_a_crash_after_the_claim_sends_it_once(self):
        self.start(StageRules(max_per_minute=1))
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        with failpoints.armed("notification.after_claim", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.wait, HOUR_MS)
        self.start()
        self.wait(LEASE_MS)  # another process sends it
        self.assertEqual(["a1:ALARM"], self.sent())
        self.wait(MINUTE_MS)
        self.assertEqual([], self.sent())


class ReleasedAndNotYetSentTest(OnceCase):
    def test_the_return_to_ok_of_a_released_alarm_is_sent(self):
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.clock.now_ms += HOUR_MS
        self.releases.release_due()  # ALARM is scheduled
        self.clock.now_ms += SECOND_MS
        self.changes(_read("alarm-state-transitions", self.alarm("a1", "OK", old_state="ALARM").message))
        self.deliver()
        self.wait(HOUR_MS)
        self.assertIn(self.sent(), (["a1:ALARM", "a1:OK"], ["a1:OK"], []))

    def test_an_alarm_that_returns_to_ok_while_its_silence_ends_is_sent_with_both_states_or_not_at_all(self):
        """The test lets the alarm end before each database call of the release in turn."""
        self.method()
        for number in range(1, 20):
            own_id = f"a{number}"
            self.silence({}, HOUR_MS)
            self.handle(self.alarm(own_id))
            self.clock.now_ms += HOUR_MS
            with self.end_before_call(number, own_id) as ended:
                self.releases.release_due()
            if not ended:
                break
            self.deliver()
            self.wait(HOUR_MS)
            self.assertIn(self.sent(), ([f"{own_id}:ALARM", f"{own_id}:OK"], [f"{own_id}:OK"], []), number)
        self.assertLess(number, 19)

    @contextlib.contextmanager
    def end_before_call(self, number, own_id):
        """Let the alarm end, and handle its change, before this database call of the release."""
        calls, ended = itertools.count(1), []

        def counted(original):
            def call(*arguments):
                if not ended and next(calls) == number:
                    ended.append(own_id)
                    self.clock.now_ms += 1
                    end = self.alarm(own_id, "OK", old_state="ALARM")
                    self.changes(_read("alarm-state-transitions", end.message))
                return original(*arguments)

            return call

        with contextlib.ExitStack() as stack:
            for name in ("rows", "read", "write"):
                original = getattr(self.alarms_database, name)
                stack.enter_context(mock.patch.object(self.alarms_database, name, counted(original)))
            yield ended


class WithheldNotificationsTest(OnceCase):
    def test_a_state_without_an_action_hides_no_withheld_alarm(self):
        self.method(states=("ALARM", "OK"))
        self.silence({}, HOUR_MS)
        for state in ("ALARM", "UNDETERMINED", "OK"):
            self.clock.now_ms += SECOND_MS
            self.handle(self.alarm("a1", state))
        self.wait(HOUR_MS)
        self.assertEqual([], self.sent())

    def test_a_method_with_only_ok_actions_is_not_notified_when_a_withheld_alarm_returns_to_ok(self):
        self.method("ends", states=("OK",))
        self.method("alarms", states=("ALARM",))
        made = self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        Silences(self.alarms_database).delete("t1", made.id)
        self.clock.now_ms += SECOND_MS
        self.handle(self.alarm("a1", "OK"))
        self.wait()
        self.assertEqual([], self.sent())

    def test_each_method_has_its_own_last_state(self):
        first, second = self.method("first"), self.method("second")
        made = self.alarm("a1")
        self.handle(made)
        self.silence({}, SECOND_MS)
        table = tables.notification
        self.write(table.update().where(table.c.method_id == second).values(state="silenced"))
        self.clock.now_ms += 2 * SECOND_MS
        self.notifier.taken.clear()
        facts = self.pipeline.facts(self.alarm("a1", "OK"), [first, second])
        self.assertEqual(
            [(False, "ALARM"), (True, "OK")], [(each.withheld_before, each.last_notified) for each in facts]
        )

    def test_a_return_to_ok_is_sent_even_if_the_previous_state_is_older_than_the_retention(self):
        self.method()
        made = self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        Silences(self.alarms_database).delete("t1", made.id)
        self.clock.now_ms += SECOND_MS
        self.handle(self.alarm("a1", "UNDETERMINED"))
        self.wait()
        self.clock.now_ms += 40 * DAY_MS
        self.prune()
        self.handle(self.alarm("a1", "OK"))
        self.assertEqual(["a1:UNDETERMINED", "a1:OK"], self.sent())

    def test_a_return_to_ok_is_sent_if_a_notification_failed_before_a_silence_longer_than_the_retention(self):
        self.method()
        self.handle(self.alarm("a1"))
        self.clock.now_ms += SECOND_MS
        self.handle(self.alarm("a1", "OK"))
        self.write(
            tables.notification.update().where(tables.notification.c.new_state == "OK").values(state="superseded")
        )
        self.clock.now_ms += SECOND_MS
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.notifier.taken.clear()
        self.clock.now_ms += 40 * DAY_MS
        self.prune()
        self.handle(self.alarm("a1", "OK"))
        self.assertEqual(["a1:OK"], self.sent())

    def test_a_return_to_ok_during_a_silence_longer_than_the_retention_is_sent(self):
        self.method()
        self.silence({}, 60 * DAY_MS)
        self.handle(self.alarm("a1"))
        self.clock.now_ms += 40 * DAY_MS
        self.prune()
        self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.prune()
        self.wait(20 * DAY_MS)
        self.assertEqual([], self.sent())
        self.clock.now_ms += 40 * DAY_MS
        self.prune()
        self.assertEqual([], self.ledger())

    def prune(self):
        Ledger(self.alarms_database).prune(self.clock.now_ms - 30 * DAY_MS)


class TenantFairnessTest(OnceCase):
    def test_many_rows_of_one_tenant_delay_no_other(self):
        self.method()
        self.define("d3", "cpu", tenant="t2")
        self.method(definition="d3", tenant="t2")
        for tenant in ("t1", "t2"):
            self.silence({}, HOUR_MS, tenant=tenant)
        for number in range(110):
            self.changes(_read("alarm-state-transitions", self.alarm(f"a{number:03}").message))
        self.changes(_read("alarm-state-transitions", self.alarm("b1", definition="d3", tenant="t2").message))
        self.clock.now_ms += HOUR_MS
        self.releases.release_due()
        self.deliver()
        self.assertIn("b1:ALARM", self.sent())


class RepeatsOfSealedGroupsTest(OnceCase):
    rules = StageRules(group_by=("definition",), group_wait_ms=10 * SECOND_MS)

    def test_a_crash_after_sealing_a_group_loses_no_repeats(self):
        self.method(period=60)
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.clock.now_ms += 10 * SECOND_MS
        self.releases.release_due()
        self.start()
        self.wait(LEASE_MS)
        self.assertEqual(["a1:ALARM a2:ALARM"], self.sent())
        self.wait(MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"] * 2 + ["a2:ALARM"] * 2, sorted(self.sent()))


class LongAlarmsTest(OnceCase):
    def test_an_alarm_that_lasted_longer_than_the_retention_and_a_silence_returns_to_ok_with_a_notification(self):
        self.method()
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.sent())
        self.clock.now_ms += 31 * DAY_MS
        Ledger(self.alarms_database).prune(self.clock.now_ms - 30 * DAY_MS)
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1", "OK", old_state="ALARM"))
        self.wait(HOUR_MS)
        self.assertEqual(["a1:OK"], self.sent())


class OneUnreadableAddressTest(OnceCase):
    """The key of one address is missing, or its row is damaged."""

    def damage(self, method_id):
        table = tables.notification_method
        self.write(table.update().where(table.c.id == method_id).values(address="gAAA", address_key="00000000"))

    def test_a_group_with_an_unreadable_address_delays_no_other_tenant(self):
        self.start(StageRules(group_by=("definition",), group_wait_ms=SECOND_MS))
        self.method()
        self.define("d3", "cpu", tenant="t2")
        broken = self.method("other", definition="d3", tenant="t2")
        self.handle(self.alarm("b1", definition="d3", tenant="t2"))
        self.clock.now_ms += 10
        self.handle(self.alarm("a1"))
        self.damage(broken)
        for _ in range(60):
            self.clock.now_ms += MINUTE_MS
            self.releases.release_due()
            self.deliver()
        self.assertEqual(["a1:ALARM"], self.sent())

    def mend(self, method_id):
        table = tables.notification_method
        self.write(table.update().where(table.c.id == method_id).values(address="http://again/", address_key=None))

    def test_a_method_with_an_unreadable_address_is_notified_when_the_key_is_added(self):
        broken = self.method("broken")
        self.method("other")
        self.damage(broken)
        self.changes(_read("alarm-state-transitions", self.alarm("a1").message))
        self.assertEqual(["http://other/"], [address for _, address in self.notifier.taken])
        for _ in range(3):  # the retry is scheduled without an attempt
            [retry] = self.scheduled()
            self.clock.now_ms += MINUTE_MS
            self.assertEqual(self.clock.now_ms + MINUTE_MS, self.attempt(retry).due_ms)
        self.mend(broken)
        self.clock.now_ms += MINUTE_MS
        self.deliver()
        self.assertEqual(["http://other/", "http://again/"], [address for _, address in self.notifier.taken])
        self.assertEqual([("a1", "sent")] * 2, self.ledger())

    def test_a_notification_is_given_up_if_its_key_is_not_added_within_ttl(self):
        self.damage(self.method("broken"))
        self.changes(_read("alarm-state-transitions", self.alarm("a1").message))
        [retry] = self.scheduled()
        self.clock.now_ms += 14_400 * SECOND_MS + MINUTE_MS
        self.assertIsNone(self.attempt(retry))
        [(reason,)] = self.alarms_database.rows(sa.select(tables.notification.c.reason))
        self.assertIn("was encrypted with the key 00000000", reason)


class SubjectTest(OnceCase):
    def test_a_name_with_a_next_line_character_is_sent(self):
        made = self.alarm("a1", name="disk full\x85 on h1")
        message = message_of(notification_of(made, "m"), Texts(), sender="a@example.org", receiver="b@example.org")
        self.assertIn(b"disk full", message.as_bytes())
