# SPDX-License-Identifier: Apache-2.0
"""The commands ``monasca-common audit`` with an in-memory broker: the rows of `show`, and the topics of `count`."""

import json
import time
from pathlib import Path
from unittest import mock

import fixtures
from oslo_config import cfg
from oslotest import base

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import plugins
from monasca_common.kafka.errors import ConfigurationError, RetriableError, UndeliveredError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import Fail, MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.operations.audit import counter_service, report_log
from monasca_common.operations.audit.counter_service import CounterService
from monasca_common.operations.audit.log_counter import CounterStarts
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


class TopicsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.existing = {"metrics": 1, "monasca-audit": 1, "__consumer_offsets": 50}

    def partition_counts(self):
        """The test case replaces the admin client."""
        return self.existing

    def topics(self, *wanted):
        return self.service(wanted).topics()

    def service(self, wanted=(), producer=None):
        producer = producer or mock.Mock()
        return CounterService(AuditSettings(), mock.Mock(), self, producer, wanted, "group", "broker")

    def test_all_topics_except_internal_topics_and_report_topics_are_counted(self):
        self.assertEqual(("metrics",), self.topics())

    def test_only_named_topics_are_counted(self):
        self.existing["events"] = 1
        self.assertEqual(("metrics",), self.topics("metrics"))

    def test_a_topic_that_does_not_exist_is_named(self):
        self.assertIn("--topic evnts", str(self.assertRaises(ConfigurationError, self.topics, "evnts")))

    def test_a_cluster_without_topics_is_refused(self):
        self.existing = {}
        self.assertRaises(ConfigurationError, self.topics)

    def test_a_new_topic_ends_an_attempt_after_a_report(self):
        for name in ("open_consumer", "CounterStarts"):
            self.useFixture(fixtures.MockPatchObject(counter_service, name))
        self.useFixture(fixtures.MockPatchObject(counter_service, "_REFRESH_SECONDS", 0.0))
        counter = self.useFixture(fixtures.MockPatchObject(counter_service, "LogCounter")).mock.return_value
        service = self.service()
        counter.poll.side_effect = lambda: self.existing.update(events=1) or 5
        service.serve()

        self.assertEqual((5, 1), (self.counted(service), counter.report.call_count))

    def test_a_counter_reports_after_a_fatal_error_of_its_producer(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic(_REPORTS.topic, 1)
        kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        for name in ("open_consumer", "CounterStarts"):
            self.useFixture(fixtures.MockPatchObject(counter_service, name))
        counter = self.useFixture(fixtures.MockPatchObject(counter_service, "LogCounter")).mock.return_value
        producer = kafka.producer()
        counter.report.side_effect = lambda: producer.publish(_REPORTS.topic, [b"counts"]).raise_for_undelivered()
        service = self.service(producer=producer)
        service.stop()  # an attempt then only reports
        self.assertRaises(UndeliveredError, service.serve)
        service.serve()
        self.assertEqual(1, len(kafka.broker.records(_REPORTS.topic)))

    def test_the_transactional_id_of_another_service_is_not_used(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "service.conf")
        file.write_text("[kafka]\nbootstrap_servers = kafka:9092\ntransactional_id = agent-1\n")
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(file)])
        for name in ("load_admin", "CounterService", "producing_driver", "run_service"):
            self.useFixture(fixtures.MockPatchObject(counter_service, name))
        opened = self.useFixture(fixtures.MockPatchObject(counter_service, "open_producer")).mock
        counter_service.run(conf, section="kafka", wanted=(), group="group", tier="broker")

        self.assertIsNone(opened.call_args.args[0].transactional_id)

    def counted(self, service):
        return service.metrics.registry.get_sample_value("monasca_audit_counted_messages_total")

    def test_probes_show_whether_a_counter_counts(self):
        clock = VirtualClock()
        self.useFixture(fixtures.MockPatch("monasca_common.runtime.restarts.SystemClock", lambda: clock))
        for name in ("open_consumer", "CounterStarts"):
            self.useFixture(fixtures.MockPatchObject(counter_service, name))
        counter = self.useFixture(fixtures.MockPatchObject(counter_service, "LogCounter")).mock.return_value
        service, during = self.service(), []

        def poll():
            during.append((service.health.ready()[0], service.health.live()[0]))
            if len(during) == 3:
                service.stop()
            clock.advance(6)
            return 1

        counter.poll.side_effect = poll
        service.serve()
        self.assertEqual(([(False, True), (False, True), (True, True)], 3), (during, self.counted(service)))

        service.failed(RetriableError("no broker responds"))
        ready, output = service.health.ready()
        self.assertEqual((False, ["no broker responds"]), (ready, output["reasons"]))
        clock.advance(601)
        self.assertFalse(service.health.live()[0])


class OfflineAdmin:
    """An admin client that reports offset 7 for the partitions of ``leaders`` with a leader."""

    def __init__(self, leaders, committed):
        self._leaders = leaders
        self._committed = committed

    def leaders(self):
        return {"metrics": self._leaders}

    def group_offsets(self, _group):
        return self._committed

    def first_offsets(self, partitions):
        for each in partitions:
            if self._leaders.get(each.partition) is None:
                raise RetriableError(f"{each.topic}/{each.partition}: its leader did not report its offset")
        return dict.fromkeys(partitions, 7)

    end_offsets = offsets_for_times = first_offsets


class StartsTest(base.BaseTestCase):
    def test_a_partition_without_a_leader_does_not_stop_the_others(self):
        partitions = [TopicPartition("metrics", number) for number in range(4)]
        admin = OfflineAdmin({0: 1, 1: None, 2: None}, dict.fromkeys(partitions[:2], 9))
        starts = CounterStarts(admin, "group", AuditSettings(), 0)

        self.assertEqual(dict(zip(partitions, (7, 9, 0, 0), strict=True)), starts.assigned(partitions))
