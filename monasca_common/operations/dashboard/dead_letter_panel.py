# SPDX-License-Identifier: Apache-2.0
"""The panel of dead letters: their number, original topics and reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.view import Cell, Concern, PanelView, TableRow, Tone, clock, count, panel_of
from monasca_common.operations.dead_letters import Letter, ReplayLog, is_note
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.settings import DLQ_GROUP

_SUFFIX = ".dlq"
_READ_AT_ONCE = 100_000  # offsets of a topic in one check
_REASONS_KEPT = 100_000  # dead letters of a topic whose reasons are counted
_SHOWN_CHARACTERS = 300

EMPTY = PanelView(
    "dead-letters",
    "Dead letters",
    "",
    "Messages that no service could handle and that were not sent back yet, by origin and reason (of the first 100,000 "
    "of each topic). monasca-common dlq list --topic T --limit N shows them one by one; after a repair, dlq replay "
    "--topic T sends them back.",
)
_Spans = Mapping[TopicPartition, tuple[int, int]]
_Reason = tuple[str, str, str]  # origin, group, error

_COLUMNS = ("Dead letters", "Dead-letter topic", "Origin", "Group", "Reason", "Newest")


@dataclass(frozen=True, slots=True)
class LetterReason:
    """Dead letters with the same origin, group and error. ``newest_ms``: the time of the newest."""

    origin_topic: str
    group: str
    error: str
    letters: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetterFigures:
    """A dead-letter topic. ``waiting``: dead letters that wait for a replay. ``reasons``: those of the first
    `_REASONS_KEPT`. ``unread``: offsets left to later checks, each of which may be a dead letter."""

    topic: str
    waiting: int
    reasons: tuple[LetterReason, ...]
    unread: int = 0


class _CachedDeadLetters:
    """The dead letters of one topic, read up to ``read_to``. ``spans``: from the group's offset to the end, at the last
    check."""

    def __init__(self, topic: str) -> None:
        self.notes = ReplayLog(DLQ_GROUP)
        self.spans: _Spans = {}
        self.read_to: dict[TopicPartition, int] = {}
        self._reasons: dict[tuple[TopicPartition, int], tuple[_Reason, int]] = {}
        self.figures = DeadLetterFigures(topic, 0, ())

    def read(self, message: Message) -> None:
        self.notes.read(message)
        if len(self._reasons) < _REASONS_KEPT and not is_note(message):
            partition = TopicPartition(message.topic, message.partition)
            self._reasons[partition, message.offset] = _reason(Letter.of(message)), message.timestamp_ms or 0

    def reasons(self) -> tuple[LetterReason, ...]:
        """Count the reasons of waiting dead letters."""
        self._reasons = {place: reason for place, reason in self._reasons.items() if self.notes.waits(*place)}
        times: dict[_Reason, list[int]] = defaultdict(list)
        for reason, time_ms in self._reasons.values():
            times[reason].append(time_ms)
        return tuple(LetterReason(*reason, len(found), max(found)) for reason, found in times.items())

    def goes_on_to(self, spans: _Spans) -> bool:
        """Return whether the group's offset was not set back, and the topic not recreated."""
        return all(
            partition in spans and start <= spans[partition][0] and end <= spans[partition][1]
            for partition, (start, end) in self.spans.items()
        )

    def next_portion(self, spans: _Spans) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the offsets to read from, and to read up to."""
        starts, ends, left = {}, {}, _READ_AT_ONCE
        for partition, (start, end) in spans.items():
            starts[partition] = max(start, self.read_to.get(partition, start))
            ends[partition] = max(starts[partition], min(end, starts[partition] + left))
            left -= ends[partition] - starts[partition]
        return starts, ends


class DeadLetterGatherer:
    """Reads new dead letters at each check. ``names``: topics in addition to those whose name ends in ``.dlq``."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, names: Iterable[str], *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._reader = LogReader(connection, most_seconds=timeout_seconds)
        self._names = frozenset(names)
        self._known: dict[str, _CachedDeadLetters] = {}

    def __call__(self, _now_ms: int) -> tuple[DeadLetterFigures, ...]:
        counts = self._admin.partition_counts()
        topics = sorted(topic for topic in counts if topic in self._names or topic.endswith(_SUFFIX))
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        done = self._admin.group_offsets(DLQ_GROUP)
        firsts, ends = self._admin.first_offsets(partitions), self._admin.end_offsets(partitions)
        spans = {each: (max(done.get(each, 0), firsts[each]), ends[each]) for each in partitions}
        return tuple(
            self._look(topic, {each: at for each, at in spans.items() if each.topic == topic}) for topic in topics
        )

    def _look(self, topic: str, spans: _Spans) -> DeadLetterFigures:
        known = self._known.get(topic)
        if known is None or not known.goes_on_to(spans):
            known = self._known[topic] = _CachedDeadLetters(topic)
        if known.spans != spans or known.figures.unread:
            self._read_on(known, spans)
            unread = sum(max(0, end - known.read_to[each]) for each, (_, end) in spans.items())
            known.figures = DeadLetterFigures(topic, known.notes.waiting(), known.reasons(), unread)
            known.spans = spans
        return known.figures

    def _read_on(self, known: _CachedDeadLetters, spans: _Spans) -> None:
        """Raises `RetriableError` after the time-out; messages read before it are kept."""
        starts, ends = known.next_portion(spans)
        for partition, (start, _) in spans.items():
            known.notes.forget_before(partition, start)
        known.read_to = dict(starts)
        for message in self._reader.messages(starts, ends):
            known.read(message)
            known.read_to[TopicPartition(message.topic, message.partition)] = message.offset + 1
        known.read_to = ends


def _reason(letter: Letter) -> _Reason:
    """Return origin, group and error, each cut, because the writer of a dead letter chooses them."""
    texts = letter.origin_topic or "unknown", letter.group, " ".join(letter.error.split()) or "without a reason"
    origin, group, error = (text[:_SHOWN_CHARACTERS] for text in texts)
    return origin, group, error


def dead_letter_panel(snapshot: Snapshot[tuple[DeadLetterFigures, ...]], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        topics = snapshot.figures or ()
        where = count(len(topics), "dead-letter topic", "dead-letter topics")
        return replace(
            empty,
            summary=f"{_waiting(topics)} in {where}.",
            columns=_COLUMNS,
            rows=tuple(_row(topic, reason) for topic in topics for reason in topic.reasons),
            concerns=tuple(_concern(topic) for topic in topics if topic.waiting or topic.unread),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _concern(topic: DeadLetterFigures) -> Concern:
    most = max(topic.reasons, key=lambda reason: reason.letters, default=None)
    reason = f", most with the error: {most.error}" if most is not None else ""
    return Concern(Tone.WARNING, f"{_waiting([topic])} in {topic.topic}{reason}", messages=topic.waiting)


def _waiting(topics: Sequence[DeadLetterFigures]) -> str:
    unread = sum(topic.unread for topic in topics)
    waiting = sum(topic.waiting for topic in topics) + unread
    return f"{'up to ' if unread else ''}{count(waiting, 'dead letter waits', 'dead letters wait')}"


def _row(topic: DeadLetterFigures, reason: LetterReason) -> TableRow:
    cells = (
        Cell(f"{reason.letters:,}", tone=Tone.WARNING, is_number=True),
        Cell(topic.topic),
        Cell(reason.origin_topic),
        Cell(reason.group or "\N{EN DASH}"),
        Cell(reason.error),
        Cell(clock(reason.newest_ms)),
    )
    return TableRow(f"{topic.topic} {reason.origin_topic} {reason.error}", Tone.WARNING, reason.letters, cells)
