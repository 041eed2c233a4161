# SPDX-License-Identifier: Apache-2.0
"""The audit service: it reconciles the reports every minute, logs missing messages and exports Prometheus metrics.

The service has no state except the topic of the reports, so it can be killed, and several instances can run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from oslo_config import cfg

from monasca_common.audit.reconciliation import AuditTotals, AuditVerdict, Reconciliation
from monasca_common.audit.settings import AUDIT_GROUP, PREFIX, AuditSettings, audit_settings
from monasca_common.kafka import load_admin
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.config import connection_settings
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.plugins import consuming_driver
from monasca_common.operations.audit.report_log import ReportLog
from monasca_common.operations.loop_service import run_service
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.metrics import Sample, ServiceMetrics
from monasca_common.runtime.restarts import Loop

LOG = logging.getLogger(__name__)

_LABELS = ("topic", "tier", "application")

_READ_SECONDS = 300.0
_INTERVAL_SECONDS = 60.0
_MAX_LINES = 20  # maximum number of lines that one reconciliation logs


class AuditMetrics(ServiceMetrics):
    """The Prometheus metrics of the last reconciliation."""

    def __init__(self) -> None:
        super().__init__(PREFIX)
        self._series: Mapping[tuple[str, ...], tuple[float, float, float]] = {}  # the values of the gauges, by labels
        gauges = (
            ("missing_messages", "Messages missing after the grace period"),
            ("completeness", "Share of expected messages that arrived, 0 to 1"),
            ("duplicate_messages", "Records that repeat a message id in a bucket"),
        )
        for index, (name, text) in enumerate(gauges):
            self.computed_gauge(name, text, *_LABELS, samples=partial(self._samples, index))
        self._foreign = self.gauge(
            "foreign_reports", "Reports that are ignored because their bucket_seconds differs from the audit's"
        )
        self._balances = self.counter("balances", "Reconciliations", "outcome", known=("complete", "failed"))

    def reconciled(self, found: Iterable[Reconciliation], foreign: int) -> None:
        """Export the sums over the window. A message counts as missing after the grace period. Recreated topics have no
        values, because it is unknown which of their messages arrived."""
        expected, missing, duplicates = (Counter[tuple[str, str, str]]() for _ in range(3))
        for each in found:
            if each.verdict is not AuditVerdict.RECREATED:
                labels = each.topic, each.tier, each.application or each.tier  # a log does not belong to an application
                expected[labels] += each.expected
                missing[labels] += each.lost + each.late if each.verdict.is_final else 0
                duplicates[labels] += each.duplicates
        self._series = {
            labels: (missing[labels], 1.0 - missing[labels] / total if total else 1.0, duplicates[labels])
            for labels, total in expected.items()
        }
        self._foreign.set(foreign)
        self._balances.labels("complete").inc()

    def _samples(self, index: int) -> Iterable[Sample]:
        return [(labels, values[index]) for labels, values in self._series.items()]

    def failed(self) -> None:
        self._balances.labels("failed").inc()


class AuditService(Loop):
    """Reconciles the reports regularly."""

    def __init__(self, settings: AuditSettings, reports: ReportLog, *, clock: Clock | None = None) -> None:
        super().__init__("the audit", clock)
        self._settings = settings
        self._reports = reports
        self.stopping = reports.stopping
        self._incomplete: set[tuple[str, int, str, str]] = set()
        self._recreated: set[str] = set()
        self.metrics = AuditMetrics()
        self.health = LoopHealth("audit", self.clock, reason="no reconciliation has completed yet")

    def failed(self, error: Exception) -> None:
        self.health.failed(error)
        self.metrics.failed()

    def serve(self) -> None:
        while not self.stopping.is_set():
            # no variable refers to the totals, which are replaced while all reports are read again
            self.reconcile(self._reports.window(self.clock.time_ms(), _READ_SECONDS))
            self.stopping.wait(_INTERVAL_SECONDS)

    def reconcile(self, totals: AuditTotals) -> None:
        if self.stopping.is_set():  # the totals may be incomplete
            return
        fail_point("audit.after_read")
        now_ms = self.clock.time_ms()
        found = totals.reconciliations(now_ms, self._settings.window_start(now_ms))
        self._report(found)
        self._report_recreated({each.topic for each in found if each.verdict is AuditVerdict.RECREATED})
        self.metrics.reconciled(found, totals.foreign)
        self.health.turned("")

    def _report(self, found: Sequence[Reconciliation]) -> None:
        """Log the buckets that became incomplete, and the number that became complete again."""
        now = {(each.topic, each.bucket_ms, each.tier, each.application): each for each in found}
        incomplete = {key for key, each in now.items() if each.verdict.is_final}
        new = sorted(incomplete - self._incomplete)
        for key in new[:_MAX_LINES]:
            each = now[key]
            LOG.error(
                "topic %s, tier %s %s, event time %d: %d of %d messages are missing: %d lost, %d late%s",
                each.topic,
                each.tier,
                each.application,
                each.bucket_ms,
                each.lost + each.late,
                each.expected,
                each.lost,
                each.late,
                "; no counter reads the log" if each.verdict is AuditVerdict.UNCOUNTED else "",
            )
        if len(new) > _MAX_LINES:
            LOG.error("%d more are incomplete: see `monasca-common audit show --missing`", len(new) - _MAX_LINES)
        healed = [key for key in self._incomplete - incomplete if key in now and now[key].verdict is AuditVerdict.OK]
        if healed:
            LOG.info("%d incomplete buckets are complete now", len(healed))
        self._incomplete = incomplete

    def _report_recreated(self, topics: set[str]) -> None:
        for topic in sorted(topics - self._recreated):
            LOG.warning("topic %s was deleted and recreated; missing messages are unknown for window_seconds", topic)
        self._recreated = topics


def run(conf: cfg.ConfigOpts) -> None:
    """Run the service of this configuration. Raises `ConfigurationError` if it cannot start."""
    settings = audit_settings(conf)
    admin, connection = load_admin(conf), connection_settings(conf)
    service = AuditService(settings, ReportLog(admin, connection, settings))
    facts = {"reads": settings.topic, "with_driver": consuming_driver(connection)}
    status = AUDIT_GROUP, settings.status, service.health, service.metrics.registry
    run_service("audit", service, *status, facts=facts)
