# SPDX-License-Identifier: Apache-2.0
"""The service of audits: it reconciles reports repeatedly, and reports what is missing: a line in the log, metrics
for Prometheus, and a metric of Monasca over which `monasca-common init` defines an alarm.

It has no state but what is in the topic of the reports, so it may be killed at any time, and several may run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from oslo_config import cfg

from monasca_common.audit.metrics import AuditMetrics, envelopes, tier_totals
from monasca_common.audit.reconciliation import AuditTotals, AuditVerdict, Reconciliation
from monasca_common.audit.report_log import ReportLog, open_report_log
from monasca_common.audit.reporter import audited_source
from monasca_common.audit.reports import bucket_of
from monasca_common.audit.settings import AUDIT_GROUP, AuditSettings, audit_settings
from monasca_common.kafka import Admin, KafkaProducer, load_admin, open_producer
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.config import connection_settings, producer_settings
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.runtime import started, stopped
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)

_READ_SECONDS = 300.0
_BALANCE_SECONDS = 60.0
_MOST_LINES = 20  # of one reconciliation

OpenLog = Callable[[int], ReportLog]


class AuditService(Loop):
    """``open_log``: opens the reports from a moment on. After a failure it reads the reports anew."""

    def __init__(
        self, settings: AuditSettings, open_log: OpenLog, producer: ProducerSettings, *, clock: Clock | None = None
    ) -> None:
        super().__init__("the audit", clock)
        self._settings = settings
        self._open_log = open_log
        self._producer_settings = producer
        self._incomplete: set[tuple[str, int, str, str]] = set()
        self._recreated: set[str] = set()
        self.reconciliations = 0
        self.metrics = AuditMetrics()
        self._state = LoopHealth(
            "audit",
            self.clock,
            trouble="nothing has been reconciled yet",
            facts=lambda: {"incomplete": len(self._incomplete)},
        )
        self.health = self._state.probes

    def failed(self, error: Exception) -> None:
        self._state.failed(error)
        self.metrics.failed()

    def serve(self) -> None:
        totals = AuditTotals(self._settings.rules)
        with contextlib.ExitStack() as stack:
            producer = self._opened_producer(stack) if self._settings.tenant else None
            log = stack.enter_context(self._open_log(self._since_ms()))
            for report in log.read(_READ_SECONDS):
                totals.add(report)
            fail_point("audit.after_read")
            while not (self.stopping.is_set() or totals.outdated):
                self.reconcile(totals, producer)
                due = self.clock.monotonic() + _BALANCE_SECONDS
                while self.clock.monotonic() < due and not self.stopping.is_set():
                    for report in log.poll():
                        totals.add(report)

    def _opened_producer(self, stack: contextlib.ExitStack) -> KafkaProducer:
        """Its metric is audited as all that services send."""
        settings = stack.enter_context(audited_source(self._producer_settings, self._settings, AUDIT_GROUP))
        producer = open_producer(settings)
        stack.callback(producer.close, CLOSE_SECONDS)
        return producer

    def reconcile(self, totals: AuditTotals, producer: KafkaProducer | None) -> None:
        """Reconcile once, and report what was found. Raises `MessagingError`."""
        now_ms, since_ms = self.clock.time_ms(), self._since_ms()
        totals.forget(since_ms)
        found = [each for each in totals.reconciliations(now_ms) if each.bucket_ms >= since_ms]
        self._report(found)
        self._report_recreated({each.topic for each in found if each.verdict is AuditVerdict.RECREATED})
        tiers = tier_totals(found)
        self.metrics.reconciled(tiers, totals.foreign)
        if producer is not None and tiers:
            messages = list(envelopes(tiers, self._settings.tenant or "", self._settings.region, now_ms))
            producer.publish(self._settings.metrics_topic, messages).raise_for_undelivered()
            fail_point("audit.after_metrics")
        self._state.turned("")
        self.reconciliations += 1

    def _report(self, found: Sequence[Reconciliation]) -> None:
        """Log what has become incomplete, or is so no longer."""
        now = {(each.topic, each.bucket_ms, each.tier, each.application): each for each in found}
        incomplete = {key for key, each in now.items() if each.verdict.is_final}
        new = sorted(incomplete - self._incomplete)
        for key in new[:_MOST_LINES]:
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
                "; nothing counts the log" if each.verdict is AuditVerdict.UNCOUNTED else "",
            )
        if len(new) > _MOST_LINES:
            LOG.error("%d more are incomplete: `monasca-common audit show --missing` has them", len(new) - _MOST_LINES)
        healed = [key for key in self._incomplete - incomplete if key in now]
        if healed:
            LOG.info("%d spans of event time that were incomplete are complete now", len(healed))
        self._incomplete = incomplete

    def _report_recreated(self, topics: set[str]) -> None:
        for topic in sorted(topics - self._recreated):
            LOG.warning("topic %s was deleted and recreated: for window_seconds it is not known what arrived", topic)
        self._recreated = topics

    def _since_ms(self) -> int:
        back_ms = self._settings.window_seconds * 1000
        return bucket_of(self.clock.time_ms() - back_ms, self._settings.bucket_seconds)


def run(conf: cfg.ConfigOpts, until: Callable[[AuditService], object]) -> None:
    """Serve what ``conf`` describes. ``until``: is given the service before it begins, to stop it when it is time.

    Raises `ConfigurationError` if it cannot start.
    """
    settings = audit_settings(conf)
    service = AuditService(
        settings, _opening(load_admin(conf), connection_settings(conf), settings), producer_settings(conf)
    )
    with status_served(AUDIT_GROUP, settings.status, service.health, service.metrics.registry):
        until(service)  # first: who sees that it has started may stop it
        LOG.info("%s", started("audit", reads=settings.topic, status_at=settings.status.address))
        service.run()
    LOG.info("%s", stopped("audit", balances=service.reconciliations))


def _opening(admin: Admin, connection: ConnectionSettings, settings: AuditSettings) -> OpenLog:
    return lambda since_ms: open_report_log(admin, connection, settings.topic, since_ms)
