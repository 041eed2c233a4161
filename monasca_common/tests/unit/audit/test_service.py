# SPDX-License-Identifier: Apache-2.0
"""The audit service publishes missing messages: in its log, for Prometheus, and as a metric for alarms."""

import logging
import threading
from dataclasses import replace

import fixtures
from prometheus_client import generate_latest

from monasca_common.alarms.expression import parse
from monasca_common.audit.reconciliation import AuditTotals
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.audit.service import MISSING_METRIC, AuditService
from monasca_common.kafka.errors import RetriableError
from monasca_common.models.metric import MetricDecoder
from monasca_common.tests.unit.audit.audit_case import START_MS, TOPIC, AuditCase

METRICS = "metrics"


class _OneReconciliation:
    """The log of reports for a service that stops after one reconciliation."""

    def __init__(self, service, found):
        self._service = service
        self._found = found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, seconds):
        yield from self._found
        self._service.metrics.reconciled = lambda *_: self._service.stop()  # the metric is sent after that

    def poll(self):
        return ()


class AuditServiceTest(AuditCase):
    def setUp(self):
        super().setUp()
        self.kafka.broker.create_topic(METRICS, 1)
        self.log = self.useFixture(fixtures.FakeLogger(level=logging.INFO, format="%(levelname)s %(message)s"))
        self.clock.advance(3600)
        self.totals = AuditTotals(self.settings.rules)
        self.service = AuditService(
            replace(self.settings, tenant="t1"), self.open_log, self.kafka.producer_settings(), clock=self.clock
        )

    def open_log(self, since_ms):
        raise RetriableError("the brokers are unavailable")

    def lack(self, missing, report_id):
        for report in self.lacking(missing, report_id):
            self.totals.add(report)

    def lacking(self, missing=3, report_id="one"):
        count = AuditCount(TOPIC, START_MS, 10)
        found = AuditCount(TOPIC, START_MS, offsets={0: ((0, 10 - missing),)})
        for tier, each in (("api", count), ("broker", found)):
            yield AuditReport(f"{report_id}-{tier}", tier, "a", "h", "i", START_MS, 60, (each,))

    def values(self):
        decoded = MetricDecoder().decode_all([message.value for message in self.kafka.broker.records(METRICS)])
        self.assertFalse(decoded.errors)
        return [(row.series.dimensions["tier"], row.value) for row in decoded.rows]

    def test_missing_messages_are_logged_once_and_published(self):
        self.lack(3, "one")
        producer = self.kafka.producer()
        for _ in range(2):
            self.service.reconcile(self.totals, producer)

        self.assertEqual([("api", 0.0), ("broker", 3.0)] * 2, self.values())
        self.assertEqual(1, self.log.output.count("ERROR"))
        self.assertIn("3 of 10 messages are missing", self.log.output)

    def test_a_topic_that_nothing_counts_is_logged_and_sent(self):
        self.totals.add(AuditReport("one", "api", "a", "h", "i", START_MS, 60, (AuditCount(TOPIC, START_MS, 10),)))
        self.service.reconcile(self.totals, self.kafka.producer())

        self.assertEqual([("api", 0.0), ("broker", 10.0)], self.values())
        self.assertIn("nothing counts the log", self.log.output)

    def test_prometheus_shows_missing_messages_and_the_service_is_ready(self):
        self.lack(3, "one")
        self.assertFalse(self.service.health.ready()[0])
        self.service.reconcile(self.totals, None)
        text = generate_latest(self.service.metrics.registry).decode()

        self.assertIn('monasca_audit_missing_messages{application="broker",tier="broker",topic="t"} 3.0', text)
        self.assertIn('monasca_audit_completeness{application="broker",tier="broker",topic="t"} 0.7', text)
        self.assertTrue(self.service.health.ready()[0])

    def test_late_messages_complete_a_bucket(self):
        self.lack(3, "one")
        self.service.reconcile(self.totals, None)
        self.lack(0, "one")
        self.totals.add(
            AuditReport(
                "late", "broker", "a", "h", "i", START_MS, 60, (AuditCount(TOPIC, START_MS, offsets={0: ((7, 10),)}),)
            )
        )
        self.service.reconcile(self.totals, self.kafka.producer())

        self.assertEqual([("api", 0.0), ("broker", 0.0)], self.values())
        self.assertIn("are complete now", self.log.output)

    def test_a_topic_that_was_recreated_is_logged_once_and_measured_nowhere(self):
        for log in ("first", "second"):
            count = AuditCount(TOPIC, START_MS, offsets={0: ((0, 10),)}, log=log)
            self.totals.add(AuditReport(log, "broker", "a", "h", "i", START_MS, 60, (count,)))
        for _ in range(2):
            self.service.reconcile(self.totals, self.kafka.producer())

        self.assertEqual([], self.values())
        self.assertEqual(1, self.log.output.count("was deleted and recreated"))

    def test_it_restarts_while_the_brokers_are_unavailable(self):
        thread = threading.Thread(target=self.service.run)
        thread.start()
        while not self.service._state.trouble.startswith("the brokers"):
            pass
        self.service.stop()
        thread.join(60)

        self.assertFalse(thread.is_alive())
        self.assertIn("the audit failed and tries again in 0.5 s: the brokers are unavailable", self.log.output)

    def test_the_metric_that_it_sends_is_audited_itself(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.audit.service._BALANCE_SECONDS", 0.0))
        service = AuditService(
            replace(self.settings, tenant="t1"),
            lambda since_ms: _OneReconciliation(service, self.lacking()),
            self.kafka.producer_settings(),
            clock=self.clock,
        )
        service.run()

        sent = [(each.tier, each.application, each.counts[0].topic, each.counts[0].messages) for each in self.reports()]
        self.assertEqual([("producer", "audit", METRICS, 2)], sent)

    def test_the_documented_alarm_expression_names_the_metric(self):
        (part,) = parse("max(monasca.audit.missing_messages) > 0").sub_expressions

        self.assertEqual(MISSING_METRIC, part.metric_name)
