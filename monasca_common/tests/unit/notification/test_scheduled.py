# SPDX-License-Identifier: Apache-2.0
"""Retries stored in the database, their claims and their removal."""

import fixtures
import sqlalchemy as sa

from monasca_common.notification.deferred import DeferredNotifications
from monasca_common.notification.notification import notification_of
from monasca_common.notification.retries import Retry
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.notification_case import ids
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.unit.notification.test_service import ServiceCase

_MINUTE_MS = 60_000


def retry(number=1, attempt=2, due_ms=1000):
    return Retry(notification_of(change(alarm_id=f"a{number}"), "m1"), "m1", attempt, due_ms)


class ScheduledRetriesTest(ServiceCase):
    def setUp(self):
        super().setUp()
        self.deferred = DeferredNotifications(self.alarms_database)

    def schedule(self, *retries):
        for each in retries:
            self.deferred.schedule(each, 0)

    def claim(self, now_ms, most=9):
        return self.deferred.claim_retries(now_ms, now_ms + _MINUTE_MS, most)

    def due(self, now_ms):
        """Return (alarm id, attempt) of each retry that is claimed now."""
        return [f"{each.notification.change.alarm_id}/{each.attempt}" for each in self.claim(now_ms)]

    def test_at_most_as_many_retries_are_claimed_as_can_be_sent(self):
        self.schedule(retry(1), retry(2), retry(3))
        self.assertEqual([2, 1, 0], [len(self.claim(1000, 2)) for _ in range(3)])

    def test_due_retries_are_claimed_in_order_by_one_process_until_the_claim_ends(self):
        self.schedule(retry(1, due_ms=2000), retry(2, due_ms=1000), retry(3, due_ms=3000))
        self.assertEqual([], self.due(999))
        self.assertEqual(["a2/2", "a1/2"], self.due(2000))
        self.assertEqual([], self.due(2999))
        self.assertEqual(["a3/2"], self.due(3000))
        self.assertEqual(["a1/2", "a2/2"], sorted(self.due(2000 + _MINUTE_MS)))

    def test_completing_a_retry_keeps_one_that_was_rescheduled_in_the_meantime(self):
        self.schedule(retry(1), retry(2))
        claimed = self.claim(1000)
        self.schedule(retry(2, due_ms=5000))
        for each in claimed:
            self.deferred.complete(each, None, 1000)
        self.assertEqual(["a2/2"], self.due(10 * _MINUTE_MS))

    def test_each_attempt_is_scheduled_once(self):
        self.schedule(retry(1, attempt=3), retry(1, attempt=2, due_ms=2000), retry(1, attempt=2, due_ms=2000))
        self.assertEqual(["a1/3", "a1/2"], self.due(10_000))

    def test_a_retry_that_cannot_be_read_delays_no_other(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.schedule(retry(1), retry(2))
        table = tables.notification_deferred
        broken = table.update().where(table.c.id == retry(1).id).values(value=b"{}")
        self.alarms_database.write(lambda connection: connection.execute(broken))
        self.assertEqual(["a2/2"], self.due(1000))
        self.assertIn(f"row {retry(1).id} of notification_deferred cannot be read", log.output)

    def test_other_deferred_notifications_are_not_claimed(self):
        self.schedule(retry(1))
        self.deferred.begin_repeats(notification_of(change(alarm_id="a2"), "m1"), "m1", 500, 0)
        self.assertEqual(["a1/2"], self.due(1000))
        self.assertEqual(["repeat"], [row.kind for row in self.deferred.due(1000, 9)])


class DueRetriesTest(ServiceCase):
    def schedule(self, scheduled):
        self.deferred = DeferredNotifications(self.alarms_database)
        self.deferred.schedule(scheduled, self.now_ms)

    def waiting(self):
        table = tables.notification_deferred
        return len(self.alarms_database.rows(sa.select(table.c.id)))

    def test_a_retry_that_is_due_later_delays_no_other(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        late, now = (
            Retry(notification_of(self.alarm(number), method), method, 2, self.now_ms + due_ms)
            for number, due_ms in ((1, 3_600_000), (2, 0))
        )
        self.schedule(late)
        self.schedule(now)
        self.start()
        self.wait_until(lambda: self.waiting() == 1, "the end of the other")
        self.assertEqual([now.notification.id], ids(receiver))
        self.assertEqual(1, self.waiting())

    def test_a_due_retry_is_sent_and_removed(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        scheduled = Retry(notification_of(self.alarm(), method), method, 2, self.now_ms)
        self.schedule(scheduled)
        self.start()
        self.wait_until(lambda: self.ledger("state", "attempts") == [("sent", 2)], "the end")
        self.wait_until(lambda: self.waiting() == 0, "the removal")
        self.assertEqual([scheduled.notification.id], ids(receiver))

    def test_a_process_that_dies_after_its_claim_loses_nothing(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        scheduled = Retry(notification_of(self.alarm(), method), method, 2, self.now_ms)
        self.schedule(scheduled)
        self.assertEqual(1, len(self.deferred.claim_retries(self.now_ms, self.now_ms, 9)))  # the claim has ended
        self.start()
        self.wait_until(lambda: self.ledger("state") == [("sent",)], "the end")
        self.assertEqual([scheduled.notification.id], ids(receiver))
