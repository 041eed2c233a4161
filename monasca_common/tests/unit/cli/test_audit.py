# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit show``: its rows and exit status, with an in-memory broker."""

import json
import time

import fixtures

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.kafka import plugins
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.operations.audit import report_log
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
    """An admin client with only the topic of reports, which all have this time."""

    def __init__(self, broker):
        self._broker = broker

    def partition_counts(self):
        return {_REPORTS.topic: 1}

    def end_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[1] for each in partitions}

    def offsets_for_times(self, times):
        return dict.fromkeys(times, 0)


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
        report = AuditReport(f"r{self.ids}", tier, "agent", now_ms, 60, counts)
        self.kafka.producer().publish(_REPORTS.topic, [reports.encode(report)]).raise_for_undelivered()

    def sent(self, messages, topic="metrics"):
        self.reported("producer", AuditCount(topic, self.bucket_ms, messages))

    def logged(self, first, following, topic="metrics"):
        self.reported("broker", AuditCount(topic, self.bucket_ms, offsets={0: ((first, following),)}))


class ShowTest(AuditCommandCase):
    def test_without_reports_the_status_is_3(self):
        status, out, err = self.run_command("show", "-f", "json")
        self.assertEqual((3, []), (status, json.loads(out)))
        self.assertIn("--topic *: this window has no reports for this topic", err)

        self.sent(10)
        self.logged(0, 10)
        self.assertEqual(0, self.run_command("show")[0])
        for name in ("metricks", "event*"):
            status, out, err = self.run_command("show", "--topic", name)
            self.assertEqual(3, status)
            self.assertIn(f"monasca-common audit show: --topic {name}: this window has no reports for this topic", err)

    def test_missing_messages_return_status_1_with_and_without_other_rows(self):
        self.sent(10)
        self.logged(0, 7)
        status, out, _ = self.run_command("show", "--missing", "-f", "json")

        self.assertEqual((1, [("broker", "INCOMPLETE", 3)]), (status, self.shown(out)))

    def test_an_expected_reader_that_never_reported_is_missing(self):
        self.sent(10)
        self.logged(0, 10)
        text = f"{_CONFIGURATION}expected_readers = metrics/database/1_metrics\n"
        status, out, _ = self.run_command("show", "--missing", "-f", "json", text=text)

        self.assertEqual((1, [("database", "INCOMPLETE", 10)]), (status, self.shown(out)))

    def test_an_invalid_expected_reader_is_refused(self):
        for wrong in ("metrics/database", "metrics/producer/agent", "/database/g"):
            status, _, err = self.run_command("show", text=f"{_CONFIGURATION}expected_readers = {wrong}\n")
            self.assertEqual((2, True), (status, f"has {wrong!r}, which is not TOPIC/TIER/GROUP" in err), err)

    def shown(self, out):
        return [(row["tier"], row["verdict"], row["lost"] + row["late"]) for row in json.loads(out)]
