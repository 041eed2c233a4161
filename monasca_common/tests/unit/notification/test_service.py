# SPDX-License-Identifier: Apache-2.0
"""The service with a Kafka in memory, a real database and real receivers."""

import collections
import dataclasses
import json
import socket
import threading
import time
from pathlib import Path
from unittest import mock

import fixtures
import sqlalchemy as sa
from oslo_config import cfg
from oslotest import base

from monasca_common.alarms.address_keys import PLAIN
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethods
from monasca_common.alarms.silences import Silence, Silences
from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
from monasca_common.audit import reports
from monasca_common.audit.runs import union
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.notification import delivery
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.notification import notification_of
from monasca_common.notification.notifiers.base import Tools
from monasca_common.notification.notifiers.webhook import WebhookNotifier
from monasca_common.notification.retries import Retry
from monasca_common.notification.service import NotificationPlan
from monasca_common.notification.settings import (
    HttpSettings,
    NotificationSettings,
    ProcessorSettings,
    RetrySettings,
    WebhookSettings,
    notification_settings,
)
from monasca_common.notification.stages import Inhibition, StageRules
from monasca_common.notification.texts import Texts
from monasca_common.runtime.member_health import MemberStatus, members_health
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.status_server import StatusServer
from monasca_common.runtime.worker_metrics import WorkersMetrics
from monasca_common.runtime.workers import Worker
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import tables
from monasca_common.tests.contracts.storage.database import SqlDatabase
from monasca_common.tests.served import serve
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.notification.notification_case import DEFINITION, TENANT, NotificationCase, counts, ids
from monasca_common.tests.unit.notification.receivers import ALLOWED, change
from monasca_common.tests.unit.storage.sqlite_case import copy_schema
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.web import fetch

DAY_MS = 86_400_000
CHANGES = "alarm-state-transitions"


class ServiceCase(Waiting, NotificationCase, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.database = SqlDatabase(self.addCleanup, StorageSettings("sqlite", f"sqlite:///{folder}/monasca.sqlite"))
        copy_schema(f"{folder}/monasca.sqlite")
        self.alarms_database = AlarmsDatabase(self.database.settings)
        self.addCleanup(self.alarms_database.close)
        self.kafka = self.useFixture(MemoryKafka())
        for topic in (CHANGES, f"{CHANGES}.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        self.useFixture(fixtures.MockPatch("monasca_common.notification.settings.MAX_INTERVAL_SECONDS", 0.05))
        self.useFixture(fixtures.MockPatch("monasca_common.notification.deferred_sender._REST_SECONDS", 0.02))
        self.useFixture(fixtures.MockPatch("monasca_common.runtime.status_board._REPORT_SECONDS", 0.02))
        self.producer = self.kafka.producer()
        self.now_ms = time.time_ns() // 1_000_000

    def start(self, *, processing=None, timeout=10.0, rules=None, audit=None, **retry):
        settings = NotificationSettings(
            self.kafka.consumer_settings(CHANGES, f"g-{CHANGES}", max_wait_time_seconds=0.01, stop_timeout_seconds=5.0),
            self.kafka.producer_settings(),
            audit,
            self.database.settings,
            ProcessorSettings(**(processing or {})),
            RetrySettings(**{"interval": 0.02, "max_attempts": 3, **retry}),
            rules or StageRules(),
        )
        http = HttpSettings(allowed_networks=ALLOWED)
        tools = Tools(HttpClient(http), Texts())
        self.plan = plan = NotificationPlan.__new__(NotificationPlan)
        plan.settings, plan.keys = settings, PLAIN
        plan.notifiers = {"WEBHOOK": WebhookNotifier(WebhookSettings(timeout=timeout), tools)}
        plan.board = StatusBoard([ProcessStatus([MemberStatus(name) for name in plan.names()[0]])])
        self.health = members_health("notification", plan.board.members)
        worker = Worker(0, plan, 0)
        for thread in worker._threads:
            thread.start()
        worker._reporter.start()
        stop = threading.Lock()
        self.addCleanup(lambda: stop.acquire(blocking=False) and worker.terminate())

        def stopped():
            stop.acquire()
            worker.terminate()
            return counts(plan.board.families())

        return stopped

    def publish(self, *values, topic=CHANGES):
        self.producer.publish(topic, [Record(value) for value in values]).raise_for_undelivered()

    def alarm(self, number=1, **facts):
        """Return a change that happens now."""
        return change(alarm_id=f"a{number}", **{"time_ms": self.now_ms, **facts})

    def letters(self):
        return self.kafka.broker.records(f"{CHANGES}.dlq")

    def committed(self, topic):
        return self.kafka.broker.committed(f"g-{topic}").get(TopicPartition(topic, 0), 0)


class DeliveryTest(ServiceCase):
    def test_each_method_of_the_state_is_notified_once_and_then_the_change_is_committed(self):
        one, two, other, foreign = (self.receiver() for _ in range(4))
        self.method(one.url())
        self.method(two.url())
        self.method(other.url(), "OK")
        self.method(foreign.url(), tenant="t2")
        stop = self.start()

        self.publish(self.alarm().message)
        self.wait_until(lambda: self.committed(CHANGES) == 1, "the commit")

        self.assertEqual({"sent": 2}, stop())
        self.assertEqual([1, 1, 0, 0], [len(each.requests) for each in (one, two, other, foreign)])
        self.assertEqual([("sent", 1, 0)] * 2, self.ledger("state", "attempts", "repeats"))
        self.assertNotEqual(ids(one), ids(two))

    def test_a_change_that_is_delivered_twice_is_sent_once(self):
        receiver = self.receiver()
        self.method(receiver.url())
        stop = self.start()
        self.publish(self.alarm().message, self.alarm().message)
        self.wait_until(lambda: self.committed(CHANGES) == 2, "the commit")
        stop()
        self.assertEqual(1, len(receiver.requests))

    def test_old_changes_and_changes_without_actions_are_not_sent(self):
        receiver = self.receiver()
        self.method(receiver.url())
        stop = self.start(processing={"ttl": 100})
        self.publish(self.alarm(1, time_ms=self.now_ms - 101_000).message, self.alarm(2, actions_enabled=False).message)
        self.wait_until(lambda: self.committed(CHANGES) == 2, "the commit")
        self.assertEqual({"too_old": 1}, stop())
        self.assertEqual([], receiver.requests)

    def test_an_invalid_message_is_a_dead_letter_and_others_are_handled(self):
        receiver = self.receiver()
        self.method(receiver.url())
        self.start()
        self.publish(b"{", b'{"alarm-transitioned": {}}', self.alarm().message)
        self.wait_until(lambda: receiver.requests and len(self.letters()) == 2, "two dead letters and a request")

    def test_handled_messages_and_dead_letters_are_reported_to_the_audit(self):
        self.kafka.broker.create_topic("monasca-audit", 1)
        folder = self.useFixture(fixtures.TempDir()).path
        stop = self.start(audit=AuditSettings(enabled=True, folder=folder))
        self.publish(self.alarm(1).message, b"{", self.alarm(2).message)
        self.wait_until(lambda: self.committed(CHANGES) == 3, "the commit")
        stop()

        found = [reports.decode(message.value) for message in self.kafka.broker.records("monasca-audit")]
        ranges = [(each.topic, each.first, each.next) for report in found for each in report.handled]
        readers = {(each.tier, each.application) for each in found if each.handled}
        self.assertEqual({("notification", f"g-{CHANGES}")}, readers)
        self.assertEqual({CHANGES}, {topic for topic, _, _ in ranges})
        self.assertEqual(((0, 3),), union(tuple((first, following) for _, first, following in ranges)))

    def test_dead_letters_are_reported_to_the_audit(self):
        self.kafka.broker.create_topic("monasca-audit", 1)
        folder = self.useFixture(fixtures.TempDir()).path
        stop = self.start(audit=AuditSettings(enabled=True, folder=folder))
        self.publish(b"{")
        self.wait_until(self.letters, "the dead letter")
        stop()

        counted = collections.Counter()
        for message in self.kafka.broker.records("monasca-audit"):
            report = reports.decode(message.value)
            for count in report.counts:
                counted[report.tier, report.application, count.topic] += count.messages
        self.assertEqual({("producer", f"g-{CHANGES}", f"{CHANGES}.dlq"): 1}, dict(counted))


class HangingHostTest(ServiceCase):
    # Rule 57
    def test_a_hanging_host_of_many_methods_delays_no_other_host(self):
        hanging, quick = self.receiver(), self.receiver(host="127.0.0.2")
        hanging.answer = hanging.hangs
        for number in range(8):
            self.method(hanging.url(f"/hook-{number}"), definition=f"d{number}")
        self.method(quick.url(), definition="quick")
        self.patch(delivery, "_MAX_AT_ONE_DESTINATION", 2)
        self.start(processing={"number": 6}, timeout=60.0)
        self.publish(*(self.alarm(number, definition_id=f"d{number}").message for number in range(8)))
        self.publish(self.alarm(9, definition_id="quick").message)
        self.wait_until(lambda: ("sent",) in self.ledger("state"), "the other")
        self.wait_until(lambda: self.ledger("state").count(("sending",)) >= 2, "the hanging ones")
        self.assertEqual(2, self.ledger("state").count(("sending",)))
        hanging.over.set()


class SilencesTest(ServiceCase):
    def silence(self, dimensions, tenant=TENANT, ends_ms=DAY_MS):
        made = Silence(tenant, dimensions, self.now_ms - DAY_MS, self.now_ms + ends_ms, "ann", "new disks")
        return Silences(self.alarms_database).create(made, self.now_ms - DAY_MS)

    def test_a_silenced_notification_is_recorded_and_not_sent(self):
        receiver = self.receiver()
        self.method(receiver.url())
        made = self.silence({"hostname": "h1"})
        self.silence({"hostname": "h2"}, "t2")
        self.silence({"hostname": "h2"}, ends_ms=-1)
        stop = self.start()
        other = self.alarm(2, metrics=[AlarmedMetric("cpu", {"hostname": "h2"})])
        self.publish(self.alarm(1).message, other.message, self.alarm(1).message)
        self.wait_until(lambda: self.committed(CHANGES) == 3, "the commit")
        self.assertEqual(1, stop()["sent"])
        silenced = ("a1", "silenced", 0, f"silence {made.id} by ann: new disks")
        self.assertEqual(
            [silenced, ("a2", "sent", 1, "responded with 200")], self.ledger("alarm_id", "state", "attempts", "reason")
        )

    def test_an_attempt_started_before_a_crash_is_finished_even_if_it_is_silenced_now(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        notification = notification_of(self.alarm(), method)
        ledger = Ledger(self.alarms_database)
        ledger.begin(notification, method, 1, self.now_ms)
        ledger.finish(notification, "failed", self.now_ms, "responded with 500")
        self.silence({})
        self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "attempts") == [("sent", 2)], "the end")


class DeferredServiceTest(ServiceCase):
    """Deferred notifications become due when the test sets their time."""

    def held(self):
        return [kind for (kind,) in self.alarms_database.rows(sa.select(tables.notification_deferred.c.kind))]

    def let_it_be_due(self):
        statement = tables.notification_deferred.update().values(due=self.now_ms)
        self.alarms_database.write(lambda connection: connection.execute(statement))

    def test_a_group_is_sent_as_one_request(self):
        receiver = self.receiver()
        self.method(receiver.url())
        stop = self.start(rules=StageRules(("definition",), DAY_MS))
        self.publish(*(self.alarm(number).message for number in range(3)))
        self.wait_until(lambda: len(self.held()) == 3, "three held notifications")
        self.let_it_be_due()
        self.wait_until(lambda: receiver.requests and not self.held(), "the message")
        self.assertEqual({"held": 3, "sent": 1}, stop())
        [(_, _, body)] = receiver.requests
        self.assertEqual({"a0", "a1", "a2"}, {each["alarm_id"] for each in json.loads(body)["alarms"]})
        self.assertEqual([("sent",)] * 4, self.ledger("state"))

    def test_a_repeat_is_sent_once_with_its_own_id(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        stored = NotificationMethods(self.alarms_database)
        stored.change(TENANT, method, lambda each: dataclasses.replace(each, period=60), self.now_ms)
        definition, alarm = tables.alarm_definition, tables.alarm
        same = {"tenant": TENANT, "created": 1, "updated": 1}
        reported = {"name": "cpu", "description": "", "expression": "", "match_by": [], "severity": "LOW"}
        reported |= {"deterministic": False, "actions_enabled": True}
        row = {"definition_id": DEFINITION, "match_key": b"1", "match_values": [], "state": "ALARM"}
        for statement in (
            definition.insert().values(same | reported | {"id": DEFINITION}),
            alarm.insert().values(same | row | {"id": "a1", "state_updated": self.now_ms}),
        ):
            self.alarms_database.write(lambda connection, each=statement: connection.execute(each))
        stop = self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.held() == ["repeat"] and receiver.requests, "the first")
        self.let_it_be_due()
        self.wait_until(lambda: len(receiver.requests) == 2, "the repeat")
        stop()
        self.assertEqual(2, len(set(ids(receiver))))


class RetriesTest(ServiceCase):
    def test_a_failure_is_retried_with_the_same_id_until_it_is_sent(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers(500)
        self.method(receiver.url())
        stop = self.start(max_attempts=1000)
        self.publish(self.alarm().message)
        self.wait_until(lambda: len(receiver.requests) >= 3, "three attempts")
        receiver.answer = receiver.answers(200)
        self.wait_until(lambda: self.ledger("state") == [("sent",)], "the last")
        stop()
        [(attempts, repeats)] = self.ledger("attempts", "repeats")
        self.assertEqual((len(receiver.requests), 0), (attempts, repeats))
        self.assertEqual(1, len(set(ids(receiver))))

    def test_after_the_last_attempt_a_notification_is_given_up_with_the_reason_and_without_the_address(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers(503)
        self.method(receiver.url("/s3cret"))
        stop = self.start(max_attempts=3)
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "attempts") == [("given up", 3)], "the end")
        stop()
        self.assertEqual(3, len(receiver.requests))
        [(reason, failures)] = self.ledger("reason", "failures")
        self.assertIn("responded with 503", reason)
        self.assertEqual(3, failures.count("responded with 503"))
        self.assertNotIn("s3cret", reason + failures)

    def test_a_forbidden_address_is_given_up_immediately(self):
        self.method("http://10.0.0.1/")
        self.start(max_attempts=1000)
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "attempts") == [("given up", 1)], "the end")

    def test_a_type_without_a_notifier_is_given_up_immediately(self):
        self.method("key", kind="JIRA")
        self.start(max_attempts=1000)
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "attempts") == [("given up", 1)], "the end")

    def test_a_deleted_method_is_not_notified(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers(500)
        method = self.method(receiver.url())
        self.start(max_attempts=1000)
        self.publish(self.alarm().message)
        self.wait_until(lambda: receiver.requests, "an attempt")
        NotificationMethods(self.alarms_database).delete(TENANT, method)
        self.wait_until(lambda: self.ledger("state", "reason") == [("given up", "the method was deleted")], "the end")

    def test_the_retry_after_of_the_receiver_is_respected(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers(429, Retry_After="1000")
        self.method(receiver.url())
        self.start()
        self.publish(self.alarm().message)
        self.wait_until(self.scheduled, "the retry")
        [(due_ms, attempt)] = self.scheduled()
        self.assertGreaterEqual(due_ms, self.now_ms + 1_000_000)
        self.assertEqual(2, attempt)

    def test_a_hanging_receiver_delays_no_other(self):
        slow, quick = self.receiver(), self.receiver()
        slow.answer = slow.hangs
        self.method(slow.url())
        self.method(quick.url(), "OK")
        self.patch(delivery, "_MAX_AT_ONE_METHOD", 1)
        self.start(timeout=600.0, processing={"number": 8})
        # Publish one change at a time, so that changes for the slow receiver are the first in every queue.
        self.publish(*(self.alarm(number).message for number in range(4)))
        self.wait_until(lambda: slow.requests and len(self.scheduled()) >= 3, "the others' retries")
        self.publish(*(self.alarm(number, new_state="OK").message for number in range(10, 20)))
        self.wait_until(lambda: len(set(ids(quick))) >= 8, "the notifications of the quick receiver")

    def scheduled(self):
        """Return the due time and the attempt of each stored retry."""
        table = tables.notification_deferred
        return self.alarms_database.rows(sa.select(table.c.due, table.c.number).where(table.c.kind == "scheduled"))


class RefusingDatabaseTest(ServiceCase):
    def test_a_permanent_database_error_is_reported_and_loses_no_change(self):
        receiver = self.receiver()
        self.method(receiver.url())
        self.rename("notification", "elsewhere")
        self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: "notification" in self.reason(), "the reason")
        self.assertIn("run `monasca-common db upgrade`", self.reason())
        self.assertEqual([], self.letters())
        self.rename("elsewhere", "notification")
        self.wait_until(lambda: ids(receiver), "the notification")

    def reason(self):
        return self.health.health()[1]["members"][CHANGES]["reason"]

    def rename(self, before, after):
        statement = sa.text(f"ALTER TABLE {before} RENAME TO {after}")
        self.alarms_database.write(lambda connection: connection.execute(statement))


class CrashTest(ServiceCase):
    """The state of the ledger after a crash, without a real crash."""

    def test_an_attempt_with_an_unknown_outcome_is_repeated_and_counted(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        notification = notification_of(self.alarm(), method)
        Ledger(self.alarms_database).begin(notification, method, 1, self.now_ms)
        stop = self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state") == [("sent",)], "the end")
        self.wait_until(lambda: self.committed(CHANGES) == 1, "the commit")
        self.assertEqual({"sent": 1, "repeated": 1}, stop())
        self.assertEqual([(1,)], self.ledger("repeats"))
        self.assertEqual([notification.id], ids(receiver))

    def test_a_failure_without_a_stored_retry_is_retried(self):
        receiver = self.receiver()
        method = self.method(receiver.url())
        notification = notification_of(self.alarm(), method)
        ledger = Ledger(self.alarms_database)
        ledger.begin(notification, method, 1, self.now_ms)
        ledger.finish(notification, "failed", self.now_ms, "responded with 500")
        self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "attempts", "repeats") == [("sent", 2, 0)], "the end")
        self.assertEqual([notification.id], ids(receiver))

    def test_a_notification_sent_while_the_ledger_was_unavailable_is_not_sent_again(self):
        receiver = self.receiver()
        self.method(receiver.url())
        finish, failures = Ledger.finish, iter([True, True])

        def fails_twice(*arguments, **named):
            if next(failures, False):
                raise StorageUnavailable("the database is unavailable")
            finish(*arguments, **named)

        self.useFixture(fixtures.MonkeyPatch("monasca_common.notification.ledger.Ledger.finish", fails_twice))
        self.start()
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.ledger("state", "repeats") == [("sent", 0)], "the end")
        self.assertEqual(1, len(receiver.requests))


class LedgerRetentionTest(ServiceCase):
    def row_of(self, number, updated_ms):
        """Store a notification that was sent at this time."""
        ledger, notification = Ledger(self.alarms_database), notification_of(self.alarm(number), "m1")
        ledger.begin(notification, "m1", 1, updated_ms)
        ledger.finish(notification, "sent", updated_ms)

    def test_a_running_service_removes_old_rows_in_portions(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.notification.ledger._ROWS_A_PORTION", 2))
        for number in range(5):
            self.row_of(number, self.now_ms - 2 * DAY_MS)
        self.row_of(5, self.now_ms - DAY_MS // 2)
        self.start(processing={"retention_days": 1})
        self.wait_until(lambda: self.ledger("alarm_id") == [("a5",)], "the removal")

    def test_a_portion_is_limited_and_starts_with_the_oldest_row(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.notification.ledger._ROWS_A_PORTION", 2))
        for number in range(4):
            self.row_of(number, 1000 - number)
        ledger = Ledger(self.alarms_database)
        self.assertEqual(2, ledger.prune(1000))
        self.assertEqual([("a0",), ("a1",)], self.ledger("alarm_id"))
        self.assertEqual([1, 0], [ledger.prune(1000), ledger.prune(1000)])
        self.assertEqual([("a0",)], self.ledger("alarm_id"))

    def test_rows_are_kept_as_long_as_their_change_can_be_sent(self):
        self.assertEqual(3 * DAY_MS, ProcessorSettings(ttl=3 * DAY_MS // 1000, retention_days=1).retention_ms)
        self.assertEqual(2 * DAY_MS, ProcessorSettings(ttl=5, retention_days=2).retention_ms)

    def test_an_unavailable_database_does_not_end_the_service(self):
        failed = threading.Event()

        def fails(_ledger, _before_ms):
            failed.set()
            raise StorageUnavailable("the database is unavailable")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.notification.ledger.Ledger.prune", fails))
        receiver = self.receiver()
        self.method(receiver.url())
        stop = self.start()
        self.wait_until(failed.is_set, "a failure")
        self.publish(self.alarm().message)
        self.wait_until(lambda: self.committed(CHANGES) == 1, "the commit")
        self.assertEqual({"sent": 1}, stop())


class MessagesTest(base.BaseTestCase):
    def test_a_retry_is_read_as_it_was_written(self):
        retry = Retry(notification_of(change(link="l", description="d"), "m1"), "m1", 3, 7, 2, 15, 60)
        self.assertEqual(retry, Retry.read(retry.notification.id, "m1", 3, 7, retry.value))

    def test_unknown_fields_and_missing_optional_fields_are_accepted(self):
        body = {"tenantId": "t", "alarmId": "a", "alarmDefinitionId": "d", "newState": "OK", "timestamp": 5, "x": {}}
        read = AlarmChange.read(json.dumps({"alarm-transitioned": body, "y": 1}).encode())
        self.assertEqual(("", True, ()), (read.name, read.actions_enabled, read.metrics))
        for name in ("tenantId", "alarmId", "alarmDefinitionId", "newState", "timestamp"):
            lacking = {key: value for key, value in body.items() if key != name}
            text = json.dumps({"alarm-transitioned": lacking}).encode()
            self.assertRaises(InvalidEnvelope, AlarmChange.read, text)
        for metrics in ({}, [1], [{"dimensions": "x"}]):
            text = json.dumps({"alarm-transitioned": {**body, "metrics": metrics}}).encode()
            self.assertRaises(InvalidEnvelope, AlarmChange.read, text)


class SettingsOfServiceTest(ConfigurationTestCase):
    def test_the_topic_is_audited_if_the_file_enables_it(self):
        self.assertEqual("/nowhere", self.settings(audit="enabled = true\nfolder = /nowhere").audit.folder)
        self.assertIsNone(self.settings().audit)

    def settings(self, *lines, **groups):
        groups = {"database": "connection = sqlite:////nowhere/x", "storage": "driver = sqlite", **groups}
        return notification_settings(self.with_kafka(*lines, **groups))

    def test_option_names_of_old_files_are_accepted(self):
        settings = self.settings(
            "group = old-name",
            "alarm_topic = transitions",
            "notification_retry_topic = again",
            alarm_processor="number = 2\nttl = 5",
            retry_engine="interval = 30\nmax_attempts = 7",
        )
        self.assertEqual((("transitions",), "old-name"), (settings.consumer.topics, settings.consumer.group_id))
        self.assertEqual((2, 5), (settings.processing.number, settings.processing.ttl))
        self.assertEqual((7, 30.0), (settings.retry.policy().attempts, settings.retry.policy().backoff_seconds))

    def refused_settings(self, *lines, **groups):
        return str(self.assertRaises(ConfigurationError, self.settings, *lines, **groups))

    def test_rules_are_off_by_default(self):
        self.assertEqual(StageRules(), self.settings().rules)
        text = """group_by = definition, hostname
group_wait = 1.5
max_per_minute = 7
inhibit_by_severity = CRITICAL=hostname
inhibit_by_definition = Switch=down=rack, row
inhibit_by_definition = Host is down=hostname
"""
        named = (
            Inhibition(("rack", "row"), definition="Switch=down"),
            Inhibition(("hostname",), definition="Host is down"),
            Inhibition(("hostname",), severity="CRITICAL"),
        )
        expected = StageRules(("definition", "hostname"), 1500, 7, named)
        self.assertEqual(expected, self.settings(notification=text).rules)

    def test_invalid_rules_are_refused_with_the_option(self):
        for line, reported in (
            ("inhibit_by_definition = Host", "inhibit_by_definition in group [notification] is 'Host': write"),
            ("inhibit_by_definition = =hostname", "write NAME=KEY,KEY"),
            ("inhibit_by_definition = Host=", "write NAME=KEY,KEY"),
            ("inhibit_by_severity = FATAL=hostname", "inhibit_by_severity in group [notification] names 'FATAL'"),
            ("group_wait = -1", "group_wait"),
            ("max_per_minute = -1", "max_per_minute"),
        ):
            self.assertIn(reported, self.refused_settings(notification=line), line)


class FailedAttemptsTest(ServiceCase):
    def test_the_ledger_has_a_failed_attempt_with_its_response(self):
        ledger = Ledger(self.alarms_database)
        notification = notification_of(self.alarm(), "m1")
        for attempt in (1, 2):
            ledger.begin(notification, "m1", attempt, attempt)
            ledger.finish(notification, "failed", 10 * attempt, f"responded with 50{attempt}")
        [(failures,)] = self.ledger("failures")
        self.assertEqual(
            [{"timestamp": 10, "answer": "responded with 501"}, {"timestamp": 20, "answer": "responded with 502"}],
            [json.loads(line) for line in failures.splitlines()],
        )


class StatusTest(ServiceCase):
    def status(self, path):
        """Return the response of the status server."""
        metrics = WorkersMetrics("monasca_notification", self.plan.board)
        self.plan.serve_more(metrics)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = StatusServer(listener, self.health, metrics.registry)
        close = serve(server)
        try:
            return fetch(f"http://127.0.0.1:{port}{path}")
        finally:
            close()

    def test_outcomes_of_notifications_are_counted_by_type(self):
        taking, failing = self.receiver(), self.receiver()
        failing.answer = failing.answers(500)
        self.method(taking.url())
        self.method(failing.url())
        self.start(max_attempts=2)
        self.publish(self.alarm().message)
        self.wait_until(lambda: ("given up",) in self.ledger("state"), "the end")
        rows = sa.select(tables.notification_deferred.c.id)
        self.wait_until(lambda: not self.alarms_database.rows(rows), "the removal of the retry")

        lines = (
            'monasca_notification_sent_total{type="webhook"} 1.0',
            'monasca_notification_worker_state{state="running",worker="retention"} 1.0',
            'monasca_notification_failed_attempts_total{type="webhook"} 2.0',
            "monasca_notification_given_up_total 1.0",
            'monasca_notification_delay_seconds_count{type="webhook"} 1.0',
            'monasca_notification_waiting{where="retries"} 0.0',
        )

        def missing():
            code, text = self.status("/metrics")
            self.assertEqual(200, code)
            return [line for line in lines if line not in text]

        self.wait_until(lambda: not missing(), missing)  # the worker reports them once a second

    def test_the_service_is_healthy_while_each_topic_is_read(self):
        stop = self.start()
        self.wait_until(lambda: self.health.health()[0], "health")
        code, text = self.status("/healthcheck")
        self.assertEqual(200, code)
        member = json.loads(text)["members"][CHANGES]
        self.assertEqual(("running", ""), (member["state"], member["reason"]))
        stop()

    def test_each_loop_is_part_of_the_health(self):
        self.start()
        self.wait_until(lambda: self.health.health()[0], "health")
        loops = {CHANGES, "deferred", "retention"}
        self.assertEqual(loops, set(self.health.health()[1]["members"]))
        self.assertEqual(loops, set(self.health.live()[1]["seconds_since_turn"]))

        due = "monasca_common.notification.deferred.DeferredNotifications.due"
        self.useFixture(
            fixtures.MonkeyPatch(due, mock.Mock(side_effect=StorageUnavailable("the database is unavailable")))
        )

        reason = "deferred: failed: the database is unavailable"
        self.wait_until(lambda: reason in self.status("/readyz")[1], "the reason")
        self.assertEqual(503, self.status("/healthcheck")[0])

    def test_probes_and_metrics_do_not_wait_for_brokers(self):
        answers = threading.Event()
        self.addCleanup(answers.set)
        probe = "monasca_common.runtime.member.Member._probe"
        self.useFixture(fixtures.MonkeyPatch(probe, lambda *_: answers.wait(PATIENCE_SECONDS)))
        self.start()
        for path in ("/healthz", "/readyz", "/healthcheck", "/metrics"):
            began = time.monotonic()
            self.status(path)
            self.assertLess(time.monotonic() - began, 5.0, path)

    def test_an_unavailable_database_is_a_reason_for_being_unhealthy(self):
        self.method(self.receiver().url())
        self.start()
        broken = StorageUnavailable("the database is unavailable")
        self.useFixture(
            fixtures.MonkeyPatch("monasca_common.notification.ledger.Ledger.begin", mock.Mock(side_effect=broken))
        )
        self.publish(self.alarm().message)
        self.wait_until(lambda: "waiting for the database" in self.status("/healthcheck")[1], "the reason")
        self.assertEqual(503, self.status("/healthcheck")[0])


class PlanTest(ConfigurationTestCase):
    def test_a_reload_applies_valid_settings_and_ignores_an_invalid_file(self):
        folder = self.useFixture(fixtures.TempDir()).path
        path = Path(folder, "service.conf")
        usual = f"[kafka]\nbootstrap_servers = kafka:9092\n[database]\nconnection = sqlite:///{folder}/m.sqlite\n"
        path.write_text(f"{usual}[retry_engine]\nmax_attempts = 3\n")
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(path)])
        plan = NotificationPlan(conf)
        for attempts, expected in ((4, 4), (0, 4), (5, 5)):
            path.write_text(f"{usual}[retry_engine]\nmax_attempts = {attempts}\n")
            plan.reload()
            self.assertEqual(expected, plan.settings.retry.max_attempts)
        self.assertIsNone(plan.listener)
