# SPDX-License-Identifier: Apache-2.0
"""The stages, the ledger and scheduled retries in a real PostgreSQL."""

import dataclasses
import threading

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.notification.deferred import DeferredNotifications
from monasca_common.notification.ledger import Ledger, NextStep
from monasca_common.notification.notification import notification_of
from monasca_common.notification.retries import Retry
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.notification import test_stages_sqlite
from monasca_common.tests.unit.notification.notification_case import NotificationCase
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class SilencesInPostgresqlTest(test_stages_sqlite.SilencesContract, Waiting, PostgresqlTestCase):
    def test_a_silence_withholds_nothing_after_its_concurrent_deletion(self):
        method = self.method()
        made = self.silence({}, test_stages_sqlite.HOUR_MS)
        changed = self.alarm("a1")
        arguments = (
            notification_of(changed, method),
            self.methods.get("t1", method),
            *self.pipeline.facts(changed, [method]),
        )
        planning = threading.Thread(target=self.pipeline.defers, args=arguments, daemon=True)
        deleting, seen = self.session(), self.session()
        with deleting.transaction():
            deleting.execute("DELETE FROM silence WHERE id = %s", (made.id,))
            planning.start()
            self.wait_until(lambda: seen.execute(WAITING_FOR_A_LOCK).fetchone() == (1,), "a plan that waits")
        planning.join(PATIENCE_SECONDS)
        self.wait()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class RepeatsInPostgresqlTest(test_stages_sqlite.RepeatsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; the normal run contains SilencesInPostgresqlTest")
class GroupsInPostgresqlTest(test_stages_sqlite.GroupsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class LimitsInPostgresqlTest(test_stages_sqlite.LimitsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class InhibitionInPostgresqlTest(test_stages_sqlite.InhibitionContract, PostgresqlTestCase):
    pass


WAITING_FOR_A_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class PostgresqlLedgerTest(NotificationCase, Waiting, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        settings = dataclasses.replace(self.database.settings, read_timeout_seconds=2 * PATIENCE_SECONDS)
        self.alarms_database = AlarmsDatabase(settings)
        self.addCleanup(self.alarms_database.close)
        self.notifications = Ledger(self.alarms_database)
        for number in range(3):
            self.notifications.begin(notification_of(change(alarm_id=f"a{number}"), "m1"), "m1", 1, number)

    def test_an_old_attempt_without_an_outcome_is_repeated_and_a_recent_one_is_not(self):
        notification = notification_of(change(alarm_id="a3"), "m1")
        steps = [self.notifications.begin(notification, "m1", 1, 9) for _ in range(2)]
        self.assertEqual([NextStep.SEND, NextStep.REPEAT], steps)
        self.assertEqual([0, 0, 0, 1], [repeats for (repeats,) in self.ledger("repeats")])

    def test_old_rows_are_removed(self):
        self.assertEqual(2, self.notifications.prune(2))
        self.assertEqual([("a2",)], self.ledger("alarm_id"))

    def test_an_attempt_that_starts_during_the_removal_keeps_its_row(self):
        attempt, seen = self.session(), self.session()
        removed = []
        pruning = threading.Thread(target=lambda: removed.append(self.notifications.prune(2)), daemon=True)
        with attempt.transaction():
            attempt.execute("UPDATE notification SET updated = 9 WHERE alarm_id = 'a0'")
            pruning.start()
            self.wait_until(lambda: seen.execute(WAITING_FOR_A_LOCK).fetchone() == (1,), "a removal that waits")
        pruning.join(PATIENCE_SECONDS)
        self.assertEqual([1], removed)
        self.assertEqual([("a0",), ("a2",)], self.ledger("alarm_id"))

    def test_a_retry_that_another_process_is_claiming_is_skipped(self):
        deferred, claiming = DeferredNotifications(self.alarms_database), self.session()
        for number in range(2):
            retry = Retry(notification_of(change(alarm_id=f"a{number}"), "m1"), "m1", 2, 5)
            deferred.schedule(retry, 0)
        with claiming.transaction():
            statement = "SELECT id FROM notification_deferred ORDER BY id LIMIT 1 FOR UPDATE"
            (claimed,) = claiming.execute(statement).fetchone()
            [other] = deferred.claim_retries(5, 99, 9)
        self.assertNotEqual(claimed, other.id)
        self.assertEqual([claimed], [each.id for each in deferred.claim_retries(5, 99, 9)])
        self.assertEqual([], deferred.claim_retries(5, 99, 9))
        deferred.complete(other, None, 9)
        self.assertEqual([claimed], [each.id for each in deferred.claim_retries(99, 200, 9)])
