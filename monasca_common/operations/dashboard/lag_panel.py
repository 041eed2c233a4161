# SPDX-License-Identifier: Apache-2.0
"""The panel of consumers: which are late, stopped, or about to lose messages to retention."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.saved_state import SavedState
from monasca_common.operations.dashboard.view import (
    Cell,
    Concern,
    Harm,
    PanelView,
    TableRow,
    Tone,
    count,
    panel_of,
    rate,
    span,
)
from monasca_common.operations.lag.history import LagHistory, PartitionHistory, following
from monasca_common.operations.lag.positions import DatabasePositions, ReadPositions, no_database, which_counts
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict, LagWindow, PartitionState, group_lag

_POINTS = 60
# Why which position counts, and the first partition; the page of the group has all.
_TOLD_POSITIONS = 2

EMPTY = PanelView(
    "lag",
    "Consumers",
    "",
    "A group is as well as its worst partition. Unread counts offsets. Headroom is how long it takes at least until "
    "retention deletes the oldest unread message; deleted is what it deleted unread. A group that reads so slowly that "
    "little of the time is left until it loses one is an error. The line is the number of unread messages at each of "
    "the last looks.",
)
_COLUMNS = ("Status", "Group", "Reads", "Unread", "Oldest unread", "Reads per s", "Headroom", "Deleted", "Trend")
_TONES = {LagStatus.OK: Tone.GOOD, LagStatus.WARNING: Tone.WARNING}


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A consumer group. ``unread``: at each of the last looks, the oldest first. ``per_second``: what it reads;
    ``None`` before there are two looks. ``which_counts``: what is to be said where it is judged by a copy of its
    positions that differs from them."""

    name: str
    lag: LagVerdict
    partitions: Mapping[TopicPartition, LagVerdict]
    unread: tuple[int, ...] = ()
    per_second: float | None = None
    which_counts: tuple[str, ...] = ()

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.partitions})


Trends = dict[str, list[int]]  # the unread messages of each group at the last looks, the oldest first


def kept_trends() -> SavedState[Trends]:
    return SavedState(Trends, {})


class LagGatherer:
    """Looks at every group, and remembers the last looks. ``read_history``: reads those before the first, once.
    ``read_positions``: is asked while a group is not well. ``trends``: those of a worker that crashed."""

    def __init__(
        self,
        survey: LagSurvey,
        window: LagWindow,
        read_history: Callable[[], LagHistory | None],
        read_positions: ReadPositions = no_database,
        trends: SavedState[Trends] | None = None,
    ) -> None:
        self._read_positions = read_positions
        self._read_history = read_history
        self._history: LagHistory | None = None
        self._survey = survey
        self._window = window
        self._trends = trends or kept_trends()
        self._unread = {group: deque(unread, _POINTS) for group, unread in self._trends.load().items()}
        self._read: dict[str, tuple[int, int]] = {}

    def __call__(self, now_ms: int) -> tuple[GroupFigures, ...]:
        if self._history is None:
            self._history = self._read_history() or LagHistory()
        looked = self._survey.look(self._survey.groups(), now_ms, history=self._history)
        self._history = following(looked, now_ms, self._window)
        self._unread = {group: self._unread.get(group, deque(maxlen=_POINTS)) for group in looked}
        before, self._read = self._read, {group: (now_ms, _read(states)) for group, states in looked.items()}
        judged = self._history.groups
        found = tuple(
            self._figures(group, states, judged[group], now_ms, before.get(group)) for group, states in looked.items()
        )
        self._trends.save({group: list(unread) for group, unread in self._unread.items()})
        return tuple(self._with_positions(found))

    def _with_positions(self, found: Iterable[GroupFigures]) -> Iterator[GroupFigures]:
        stored: DatabasePositions | None = None
        for group in found:
            if _tone(group.lag) is Tone.GOOD:
                yield group
                continue
            stored = stored or self._read_positions()
            told = which_counts({group.name: self._judged(group.name)}, stored)
            yield replace(group, which_counts=tuple(line.strip() for line in told))

    def _judged(self, group: str) -> Mapping[TopicPartition, PartitionHistory]:
        return self._history.groups[group] if self._history is not None else {}

    def _figures(
        self,
        group: str,
        states: Mapping[TopicPartition, PartitionState],
        judged: Mapping[TopicPartition, PartitionHistory],
        now_ms: int,
        before: tuple[int, int] | None,
    ) -> GroupFigures:
        partitions = {partition: known.lag for partition, known in judged.items()}
        lag = group_lag(partitions.values())
        self._unread[group].append(lag.messages)
        per_second = None
        if before is not None and now_ms > before[0]:
            per_second = max(0, _read(states) - before[1]) * 1000 / (now_ms - before[0])
        return GroupFigures(group, lag, partitions, tuple(self._unread[group]), per_second)


def _read(states: Mapping[TopicPartition, PartitionState]) -> int:
    """How far its commits are, as a sum of offsets."""
    return sum(state.commits[-1].offset for state in states.values() if state.commits)


def lag_panel(snapshot: Snapshot[tuple[GroupFigures, ...]], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        groups = snapshot.figures or ()
        concerns = tuple(_concern(group) for group in groups if _tone(group.lag) is not Tone.GOOD)
        keep_up = len(groups) - len(concerns)
        return replace(
            empty,
            summary=f"{count(keep_up, 'group keeps up', 'groups keep up')}, {len(concerns)} not.",
            columns=_COLUMNS,
            rows=tuple(map(_row, groups)),
            concerns=concerns,
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def group_panel(group: GroupFigures) -> PanelView:
    """The partitions of one group."""
    rows = tuple(_partition_row(partition, lag) for partition, lag in group.partitions.items())
    return PanelView(
        "lag",
        f"Consumer group {group.name}",
        " ".join([f"{group.lag.status.name}: {group.lag.status.value}.", *group.which_counts]),
        EMPTY.explanation,
        ("Status", "Partition", "Unread", "Oldest unread", "Headroom", "Deleted"),
        rows,
        group=group.name,
    )


def _tone(lag: LagVerdict) -> Tone:
    return Tone.ERROR if lag.is_error else _TONES[lag.status]


def _concern(group: GroupFigures) -> Concern:
    lag = group.lag
    facts = [f"{group.name}: {lag.status.value}"] if lag.status is not LagStatus.OK else [group.name]
    facts += [f"{lag.messages:,} unread, the oldest {span(lag.seconds)} old"] if lag.messages else []
    facts += [f"{lag.deleted:,} were deleted unread"] if lag.deleted else []
    facts += [f"its offsets are {lag.truncated:,} beyond the end of the log"] if lag.truncated else []
    facts += [f"a transaction that stays open hides {lag.hidden:,} offsets"] if lag.hidden else []
    offline = [
        f"{tp.topic}/{tp.partition}" for tp, each in group.partitions.items() if each.status is LagStatus.OFFLINE
    ]
    facts += [f"without a leader: {', '.join(offline)}"] if offline else []
    if lag.expires_soon:
        facts.append(f"at its speed retention deletes some unread in {span(lag.lost_in_seconds or 0.0)}")
    text = "; ".join([*facts, *group.which_counts[:_TOLD_POSITIONS]])
    if lost := lag.deleted + lag.truncated:
        return Concern(_tone(lag), text, Harm.LOST, lost)
    return Concern(_tone(lag), text, Harm.LOST_SOON if lag.expires_soon else Harm.LATE, lag.messages)


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
        Cell("", trend=tuple(each / most for each in group.unread), note=f"at most {most:,} unread"),
    )
    return TableRow(group.name, _tone(group.lag), max(most, group.lag.messages), cells)


def _partition_row(partition: TopicPartition, lag: LagVerdict) -> TableRow:
    name = f"{partition.topic}/{partition.partition}"
    unread = Cell(f"{lag.messages:,}", is_number=True)
    return TableRow(name, _tone(lag), lag.messages, (_status(lag), Cell(name), unread, _age(lag), *_retention(lag)))


def _status(lag: LagVerdict) -> Cell:
    """A group that reads well may still have lost messages, or lose some soon."""
    if lag.deleted or lag.truncated:
        return Cell("LOST", tone=_tone(lag), note=f"messages were lost unread; {lag.status.value}")
    if lag.expires_soon:
        return Cell("LOST SOON", tone=_tone(lag), note=f"retention soon deletes unread messages; {lag.status.value}")
    return Cell(lag.status.name, tone=_tone(lag), note=lag.status.value)


def _age(lag: LagVerdict) -> Cell:
    return Cell(span(lag.seconds) if lag.messages else "\N{EN DASH}", is_number=True)


def _retention(lag: LagVerdict) -> tuple[Cell, Cell]:
    headroom = "\N{EN DASH}" if lag.headroom_seconds is None else span(lag.headroom_seconds)
    return Cell(headroom, is_number=True), Cell(f"{lag.deleted:,}", is_number=True)
