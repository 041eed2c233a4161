# SPDX-License-Identifier: Apache-2.0
"""What the last reconciliation found, for Prometheus, and as metrics of Monasca over which alarms can be defined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from monasca_common.audit.reconciliation import AuditVerdict, Reconciliation
from monasca_common.models import json_text
from monasca_common.models.metric import envelope
from monasca_common.runtime.metrics import ServiceMetrics

#: The metric of Monasca: how many messages are missing in spans that should be complete; 0 where all is well.
MISSING_METRIC = "monasca.audit.missing_messages"

PREFIX = "monasca_audit"
_LABELS = ("topic", "tier", "application")


@dataclass(frozen=True, slots=True)
class TierTotal:
    """One tier of one topic over the whole window. ``missing``: of spans whose grace period is over; ``expected``: of
    all of them."""

    topic: str
    tier: str
    application: str
    expected: int
    missing: int
    duplicates: int

    @property
    def labels(self) -> tuple[str, str, str]:
        """A log has no application, and a dimension of a metric cannot be empty."""
        return self.topic, self.tier, self.application or self.tier


def tier_totals(found: Iterable[Reconciliation]) -> list[TierTotal]:
    sums: dict[tuple[str, str, str], list[int]] = {}
    for each in found:
        if each.verdict is AuditVerdict.RECREATED:
            continue
        total = sums.setdefault((each.topic, each.tier, each.application), [0, 0, 0])
        total[0] += each.expected
        total[1] += each.lost + each.late if each.verdict.is_final else 0
        total[2] += each.duplicates
    return [TierTotal(*key, *total) for key, total in sorted(sums.items())]


def envelopes(totals: Iterable[TierTotal], tenant: str, region: str, time_ms: int) -> Iterator[bytes]:
    """A metric of each tier of each topic, as messages for the topic of metrics."""
    for each in totals:
        metric = {
            "name": MISSING_METRIC,
            "dimensions": dict(zip(_LABELS, each.labels, strict=True)),
            "timestamp": time_ms,
            "value": float(each.missing),
            "value_meta": {},
        }
        yield envelope(json_text.write(metric), tenant, region, time_ms / 1000)


class AuditMetrics(ServiceMetrics):
    """For Prometheus."""

    def __init__(self) -> None:
        super().__init__(PREFIX)
        self._missing = self.gauge("missing_messages", "Messages missing after the grace period", *_LABELS)
        self._completeness = self.gauge("completeness", "What arrived, 0 to 1", *_LABELS)
        self._duplicates = self.gauge("duplicate_messages", "Records with a message id of another record", *_LABELS)
        self._foreign = self.gauge("foreign_reports", "Reports left out: their buckets have another length")
        self._balances = self.counter("balances", "Balances, by outcome", "outcome", known=("complete", "failed"))

    def reconciled(self, totals: Iterable[TierTotal], foreign: int) -> None:
        for gauge in (self._missing, self._completeness, self._duplicates):
            gauge.clear()
        for each in totals:
            complete = 1.0 if not each.expected else 1.0 - each.missing / each.expected
            self._missing.labels(*each.labels).set(each.missing)
            self._completeness.labels(*each.labels).set(complete)
            self._duplicates.labels(*each.labels).set(each.duplicates)
        self._foreign.set(foreign)
        self._balances.labels("complete").inc()

    def failed(self) -> None:
        self._balances.labels("failed").inc()
