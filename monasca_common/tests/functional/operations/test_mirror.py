# SPDX-License-Identifier: Apache-2.0
"""Copies from one Kafka to another: unchanged and once each, even after kills; and the comparison of copies."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from unittest import mock

import confluent_kafka
import fixtures
from oslotest import base

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import MIRRORED, AuditCount, AuditReport
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import GivenStarts, open_consumer, open_producer
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import Batch, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.operations.audit.log_counter import LogCounter
from monasca_common.operations.audit.report_log import ReportLog
from monasca_common.operations.mirror import mirror
from monasca_common.operations.mirror.mirror import Mirror
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC, read_positions
from monasca_common.operations.mirror.settings import MirrorSettings
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.tests.checker import each_once
from monasca_common.tests.command import run_main
from monasca_common.tests.functional.administration import set_topic_config
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

SECONDS = 60.0


class MirrorCase(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.source = self.fixture.cluster
        # Shared clusters with different settings are different clusters; this setting has no effect.
        self.target = self.useFixture(SharedKafkaCluster(config={"log.cleaner.threads": "1"})).cluster
        self.topic = self.fixture.topic(2)
        self.name = f"mirror-{uuid.uuid4().hex[:12]}"
        self.other_groups = ""

    def audited_by(self):
        """Return the settings of an audit in the source, and add them to all configuration files from now on."""
        folder, topic = self.useFixture(fixtures.TempDir()).path, self.fixture.topic()
        options = {"topic": topic, "bucket_seconds": 60, "grace_seconds": 0, "folder": folder}
        lines = "".join(f"{name} = {value}\n" for name, value in options.items())
        servers = self.connection(self.source).bootstrap_servers
        self.other_groups = f"[kafka]\nbootstrap_servers = {servers}\n[audit]\nenabled = true\n{lines}"
        return AuditSettings(enabled=True, **options)

    def connection(self, cluster):
        return ConnectionSettings(cluster.direct_options()["bootstrap.servers"])

    def settings(self, *topics, **options):
        connections = self.connection(self.source), self.connection(self.target)
        return MirrorSettings(*connections, topics or (self.topic,), self.name, **options)

    def put(self, count, *, topic=None, first=0, transactional_id=None, cluster=None):
        """Publish numbered messages, alternately to two partitions."""
        options = {} if transactional_id is None else {"transactional.id": transactional_id}
        producer = confluent_kafka.Producer(
            {**(cluster or self.source).direct_options(), **options, "log_level": 0, "linger.ms": 0}
        )
        if transactional_id is not None:
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
        for number in range(first, first + count):
            producer.produce(
                topic or self.topic,
                b"%d" % number,
                key=b"key %d" % (number % 3),
                partition=number % 2,
                timestamp=1_700_000_000_000 + number,
                headers=[("message-id", b"id %d" % number)],
            )
        if transactional_id is not None:
            producer.commit_transaction(SECONDS)
        self.assertEqual(0, producer.flush(SECONDS))

    def read(self, cluster, topic=None):
        """Return all committed messages as (partition, key, value, headers, timestamp), ordered by partition."""
        topic = topic or self.topic
        messages = read_topic(cluster, topic, cluster.admin.partition_counts().get(topic, 0))
        found = [(each.partition(), each.key(), each.value(), each.headers(), each.timestamp()) for each in messages]
        return sorted(found, key=lambda each: each[0])

    def wait_until_copied(self, count, topic=None):
        self.wait_until(lambda: len(self.read(self.target, topic)) >= count, "the copies")

    @each_once()
    def assert_the_same(self, topic=None):
        self.assertEqual(self.read(self.source, topic), self.read(self.target, topic))

    @contextlib.contextmanager
    def mirror(self, *topics, audit=None, **options):
        """Run a mirror on a thread within the block. Its failure is raised at the end of the block."""
        running = RunningMirror(self.settings(*topics, **options), audit)
        try:
            yield running
        finally:
            running.stop()

    def program(self, *, mutant=None, kill_at=None):
        """Start the command as a process, with small batches. ``mutant``: removes a guarantee."""
        text = (
            f"[mirror_source]\nbootstrap_servers = {self.connection(self.source).bootstrap_servers}\n"
            f"[mirror_target]\nbootstrap_servers = {self.connection(self.target).bootstrap_servers}\n"
            f"[mirror]\nname = {self.name}\ntopics = {self.topic}\n"
            f"[monitoring]\ndurability_check = off\n{self.other_groups}"
        )
        path = self.create_tempfiles([(uuid.uuid4().hex, text)], ".conf")[0]
        armed = {"MONASCA_FAIL_POINTS": f"{kill_at[0]}=kill@{kill_at[1]}"} if kill_at else {}
        small = set_constants, {"monasca_common.operations.mirror.mirror._BATCH_MESSAGES": 10}
        command = command_after(small, *([(mutant,)] if mutant else ()))
        process = subprocess.Popen(
            [*command, "mirror", "run", "--config-file", path],
            env={**os.environ, **armed},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.kill)
        return process

    def run_and_kill(self, point, nth, mutant=None):
        process = self.program(mutant=mutant, kill_at=(point, nth))
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(-signal.SIGKILL, process.returncode, errors)

    def run_to(self, count):
        """Run until this number of messages is copied. SIGTERM then ends the process with 0."""
        process = self.program()
        self.wait_until_copied(count)
        self.stop(process)

    def stop(self, process):
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(0, process.returncode, errors)


class RunningMirror:
    def __init__(self, settings, audit):
        self.status = MirrorStatus(SystemClock())
        self.failure = None
        self._mirror = Mirror(settings, self.status, SystemClock(), audit=audit)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._mirror.run()
        except Exception as error:
            self.failure = error

    @property
    def ended(self):
        return not self._thread.is_alive()

    def stop(self):
        self._mirror.stop()
        self._thread.join(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure


_COUNT = 100


class TestCopies(MirrorCase):
    def test_a_copy_has_the_partition_key_value_headers_and_timestamp_of_its_message(self):
        """The topic is created with the settings of the source, whether it exists at the start or is created later."""
        years_ms = "987654321987"  # the messages are some years old, so the default retention would delete them
        set_topic_config(self.source.admin, self.topic, {"retention.ms": years_ms})
        producer = confluent_kafka.Producer({**self.source.direct_options(), "log_level": 0})
        first = [("a", b"1"), ("message-id", b"x"), ("a", None), ("message-id", b"y"), ("ä", b"")]
        twice = [("message-id", b"twice")]
        for value, key, headers in ((b"1", b"k", first), (None, b"k", []), (b"", None, twice), (b"", None, twice)):
            producer.produce(self.topic, value, key=key, headers=headers, partition=1, timestamp=1_600_000_000_123)
        self.assertEqual(0, producer.flush(SECONDS))
        self.put(10, transactional_id=self.name)
        later = f"{self.topic}-later"
        self.patch(mirror, "_TOPIC_REFRESH_SECONDS", 1.0)
        with self.mirror(f"{self.topic}*"):
            self.wait_until_copied(14)
            self.source.create_topic(later, 2)
            self.put(4, topic=later)
            self.wait_until_copied(4, later)
        self.assert_the_same()
        self.assert_the_same(later)
        self.assertEqual(2, self.target.admin.partition_counts()[self.topic])
        self.assertEqual(years_ms, self.target.admin.topic_configs([self.topic])[self.topic]["retention.ms"])

    # Rule 63
    def test_a_mirror_resumes_where_it_stopped_and_counts_copied_messages(self):
        """If the topic was deleted in the target, the mirror copies it from the beginning."""
        self.put(10)
        with self.mirror():
            self.wait_until_copied(10)
        self.put(6, first=10)
        with self.mirror() as running:
            self.wait_until_copied(16)
            self.wait_until(lambda: running.status.copied == 6, "the count")
            self.assertEqual((True, ""), (running.status.health.health()[0], running.status.health.reason))
        self.assert_the_same()
        self.target.admin.delete_topic(self.topic)
        with self.mirror():
            self.wait_until_copied(16)
        self.assert_the_same()

    # Rule 62
    def test_a_mirror_waits_for_open_transactions_before_it_reads_its_position(self):
        self.put(4)
        with self.mirror():
            self.wait_until_copied(4)
            other = confluent_kafka.Producer({**self.target.direct_options(), "transactional.id": uuid.uuid4().hex})
            other.init_transactions(SECONDS)
            other.begin_transaction()
            other.produce(POSITIONS_TOPIC, b"{}", key=b"{}")
            other.flush(SECONDS)
            self.put(4, first=4)
            self.wait_until_copied(8)
        self.put(4, first=8)
        ended = threading.Timer(1.0, other.commit_transaction)
        ended.start()
        self.addCleanup(ended.join)
        with self.mirror():
            self.wait_until_copied(12)
        self.assert_the_same()


class TestRefusals(MirrorCase):
    def assert_refused(self, text, *topics, **options):
        def run():
            with self.mirror(*topics, **options) as running:
                self.wait_until(lambda: running.ended, "the refusal")

        self.assertIn(text, str(self.assertRaises(ConfigurationError, run)))

    def test_a_target_with_fewer_partitions_is_refused(self):
        self.target.create_topic(self.topic, 1)
        self.assert_refused("2 partitions in the source but 1 in the target")

    @periodic("a variant of a refused topic")
    def test_a_missing_topic_is_refused(self):
        self.assert_refused("topic nobody: the source has no such topic", "nobody")

    @periodic("a variant of a refused topic")
    def test_a_target_in_the_same_cluster_is_refused(self):
        self.target = self.source
        self.assert_refused("the same cluster")

    @periodic("a variant of a refused topic")
    def test_a_topic_of_another_mirror_with_a_gap_or_recreated_is_refused(self):
        """Messages that retention deleted before they were copied can be skipped on request."""
        self.put(4)
        with self.mirror():
            self.wait_until_copied(4)
        name, self.name = self.name, f"{self.name}-other"
        self.assert_refused(f"copied by mirror '{name}'")
        self.name = name
        self.put(8, first=4)
        self.source.admin.delete_records({TopicPartition(self.topic, 0): 4})
        self.assert_refused("skip_deleted")
        with self.mirror(skip_deleted=True) as running:
            self.wait_until_copied(10)
            self.assertIn(b'skipped_total{topic="%s"} 2.0' % self.topic.encode(), self.metrics(running))
        self.source.admin.delete_topic(self.topic)
        self.source.create_topic(self.topic, 2)
        self.assert_refused("recreated in the source")

    def metrics(self, running):
        from prometheus_client import generate_latest

        return generate_latest(running.status.registry)


def notes_positions_after_the_copies():
    _in_two_transactions(copies_first=True)


def notes_positions_before_the_copies():
    _in_two_transactions(copies_first=False)


def _in_two_transactions(*, copies_first):
    def copy_batch(_mirror, producer, batch, moved):
        copies = [(message.topic, mirror.copy_of(message)) for message in batch]
        noted = [(POSITIONS_TOPIC, position.record()) for position in moved.values()]
        for records in (copies, noted) if copies_first else (noted, copies):
            with producer.transaction() as transaction:
                for topic, record in records:
                    transaction.send(topic, record)
            mirror.fail_point("mirror.after_commit")

    mock.patch.object(Mirror, "_copy_batch", copy_batch).start()


def fences_nobody():
    """Give each process its own transactional id."""
    make = mirror._producer_settings
    own = uuid.uuid4().hex
    mock.patch.object(mirror, "_producer_settings", lambda *facts: replace(make(*facts), transactional_id=own)).start()
    freezes_in_its_transaction()


def freezes_in_its_transaction():
    """Stop the process (SIGSTOP) after it has sent the first copies. This is not a mutant."""
    reached = mirror.fail_point

    def freeze(name):
        if name == "mirror.before_commit":
            mock.patch.object(mirror, "fail_point", reached).start()
            os.kill(os.getpid(), signal.SIGSTOP)

    mock.patch.object(mirror, "fail_point", freeze).start()


class TestCrashes(MirrorCase):
    def values(self):
        return sorted(int(each[2]) for each in self.read(self.target))

    # Rule 61
    def test_a_kill_before_or_after_a_commit_neither_loses_nor_duplicates_messages(self):
        """The audit counts each message."""
        self.put(_COUNT)
        audit = self.audited_by()
        for point, nth in (("mirror.before_commit", 1), ("mirror.after_commit", 2), ("mirror.before_commit", 3)):
            self.run_and_kill(point, nth)
        self.run_to(_COUNT)
        self.assert_the_same()
        connection = self.connection(self.source)
        totals = ReportLog(self.source.admin, connection, audit).since(0, SECONDS)
        counts = AuditCount(self.topic, 0, offsets=dict.fromkeys(range(2), ((0, _COUNT // 2),)))
        totals.add(AuditReport("whole", "broker", "", 0, audit.bucket_seconds, (counts,)))
        (mirrored,) = (each for each in totals.reconciliations(0) if each.tier == MIRRORED)
        with each_once():
            self.assertEqual((_COUNT, 0, 0), (mirrored.expected, mirrored.lost, mirrored.late))

    # Rule 61
    @periodic("test_mutant_that_writes_positions_before_the_copies of the normal run tests one such mutant")
    def test_mutant_that_writes_positions_after_the_copies_is_detected(self):
        self.put(_COUNT)
        self.run_and_kill("mirror.after_commit", 1, notes_positions_after_the_copies)
        with self.mirror():
            self.wait_until_copied(_COUNT + 1)
        self.assertGreater(len(self.values()), _COUNT)

    # Rule 61
    def test_mutant_that_writes_positions_before_the_copies_is_detected(self):
        self.put(_COUNT)
        self.run_and_kill("mirror.after_commit", 1, notes_positions_before_the_copies)
        with self.mirror():
            self.wait_until(self.is_done, "the rest")
        self.assertLess(len(self.values()), _COUNT)

    def is_done(self):
        positions = read_positions(self.target.admin, self.connection(self.target))
        return sum(at.next_offset for (name, _), at in positions.items() if name == self.name) == _COUNT

    @periodic("waits for two processes; the normal run contains test_a_kill_before_or_after_a_commit")
    def test_a_second_mirror_of_the_same_name_stops_the_first(self):
        self.put(_COUNT)
        status, errors = self.run_two(freezes_in_its_transaction)
        self.assertEqual(1, status, errors)
        self.assertIn("another process copies as mirror", errors)
        self.assert_the_same()

    # Rule 61
    @periodic("test_mutant_that_writes_positions_before_the_copies of the normal run tests one such mutant")
    def test_mutant_without_fencing_is_detected(self):
        self.put(_COUNT)
        self.run_two(fences_nobody)
        self.assertGreater(len(self.values()), _COUNT)

    def run_two(self, mutant):
        """The first mirror is frozen in its transaction, and continues after the second one has copied all messages."""
        first = self.program(mutant=mutant)
        self.wait_until(lambda: "T (stopped)" in Path(f"/proc/{first.pid}/status").read_text(), "the first one's halt")
        is_caught = mutant is fences_nobody
        with self.mirror():
            # An open transaction hides later messages of the same partition.
            self.wait_until(self.is_done_uncommitted if is_caught else self.is_done, "the copies of the second")
            first.send_signal(signal.SIGCONT)
            if is_caught:
                self.wait_until(lambda: len(self.values()) > _COUNT, "what is there twice")
                first.kill()
            _, errors = first.communicate(timeout=PATIENCE_SECONDS)
        return first.returncode, errors

    def is_done_uncommitted(self):
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        ends = self.target.admin.end_offsets(partitions, open_transactions=True)
        return sum(ends.values()) > _COUNT


class VerifyCase(MirrorCase):
    def verify(self, *arguments):
        """Return the exit status and the printed rows."""
        text = (
            f"[mirror_source]\nbootstrap_servers = {self.connection(self.source).bootstrap_servers}\n"
            f"[mirror_target]\nbootstrap_servers = {self.connection(self.target).bootstrap_servers}\n"
            f"[mirror]\nname = {self.name}\ntopics = {self.topic}\n{self.other_groups}"
        )
        path = self.create_tempfiles([("verify", text)], ".conf")[0]
        status, out, _ = run_main("mirror", "verify", "--config-file", path, "-f", "json", *arguments)
        return status, json.loads(out or "null")

    @contextlib.contextmanager
    def broken(self, *, lost=(), altered=(), doubled=()):
        """Run a mirror that applies this change to messages with these values."""
        poll, copy_batch, make = mirror.Mirror._poll, mirror.Mirror._copy_batch, mirror.copy_of

        def losing(*arguments):
            parts = []
            for part in poll(*arguments).partitions:
                gone = {place for place, value in enumerate(part.values) if value in lost}
                parts.append(part.without(gone) if gone else part)
            return Batch(tuple(part for part in parts if len(part)))

        def altering(message):
            copy = make(message)
            return replace(copy, value=b"altered") if message.value in altered else copy

        def doubling(copying, producer, batch, moved):
            copy_batch(copying, producer, batch, moved)
            again = [message for message in batch if message.value in doubled]
            if again:
                with producer.transaction() as transaction:
                    for message in again:
                        transaction.send(message.topic, make(message))

        with (
            mock.patch.object(mirror.Mirror, "_poll", losing),
            mock.patch.object(mirror.Mirror, "_copy_batch", doubling),
            mock.patch.object(mirror, "copy_of", altering),
        ):
            yield


class TestVerify(VerifyCase):
    def copied(self, count, **broken):
        with self.broken(**broken), self.mirror():
            self.wait_until_copied(count)

    @periodic("the unit tests cover the comparison")
    def test_copies_are_the_same_and_messages_not_copied_yet_are_not_differences(self):
        """Messages that one cluster has deleted are not differences either. Messages older than ``--since`` are ignored
        on both sides."""
        self.assertEqual(2, self.verify()[0])  # no message was copied yet
        self.put(20)
        self.copied(20)
        self.put(4, first=20)
        status, rows = self.verify()
        self.assertEqual(0, status)
        self.assertEqual([("SAME", 12, 10, 10, 2)] * 2, [_facts(row) for row in rows])
        since = "2023-11-14T22:13:20.010"  # of number 10
        status, rows = self.verify("--topic", self.topic, "--since", since)
        self.assertEqual(0, status)
        self.assertEqual([("SAME", 7, 5, 5, 2)] * 2, [_facts(row) for row in rows])
        self.source.admin.delete_records({TopicPartition(self.topic, 0): 4})
        status, rows = self.verify()
        self.assertEqual(0, status)
        self.assertEqual([4, 0], [row["expired"] for row in rows])

    # Rule 65
    @periodic("the unit tests also check that these messages are named")
    def test_missing_duplicated_and_altered_messages_are_named(self):
        self.put(400)
        lost, altered, doubled = (40, 41, 200, 333), (8, 9, 250), (100, 101, 102)
        broken = {"lost": lost, "altered": altered, "doubled": doubled}
        self.copied(399, **{how: [b"%d" % number for number in numbers] for how, numbers in broken.items()})
        status, rows = self.verify()
        self.assertEqual(1, status)
        found = [tuple(row[kind] for kind in ("status", "missing", "extra", "altered")) for row in rows]
        self.assertEqual([("DIFFERENT", 2, 2, 2), ("DIFFERENT", 2, 1, 1)], found)
        wanted = {("missing", f"id {number}", "") for number in lost}
        wanted |= {("altered", f"id {number}", "value") for number in altered}
        wanted |= {("extra", f"id {number}", "") for number in doubled}
        self.assertEqual(wanted, self.named("--messages"))

    def named(self, *arguments):
        return {(row["kind"], row["message_id"], row["fields"]) for row in self.verify(*arguments)[1]}


@periodic("the unit tests cover the comparison")
class TestAudit(VerifyCase):
    """The audit counts both clusters, and the mirror reports the messages that it copied."""

    def setUp(self):
        super().setUp()
        self.audit = self.audited_by()

    def count(self, cluster, tier):
        """Count messages like `audit count`, up to the ends of the logs."""
        starts = dict.fromkeys((TopicPartition(self.topic, number) for number in range(2)), 0)
        group = f"count-{uuid.uuid4().hex[:8]}"
        settings = ConsumerSettings(self.connection(cluster), (self.topic,), group, topic_check_seconds=0.0)
        with (
            open_producer(ProducerSettings(self.connection(self.source))) as producer,
            open_consumer(settings, partitions=starts, listener=GivenStarts(starts)) as consumer,
        ):
            counter = LogCounter(self.audit, consumer, producer, tier)
            ended = set()
            while len(ended) < len(starts):
                counter.poll()
                ended |= consumer.take_ends().keys()
            counter.report()

    @contextlib.contextmanager
    def audited(self, **options):
        sent = ProducerSettings(self.connection(self.source))
        with AuditReporter(self.audit, sent, MIRRORED, self.name) as reporter, self.mirror(audit=reporter, **options):
            yield

    def test_losses_duplicates_and_skipped_messages_are_in_the_audit(self):
        self.put(50)
        self.put(52, first=60_000)
        lost, doubled = ([b"%d" % number for number in numbers] for numbers in (range(7, 11), range(60_001, 60_004)))
        with self.broken(lost=lost, doubled=doubled), self.audited():
            self.wait_until_copied(101)
        self.put(10, first=120_000)
        self.count(self.source, "broker")
        self.source.admin.delete_records({TopicPartition(self.topic, 0): 56})
        with self.audited(skip_deleted=True):
            self.wait_until_copied(106)
        self.count(self.target, "mirror")
        connection = self.connection(self.source)
        balances = ReportLog(self.source.admin, connection, self.audit).since(0, SECONDS).reconciliations(0)
        found = [
            (each.tier, each.expected, each.messages, each.lost + each.late, each.duplicates + each.surplus)
            for each in sorted(balances, key=lambda each: (each.bucket_ms, each.tier))
            if each.tier in ("mirror", MIRRORED)
        ]
        self.assertEqual(
            [
                ("mirror", 50, 46, 4, 0),
                ("mirrored", 50, 50, 0, 0),
                ("mirror", 52, 55, 0, 3),
                ("mirrored", 52, 52, 0, 0),
                ("mirror", 10, 5, 5, 0),
                ("mirrored", 10, 5, 5, 0),
            ],
            found,
        )


def _facts(row):
    return row["status"], row["source"], row["target"], row["equal"], row["behind"]
