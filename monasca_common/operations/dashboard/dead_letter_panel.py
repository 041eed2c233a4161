# SPDX-License-Identifier: Apache-2.0
"""The panel of dead letters: their number, their original topics and the reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin
from monasca_common.kafka.message import Message, TopicPartition
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

_MAX_OFFSETS = 100_000  # messages of a topic per check
_MAX_REASONS = 100_000  # dead letters of a topic whose reasons are counted
_SHOWN_CHARACTERS = 300

EMPTY = PanelView(
    "dead-letters",
    "Dead letters",
    "",
    "Messages that a service could not handle and that were not replayed, by origin and reason (the first 100,000 of "
    "each topic). monasca-common dlq list --topic T --limit N lists them; after a repair, monasca-common dlq replay "
    "--topic T replays them.",
)
_Spans = Mapping[TopicPartition, tuple[int, int]]
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
    """A dead-letter topic. ``pending``: the number of pending dead letters. ``reasons``: the reasons of the first
    `_MAX_REASONS` dead letters. ``unread``: the number of offsets left for later checks; each can be a dead letter."""

    topic: str
    pending: int
    reasons: tuple[DeadLetterReason, ...]
    unread: int = 0


class _CachedDeadLetters:
    """The dead letters of one topic, read up to ``read_to``. ``spans``: the range from the group's offset to the end,
    at the last check."""

    def __init__(self, topic: str) -> None:
        self.notes = ReplayLog(DLQ_GROUP)
        self.spans: _Spans = {}
        self.read_to: dict[TopicPartition, int] = {}
        self._reasons: dict[tuple[TopicPartition, int], tuple[_Reason, int]] = {}
        self.figures = DeadLetterFigures(topic, 0, ())

    def read(self, message: Message) -> None:
        self.notes.read(message)
        if len(self._reasons) < _MAX_REASONS and not is_note(message):
            partition = TopicPartition(message.topic, message.partition)
            self._reasons[partition, message.offset] = _reason(DeadLetter.of(message)), message.timestamp_ms or 0

    def reasons(self) -> tuple[DeadLetterReason, ...]:
        """Count the reasons of pending dead letters."""
        self._reasons = {place: reason for place, reason in self._reasons.items() if self.notes.is_pending(*place)}
        times: dict[_Reason, list[int]] = defaultdict(list)
        for reason, time_ms in self._reasons.values():
            times[reason].append(time_ms)
        return tuple(DeadLetterReason(*reason, len(found), max(found)) for reason, found in times.items())

    def continues_to(self, spans: _Spans) -> bool:
        """Return ``False`` if the group's offset was moved back or the topic was recreated."""
        return all(
            partition in spans and start <= spans[partition][0] and end <= spans[partition][1]
            for partition, (start, end) in self.spans.items()
        )

    def next_portion(self, spans: _Spans) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the start and end offsets of the next read."""
        starts, ends, left = {}, {}, _MAX_OFFSETS
        for partition, (start, end) in spans.items():
            starts[partition] = max(start, self.read_to.get(partition, start))
            ends[partition] = max(starts[partition], min(end, starts[partition] + left))
            left -= ends[partition] - starts[partition]
        return starts, ends


class DeadLetterGatherer:
    """Reads new dead letters at each check. ``names``: dead-letter topics whose names do not end in ``.dlq``."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, names: Iterable[str], *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._reader = LogReader(connection, most_seconds=timeout_seconds)
        self._names = frozenset(names)
        self._known: dict[str, _CachedDeadLetters] = {}

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
        if known is None or not known.continues_to(spans):
            known = self._known[topic] = _CachedDeadLetters(topic)
        if known.spans != spans or known.figures.unread:
            self._read_more(known, spans)
            unread = sum(max(0, end - known.read_to[each]) for each, (_, end) in spans.items())
            known.figures = DeadLetterFigures(topic, known.notes.pending_count(), known.reasons(), unread)
            known.spans = spans
        return known.figures

    def _read_more(self, known: _CachedDeadLetters, spans: _Spans) -> None:
        """Read the next portion. Raises `RetriableError` after the time-out, but keeps the messages read so far."""
        starts, ends = known.next_portion(spans)
        for partition, (start, _) in spans.items():
            known.notes.forget_before(partition, start)
        known.read_to = dict(starts)
        for message in self._reader.messages(starts, ends):
            known.read(message)
            known.read_to[TopicPartition(message.topic, message.partition)] = message.offset + 1
        known.read_to = ends


def _reason(letter: DeadLetter) -> _Reason:
    """Return origin, group and error, truncated because the writer of a dead letter chooses their length."""
    texts = letter.origin_topic or "unknown", letter.group, " ".join(letter.error.split()) or "without a reason"
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
