# SPDX-License-Identifier: Apache-2.0
"""`audit count` selects its topics, and selects them again when topics change."""

from unittest import mock

import fixtures
from oslotest import base

from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka.errors import ConfigurationError, RetriableError
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.operations.audit import counter_service
from monasca_common.operations.audit.counter_service import CounterService


class TopicsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.existing = {"metrics": 1, "monasca-audit": 1, "__consumer_offsets": 50}

    def partition_counts(self):
        """The test case replaces the admin client."""
        return self.existing

    def topics(self, *wanted):
        return self.service(wanted).topics()

    def service(self, wanted=()):
        return CounterService(AuditSettings(), mock.Mock(), self, mock.Mock(), wanted, "group", "broker")

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
