# SPDX-License-Identifier: Apache-2.0
"""A whole member over brokers and a database in memory."""

import json
import threading
from dataclasses import replace

import fixtures
from oslotest import base

from monasca_common.audit import reports
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.persister.service import OUTCOMES, PREFIX, persister_member
from monasca_common.persister.settings import GroupSettings
from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.storage import batch_member
from monasca_common.storage.base import Capability, Kind
from monasca_common.storage.errors import SchemaMismatch, TopicMismatch
from monasca_common.storage.write_metrics import WriteMetrics
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

NAME = "metrics-0"


class MemberTest(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 2)
        self.kafka.broker.create_topic("metrics.dlq", 1)
        self.producer = self.kafka.producer()
        self.storage = MemoryStorage()
        self.metrics = WriteMetrics(PREFIX, [NAME], OUTCOMES)

    def start(self, dead_letter_topic=None, **changes):
        consumer = self.kafka.consumer_settings(
            "metrics",
            "g",
            max_wait_time_seconds=0.01,
            stop_timeout_seconds=1.0,
            batch_size=10,
            dead_letter_topic=dead_letter_topic,
        )
        group = GroupSettings("kafka_metrics", Kind.METRICS, 1, 2, 1000, consumer, self.kafka.producer_settings())
        group = replace(group, **changes)
        self.member = persister_member(group, self.storage, self.metrics, MemberStatus(NAME))
        self.thread = threading.Thread(target=self.member.run, daemon=True)
        self.thread.start()
        self.addCleanup(self.stop)

    def stop(self):
        self.member.stop()
        self.thread.join(PATIENCE_SECONDS)

    def fill(self, *values):
        records = [Record(value, partition=0) for value in values]
        self.producer.publish("metrics", records).raise_for_undelivered()

    def wait_until(self, condition):
        super().wait_until(condition, self.status)

    def status(self):
        return self.member.status()

    def counted(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"monasca_persister_{name}_total", {"worker": NAME, **labels})

    def values(self):
        return [row.value for row in self.storage.rows]

    def test_messages_become_rows_and_a_stop_commits(self):
        self.fill(envelopes.metric(1), envelopes.metric(2))
        self.start()
        self.wait_until(lambda: self.values() == [1.0, 2.0])
        self.stop()
        self.assertEqual(2, self.kafka.broker.committed("g")[TopicPartition("metrics", 0)])
        self.assertIs(MemberState.STOPPED, self.status().state)
        self.assertEqual(2, self.counted("rows", outcome="stored"))
        self.assertEqual(self.storage.opened, self.storage.closed)

    def test_stored_messages_and_dead_letters_are_reported_to_the_audit(self):
        self.kafka.broker.create_topic("monasca-audit", 1)
        self.fill(envelopes.metric(1), b"{", envelopes.metric(2))
        folder = self.useFixture(fixtures.TempDir()).path
        self.start(audit=AuditSettings(enabled=True, grace_seconds=0, folder=folder))
        self.wait_until(lambda: self.kafka.broker.records("monasca-audit"))
        self.stop()

        found = [reports.decode(message.value) for message in self.kafka.broker.records("monasca-audit")]
        ranges = [(each.topic, each.partition, each.first, each.next) for report in found for each in report.handled]
        self.assertEqual({("database", "g"), ("producer", "g")}, {(each.tier, each.application) for each in found})
        sent = [(each.tier, count.topic, count.messages) for each in found for count in each.counts]
        self.assertEqual([("producer", "metrics.dlq", 1)], sent)
        self.assertEqual(3, max(following for topic, number, _, following in ranges if number == 0))
        self.assertEqual({None}, {each.position for report in found for each in report.handled})

    def test_the_audit_receives_start_offsets_of_the_database(self):
        self.kafka.broker.create_topic("monasca-audit", 1)
        settings = AuditSettings(enabled=True, grace_seconds=0, folder=self.useFixture(fixtures.TempDir()).path)
        for value in (1, 2):
            self.fill(envelopes.metric(value))
            self.start(audit=settings)
            self.wait_until(lambda value=value: len(self.values()) == value)
            self.stop()

        found = [reports.decode(message.value) for message in self.kafka.broker.records("monasca-audit")]
        ranges = [each for report in found for each in report.handled if each.first == 1]
        self.assertEqual([1], [each.position for each in ranges])

    def test_only_poison_is_dead_lettered_and_counted(self):
        self.fill(envelopes.metric(1), b"{", envelopes.metric(2))
        self.start()
        self.wait_until(lambda: self.values() == [1.0, 2.0] and self.status().dead_letters == 1)
        self.assertEqual([b"{"], [letter.value for letter in self.kafka.broker.records("metrics.dlq")])

    def test_a_metric_with_too_many_dimensions_is_a_dead_letter_with_the_reason(self):
        many = json.loads(envelopes.metric(1))
        many["metric"]["dimensions"] = {f"k{number}": "v" for number in range(101)}
        self.fill(json.dumps(many).encode(), envelopes.metric(2))
        self.start()
        self.wait_until(lambda: self.values() == [2.0] and self.status().dead_letters == 1)
        (letter,) = self.kafka.broker.records("metrics.dlq")
        self.assertIn(
            b"metric.dimensions has 101 entries: at most 100 are allowed",
            dict(letter.headers)["dead-letter-error-text"],
        )

    def test_five_starts_with_two_invalid_messages_publish_two_dead_letters(self):
        self.fill(b"{", b"[")
        for _ in range(5):
            self.start()
            self.wait_until(lambda: self.kafka.broker.committed("g").get(TopicPartition("metrics", 0)) == 2)
            self.wait_until(lambda: self.status().state is MemberState.RUNNING)
            self.stop()
        self.assertEqual([b"{", b"["], [letter.value for letter in self.kafka.broker.records("metrics.dlq")])
        self.assertEqual(2, self.storage.next["g", "metrics", 0].next_offset)

    def test_a_database_unavailable_at_the_start_causes_no_dead_letters(self):
        self.fill(envelopes.metric(1))
        self.storage.away(4)
        self.start()
        self.wait_until(lambda: self.values() == [1.0])
        self.assertEqual([], self.kafka.broker.records("metrics.dlq"))
        self.wait_until(lambda: self.status().state is MemberState.RUNNING)
        self.assertGreater(self.status().database_unavailable_seconds, 0)

    def test_a_permanent_error_of_storage_fails_the_member_which_restarts_later(self):
        self.fill(envelopes.metric(1))
        self.storage.faults.append(SchemaMismatch("of a newer program"))
        self.start()
        self.wait_until(lambda: self.status().restarts == 1)
        self.wait_until(lambda: self.values() == [1.0])
        self.assertEqual([], self.kafka.broker.records("metrics.dlq"))

    def test_a_failure_is_reported_with_its_remedy(self):
        self.storage.faults += [TopicMismatch("metrics", "old", "new")] * 100
        self.start()
        self.wait_until(lambda: self.status().state is MemberState.FAILED)
        self.assertIn("offsets reset", self.status().reason)

    def test_a_missing_dead_letter_topic_is_reported_until_it_exists(self):
        self.fill(envelopes.metric(1))
        self.start(dead_letter_topic="nowhere")
        self.wait_until(lambda: self.status().state is MemberState.FAILED)
        self.assertIn("'nowhere'", self.status().reason)
        self.kafka.broker.create_topic("nowhere", 1)
        self.wait_until(lambda: self.values() == [1.0])

    def test_too_many_consecutive_dead_letters_stop_the_member_until_a_restart(self):
        self.fill(*[b"{"] * 9, envelopes.metric(1))
        self.useFixture(fixtures.MonkeyPatch(f"{batch_member.__name__}._MAX_CONSECUTIVE_DEAD_LETTERS", 3))
        self.start()
        self.wait_until(lambda: self.status().state is MemberState.FAILED)
        self.stop()
        self.assertEqual(3, len(self.kafka.broker.records("metrics.dlq")))
        self.assertEqual((0, []), (self.status().restarts, self.storage.rows))

    def test_a_restart_resumes_from_the_database_not_from_kafka(self):
        self.fill(*map(envelopes.metric, range(4)))
        self.start()
        self.wait_until(lambda: len(self.values()) == 4)
        self.stop()
        stored = self.storage.next["g", "metrics", 0]
        self.storage.next["g", "metrics", 0] = replace(stored, next_offset=1)
        self.storage.rows.clear()
        self.start()
        self.wait_until(lambda: self.values() == [1.0, 2.0, 3.0])

    def test_without_offsets_in_the_database_those_in_kafka_are_used(self):
        self.storage.capabilities = frozenset(Capability) - {Capability.OFFSETS}
        self.fill(envelopes.metric(1))
        self.start()
        self.wait_until(lambda: self.values() == [1.0])
        self.stop()
        self.storage.next.clear()
        self.fill(envelopes.metric(2))
        self.start()
        self.wait_until(lambda: self.values() == [1.0, 2.0])
