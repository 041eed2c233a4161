# SPDX-License-Identifier: Apache-2.0
"""The panel of topics: their message rates, and the delay of their slowest consumers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.lag_panel import GroupFigures
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.view import Cell, PanelView, TableRow, Tone, count, panel_of, rate, span

_POINTS = 60

EMPTY = PanelView(
    "load",
    "Load and delay",
    "",
    "Messages/s: the average between the last two checks. Delay: the age of the oldest message that the slowest "
    "consumer of the topic has not read. Trend: messages per second at the last checks.",
    header=0,
)
_COLUMNS = ("Topic", "Messages/s", "Delay", "Slowest consumer", "Total offsets", "Trend")


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """``end``: the sum of the topic's end offsets. ``per_second``: the rates at the last checks, oldest first."""

    name: str
    end: int
    per_second: tuple[float, ...] = ()


class LoadGatherer:
    """Reads end offsets and derives rates. Kafka's internal topics, and partitions without a leader, are excluded."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._checked_ms = 0
        self._ends: dict[TopicPartition, int] = {}
        self._rates: dict[str, deque[float]] = {}

    def __call__(self, now_ms: int) -> tuple[TopicLoad, ...]:
        topics = {topic: leaders for topic, leaders in self._admin.leaders().items() if not topic.startswith("__")}
        ends = self._admin.end_offsets(
            TopicPartition(topic, each)
            for topic in topics
            for each, leader in topics[topic].items()
            if leader is not None
        )
        if not ends and topics:
            raise TransportError("no broker returned an end offset")
        sums, written = Counter[str](), Counter[str]()
        for partition, end in ends.items():
            sums[partition.topic] += end
            written[partition.topic] += max(0, end - self._ends.get(partition, end))
        self._rates = {topic: self._rates.get(topic, deque(maxlen=_POINTS)) for topic in sums}
        if now_ms > self._checked_ms:
            for topic in sums.keys() & {partition.topic for partition in self._ends}:
                self._rates[topic].append(written[topic] * 1000 / (now_ms - self._checked_ms))
        self._checked_ms, self._ends = now_ms, ends
        return tuple(TopicLoad(topic, end, tuple(self._rates[topic])) for topic, end in sorted(sums.items()))


def load_panel(
    snapshot: Snapshot[tuple[TopicLoad, ...]], groups: Iterable[GroupFigures] | None, now_ms: int
) -> PanelView:
    """Return the panel. ``groups``: the consumer groups, or ``None`` if they are unknown now."""
    slowest = _slowest(groups or ())
    unknown_or_none = "\N{EN DASH}" if groups is None else "no consumer"

    def shown(empty: PanelView) -> PanelView:
        topics = snapshot.figures or ()
        total = sum(topic.per_second[-1] for topic in topics if topic.per_second)
        return replace(
            empty,
            summary=f"{rate(total)} messages per second in {count(len(topics), 'topic', 'topics')}.",
            columns=_COLUMNS,
            rows=tuple(_row(topic, *slowest.get(topic.name, (0.0, unknown_or_none))) for topic in topics),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _slowest(groups: Iterable[GroupFigures]) -> dict[str, tuple[float, str]]:
    """Return the delay and the name of the slowest group by topic."""
    found: dict[str, tuple[float, str]] = {}
    for group in groups:
        for partition, lag in group.partitions.items():
            found[partition.topic] = max(found.get(partition.topic, (0.0, group.name)), (lag.seconds, group.name))
    return found


def _row(topic: TopicLoad, delay: float, group: str) -> TableRow:
    now = topic.per_second[-1] if topic.per_second else None
    most = max(topic.per_second, default=0.0)
    cells = (
        Cell(topic.name),
        Cell(rate(now), is_number=True),
        Cell(span(delay) if delay else "\N{EN DASH}", is_number=True),
        Cell(group),
        Cell(f"{topic.end:,}", is_number=True),
        Cell("", trend=tuple(each / (most or 1) for each in topic.per_second), note=f"maximum: {rate(most)}/s"),
    )
    return TableRow(topic.name, Tone.GOOD, (now or 0.0) + delay, cells)
