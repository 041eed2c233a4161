# SPDX-License-Identifier: Apache-2.0
"""Audits on a real Kafka report exactly the lost, duplicate and late messages, also after kills."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter

import fixtures
from oslotest import base
from testtools.content import text_content

from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reconciliation import AuditVerdict
from monasca_common.audit.reporter import AuditReporter, DeliveryTotals
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Processor, RetryLater, open_consumer, open_producer
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.operations.dashboard.audit_panel import AuditGatherer
from monasca_common.tests.command import run_main
from monasca_common.tests.kafka_cluster import KafkaClusterFixture, SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

_PROGRAM = "monasca_common.tests.functional.audit.audit_program"
_COUNT = "import sys; from monasca_common.cli.main import main; sys.exit(main(sys.argv[1:]))"
_BUCKET_MS = 60_000
_PARTITIONS = 3
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[kafka_events]
bootstrap_servers = {copy}
[audit]
topic = {reports}
bucket_seconds = 60
grace_seconds = {grace_seconds}
window_seconds = 3600
{more}
"""


class AuditCase(Waiting, base.BaseTestCase):
    grace_seconds = 0
    options = ()  # more of [audit]

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.servers = self.servers_of(self.fixture.cluster)
        self.copy = self.servers
        self.topic, self.reports = self.fixture.topic(_PARTITIONS), self.fixture.topic()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.group = f"readers-{uuid.uuid4().hex[:8]}"
        # Use buckets that have ended, so that verdicts are final.
        self.bucket_ms = round(time.time() * 1000) // _BUCKET_MS * _BUCKET_MS - 5 * _BUCKET_MS

    def servers_of(self, cluster):
        return cluster.direct_options()["bootstrap.servers"]

    def connection(self, servers=None):
        return ConnectionSettings(servers or self.servers)

    def reporter(self, tier, application):
        settings = AuditSettings(
            enabled=True, topic=self.reports, bucket_seconds=60, grace_seconds=0, folder=self.folder
        )
        return AuditReporter(settings, ProducerSettings(self.connection()), tier, application)

    def config(self):
        text = _CONFIGURATION.format(
            servers=self.servers,
            copy=self.copy,
            reports=self.reports,
            grace_seconds=self.grace_seconds,
            more="\n".join(self.options),
        )
        return self.create_tempfiles([("audit", text)], ".conf")[0]

    def send(self, messages, bucket=0):
        at_ms = self.bucket_ms + bucket * _BUCKET_MS
        with (
            self.reporter("producer", "agent") as reporter,
            open_producer(reporter.audited(self.producing())) as producer,
        ):
            records = [
                Record(b"%d" % number, timestamp_ms=at_ms + number, partition=number % _PARTITIONS)
                for number in range(messages)
            ]
            producer.publish(self.topic, records).raise_for_undelivered()

    def producing(self, servers=None):
        return ProducerSettings(self.connection(servers))

    def consuming(self, group):
        return ConsumerSettings(self.connection(), (self.topic,), group, batch_size=50)

    @contextlib.contextmanager
    def reading(self, handler):
        """Read with the audited group until the end of the block, and at least until the whole topic is committed."""
        with self.reporter("database", self.group) as reporter, open_consumer(self.consuming(self.group)) as consumer:
            processor = Processor(consumer, handler, per_message=True, hooks=[ReaderAudit(reporter)])
            with _running(processor):
                yield
                self.wait_until(self.is_all_committed, "all was committed")

    def partitions(self, number=_PARTITIONS):
        return [TopicPartition(self.topic, each) for each in range(number)]

    def is_all_committed(self):
        admin = self.fixture.cluster.admin
        committed = admin.group_offsets(self.group)
        ends = admin.end_offsets(self.partitions())
        return all(committed.get(partition, 0) == end for partition, end in ends.items())

    @contextlib.contextmanager
    def counting(self, *arguments, cluster=None, partitions=_PARTITIONS):
        """Run the counting service until the end of the block; it then exits with 0. Its group has an offset, so
        that it does not start with the current bucket."""
        group = f"count-{uuid.uuid4().hex[:8]}"
        admin = (cluster or self.fixture.cluster).admin
        admin.alter_group_offsets(group, dict.fromkeys(self.partitions(partitions), 0))
        command = [sys.executable, "-c", _COUNT, "audit", "count", "--config-file", self.config()]
        process = subprocess.Popen([*command, "--topic", self.topic, "--group", group, *arguments])
        self.addCleanup(process.kill)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            self.assertEqual(0, process.wait(PATIENCE_SECONDS))

    def show(self):
        """Return the exit status and {(bucket, tier): row}."""
        status, rows = self.rows()
        buckets = sorted({row["bucket"] for row in rows})
        return status, {(buckets.index(row["bucket"]), row["tier"]): row for row in rows}

    def rows(self):
        status, out, _ = run_main("audit", "show", "--config-file", self.config(), "-f", "json")
        return status, json.loads(out)

    def figures(self, *names):
        return {key: tuple(row[name] for name in names) for key, row in self.show()[1].items()}

    def seen(self, tier, messages):
        """Wait until the audit has this number of messages of a tier."""
        self.wait_until(lambda: self.total(tier, "messages") >= messages, lambda: f"{tier}: {self.show()}")

    def total(self, tier, what):
        return sum(row[what] for (_, each), row in self.show()[1].items() if each == tier)


class TestAudit(AuditCase):
    def test_lost_duplicate_and_late_messages_are_reported_at_their_tier(self):
        other = self.useFixture(KafkaClusterFixture()).cluster
        self.copy = self.servers_of(other)
        other.create_topic(self.topic, 1)
        mirror = self.counting("--section", "kafka_events", "--tier", "mirror", cluster=other, partitions=1)
        with mirror, self.counting():
            for bucket in range(3):
                self.send(50 + bucket, bucket)
            self.forward(drop=4, double=3)
            self.seen("broker", 153)
            self.seen("mirror", 153 - 4 + 3)
            released = threading.Event()
            with self.reading(self.holding_back(5, released)):
                self.wait_until(lambda: self.total("database", "late") == 5, lambda: str(self.show()))
                named = ("expected", "messages", "lost", "late", "verdict")
                held = {key: row for key, row in self.figures(*named).items() if key[1] == "database"}
                released.set()
            self.wait_until(lambda: self.total("database", "late") == 0, lambda: str(self.show()))
            status, rows = self.show()
            self.assert_the_dashboard_shows(self.gatherer())

        wanted = {(n, "database"): (50 + n, 50 + n, 0, 0, "OK") for n in range(2)}
        self.assertEqual(wanted | {(2, "database"): (52, 47, 0, 5, "INCOMPLETE")}, held)

        self.assertEqual(1, status)
        named = ("expected", "messages", "lost", "duplicates", "verdict")
        found = {key: tuple(row[name] for name in named) for key, row in rows.items()}
        wanted = {
            (n, tier): (50 + n, 50 + n, 0, 0, "OK") for n in range(3) for tier in ("producer", "broker", "database")
        }
        wanted |= {(0, "mirror"): (50, 50, 0, 0, "OK"), (1, "mirror"): (51, 47, 4, 0, "INCOMPLETE")}
        wanted |= {(2, "mirror"): (52, 55, 0, 3, "OK")}
        self.assertEqual(wanted, found)

    def holding_back(self, messages, released):
        """Return a handler of all messages except the last ones of one partition, which wait for the event."""
        held = TopicPartition(self.topic, 0)
        first = self.fixture.cluster.admin.end_offsets([held])[held] - messages

        def handle(message):
            if message.partition == held.partition and message.offset >= first and not released.is_set():
                raise RetryLater(0.05)

        return handle

    def gatherer(self):
        settings = AuditSettings(topic=self.reports, bucket_seconds=60, grace_seconds=0.0, window_seconds=3600)
        cluster = self.fixture.cluster
        return AuditGatherer(cluster.admin, self.connection(), settings, timeout_seconds=PATIENCE_SECONDS)

    def assert_the_dashboard_shows(self, gather):
        """Check the sent, lost and duplicate messages in the dashboard, and that later messages are counted once."""
        wanted = {
            "producer": (153, 0, 0, AuditVerdict.OK),
            "broker": (153, 0, 0, AuditVerdict.OK),
            "database": (153, 0, 0, AuditVerdict.OK),
            "mirror": (152, 4, 3, AuditVerdict.INCOMPLETE),
        }
        self.assertEqual(wanted, self.shown(gather))
        self.send(5, 0)
        wanted |= {"producer": (158, 0, 0, AuditVerdict.OK), "broker": (158, 0, 0, AuditVerdict.OK)}
        wanted |= {"database": (153, 5, 0, AuditVerdict.INCOMPLETE), "mirror": (152, 9, 3, AuditVerdict.INCOMPLETE)}
        self.wait_until(lambda: self.shown(gather) == wanted, lambda: str(self.shown(gather)))

    def shown(self, gather):
        found = gather(round(time.time() * 1000)).tiers
        self.assertEqual({self.topic}, {tier.topic for tier in found})
        return {
            tier.place.partition(" ")[0]: (tier.messages, tier.missing, tier.doubled, tier.verdict) for tier in found
        }

    def forward(self, drop, double):
        """Mirror the topic, but skip messages of the second bucket and write some of the third one twice."""
        with (
            open_consumer(self.consuming("forwarder")) as consumer,
            open_producer(self.producing(self.copy)) as producer,
        ):
            left = 153
            while left:
                for message in consumer.poll(50, 1.0):
                    left -= 1
                    bucket = (message.timestamp_ms - self.bucket_ms) // _BUCKET_MS
                    times = 1
                    if bucket == 1 and drop:
                        times, drop = 0, drop - 1
                    elif bucket == 2 and double:
                        times, double = 2, double - 1
                    for _ in range(times):
                        record = Record(message.value, message.key, message.headers, message.timestamp_ms)
                        producer.publish(self.topic, [record]).raise_for_undelivered()


class TestSources(AuditCase):
    def test_sources_and_the_log_have_equal_counts_per_bucket_with_both_timestamp_types(self):
        """Buckets of one second start while messages are in flight."""
        for kind in ("CreateTime", "LogAppendTime"):
            with self.subTest(kind):
                topic = self.fixture.topic(_PARTITIONS, config={"message.timestamp.type": kind})
                sent, counts = self.counted(topic, seconds=3.5)
                logged = self.logged(topic, sent)
                self.assertGreater(len(logged), 3)
                self.assertEqual(logged, counts)

    def counted(self, topic, seconds):
        """Return the number of sent messages, and {start of the bucket: messages}."""
        sent = 0
        totals = DeliveryTotals(bucket_seconds=1)
        with open_producer(dataclasses.replace(self.producing(), tap=totals.tap)) as producer:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for number in range(300):
                    producer.send(topic, b"%d" % number, key=b"k" if number % 3 else None)
                producer.publish(topic, [b"plain"] * 50).raise_for_undelivered()
                producer.publish(topic, [Record(b"headers", headers=(("a", b"b"),))] * 5).raise_for_undelivered()
                sent += 355
            self.assertTrue(producer.flush().ok)
        return sent, {bucket_ms: count for (_, bucket_ms), count in totals.take().items()}

    def logged(self, topic, messages):
        found = Counter()
        with open_consumer(ConsumerSettings(self.connection(), (topic,), f"{self.group}-{topic}")) as consumer:
            while messages:
                for part in consumer.poll(5000, PATIENCE_SECONDS).partitions:
                    messages -= len(part)
                    found.update(time_ms // 1000 * 1000 for time_ms in part.timestamps)
        return found


class TestAuditCrash(AuditCase):
    """Killed sources and readers have successors, and the audit is correct."""

    def run_program(self, role, messages, fail_points="", mutant=""):
        self.run_programs((role, fail_points), messages=messages, mutant=mutant)

    def run_programs(self, *roles, messages, mutant=""):
        """Run programs concurrently. ``roles``: the role of each program with its fail points."""
        running = [(self.start_program(*each, messages, mutant), each[1]) for each in roles]
        for process, fail_points in running:
            self.assertEqual(-signal.SIGKILL if fail_points else 0, process.wait(PATIENCE_SECONDS))

    def start_program(self, role, fail_points, messages, mutant):
        arguments = {
            "servers": self.servers,
            "topic": self.topic,
            "reports": self.reports,
            "folder": self.folder,
            "group": f"{self.group}-{role}",
            "role": role,
            "messages": messages,
            "mutant": mutant,
        }
        environment = {**os.environ, "MONASCA_FAIL_POINTS": fail_points}
        process = subprocess.Popen([sys.executable, "-m", _PROGRAM, json.dumps(arguments)], env=environment)
        self.addCleanup(process.kill)
        return process

    def test_a_kill_at_any_point_causes_no_false_loss_or_duplicate(self):
        with self.counting():
            self.run_program("source", 100)
            self.read_all("reader", "transactional")
            self.run_program("source", 100, "audit.after_take=kill@2")
            self.run_program("source", 100, "audit.after_publish=kill@2")
            for alone, in_transaction in (
                ("audit.before_journal", "audit.before_journal"),
                ("audit.after_journal", "audit.after_journal"),
                ("processor.before_commit", "processor.in_transaction"),
                ("test.after_commit", "test.after_commit"),
            ):
                self.run_program("source", 20)
                roles = ("reader", f"{alone}=kill@1"), ("transactional", f"{in_transaction}=kill@1")
                self.run_programs(*roles, messages=self.in_log())
            self.run_program("source", 20)
            self.read_all("reader", "transactional")
            self.seen("broker", self.in_log())
            self.wait_until(lambda: not self.missing(), lambda: str(self.show()))

        # Only messages that were counted but not yet in a journal are unknown: one bulk of the first killed source.
        self.assertEqual((0, 20), (self.total("broker", "duplicates"), self.total("broker", "surplus")))
        self.assertEqual({self.in_log()}, {self.total(tier, "messages") for tier in ("database", "spark")})

    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_reader_that_reports_after_its_commit_is_detected(self):
        mutant = "reports_after_the_commit"
        readers = ("reader", "transactional")
        with self.counting():
            self.run_program("source", 100)
            self.read_all(*readers)
            self.run_program("source", 100)
            killed = [(role, "test.after_commit=kill@1") for role in readers]
            self.run_programs(*killed, messages=self.in_log(), mutant=mutant)
            self.run_program("source", 100)
            self.read_all(*readers)
            self.seen("broker", self.in_log())
            for tier in ("database", "spark"):
                self.wait_until(lambda tier=tier: self.total(tier, "lost"), lambda: str(self.show()))

    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_report_sent_again_with_another_id_is_detected(self):
        with self.counting():
            self.run_program("source", 100, "audit.after_publish=kill@2", "new_ids")
            self.run_program("source", 20, mutant="new_ids")
            self.seen("broker", self.in_log())
            self.wait_until(lambda: self.total("broker", "expected") > self.in_log(), lambda: str(self.show()))

    def read_all(self, *roles):
        self.run_programs(*((role, "") for role in roles), messages=self.in_log())

    def in_log(self):
        return sum(self.fixture.cluster.admin.end_offsets(self.partitions()).values())

    def missing(self):
        return sum(self.total(tier, what) for tier in ("broker", "database", "spark") for what in ("lost", "late"))


@periodic("repeats clean runs")
class TestCleanRuns(AuditCase):
    """A run without losses must not be reported as incomplete: 8 groups read 5 topics (40 runs), while their
    members join and leave at random."""

    groups, topics = 8, 5

    def test_frequent_rebalances_report_no_missing_messages(self):
        seed = uuid.uuid4().int
        self.addDetail("seed", text_content(str(seed)))
        chance = random.Random(seed)
        self.all_topics = [self.topic, *(self.fixture.topic(_PARTITIONS) for _ in range(self.topics - 1))]
        self.all_sent = threading.Event()
        chosen = [each for topic in self.all_topics[1:] for each in ("--topic", topic)]
        with self.counting(*chosen), concurrent.futures.ThreadPoolExecutor(self.groups) as pool:
            readers = [
                pool.submit(self.come_and_go, f"{self.group}-{number}", random.Random(seed + number))
                for number in range(self.groups)
            ]
            try:
                sent = self.send_by_chance(chance)
            finally:
                self.all_sent.set()
            restarts = sum(reader.result() for reader in readers)
            self.wait_until(lambda: self.of_all("broker") == sent, lambda: f"{sent}: {self.of_all('broker')}")
            status, rows = self.rows()

        self.assertGreater(restarts, self.groups)
        self.assertEqual(0, status)
        self.assertEqual({"OK"}, {row["verdict"] for row in rows})
        self.assertEqual(0, sum(row[what] for row in rows for what in ("lost", "late", "duplicates", "surplus")))
        self.assertEqual(sent * self.groups, sum(row["messages"] for row in rows if row["tier"] == "database"))
        read = {(row["topic"], row["application"]) for row in rows if row["tier"] == "database"}
        self.assertEqual(self.groups * self.topics, len(read))

    def of_all(self, tier):
        return sum(row["messages"] for row in self.rows()[1] if row["tier"] == tier)

    def send_by_chance(self, chance):
        """Send at random, and return the number of messages."""
        sent = 0
        with (
            self.reporter("producer", "agent") as reporter,
            open_producer(reporter.audited(self.producing())) as producer,
        ):
            for number in range(150):
                at_ms = self.bucket_ms + chance.randrange(3 * _BUCKET_MS)
                records = [Record(b"%d" % number, timestamp_ms=at_ms)] * chance.randint(1, 40)
                topic = self.all_topics[number % self.topics]
                producer.publish(topic, records).raise_for_undelivered()
                sent += len(records)
                self.all_sent.wait(chance.uniform(0, 0.05))
        return sent

    def come_and_go(self, group, chance):
        """Let members join and leave until everything is committed, and return the number of members."""
        members = 0
        with self.reporter("database", group) as reporter:
            while not (self.all_sent.is_set() and self.has_committed_all(group)):
                together = chance.choice((1, 1, 2))
                with contextlib.ExitStack() as stack:
                    for _ in range(together):
                        stack.enter_context(self.member(group, reporter))
                        members += 1
                    self.all_sent.wait(chance.uniform(0.1, 1.0))
                    if self.all_sent.is_set():
                        self.wait_until(lambda: self.has_committed_all(group), f"all is committed by {group}")
        return members

    @contextlib.contextmanager
    def member(self, group, reporter):
        settings = ConsumerSettings(self.connection(), tuple(self.all_topics), group, batch_size=50)
        with open_consumer(settings) as consumer:
            processor = Processor(consumer, lambda part: None, hooks=[ReaderAudit(reporter)])
            with _running(processor):
                yield

    def has_committed_all(self, group):
        admin = self.fixture.cluster.admin
        partitions = [TopicPartition(topic, number) for topic in self.all_topics for number in range(_PARTITIONS)]
        committed, ends = admin.group_offsets(group), admin.end_offsets(partitions)
        return all(committed.get(partition, 0) == end for partition, end in ends.items())


@contextlib.contextmanager
def _running(processor):
    thread = threading.Thread(target=processor.run)
    thread.start()
    try:
        yield
    finally:
        processor.stop()
        thread.join(PATIENCE_SECONDS)
