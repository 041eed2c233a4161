# SPDX-License-Identifier: Apache-2.0
"""The lag service with a Kafka whose segments expire: its restart, its history, and its process."""

import json
import signal
import sys
import time
import uuid
from pathlib import Path

import confluent_kafka
from oslotest import base

from monasca_common.devbroker import ports
from monasca_common.kafka import open_producer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.operations.lag.history import read_history
from monasca_common.operations.lag.service import LagService
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagStatus, LagWindow, partition_lag
from monasca_common.operations.settings import LagLimits, LagSettings
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting, wait_until_ready
from monasca_common.tests.web import fetch, is_ok

SECONDS = 60.0
_SEGMENT_BYTES = 1024 * 1024  # the minimum that a broker accepts
_LARGE = b"x" * 104_000
_SEGMENT_MESSAGES = 10
_RETENTION_SECONDS = 3.0
_CLOCK_SECONDS = 0.01  # maximum difference between the clocks of the survey and the test
# The broker checks segments twice a second, so that they expire soon. The log cleaner is disabled, because compaction
# pauses these checks.
_OFTEN = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.enable": "false",
}


class LagServiceCase(Waiting, base.BaseTestCase):
    window_seconds = 1.0

    def setUp(self):
        super().setUp()
        fixture = self.useFixture(SharedKafkaCluster(config=_OFTEN))
        self.cluster, self.admin = fixture.cluster, fixture.cluster.admin
        self.new_topic = fixture.topic
        self.own = uuid.uuid4().hex[:12]
        self.group = f"group-{self.own}"
        self.servers = self.cluster.direct_options()["bootstrap.servers"]
        self.history = fixture.topic(config={"cleanup.policy": "compact"})

    def topic(self, **config):
        self.partition = TopicPartition(self.new_topic(config=config), 0)
        return self.partition

    def put(self, count, value=b"x", **options):
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), "log_level": 0})
        for _ in range(count):
            producer.produce(self.partition.topic, value, partition=0, **options)
        self.assertEqual(0, producer.flush(SECONDS))

    def commit(self, offset):
        self.admin.alter_group_offsets(self.group, {self.partition: offset})

    def service(self):
        """Return a new service, which knows only the contents of the topic."""
        connection = ConnectionSettings(self.servers)
        settings = LagSettings(
            connection,
            ProducerSettings(connection),
            limits=LagLimits(window_seconds=self.window_seconds),
            groups=(self.group,),
            topic=self.history,
        )
        return LagService(settings, self.admin)

    def survey(self, service=None):
        """Return the verdict of a service on the partition."""
        service = service or self.service()
        with open_producer(ProducerSettings(ConnectionSettings(self.servers))) as producer:
            found = service.survey(producer).of(self.group, self.partition)
        return None if found is None else found.lag

    def look(self):
        """Return the verdict of one survey without a history."""
        window = LagWindow(seconds=self.window_seconds)
        survey = LagSurvey(self.admin, ConnectionSettings(self.servers), window, timeout_seconds=SECONDS)
        now_ms = round(time.time() * 1000)
        return partition_lag(survey.scan([self.group], now_ms)[self.group][self.partition], now_ms, window)


@periodic("starts the service twice; the normal run contains TestProcess")
class TestRestart(LagServiceCase):
    window_seconds = 10.0  # longer than two surveys on a busy machine

    def test_a_restarted_service_knows_the_arrival_time_of_messages_with_old_timestamps(self):
        self.topic()
        self.put(3)
        self.commit(3)
        old_enough = time.monotonic() + self.window_seconds
        self.wait_until(lambda: self.survey() and time.monotonic() > old_enough, "a commit older than the window")
        self.put(2, timestamp=round(time.time() * 1000) - 3_600_000)
        self.assertEqual((LagStatus.STOP, 2), (self.look().status, self.look().messages))
        found = self.survey()
        self.assertEqual((LagStatus.OK, 2), (found.status, found.messages))

    def test_a_group_that_is_deleted_leaves_the_history(self):
        self.topic()
        self.put(1)
        self.commit(1)
        self.survey()
        confluent = confluent_kafka.admin.AdminClient({**self.cluster.direct_options(), "log_level": 0})
        confluent.delete_consumer_groups([self.group])[self.group].result(SECONDS)
        self.assertIsNone(self.survey())
        kept = read_history(self.admin, ConnectionSettings(self.servers), self.history, timeout_seconds=SECONDS)
        self.assertEqual({}, kept.groups)


class TestNeverCommitted(LagServiceCase):
    def test_a_consumer_that_reads_and_never_commits_has_a_lag_status(self):
        self.topic()
        consumer = confluent_kafka.Consumer(
            {
                **self.cluster.direct_options(),
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "log_level": 0,
            }
        )
        self.addCleanup(consumer.close)
        consumer.subscribe([self.partition.topic])
        self.wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "the assignment")
        self.put(5)
        service = self.service()
        self.assertEqual((LagStatus.OK, 0), (self.survey(service).status, self.survey(service).messages))
        self.put(4)

        def has_stopped():
            consumer.poll(0.1)
            return self.survey(service).status is LagStatus.STOP

        self.wait_until(has_stopped, "the group counts as stopped")
        self.assertEqual(4, self.survey(service).messages)


@periodic("waits for retention; the unit tests cover the figures")
class TestExpiry(LagServiceCase):
    """The headroom is compared with the time at which messages are deleted unread."""

    def watch_until_lost(self, service, before_each_look):
        """Survey until messages are deleted unread. Return the start, the end (by the monotonic clock) and the verdict
        of each survey; the last one has found the loss."""
        looks = []

        def has_lost():
            before_each_look()
            began = time.monotonic()
            lag = self.survey(service)
            looks.append((began, time.monotonic(), lag))
            return lag.deleted

        self.wait_until(has_lost, lambda: f"messages that are deleted unread: {[lag for *_, lag in looks[-5:]]}")
        return looks

    def test_headroom_falls_with_time_and_losses_are_reported_until_the_group_has_passed_them(self):
        self.topic(**{"retention.ms": str(round(_RETENTION_SECONDS * 1000)), "segment.ms": "1000"})
        self.commit(0)
        service = self.service()
        self.survey(service)  # the duration of the first survey must not count for the age of a message
        *looks, (_, lost_at, _) = self.watch_until_lost(service, lambda: self.put(1))
        first_began, first_ended, first = looks[0]
        self.assertTrue(0 < first.headroom_seconds <= _RETENTION_SECONDS, first)
        self.assertFalse(first.expires_soon)
        for began, ended, lag in looks:
            left = first.headroom_seconds - lag.headroom_seconds
            # The headroom decreases by the elapsed time, or is zero.
            self.assertLessEqual(left, ended - first_began + _CLOCK_SECONDS)
            self.assertGreaterEqual(left, min(first.headroom_seconds, began - first_ended) - _CLOCK_SECONDS)
            self.assertLessEqual(lag.headroom_seconds, lost_at - began)
            self.assertEqual(lag.headroom_seconds, lag.lost_in_seconds)  # the group reads no messages
        self.assertTrue(looks[-1][2].expires_soon, looks[-1])

        unread = len(looks) + 1
        self.wait_until(lambda: self.survey(service).messages == 0, "no unread messages remain")
        self.assertEqual([unread] * 2, [self.survey(service).deleted for _ in range(2)])
        self.put(1)
        self.assertEqual(
            (unread, 1), (self.survey().deleted, self.survey().messages)
        )  # the verdicts of new services, from the history
        self.commit(unread)
        self.assertEqual((0, 1), (self.survey(service).deleted, self.survey(service).messages))

    def test_headroom_by_size_follows_the_moves_of_the_start_and_decreases_to_zero(self):
        """The log keeps four segments of 10 messages each. The group has stopped at the end of the log, so the start
        moves several times before it reaches the group."""
        limit = {"retention.bytes": str(4 * _SEGMENT_BYTES), "segment.bytes": str(_SEGMENT_BYTES)}
        self.topic(**limit)
        self.put(40, _LARGE)
        self.commit(40)
        looks = self.watch_until_lost(self.service(), lambda: self.put(3, _LARGE))
        began, lost_at, _ = looks[-1]
        segment_seconds = _SEGMENT_MESSAGES / 3 * (began - looks[0][0]) / (len(looks) - 1)
        reported = [
            (lost_at - at, lag.headroom_seconds) for at, _, lag in looks[:-1] if lag.headroom_seconds is not None
        ]
        self.assertGreater(len(reported), _SEGMENT_MESSAGES)
        for left, room in reported:
            # The tolerance is one segment, and one more because the time of deletions varies.
            self.assertLessEqual(room, 1.5 * left + 2 * segment_seconds, reported)
            self.assertGreaterEqual(room, left / 2 - 1.5 * segment_seconds, reported)
        self.assertGreater(reported[0][1], segment_seconds)
        self.assertTrue(looks[-2][2].expires_soon, reported)


class TestProcess(LagServiceCase):
    def test_the_service_serves_prometheus_and_probes_and_ends_with_0_at_sigterm(self):
        self.topic()
        self.put(5)
        self.commit(2)
        (port,) = ports.free_ports(1)
        text = f"[kafka]\nbootstrap_servers = {self.servers}\n[lag]\ninterval_seconds = 1\n"
        text += f"groups = {self.group}\ntopic = {self.history}\nstatus_port = {port}\n"
        config = self.create_tempfiles([("lag", text)], ".conf")[0]
        arguments = [sys.executable, "-m", "monasca_common.cli.main", "lag", "serve", "--config-file", config]
        log = Path(config).with_suffix(".log")
        process, url = start_process(self, arguments, log), f"http://127.0.0.1:{port}"
        wait_until_ready(lambda: is_ok(f"{url}/readyz"), process.poll, log)
        status, text = fetch(f"{url}/healthz")
        self.assertEqual((200, True), (status, json.loads(text)["live"]))
        labels = f'group="{self.group}",partition="0",topic="{self.partition.topic}"'
        self.assertIn(f"monasca_lag_messages{{{labels}}} 3.0", fetch(f"{url}/metrics")[1])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE_SECONDS))
