# SPDX-License-Identifier: Apache-2.0
"""The audit panel: a heat map of the completeness of every topic at every tier over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.audit.reconciliation import AuditVerdict, Reconciliation
from monasca_common.audit.reports import bucket_of
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Admin
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.audit.report_log import ReportLog
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.view import (
    Cell,
    Concern,
    ConcernKind,
    PanelView,
    TableRow,
    Tone,
    clock,
    count,
    panel_of,
)

_BUCKETS = 10  # the number that fits on a screen 1280 pixels wide
_MANY_DUPLICATES = 1e12  # the number of duplicates that weigh as much as one missing message
_FEW, _MANY = 0.99, 0.9  # lower values are highlighted more strongly

EMPTY = PanelView(
    "audit",
    "Completeness",
    "",
    "The percentage of messages that arrived at each tier, by creation time. "
    "\N{MULTIPLICATION X}: messages are lost, or late by more than the grace period; "
    "\N{HORIZONTAL ELLIPSIS}: messages can still arrive within the grace period; ?: arrivals are not counted, or the "
    "topic was recreated; +: duplicates. monasca-common audit show prints the same data.",
)
_FIRST_COLUMNS = ("Status", "Topic", "Tier", "Messages", "Missing", "Duplicate")
_TONES = {
    AuditVerdict.OK: Tone.GOOD,
    AuditVerdict.OPEN: Tone.GOOD,  # more messages may still arrive
    AuditVerdict.RECREATED: Tone.WARNING,
    AuditVerdict.UNCOUNTED: Tone.WARNING,
    AuditVerdict.INCOMPLETE: Tone.ERROR,
}


@dataclass(frozen=True, slots=True)
class TierFigures:
    """The figures of one topic at one tier in the whole window. ``recent``: the newest buckets by start time.
    ``wrong``: the buckets with a final problem."""

    topic: str
    place: str
    verdict: AuditVerdict
    messages: int
    missing: int
    pending: int  # not yet arrived, within the grace period
    doubled: int
    recent: Mapping[int, Reconciliation]
    wrong: tuple[Reconciliation, ...]


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """``buckets``: the starts of the newest buckets in milliseconds since 1970, newest first."""

    tiers: tuple[TierFigures, ...]
    buckets: tuple[int, ...]


def audit_figures(balances: Iterable[Reconciliation], now_ms: int, bucket_seconds: int) -> AuditFigures:
    """Combine the reconciliations of each topic at each tier."""
    newest = bucket_of(now_ms, bucket_seconds)
    buckets = tuple(newest - back * bucket_seconds * 1000 for back in range(_BUCKETS))
    tiers: dict[tuple[str, str], list[Reconciliation]] = defaultdict(list)
    for each in balances:
        place = each.tier if each.application in ("", each.tier) else f"{each.tier} {each.application}"
        tiers[each.topic, place].append(each)
    return AuditFigures(tuple(_tier(*names, found, buckets[-1]) for names, found in tiers.items()), buckets)


def _tier(topic: str, place: str, balances: Sequence[Reconciliation], since_ms: int) -> TierFigures:
    order = list(AuditVerdict)
    return TierFigures(
        topic,
        place,
        max((each.verdict for each in balances), key=order.index),
        sum(each.messages for each in balances),
        sum(each.lost + each.late for each in balances if each.verdict.is_final),
        sum(each.lost + each.late for each in balances if each.verdict is AuditVerdict.OPEN),
        sum(each.duplicates + each.surplus for each in balances),
        {each.bucket_ms: each for each in balances if each.bucket_ms >= since_ms},
        tuple(each for each in balances if each.verdict.is_final),
    )


class AuditGatherer:
    """Reads new reports at each check."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, settings: AuditSettings, *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._reports = ReportLog(admin, connection, settings)

    def __call__(self, now_ms: int) -> AuditFigures:
        settings = self._settings
        if not settings.enabled and settings.topic not in self._admin.partition_counts():
            return AuditFigures((), ())  # the audit is off
        totals = self._reports.window(now_ms, self._timeout_seconds)
        found = totals.reconciliations(now_ms, settings.window_start(now_ms))
        return audit_figures(found, now_ms, settings.bucket_seconds)


def audit_panel(snapshot: Snapshot[AuditFigures], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        figures = snapshot.figures
        assert figures is not None, "called only with figures"
        if not figures.tiers:
            summary = "No audit reports: messages are not counted."
            return replace(empty, summary=summary, idle="completeness is not checked")
        return replace(
            empty,
            summary=_summary(figures.tiers),
            columns=(*_FIRST_COLUMNS, *_headings(figures.buckets)),
            rows=tuple(_row(tier, figures.buckets) for tier in figures.tiers),
            concerns=(*_recreated(figures.tiers), *(_concern(tier) for tier in figures.tiers if tier.wrong)),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _headings(buckets: Sequence[int]) -> list[str]:
    """Return the start times of buckets, with seconds if buckets are shorter than a minute."""
    headings = [_clock(each) for each in buckets]
    if len(set(headings)) == len(buckets):
        return headings
    return [clock(each, "%H:%M:%S") for each in buckets]


def _summary(tiers: Sequence[TierFigures]) -> str:
    topics = len({tier.topic for tier in tiers})
    missing, pending = sum(tier.missing for tier in tiers), sum(tier.pending for tier in tiers)
    more = f", {pending:,} can still arrive" if pending else ""
    return f"{count(topics, 'topic is', 'topics are')} counted; {count(missing, 'message', 'messages')} missing{more}."


def _recreated(tiers: Iterable[TierFigures]) -> Iterator[Concern]:
    """Return one concern per topic, because all its tiers have the same verdict."""
    verdict = AuditVerdict.RECREATED
    for topic in sorted({tier.topic for tier in tiers if tier.verdict is verdict}):
        yield Concern(Tone.WARNING, f"{topic}: {verdict.value}", ConcernKind.UNKNOWN)


def _concern(tier: TierFigures) -> Concern:
    lost, late = sum(each.lost for each in tier.wrong), sum(each.late for each in tier.wrong)
    what = " and ".join([*([f"{lost:,} lost"] if lost else []), *([f"{late:,} not arrived"] if late else [])])
    expected = sum(each.expected for each in tier.wrong)
    first = _clock(min(each.bucket_ms for each in tier.wrong))
    when = f"{'from' if len(tier.wrong) == 1 else 'since'} {first} UTC"
    if tier.verdict is AuditVerdict.UNCOUNTED:
        what = f"the log's messages are not counted, so completeness is unknown {when}"
        return Concern(Tone.WARNING, f"{tier.topic} at {tier.place}: {what}", ConcernKind.UNKNOWN)
    kind = ConcernKind.LOST if lost else ConcernKind.LATE
    text = f"{tier.topic} at {tier.place}: {what} of {expected:,} messages {when}"
    return Concern(Tone.ERROR, text, kind, lost or late)


def _row(tier: TierFigures, buckets: Sequence[int]) -> TableRow:
    cells = (
        Cell(tier.verdict.name, tone=_TONES[tier.verdict], note=tier.verdict.value),
        Cell(tier.topic),
        Cell(tier.place),
        Cell(f"{tier.messages:,}", is_number=True),
        Cell(f"{tier.missing:,}", is_number=True),
        Cell(f"{tier.doubled:,}", is_number=True),
        *(_bucket(tier.recent.get(bucket)) for bucket in buckets),
    )
    weight = tier.missing + tier.pending + tier.doubled / _MANY_DUPLICATES
    return TableRow(f"{tier.topic} {tier.place}", _TONES[tier.verdict], weight, cells)


def _bucket(balance: Reconciliation | None) -> Cell:
    if balance is None:
        return Cell("", shade="none")
    doubled = balance.duplicates + balance.surplus
    note = (
        f"{_clock(balance.bucket_ms)}: {balance.messages:,} of {balance.expected:,} messages, {balance.lost:,} lost, "
        f"{balance.late:,} late, {balance.duplicates:,} duplicates, {balance.surplus:,} more than acknowledged"
    )
    more = f" +{doubled:,}" if doubled else ""
    if balance.verdict is AuditVerdict.RECREATED:
        return Cell("?", shade="open", note=f"{note}; {balance.verdict.value}")
    if balance.verdict is AuditVerdict.OK:
        return Cell(f"100{more}", shade="more" if doubled else "full", note=note)
    percent = f"{_percent(balance.completeness)}{more}"
    if balance.verdict is AuditVerdict.OPEN:
        return Cell(f"\N{HORIZONTAL ELLIPSIS} {percent}", shade="open", note=note)
    if balance.verdict is AuditVerdict.UNCOUNTED:
        return Cell("?", shade="open", note=f"{note}; {balance.verdict.value}")
    shade = "some" if balance.completeness >= _FEW else "much" if balance.completeness >= _MANY else "most"
    return Cell(f"\N{MULTIPLICATION X} {percent}", shade=shade, note=note)


def _percent(share: float) -> str:
    """Return less than 100 % if any message is missing, and more than 0 % if any message arrived."""
    percent = min(max(share * 100, 0.1 if share else 0.0), 99.9)
    return f"{percent:.1f}"


def _clock(time_ms: int) -> str:
    return clock(time_ms, "%H:%M")
