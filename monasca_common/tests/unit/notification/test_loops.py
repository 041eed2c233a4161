# SPDX-License-Identifier: Apache-2.0
"""The loops of the notification service: what they report while Kafka refuses, and how long retries wait for others."""

from types import SimpleNamespace
from unittest import mock

from monasca_common.alarms.silences import Silences
from monasca_common.kafka import DeliveryError
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.notification import notification_of
from monasca_common.notification.retention import LedgerRetention
from monasca_common.notification.retries import Retry
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.stages_contract import LEASE_MS, MINUTE_MS, RETRIES, SECOND_MS, StagesCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class Refusing:
    """A producer whose publishes take their whole time and are not acknowledged. ``published``: the message ids."""

    def __init__(self, clock):
        self._clock = clock
        self.published = []

    def publish(self, _topic, records, timeout=0.0):
        self.published += [(self._clock.now_ms, record.message_id) for record in records]
        self._clock.now_ms += round(timeout * 1000)
        refused = [SimpleNamespace(index=index, error=DeliveryError("no leader")) for index in range(len(records))]
        return SimpleNamespace(ok=False, failed=[], unknown=refused, delivered=[])


class DeferredSenderTest(StagesCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.refusing = Refusing(self.clock)

    def silenced(self, number):
        """This number of alarms is due for notification when a silence ends, which is now."""
        self.silence({}, MINUTE_MS)
        for each in range(number):
            self.tell(self.alarm(f"a{each}", hostname=f"h{each}"))
        self.clock.now_ms += MINUTE_MS

    def reasons(self):
        return self.releases.health.probes.ready()[1]["reasons"]

    def test_a_retry_waits_for_other_deferred_notifications_no_longer_than_after_a_failure(self):
        method = self.method()
        self.silenced(5)
        due_ms = self.clock.now_ms + SECOND_MS
        retry = Retry(notification_of(self.alarm("b", hostname="other"), method), method, 2, due_ms, "answered 500")
        scheduled_ms = self.clock.now_ms
        self.pipeline.deferred.schedule(retry, scheduled_ms)
        for _ in range(3):
            self.releases.publish_due(self.refusing)
        own_id = f"{retry.id}/{scheduled_ms}/due".encode()
        [published_ms] = [at_ms for at_ms, message_id in self.refusing.published if message_id == own_id]
        self.assertLessEqual(published_ms - due_ms, self.releases.longest_seconds * 1000)

    def test_rows_that_a_pass_does_not_reach_are_released_by_the_next_ones(self):
        self.method()
        self.silenced(5)
        notified = self.methods.notified

        def slow(*arguments):
            self.clock.now_ms += SECOND_MS
            return notified(*arguments)

        released = []
        with mock.patch.object(self.methods, "notified", slow):
            for _ in range(3):
                self.releases.release_due()
                released.append(len(self.scheduled()))
        self.assertEqual([2, 4, 5], released)

    def test_it_is_not_ready_until_kafka_acknowledges_what_it_refused(self):
        self.method()
        self.silenced(1)
        for _ in range(2):
            self.releases.publish_due(self.refusing)
            self.assertEqual([f"{RETRIES} did not acknowledge: no leader"], self.reasons())
        self.clock.now_ms += LEASE_MS
        self.releases.publish_due(self.producer)
        self.assertEqual([], self.reasons())

    def test_it_is_ready_once_another_process_has_published_what_kafka_refused(self):
        self.method()
        self.silenced(1)
        self.releases.publish_due(self.refusing)
        self.write(tables.notification_deferred.delete())
        self.clock.now_ms += LEASE_MS
        self.releases.publish_due(self.producer)
        self.assertEqual([], self.reasons())

    def test_it_is_not_ready_while_kafka_refuses_retries(self):
        method = self.method()
        retry = Retry(notification_of(self.alarm("a1"), method), method, 2, self.clock.now_ms, "answered 500")
        self.pipeline.deferred.schedule(retry, self.clock.now_ms)
        self.releases.publish_due(self.refusing)
        self.assertEqual([f"{RETRIES} did not acknowledge: no leader"], self.reasons())


class RetentionTest(StagesCase, SqliteTestCase):
    def test_it_is_ready_while_its_first_pass_lasts(self):
        ledger = Ledger(self.alarms_database)
        retention = LedgerRetention(ledger, Silences(self.alarms_database), self.clock, 0)
        during = []

        def prune(_before_ms):
            during.append(retention.health.probes.ready())
            retention.stop()
            return 0

        with mock.patch.object(ledger, "prune", prune):
            retention.run()
        self.assertEqual([(True, {"ready": True, "reasons": []})], during)
