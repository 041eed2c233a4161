# SPDX-License-Identifier: Apache-2.0
"""Retries that wait in the database: who gets which when, and what stays."""

import json

import fixtures
import sqlalchemy as sa

from monasca_common.kafka import TransportError
from monasca_common.kafka.message import Record
from monasca_common.notification.notice import notice_of
from monasca_common.notification.retries import Retry
from monasca_common.notification.waiting import WaitingRetries
from monasca_common.runtime import restarts
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.notification_case import ids
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.unit.notification.test_service import RETRIES, ServiceCase

_MINUTE_MS = 60_000


def retry(number=1, attempt=2, due_ms=1000):
    return Retry(notice_of(change(alarm_id=f"a{number}"), "m1"), "m1", attempt, due_ms, "answered 500")


class WaitingRetriesTest(ServiceCase):
    def setUp(self):
        super().setUp()
        self.waiting = WaitingRetries(self.alarms_database)

    def park(self, *retries):
        for each in retries:
            self.waiting.park(each, each.record().value)

    def due(self, now_ms):
        return [json.loads(each.value)["not_before"] for each in self.waiting.claim(now_ms)]

    def test_what_is_due_is_claimed_the_longest_first_and_by_one_alone_for_a_minute(self):
        self.park(retry(1, due_ms=2000), retry(2, due_ms=1000), retry(3, due_ms=3000))
        self.assertEqual([], self.due(999))
        self.assertEqual([1000, 2000], self.due(2000))
        self.assertEqual([], self.due(2999))
        self.assertEqual([3000], self.due(3000))
        self.assertEqual([1000, 2000], sorted(self.due(2000 + _MINUTE_MS)))

    def test_what_was_published_is_gone_but_not_what_waits_again_meanwhile(self):
        self.park(retry(1), retry(2))
        claimed = self.waiting.claim(1000)
        self.park(retry(2, due_ms=5000))
        self.waiting.remove(claimed)
        self.assertEqual([5000], self.due(10 * _MINUTE_MS))

    def test_each_attempt_waits_by_itself_and_once(self):
        self.park(retry(1, attempt=3), retry(1, attempt=2, due_ms=2000), retry(1, attempt=2, due_ms=2000))
        self.assertEqual([1000, 2000], self.due(10_000))


class RetryTimerTest(ServiceCase):
    def waiting(self):
        table = tables.notification_waiting
        return len(self.alarms_database.rows(sa.select(table.c.id)))

    def publish_retries(self, *retries):
        records = [each.record() for each in retries]
        self.producer.publish(RETRIES, [Record(each.value, key=each.key) for each in records]).raise_for_undelivered()

    def test_what_is_due_later_is_in_the_database_and_done_in_kafka_and_delays_no_other(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        late, now = (
            Retry(notice_of(self.alarm(number), method), method, 2, self.now_ms + due_ms, "why")
            for number, due_ms in ((1, 3_600_000), (2, 0))
        )
        self.start()
        self.publish_retries(late, now)
        self.until(lambda: self.committed(RETRIES) == 2, "the commit")
        self.assertEqual([now.notice.id], ids(receiver))
        self.assertEqual(1, self.waiting())

    def test_what_became_due_is_sent_and_gone(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        parked = Retry(notice_of(self.alarm(), method), method, 2, self.now_ms, "why")
        WaitingRetries(self.alarms_database).park(parked, parked.record().value)
        self.start()
        self.until(lambda: self.ledger("state", "attempts") == [("sent", 2)], "the end")
        self.until(lambda: self.waiting() == 0, "the removal")
        self.assertEqual([parked.notice.id], ids(receiver))

    def test_a_process_that_dies_after_its_claim_loses_nothing(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        parked = Retry(notice_of(self.alarm(), method), method, 2, self.now_ms, "why")
        waiting = WaitingRetries(self.alarms_database)
        waiting.park(parked, parked.record().value)
        self.assertEqual(1, len(waiting.claim(self.now_ms)))
        self.alarms_database.write(
            lambda connection: connection.execute(tables.notification_waiting.update().values(due=self.now_ms))
        )  # its claim is over
        self.start()
        self.until(lambda: self.ledger("state") == [("sent",)], "the end")
        self.assertEqual([parked.notice.id], ids(receiver))

    def test_a_producer_that_cannot_be_opened_yet_is_opened_later(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        parked = Retry(notice_of(self.alarm(), method), method, 2, self.now_ms, "why")
        WaitingRetries(self.alarms_database).park(parked, parked.record().value)
        opened, failures = restarts.open_producer, iter([True])

        def fails_once(settings):
            if next(failures, False):
                raise TransportError("no broker yet")
            return opened(settings)

        self.useFixture(fixtures.MonkeyPatch(f"{restarts.__name__}.open_producer", fails_once))
        self.start()
        self.until(lambda: self.ledger("state") == [("sent",)], "the end")
