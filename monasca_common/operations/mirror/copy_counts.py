# SPDX-License-Identifier: Apache-2.0
"""Compares what audits have counted in a source and in its copy, so that neither has to be read.

Counts tell how many messages are missing or doubled in each span of event time. They do not tell which, nor whether a
message was altered; and a message without an id hides one that is doubled in the same span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from monasca_common.audit.reconciliation import AuditRules, AuditVerdict, Reconciliation
from monasca_common.audit.reports import COPIES, LOG, MIRRORED


@dataclass(frozen=True, slots=True)
class CopyCount:
    """One topic in one bucket. ``tier``: `COPIES`, what was counted in the target, by the counter ``application``; or
    `MIRRORED`, what the mirror of that name says. ``is_open``: the grace period is not over."""

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
        """Whether it is known that they are not the same: before the end of the grace period either may be late."""
        return not self.is_open and bool(self.missing or self.extra)


def copy_counts(found: Iterable[Reconciliation], mirror: str, now_ms: int, rules: AuditRules) -> list[CopyCount]:
    """``found``: the balance of what all tiers report, in the order of topics and buckets. What arrived of a
    topic that was recreated is not known."""
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
    """Those of these topics of which nothing was counted in both clusters."""
    return sorted(set(topics) - {each.topic for each in counts if each.tier in COPIES})


def _counts(tiers: Iterable[Reconciliation], mirror: str, *, is_open: bool) -> Iterator[CopyCount]:
    log = next((each for each in tiers if each.tier == LOG), None)
    if log is None:
        return
    for each in tiers:
        place = each.topic, each.bucket_ms, each.tier, each.application
        missing = each.lost + each.late
        if each.tier in COPIES:
            # What is twice in the source is to be twice in the copy.
            doubled = each.duplicates - log.duplicates
            missing, extra = missing + max(0, -doubled), each.surplus + max(0, doubled)
            yield CopyCount(*place, log.messages, each.messages, missing, extra, is_open)
        elif each.tier == MIRRORED and each.application == mirror:
            yield CopyCount(*place, each.expected, each.messages, missing, 0, is_open)


def _is_open(bucket_ms: int, now_ms: int, rules: AuditRules) -> bool:
    return now_ms < bucket_ms + (rules.bucket_seconds + rules.grace_seconds) * 1000
