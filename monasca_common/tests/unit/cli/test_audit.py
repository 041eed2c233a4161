# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit show | watch``: what they say, and the exit status, over a broker in memory."""

import json
import time

import fixtures

from monasca_common.audit import report_log, reports
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.cli import audit
from monasca_common.kafka import plugins
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.unit.cli.command_case import CommandCase

_REPORTS = TopicPartition("monasca-audit", 0)
_BUCKET_MS = 60_000
_CONFIGURATION = """\
[kafka]
driver = memory
bootstrap_servers = memory:9092
[audit]
bucket_seconds = 60
grace_seconds = 0
"""


class OneTopicAdmin:
    """Knows the topic of the reports, which are all of this time."""

    def __init__(self, broker):
        self._broker = broker

    def partition_counts(self):
        return {_REPORTS.topic: 1}

    def end_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[1] for each in partitions}

    def offsets_for_times(self, times):
        return dict.fromkeys(times, 0)


class Looks:
    """A clock of the command that stands still for its polls: what is to happen between two looks happens then."""

    def __init__(self, *between):
        self._between = list(between)
        self._reads = 0
        self.time = time.time

    def monotonic(self):
        self._reads += 1
        if self._reads % 25 == 0 and self._between:
            self._between.pop(0)()
        return self._reads / 25


class AuditCommandCase(CommandCase):
    command = ("audit",)
    configuration = _CONFIGURATION

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic(_REPORTS.topic, 1)
        admin = OneTopicAdmin(self.kafka.broker)
        self.useFixture(fixtures.MonkeyPatch(f"{plugins.__name__}.load_admin", lambda *_: admin))
        self.useFixture(fixtures.MonkeyPatch(f"{report_log.__name__}.POLL_SECONDS", 0.0))
        self.bucket_ms = round(time.time() * 1000) // _BUCKET_MS * _BUCKET_MS - 5 * _BUCKET_MS
        self.ids = 0

    def reported(self, tier, *counts):
        self.ids += 1
        now_ms = round(time.time() * 1000)
        report = AuditReport(f"r{self.ids}", tier, "agent", "h", "i", now_ms, 60, counts)
        self.kafka.producer().publish(_REPORTS.topic, [reports.encode(report)]).raise_for_undelivered()

    def sent(self, messages, topic="metrics"):
        self.reported("producer", AuditCount(topic, self.bucket_ms, messages))

    def logged(self, first, following, topic="metrics"):
        self.reported("broker", AuditCount(topic, self.bucket_ms, offsets={0: ((first, following),)}))


class ShowTest(AuditCommandCase):
    def test_where_nothing_was_reported_nothing_is_known_and_the_status_is_3(self):
        status, out, err = self.run_command("show", "-f", "json")
        self.assertEqual((3, []), (status, json.loads(out)))
        self.assertIn("--topic *: nothing was reported", err)

        self.sent(10)
        self.logged(0, 10)
        self.assertEqual(0, self.run_command("show")[0])
        for name in ("metricks", "event*"):
            status, out, err = self.run_command("show", "--topic", name)
            self.assertEqual(3, status)
            self.assertIn(f"monasca-common audit show: --topic {name}: nothing was reported of such a topic", err)

    def test_what_is_missing_is_status_1_whatever_is_shown(self):
        self.sent(10)
        self.logged(0, 7)
        status, out, err = self.run_command("show", "--missing", "-f", "json", "--progress")

        self.assertEqual((1, [("broker", "INCOMPLETE", 3)]), (status, self.shown(out)))
        self.assertIn("reports: 2 offsets done, 0 left", err)

    def test_an_expected_reader_that_never_reported_is_missing(self):
        self.sent(10)
        self.logged(0, 10)
        text = f"{_CONFIGURATION}expected_readers = metrics/database/1_metrics\n"
        status, out, _ = self.run_command("show", "--missing", "-f", "json", text=text)

        self.assertEqual((1, [("database", "INCOMPLETE", 10)]), (status, self.shown(out)))

    def test_an_expected_reader_that_cannot_be_read_is_refused(self):
        for wrong in ("metrics/database", "metrics/producer/agent", "/database/g"):
            status, _, err = self.run_command("show", text=f"{_CONFIGURATION}expected_readers = {wrong}\n")
            self.assertEqual((2, True), (status, f"has {wrong!r}, which is not TOPIC/TIER/GROUP" in err), err)

    def shown(self, out):
        return [(row["tier"], row["verdict"], row["lost"] + row["late"]) for row in json.loads(out)]


class WatchTest(AuditCommandCase):
    def watch(self, *between, looks, topic="*"):
        self.useFixture(fixtures.MonkeyPatch(f"{audit.__name__}.time", Looks(*between)))
        return self.run_command("watch", "--topic", topic, "--interval", "1", "--looks", str(looks), "-f", "json")

    def setUp(self):
        super().setUp()
        self.sent(10)
        self.logged(0, 10)

    def lines(self, out):
        return [(row["tier"], row["verdict"], row["lost"] + row["late"]) for row in map(json.loads, out.splitlines())]

    def test_a_change_is_a_line_and_status_1(self):
        status, out, _ = self.watch(lambda: self.sent(3), looks=2)

        self.assertEqual((1, [("broker", "INCOMPLETE", 3)]), (status, self.lines(out)))

    def test_what_is_complete_again_is_another_line_and_status_0(self):
        status, out, _ = self.watch(lambda: self.sent(3), lambda: self.logged(10, 13), looks=3)

        self.assertEqual((0, [("broker", "INCOMPLETE", 3), ("broker", "OK", 0)]), (status, self.lines(out)))

    def test_what_does_not_change_is_no_line(self):
        self.assertEqual((0, ""), self.watch(looks=3)[:2])

    def test_a_topic_without_reports_is_said_once_and_is_status_3(self):
        status, out, err = self.watch(looks=3, topic="metricks")

        self.assertEqual((3, "", 1), (status, out, err.count("--topic metricks: nothing was reported")))
