# SPDX-License-Identifier: Apache-2.0
"""The panel of consumer groups that are late, have stopped, or will soon lose messages to retention."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from monasca_common.kafka.message import TopicPartition
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
    rate,
    span,
)
from monasca_common.operations.lag.history import LagHistory, PartitionHistory, following
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import (
    LagStatus,
    LagVerdict,
    LagWindow,
    PartitionState,
    group_lag,
    lost_and_hidden,
)

_POINTS = 60

EMPTY = PanelView(
    "lag",
    "Consumers",
    "",
    "A group has the status of its worst partition. Unread: offsets after the group's position. Headroom: the minimum "
    "time until retention deletes the oldest unread message. Deleted: messages that retention deleted unread. A group "
    "that reads so slowly that it will soon lose messages is an error. Trend: unread messages at the last checks.",
)
_COLUMNS = ("Status", "Group", "Topics", "Unread", "Oldest unread", "Reads/s", "Headroom", "Deleted", "Trend")
_TONES = {LagStatus.OK: Tone.GOOD, LagStatus.WARNING: Tone.WARNING}
_PROBLEMS = {
    LagStatus.STALL: " stalled at one offset",
    LagStatus.STOP: " stopped",
    LagStatus.REWIND: " returned to an earlier offset",
    LagStatus.OFFLINE: " cannot be read",
}


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A consumer group. ``unread``: the counts of unread messages at the last checks, oldest first. ``per_second``: its
    read rate, or ``None`` before the second check."""

    name: str
    lag: LagVerdict
    partitions: Mapping[TopicPartition, LagVerdict]
    unread: tuple[int, ...] = ()
    per_second: float | None = None

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.partitions})


class LagGatherer:
    """Checks every group. ``read_history``: called once, before the first check."""

    def __init__(self, survey: LagSurvey, window: LagWindow, read_history: Callable[[], LagHistory | None]) -> None:
        self._read_history = read_history
        self._history: LagHistory | None = None
        self._survey = survey
        self._window = window
        self._unread: dict[str, deque[int]] = {}
        self._read: dict[str, tuple[int, dict[TopicPartition, int]]] = {}

    def __call__(self, now_ms: int) -> tuple[GroupFigures, ...]:
        if self._history is None:
            self._history = self._read_history() or LagHistory()
        states_by_group = self._survey.scan(self._survey.groups(), now_ms, history=self._history)
        self._history = following(states_by_group, now_ms, self._window)
        self._unread = {group: self._unread.get(group, deque(maxlen=_POINTS)) for group in states_by_group}
        before, self._read = self._read, {group: (now_ms, _read(states)) for group, states in states_by_group.items()}
        verdicts = self._history.groups
        return tuple(
            self._figures(group, states, verdicts[group], now_ms, before.get(group))
            for group, states in states_by_group.items()
        )

    def _figures(
        self,
        group: str,
        states: Mapping[TopicPartition, PartitionState],
        verdicts: Mapping[TopicPartition, PartitionHistory],
        now_ms: int,
        before: tuple[int, dict[TopicPartition, int]] | None,
    ) -> GroupFigures:
        partitions = {partition: known.lag for partition, known in verdicts.items()}
        lag = group_lag(partitions.values())
        self._unread[group].append(lag.messages)
        per_second = None
        if before is not None and now_ms > before[0]:
            read = sum(max(0, at - before[1].get(each, at)) for each, at in _read(states).items())
            per_second = read * 1000 / (now_ms - before[0])
        return GroupFigures(group, lag, partitions, tuple(self._unread[group]), per_second)


def _read(states: Mapping[TopicPartition, PartitionState]) -> dict[TopicPartition, int]:
    """Return the group's committed offsets."""
    return {each: state.commits[-1].offset for each, state in states.items() if state.commits}


def lag_panel(snapshot: Snapshot[tuple[GroupFigures, ...]], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        groups = snapshot.figures or ()
        concerns = tuple(_concern(group) for group in groups if _tone(group.lag) is not Tone.GOOD)
        keep_up = len(groups) - len(concerns)
        return replace(
            empty,
            summary=f"{count(keep_up, 'group keeps up', 'groups keep up')}, {len(concerns)} with problems.",
            columns=_COLUMNS,
            rows=tuple(map(_row, groups)),
            concerns=concerns,
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def group_panel(group: GroupFigures) -> PanelView:
    """Return the panel of one group's partitions."""
    rows = tuple(_partition_row(partition, lag) for partition, lag in group.partitions.items())
    return PanelView(
        "lag",
        f"Consumer group {group.name}",
        f"{group.lag.status.name}: the group {group.lag.status.meaning}.",
        EMPTY.explanation,
        ("Status", "Partition", "Unread", "Oldest unread", "Headroom", "Deleted"),
        rows,
        group=group.name,
    )


def _tone(lag: LagVerdict) -> Tone:
    return Tone.ERROR if lag.is_error else _TONES[lag.status]


def _concern(group: GroupFigures) -> Concern:
    lag = group.lag
    facts = lost_and_hidden(lag)
    facts += [f"{lag.messages:,} unread, oldest {span(lag.seconds)}"] if lag.messages else []
    offline = [
        f"{tp.topic}/{tp.partition}" for tp, each in group.partitions.items() if each.status is LagStatus.OFFLINE
    ]
    facts += [f"partitions without a leader: {', '.join(offline)}"] if offline else []
    if lag.expires_soon:
        facts.append(f"at the current speed, retention deletes unread messages in {span(lag.lost_in_seconds or 0.0)}")
    problem = _PROBLEMS.get(lag.status, "")
    if lag.status is LagStatus.WARNING and not (lag.truncated or lag.hidden):
        problem = " does not catch up"
    text = f"{group.name}{problem}: {'; '.join(facts)}"
    if lost := lag.deleted + lag.truncated:
        return Concern(_tone(lag), text, ConcernKind.LOST, lost)
    return Concern(_tone(lag), text, ConcernKind.AT_RISK if lag.expires_soon else ConcernKind.LATE, lag.messages)


def _row(group: GroupFigures) -> TableRow:
    most = max(group.unread, default=0) or 1
    topics = group.topics
    reads = ", ".join(topics[:2]) + (f" and {len(topics) - 2} more" if len(topics) > 2 else "")
    cells = (
        _status(group.lag),
        Cell(group.name, href=f"/lag?{urlencode({'group': group.name})}"),
        Cell(reads, note=", ".join(topics[:50])),
        Cell(f"{group.lag.messages:,}", is_number=True),
        _age(group.lag),
        Cell(rate(group.per_second), is_number=True),
        *_retention(group.lag),
        Cell("", trend=tuple(each / most for each in group.unread), note=f"maximum: {most:,} unread"),
    )
    return TableRow(group.name, _tone(group.lag), max(most, group.lag.messages), cells)


def _partition_row(partition: TopicPartition, lag: LagVerdict) -> TableRow:
    name = f"{partition.topic}/{partition.partition}"
    unread = Cell(f"{lag.messages:,}", is_number=True)
    return TableRow(name, _tone(lag), lag.messages, (_status(lag), Cell(name), unread, _age(lag), *_retention(lag)))


def _status(lag: LagVerdict) -> Cell:
    """Return the shown status: LOST or LOST SOON even if the group now keeps up."""
    if lag.deleted or lag.truncated:
        return Cell("LOST", tone=_tone(lag), note=f"unread messages were lost; the group {lag.status.meaning}")
    if lag.expires_soon:
        note = f"retention will soon delete unread messages; the group {lag.status.meaning}"
        return Cell("LOST SOON", tone=_tone(lag), note=note)
    return Cell(lag.status.name, tone=_tone(lag), note=lag.status.meaning)


def _age(lag: LagVerdict) -> Cell:
    return Cell(span(lag.seconds) if lag.messages else "\N{EN DASH}", is_number=True)


def _retention(lag: LagVerdict) -> tuple[Cell, Cell]:
    headroom = "\N{EN DASH}" if lag.headroom_seconds is None else span(lag.headroom_seconds)
    return Cell(headroom, is_number=True), Cell(f"{lag.deleted:,}", is_number=True)
