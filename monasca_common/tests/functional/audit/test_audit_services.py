# SPDX-License-Identifier: Apache-2.0
"""`audit count` and `audit serve` as processes with a real Kafka: kills do not change the results."""

import contextlib
import os
import signal
import uuid
from pathlib import Path

from msgspec import structs

from monasca_common.audit.reports import HandledRange
from monasca_common.devbroker.ports import free_ports
from monasca_common.kafka import open_producer
from monasca_common.kafka.message import Record
from monasca_common.tests.functional.audit import audit_mutants
from monasca_common.tests.functional.audit.test_audit import _PARTITIONS, AuditCase
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS
from monasca_common.tests.web import fetch, is_ok

_QUICK = {"monasca_common.operations.audit.service._INTERVAL_SECONDS": 0.1}


class ServicesCase(AuditCase):
    def program(self, *arguments, mutant=None, kill_at=""):
        """Start ``monasca-common audit ...``, which logs to ``log``."""
        self.log = Path(self.folder, f"{uuid.uuid4().hex}.log")
        changes = [(set_constants, _QUICK), (audit_mutants.is_the_same_member,), *([(mutant,)] if mutant else ())]
        command = [*command_after(*changes), "audit", *arguments, "--config-file", self.config()]
        armed = {"MONASCA_FAIL_POINTS": f"{kill_at}=kill@1"} if kill_at else {}
        return start_process(self, command, self.log, env={**os.environ, **armed})

    def kill(self, point, *arguments, **facts):
        process = self.program(*arguments, kill_at=point, **facts)
        self.assertEqual(-signal.SIGKILL, process.wait(PATIENCE_SECONDS), self.log.read_text())

    @contextlib.contextmanager
    def running(self, *arguments, **facts):
        process = self.program(*arguments, **facts)
        log = self.log
        self.wait_until(lambda: " started: " in log.read_text(), log.read_text)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            self.assertEqual(0, process.wait(PATIENCE_SECONDS), self.log.read_text())

    def prometheus(self):
        """Return the lines that Prometheus scrapes."""
        return fetch(f"http://127.0.0.1:{self.port}/metrics")[1].splitlines()

    def is_ready(self):
        return is_ok(f"http://127.0.0.1:{self.port}/readyz")

    def send_with(self, message_id, messages=20):
        """Send messages with their own ids, and one more with this id."""
        at_ms = self.bucket_ms + 1
        with (
            self.reporter("producer", "agent") as reporter,
            open_producer(reporter.audited(self.producing())) as producer,
        ):
            records = [Record(b"%d" % number, timestamp_ms=at_ms) for number in range(messages - 1)]
            records.append(Record(b"again", timestamp_ms=at_ms, message_id=message_id))
            producer.publish(self.topic, records).raise_for_undelivered()


class CounterTest(ServicesCase):
    """After kills, a counter and its successor report the same as an uninterrupted counter."""

    grace_seconds = 1800  # so that the counter knows the ids of these buckets

    def setUp(self):
        super().setUp()
        self.counter = f"count-{uuid.uuid4().hex[:8]}"
        self.begin()

    def begin(self):
        """Commit an offset for the group, so that it does not start with the current bucket."""
        self.fixture.cluster.admin.alter_group_offsets(self.counter, dict.fromkeys(self.partitions(), 0))

    @property
    def arguments(self):
        return "count", "--topic", self.topic, "--group", self.counter

    def count_all(self, **facts):
        """Count until the group has read everything and the counter has ended."""
        with self.running(*self.arguments, **facts):
            self.wait_until(self.is_all_counted, "all is counted")

    def is_all_counted(self):
        committed = self.fixture.cluster.admin.group_offsets(self.counter)
        return all(
            committed.get(each, 0) == end
            for each, end in self.fixture.cluster.admin.end_offsets(self.partitions()).items()
        )

    def books(self):
        """Return expected, messages, lost, late, duplicates and surplus."""
        return self.figures("expected", "messages", "lost", "late", "duplicates", "surplus")[0, "broker"]

    def test_a_killed_counter_counts_each_message_and_duplicate_once(self):
        for point in ("audit.before_counts", "audit.after_counts", "audit.after_count_commit"):
            self.send_with(b"one")
            self.kill(point, *self.arguments)
        self.send_with(b"one")
        [self.port] = free_ports(1)
        self.options = ("[audit_count]", f"status_port = {self.port}")
        with self.running(*self.arguments):
            self.wait_until(self.is_all_counted, "all is counted")
            self.wait_until(self.is_ready, "a report")
            reported = self.prometheus()
        self.assertIn('monasca_service_ready{service="audit_count"} 1.0', reported)
        self.assertIn("monasca_audit_counted_messages_total 80.0", reported)

        self.assertEqual((80, 80, 0, 0, 3, 0), self.books())

    def test_a_topic_that_is_recreated_is_neither_complete_nor_missing(self):
        self.send_with(b"one", 40)
        self.count_all()
        self.fixture.cluster.admin.delete_topic(self.topic)
        self.fixture.cluster.admin.create_topic(self.topic, _PARTITIONS)
        self.counter += "-again"  # the static member of the first group is still a member
        self.begin()
        self.send_with(b"one", 20)
        self.count_all()
        status, rows = self.rows()

        self.assertEqual((0, {"RECREATED"}), (status, {row["verdict"] for row in rows}))

    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_counter_that_commits_before_it_reports_is_detected(self):
        self.grace_seconds = 0  # the counter reads later messages again for their ids
        self.send_with(b"one")
        self.kill("audit.before_counts", *self.arguments, mutant=audit_mutants.commits_before_it_reports)
        self.count_all()

        self.assertGreater(20, self.books()[1])

    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_counter_that_forgets_the_ids_is_detected(self):
        self.send_with(b"one")
        self.count_all()
        self.send_with(b"one")
        self.count_all(mutant=audit_mutants.forgets_the_ids)

        self.assertEqual((40, 40, 0, 0, 0, 0), self.books())


@periodic("the service has no state that a kill could damage; the normal run kills a service in CounterTest")
class ServeTest(ServicesCase):
    """Missing messages are logged and in /metrics; kills change nothing, because the service has no state."""

    def setUp(self):
        super().setUp()
        [self.port] = free_ports(1)
        self.options = (f"status_port = {self.port}",)

    def test_missing_messages_are_reported_until_they_arrive_regardless_of_kills(self):
        self.handle(self.arrived(20))
        self.kill("audit.after_read", "serve")
        with self.running("serve"):
            self.wait_until(self.is_ready, "a reconciliation")
            self.wait_for(0.0)

        *handled, passed_over = self.cut(self.arrived(20, bucket=1), 3)
        self.handle(handled)
        self.kill("audit.after_read", "serve")
        with self.running("serve"):
            self.wait_until(self.is_ready, "a reconciliation")
            self.wait_for(3.0)
            self.assertEqual(37 / 40, self.served("monasca_audit_completeness"))
            self.assertIn(f"topic {self.topic}, tier database {self.group}", self.log.read_text())
            self.assertIn("3 of 20 messages are missing: 3 lost, 0 late", self.log.read_text())
            self.handle([passed_over])
            self.wait_for(0.0)
        self.assertIn("1 incomplete buckets are complete now", self.log.read_text())

    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_service_that_ignores_earlier_reports_is_detected(self):
        *handled, _ = self.cut(self.arrived(20), 3)
        self.handle(handled)
        with self.running("serve", mutant=audit_mutants.begins_at_the_end):
            self.wait_until(self.is_ready, "a reconciliation")
            self.assertIsNone(self.served("monasca_audit_missing_messages"))

    def arrived(self, messages, bucket=0):
        """Send messages, count them in the log, and return their ranges."""
        admin = self.fixture.cluster.admin
        firsts = admin.end_offsets(self.partitions())
        with self.counting():
            self.send(messages, bucket)
            self.seen("broker", sum(firsts.values()) + messages)
        ends = admin.end_offsets(self.partitions())
        return [HandledRange(*each, firsts[each], ends[each]) for each in ends if firsts[each] < ends[each]]

    def cut(self, ranges, messages):
        """Return the ranges without this number of messages in the middle of one partition, whose range is the last."""
        *others, longest = sorted(ranges, key=lambda each: each.next - each.first)
        first, following = longest.first + 1, longest.first + 1 + messages
        return [
            *others,
            structs.replace(longest, next=first),
            structs.replace(longest, first=following),
            structs.replace(longest, first=first, next=following),
        ]

    def handle(self, ranges):
        with self.reporter("database", self.group) as reporter:
            reporter.handled(ranges)

    def wait_for(self, value):
        """Wait until the metric of the reader has this value."""
        self.wait_until(lambda: self.served("monasca_audit_missing_messages") == value, str(value))

    def served(self, metric):
        """Return the value of this metric for the reader, as Prometheus scrapes it, or ``None``."""
        label = f'{metric}{{application="{self.group}",tier="database",topic="{self.topic}"}} '
        return next((float(line.removeprefix(label)) for line in self.prometheus() if line.startswith(label)), None)
