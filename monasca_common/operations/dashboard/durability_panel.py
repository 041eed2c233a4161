# SPDX-License-Identifier: Apache-2.0
"""The durability panel: risks of losing acknowledged messages. Equal findings of several topics share a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.view import (
    Cell,
    Concern,
    ConcernKind,
    PanelView,
    TableRow,
    Tone,
    count,
    panel_of,
)
from monasca_common.operations.durability import (
    Finding,
    Severity,
    durability_findings,
    topic_durability,
)

_NAMED = 3

EMPTY = PanelView(
    "durability",
    "Durability",
    "",
    "Topic settings and missing replicas that can cause the loss of acknowledged messages or prevent writes. The "
    "Consumers panel shows messages that retention deletes unread.",
)
_COLUMNS = ("Severity", "Topic", "Partitions", "Rule", "Finding")
_TONES = {Severity.ERROR: Tone.ERROR, Severity.WARNING: Tone.WARNING}


@dataclass(frozen=True, slots=True)
class DurabilityFigures:
    """The findings. ``topics``: the number of checked topics."""

    topics: int
    findings: tuple[Finding, ...]


class DurabilityGatherer:
    """Checks every topic, including Kafka's internal topics."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def __call__(self, _now_ms: int) -> DurabilityFigures:
        topics = topic_durability(self._admin, self._admin.partition_counts())
        return DurabilityFigures(len(topics), tuple(each for topic in topics for each in durability_findings(topic)))


def durability_panel(snapshot: Snapshot[DurabilityFigures], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        figures = snapshot.figures
        assert figures is not None, "called only with figures"
        findings = sorted(figures.findings, key=lambda each: each.severity is not Severity.ERROR)
        same = _same(findings)
        named = {finding.topic for finding in findings}
        return replace(
            empty,
            summary=f"{count(figures.topics - len(named), 'topic is', 'topics are')} safe, {len(named)} with findings.",
            columns=_COLUMNS,
            rows=tuple(_row(finding, [finding.topic]) for finding in findings),
            digest=tuple(_row(findings[0], [each.topic for each in findings]) for findings in same),
            concerns=tuple(_concern(findings) for findings in same),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _same(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings with the same severity and text."""
    found: dict[tuple[Severity, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.severity, finding.text].append(finding)
    return list(found.values())


def _concern(findings: list[Finding]) -> Concern:
    names = _names([each.topic for each in findings])
    return Concern(_TONES[findings[0].severity], f"{names}: {findings[0].text}", ConcernKind.AT_RISK)


def _names(topics: list[str]) -> str:
    if len(topics) <= _NAMED:
        return ", ".join(topics)
    return f"{len(topics):,} topics ({', '.join(topics[:_NAMED])} \N{HORIZONTAL ELLIPSIS})"


def _row(finding: Finding, topics: list[str]) -> TableRow:
    """Return the row of a finding. ``topics``: all topics with this finding."""
    tone = _TONES[finding.severity]
    partitions = ", ".join(map(str, finding.partitions)) or "all"
    cells = (
        Cell(finding.severity.name, tone=tone, note=finding.severity.value),
        Cell(_names(topics)),
        Cell(partitions if len(topics) == 1 else "\N{EN DASH}"),
        Cell(finding.rule),
        Cell(finding.text),
    )
    return TableRow(f"{finding.topic} {finding.rule}", tone, len(topics), cells)
