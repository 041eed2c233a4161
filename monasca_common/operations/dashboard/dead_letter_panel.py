# SPDX-License-Identifier: Apache-2.0
"""The panel of dead letters: their number, their original topics and the reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
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
from monasca_common.operations.dead_letters import DeadLetter, ReplayLog, dead_letter_topics, is_note
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.settings import DLQ_GROUP

_MAX_OFFSETS = 10_000  # messages of a topic per check
_SHOWN_CHARACTERS = 300

EMPTY = PanelView(
    "dead-letters",
    "Dead letters",
    "",
    "Messages that a service could not handle and that have not been replayed, by origin and reason (the first 10,000 "
    "of each topic). monasca-common dlq list --topic T --limit N lists them; after a repair, monasca-common dlq replay "
    "--topic T replays them.",
)
_Spans = Mapping[TopicPartition, tuple[int, int]]  # from the group's offset to the end
_Reason = tuple[str, str, str]  # origin, group, error

_COLUMNS = ("Dead letters", "Dead-letter topic", "Origin", "Group", "Reason", "Newest")


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Dead letters with the same origin, group and error. ``newest_ms``: the time of the newest dead letter."""

    origin_topic: str
    group: str
    error: str
    count: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetterFigures:
    """A dead-letter topic. ``pending``, ``reasons``: the pending dead letters of the first `_MAX_OFFSETS` offsets.
    ``unread``: the number of remaining offsets; each can be a dead letter."""

    topic: str
    pending: int
    reasons: tuple[DeadLetterReason, ...]
    unread: int = 0


class DeadLetterGatherer:
    """Reads the topics that have changed. ``names``: dead-letter topics whose names do not end in ``.dlq``."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, names: Iterable[str], *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._reader = LogReader(connection, most_seconds=timeout_seconds)
        self._names = frozenset(names)
        self._known: dict[str, tuple[_Spans, DeadLetterFigures]] = {}

    def __call__(self, _now_ms: int) -> tuple[DeadLetterFigures, ...]:
        counts = self._admin.partition_counts()
        topics = dead_letter_topics(counts, self._names)
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        handled = self._admin.group_offsets(DLQ_GROUP)
        firsts, ends = self._admin.first_offsets(partitions), self._admin.end_offsets(partitions)
        spans = {each: (max(handled.get(each, 0), firsts[each]), ends[each]) for each in partitions}
        return tuple(
            self._check(topic, {each: at for each, at in spans.items() if each.topic == topic}) for topic in topics
        )

    def _check(self, topic: str, spans: _Spans) -> DeadLetterFigures:
        known = self._known.get(topic)
        if known is None or known[0] != spans:
            known = self._known[topic] = spans, self._read(topic, spans)
        return known[1]

    def _read(self, topic: str, spans: _Spans) -> DeadLetterFigures:
        starts, ends, left = {}, {}, _MAX_OFFSETS
        for partition, (start, end) in spans.items():
            starts[partition], ends[partition] = start, max(start, min(end, start + left))
            left -= ends[partition] - start
        notes = ReplayLog(DLQ_GROUP)
        letters: dict[tuple[TopicPartition, int], tuple[_Reason, int]] = {}
        for message in self._reader.messages(starts, ends):
            notes.read(message)
            if not is_note(message):
                place = TopicPartition(message.topic, message.partition), message.offset
                letters[place] = _reason(DeadLetter.of(message)), message.timestamp_ms or 0
        times: dict[_Reason, list[int]] = defaultdict(list)
        for place, (reason, time_ms) in letters.items():
            if notes.is_pending(*place):
                times[reason].append(time_ms)
        reasons = tuple(DeadLetterReason(*reason, len(found), max(found)) for reason, found in times.items())
        unread = sum(max(0, end - ends[partition]) for partition, (_, end) in spans.items())
        return DeadLetterFigures(topic, notes.pending_count(), reasons, unread)


def _reason(letter: DeadLetter) -> _Reason:
    """Return origin, group and error, truncated because the writer of a dead letter chooses their length."""
    texts = letter.origin_topic or "unknown", letter.group, letter.error or "without a reason"
    origin, group, error = (text[:_SHOWN_CHARACTERS] for text in texts)
    return origin, group, error


def dead_letter_panel(snapshot: Snapshot[tuple[DeadLetterFigures, ...]], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        topics = snapshot.figures or ()
        where = count(len(topics), "dead-letter topic", "dead-letter topics")
        return replace(
            empty,
            summary=f"{_pending(topics)} in {where}.",
            columns=_COLUMNS,
            rows=tuple(_row(topic, reason) for topic in topics for reason in topic.reasons),
            concerns=tuple(_concern(topic) for topic in topics if topic.pending or topic.unread),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _concern(topic: DeadLetterFigures) -> Concern:
    most = max(topic.reasons, key=lambda reason: reason.count, default=None)
    reason = f", most often with the error: {most.error}" if most is not None else ""
    text = f"{_pending([topic])} in {topic.topic}{reason}"
    return Concern(Tone.WARNING, text, ConcernKind.NOT_HANDLED, topic.pending)


def _pending(topics: Sequence[DeadLetterFigures]) -> str:
    unread = sum(topic.unread for topic in topics)
    pending = sum(topic.pending for topic in topics) + unread
    return f"{'up to ' if unread else ''}{count(pending, 'pending dead letter', 'pending dead letters')}"


def _row(topic: DeadLetterFigures, reason: DeadLetterReason) -> TableRow:
    cells = (
        Cell(f"{reason.count:,}", tone=Tone.WARNING, is_number=True),
        Cell(topic.topic),
        Cell(reason.origin_topic),
        Cell(reason.group or "\N{EN DASH}"),
        Cell(reason.error),
        Cell(clock(reason.newest_ms)),
    )
    return TableRow(f"{topic.topic} {reason.origin_topic} {reason.error}", Tone.WARNING, reason.count, cells)
