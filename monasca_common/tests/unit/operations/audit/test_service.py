# SPDX-License-Identifier: Apache-2.0
"""The audit service logs missing messages and exports them for Prometheus."""

import logging
import sys
import threading
from unittest import mock

import fixtures
from prometheus_client import generate_latest

from monasca_common.audit.reconciliation import AuditTotals
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.kafka.errors import RetriableError
from monasca_common.operations.audit.service import AuditMetrics, AuditService
from monasca_common.tests.unit.audit.audit_case import BUCKET_MS, START_MS, TOPIC, AuditCase


class AuditServiceTest(AuditCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=logging.INFO, format="%(levelname)s %(message)s"))
        self.clock.advance(3600)
        self.totals = AuditTotals(self.settings)
        unavailable = mock.Mock(side_effect=RetriableError("the brokers are unavailable"))
        reports = mock.Mock(window=unavailable, stopping=threading.Event())
        self.service = AuditService(self.settings, reports, clock=self.clock)

    def lack(self, missing, report_id):
        for report in self.lacking(missing, report_id):
            self.totals.add(report)

    def lacking(self, missing=3, report_id="one"):
        count = AuditCount(TOPIC, START_MS, 10)
        found = AuditCount(TOPIC, START_MS, offsets={0: ((0, 10 - missing),)})
        for tier, each in (("api", count), ("broker", found)):
            yield AuditReport(f"{report_id}-{tier}", tier, "a", START_MS, 60, (each,))

    def missing(self):
        """Return {tier: exported number of missing messages}."""
        families = {family.name: family for family in self.service.metrics.registry.collect()}
        samples = families["monasca_audit_missing_messages"].samples
        return {sample.labels["tier"]: sample.value for sample in samples}

    def test_missing_messages_are_logged_once_and_exported(self):
        self.lack(3, "one")
        for _ in range(2):
            self.service.reconcile(self.totals)

        self.assertEqual({"api": 0.0, "broker": 3.0}, self.missing())
        self.assertEqual(1, self.log.output.count("ERROR"))
        self.assertIn("3 of 10 messages are missing", self.log.output)

    def test_a_surplus_that_leaves_the_window_still_belongs_to_the_next_bucket(self):
        for number, records in enumerate((13, 7)):
            bucket_ms = START_MS + number * BUCKET_MS
            found = AuditCount(TOPIC, bucket_ms, offsets={0: ((number * 13, number * 13 + records),)})
            for tier, each in (("api", AuditCount(TOPIC, bucket_ms, 10)), ("broker", found)):
                self.totals.add(AuditReport(f"{number}-{tier}", tier, "a", bucket_ms, 60, (each,)))
        self.clock.advance(self.settings.window_seconds - 3600)
        for _ in range(2):
            self.service.reconcile(self.totals)
            self.assertEqual({"api": 0.0, "broker": 0.0}, self.missing())
            self.clock.advance(60)
        self.assertNotIn("ERROR", self.log.output)

    def test_a_topic_that_is_not_counted_is_logged_and_exported(self):
        self.totals.add(AuditReport("one", "api", "a", START_MS, 60, (AuditCount(TOPIC, START_MS, 10),)))
        self.service.reconcile(self.totals)

        self.assertEqual({"api": 0.0, "broker": 10.0}, self.missing())
        self.assertIn("no counter reads the log", self.log.output)

    def test_prometheus_shows_missing_messages_and_the_service_is_ready(self):
        self.lack(3, "one")
        self.assertFalse(self.service.health.ready()[0])
        self.service.reconcile(self.totals)
        text = generate_latest(self.service.metrics.registry).decode()

        self.assertIn('monasca_audit_missing_messages{application="broker",tier="broker",topic="t"} 3.0', text)
        self.assertIn('monasca_audit_completeness{application="broker",tier="broker",topic="t"} 0.7', text)
        self.assertTrue(self.service.health.ready()[0])

    def test_a_scrape_during_a_reconciliation_finds_all_series(self):
        self.lack(3, "one")
        self.service.reconcile(self.totals)
        scraped = []

        def scrape(frame, _event, _argument):
            if frame.f_code is AuditMetrics.reconciled.__code__:  # at each of its lines
                scraped.append(self.missing())
                return scrape
            return None

        self.addCleanup(sys.settrace, sys.gettrace())
        sys.settrace(scrape)
        self.service.reconcile(self.totals)
        self.assertEqual([{"api": 0.0, "broker": 3.0}] * len(scraped), scraped)
        self.assertGreater(len(scraped), 1)

    def test_late_messages_complete_a_bucket(self):
        self.lack(3, "one")
        self.service.reconcile(self.totals)
        self.lack(0, "one")
        self.totals.add(
            AuditReport("late", "broker", "a", START_MS, 60, (AuditCount(TOPIC, START_MS, offsets={0: ((7, 10),)}),))
        )
        self.service.reconcile(self.totals)

        self.assertEqual({"api": 0.0, "broker": 0.0}, self.missing())
        self.assertIn("are complete now", self.log.output)

    def test_a_recreated_topic_is_logged_once_and_has_no_metrics(self):
        for log in ("first", "second"):
            count = AuditCount(TOPIC, START_MS, offsets={0: ((0, 10),)}, log=log)
            self.totals.add(AuditReport(log, "broker", "a", START_MS, 60, (count,)))
        for _ in range(2):
            self.service.reconcile(self.totals)

        self.assertEqual({}, self.missing())
        self.assertEqual(1, self.log.output.count("was deleted and recreated"))

    def test_an_incomplete_bucket_of_a_recreated_topic_is_not_complete(self):
        self.lack(3, "one")
        self.service.reconcile(self.totals)
        for log in ("first", "second"):
            count = AuditCount(TOPIC, START_MS, log=log)
            self.totals.add(AuditReport(log, "broker", "a", START_MS, 60, (count,)))
        self.service.reconcile(self.totals)

        self.assertNotIn("are complete now", self.log.output)

    def test_the_service_restarts_while_the_brokers_are_unavailable(self):
        thread = threading.Thread(target=self.service.run)
        thread.start()
        while not self.service.health.reason.startswith("the brokers"):
            pass
        self.service.stop()
        thread.join(60)

        self.assertFalse(thread.is_alive())
        self.assertIn("the audit failed and tries again in 0.5 s: the brokers are unavailable", self.log.output)
