# SPDX-License-Identifier: Apache-2.0
"""The panel of dead letters: how many wait, where they came from, and why they are dead."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin, Letter, dead_letters
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.monitoring.dashboard.panel_source import Snapshot
from monasca_common.monitoring.dashboard.view import Cell, Concern, PanelView, TableRow, Tone, clock, count, panel_of
from monasca_common.monitoring.log_reading import LogReader
from monasca_common.monitoring.settings import DLQ_GROUP

_SUFFIX = ".dlq"
_LOOKED_AT = 500
_SHOWN_CHARACTERS = 300

EMPTY = PanelView(
    "dead-letters",
    "Dead letters",
    "",
    "Messages that no service could handle, which nobody has sent back yet, by origin and reason: the first 500 of "
    "each topic are read. monasca-common dlq list shows each; dlq replay sends them back after a repair.",
)
_COLUMNS = ("Letters", "Dead letter topic", "Came from", "Group", "Reason", "Newest")


@dataclass(frozen=True, slots=True)
class LetterReason:
    """Letters of one origin that died of the same. ``newest_ms``: when the last of them did."""

    origin_topic: str
    group: str
    error: str
    letters: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetterFigures:
    """A topic of dead letters. ``waiting``: how many nobody has dealt with. ``reasons``: of those that were read."""

    topic: str
    waiting: int
    reasons: tuple[LetterReason, ...]


class DeadLetterGatherer:
    """Reads a topic again only where something came, or was dealt with. ``names``: topics of dead letters beside those
    whose name ends in ``.dlq``."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, names: Iterable[str], *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._reader = LogReader(connection, most_seconds=timeout_seconds)
        self._names = frozenset(names)
        self._known: dict[str, tuple[Mapping[TopicPartition, tuple[int, int]], DeadLetterFigures]] = {}

    def __call__(self, _now_ms: int) -> tuple[DeadLetterFigures, ...]:
        counts = self._admin.partition_counts()
        topics = sorted(topic for topic in counts if topic in self._names or topic.endswith(_SUFFIX))
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        done = self._admin.group_offsets(DLQ_GROUP)
        firsts, ends = self._admin.first_offsets(partitions), self._admin.end_offsets(partitions)
        spans = {each: (max(done.get(each, 0), firsts[each]), ends[each]) for each in partitions}
        self._known = {
            topic: self._looked_at(topic, {each: at for each, at in spans.items() if each.topic == topic})
            for topic in topics
        }
        return tuple(figures for _, figures in self._known.values())

    def _looked_at(
        self, topic: str, spans: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[Mapping[TopicPartition, tuple[int, int]], DeadLetterFigures]:
        known = self._known.get(topic)
        if known is not None and known[0] == spans:
            return known
        waiting = sum(max(0, end - start) for start, end in spans.values())
        reasons = reasons_of(self._letters(spans)) if waiting else ()
        return spans, DeadLetterFigures(topic, waiting, reasons)

    def _letters(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> list[Letter]:
        """The first of them. Raises `RetriableError` where they do not come in time."""
        starts = {partition: start for partition, (start, _) in spans.items()}
        ends = {partition: end for partition, (_, end) in spans.items()}
        with contextlib.closing(self._reader.messages(starts, ends)) as messages:
            letters = (Letter.of(message) for message in messages if not dead_letters.is_note(message))
            return list(itertools.islice(letters, _LOOKED_AT))


def reasons_of(letters: Iterable[Letter]) -> tuple[LetterReason, ...]:
    """Each text is cut: whoever writes a letter chooses it."""
    same: dict[tuple[str, str, str], list[int]] = {}
    for letter in letters:
        texts = letter.origin_topic or "nowhere", letter.group, " ".join(letter.error.split()) or "without a reason"
        origin, group, error = (text[:_SHOWN_CHARACTERS] for text in texts)
        key = (origin, group, error)
        same.setdefault(key, []).append(letter.message.timestamp_ms or 0)
    return tuple(LetterReason(*key, len(times), max(times)) for key, times in same.items())


def dead_letter_panel(snapshot: Snapshot[tuple[DeadLetterFigures, ...]], now_ms: int) -> PanelView:
    def shown(empty: PanelView) -> PanelView:
        topics = snapshot.figures or ()
        waiting = sum(topic.waiting for topic in topics)
        where = count(len(topics), "topic of dead letters is", "topics of dead letters are")
        return replace(
            empty,
            summary=f"{count(waiting, 'dead letter waits', 'dead letters wait')}; {where} there.",
            columns=_COLUMNS,
            rows=tuple(_row(topic, reason) for topic in topics for reason in topic.reasons),
            concerns=tuple(_concern(topic) for topic in topics if topic.waiting),
        )

    return panel_of(snapshot, EMPTY, shown, now_ms)


def _concern(topic: DeadLetterFigures) -> Concern:
    most = max(topic.reasons, key=lambda reason: reason.letters, default=None)
    reason = f", most of them because of: {most.error}" if most is not None else ""
    waiting = count(topic.waiting, "dead letter waits", "dead letters wait")
    return Concern(Tone.WARNING, f"{waiting} in {topic.topic}{reason}")


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
