# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.persister.status import MemberState, MemberStatus, Status
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import StorageUnavailable

TP = TopicPartition("metrics", 0)
AWAY = StorageUnavailable("away")


class MemberStatusTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.account = MemberStatus(Status("metrics-0", Kind.METRICS), self.clock)
        self.account.begin()

    def status(self):
        return self.account.report({})

    def test_time_without_the_database_is_counted_while_it_passes(self):
        self.account.unavailable(AWAY)
        self.clock.advance(3)
        self.assertEqual(3, self.status().unavailable_seconds)
        self.clock.advance(4)
        self.account.unavailable(AWAY)
        self.account.available()
        self.clock.advance(5)
        self.assertEqual(7, self.status().unavailable_seconds)

    def test_it_waits_for_the_database_until_that_is_back_and_says_since_when(self):
        self.clock.advance(10)
        self.account.unavailable(AWAY)
        since = self.status().since_ms
        self.clock.advance(10)
        self.account.unavailable(AWAY)
        self.assertEqual((MemberState.WAITING_FOR_DATABASE, "away", since), self.told("state", "reason", "since_ms"))
        self.account.wrote(Written(stored=1), 0.1)
        self.assertEqual((MemberState.RUNNING, ""), self.told("state", "reason"))

    def told(self, *names):
        return tuple(getattr(self.status(), name) for name in names)

    def test_the_database_is_told_before_kafka_and_both_until_they_are_back(self):
        self.account.kafka(ValueError("no broker"))
        self.assertEqual((MemberState.WAITING_FOR_KAFKA, "no broker"), self.told("state", "reason"))
        self.account.unavailable(AWAY)
        self.assertEqual((MemberState.WAITING_FOR_DATABASE,), self.told("state"))
        self.account.available()
        self.assertEqual((MemberState.WAITING_FOR_KAFKA,), self.told("state"))
        self.account.kafka(None)
        self.assertEqual((MemberState.RUNNING,), self.told("state"))

    def test_a_failed_one_stays_failed_whatever_kafka_says(self):
        self.account.enter(MemberState.FAILED, "because")
        self.account.kafka(None)
        self.assertEqual((MemberState.FAILED, "because"), self.told("state", "reason"))

    def test_the_lag_is_what_is_neither_stored_nor_a_dead_letter(self):
        self.account.done({TP: 40})
        self.assertEqual({"metrics/0": 60}, self.account.report({TP: 100}).lag)
        self.account.done({TP: 100})
        self.assertEqual({"metrics/0": 0}, self.account.report({TP: 100}).lag)

    def test_counters_add_up(self):
        self.account.wrote(Written(stored=1, repeated=2, conflicting=3, skipped=4), 0.5)
        self.account.wrote(Written(stored=1), 0.25)
        self.account.dead_letter()
        status = self.status()
        self.assertEqual((2, 2, 3, 4), (status.stored, status.repeated, status.conflicting, status.skipped))
        self.assertEqual((2, 0.75, 1), (status.writes, status.write_seconds, status.dead_letters))

    def test_writes_are_counted_by_how_long_they_took_and_a_report_stays_as_it_was(self):
        before = self.status()
        for seconds in (0.0, 0.01, 0.011, 31.0):
            self.account.wrote(Written(stored=1), seconds)
        self.assertEqual([2, 1, *[0] * 9, 1], self.status().write_classes)
        self.assertEqual([0] * 12, before.write_classes)
