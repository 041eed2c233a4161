# SPDX-License-Identifier: Apache-2.0
"""Compares the audit counts of a source and its copy, so that neither has to be read.

Counts show how many messages are missing or duplicated in each time bucket, but not which ones, nor whether a message
was altered. A duplicate without a message id hides a missing message of the same bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from monasca_common.audit.reconciliation import AuditRules, AuditVerdict, Reconciliation
from monasca_common.audit.reports import COPIES, LOG, MIRRORED


@dataclass(frozen=True, slots=True)
class CopyCount:
    """One topic in one bucket. ``tier``: `COPIES` for counts of the target by the counter ``application``, or
    `MIRRORED` for the reports of the mirror of that name. ``is_open``: the grace period is not over."""

    topic: str
    bucket_ms: int
    tier: str
    application: str
    source: int
    target: int
    missing: int
    extra: int
    is_open: bool

    @property
    def differs(self) -> bool:
        """Whether they differ after the grace period; before its end, either count may be late."""
        return not self.is_open and bool(self.missing or self.extra)


def copy_counts(found: Iterable[Reconciliation], mirror: str, now_ms: int, rules: AuditRules) -> list[CopyCount]:
    """``found``: the reconciliations of all tiers, ordered by topic and bucket. Recreated topics are left out, because
    their counts are not comparable."""
    spans: dict[tuple[str, int], list[Reconciliation]] = defaultdict(list)
    for each in found:
        if each.verdict is not AuditVerdict.RECREATED:
            spans[each.topic, each.bucket_ms].append(each)
    return [
        count
        for (_, bucket_ms), tiers in spans.items()
        for count in _counts(tiers, mirror, is_open=_is_open(bucket_ms, now_ms, rules))
    ]


def uncounted(counts: Iterable[CopyCount], topics: Collection[str]) -> list[str]:
    """Return the topics that were not counted in both clusters."""
    return sorted(set(topics) - {each.topic for each in counts if each.tier in COPIES})


def _counts(tiers: Iterable[Reconciliation], mirror: str, *, is_open: bool) -> Iterator[CopyCount]:
    log = next((each for each in tiers if each.tier == LOG), None)
    if log is None:
        return
    for each in tiers:
        place = each.topic, each.bucket_ms, each.tier, each.application
        missing = each.lost + each.late
        if each.tier in COPIES:
            # Duplicates of the source must be in the copy too.
            doubled = each.duplicates - log.duplicates
            missing, extra = missing + max(0, -doubled), each.surplus + max(0, doubled)
            yield CopyCount(*place, log.messages, each.messages, missing, extra, is_open)
        elif each.tier == MIRRORED and each.application == mirror:
            yield CopyCount(*place, each.expected, each.messages, missing, 0, is_open)


def _is_open(bucket_ms: int, now_ms: int, rules: AuditRules) -> bool:
    return now_ms < bucket_ms + (rules.bucket_seconds + rules.grace_seconds) * 1000
