# SPDX-License-Identifier: Apache-2.0
"""What moving a group's offsets means for its messages: computed before anything is changed, and shown to the operator.

Counts are differences of offsets. Control records and compaction leave gaps in them, so fewer messages may be meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monasca_common.kafka.message import TopicPartition


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a group reads on in a partition. ``topic_id``: of the topic that this is of, where it was written down."""

    next_offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogSpan:
    """What a partition holds: offsets from ``first`` to just before ``end``. ``written_end``: where it ends with what
    unfinished transactions have written, which some clients read; ``None``: at ``end``."""

    topic_id: str
    first: int
    end: int
    written_end: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition of a group: what is kept of it, ``None`` before its first reader, and what the log holds.

    ``log``: ``None`` where the partition does not exist (any more).
    """

    partition: TopicPartition
    kept: Kept | None
    log: LogSpan | None

    @property
    def made_again(self) -> bool:
        """What is kept is of another topic of the same name."""
        return (
            self.kept is not None
            and self.log is not None
            and self.kept.topic_id is not None
            and self.kept.topic_id != self.log.topic_id
        )

    @property
    def problem(self) -> str:
        """Why a reader cannot go on; empty if it can."""
        if self.log is None:
            return "no such partition"
        if self.made_again:
            return "topic deleted and recreated"
        if self.kept is not None and self.kept.next_offset < self.log.first:
            return f"{self.gone:,} deleted unread"
        if self.kept is not None and self.kept.next_offset > max(self.log.end, self.log.written_end or 0):
            return "beyond the end of the log"
        return ""

    @property
    def gone(self) -> int:
        """Deleted by retention before they were read."""
        position = self._position
        return 0 if position is None or self.log is None else max(0, self.log.first - position)

    @property
    def left(self) -> int:
        """Messages that are read from where the group is, or from the first where it is nowhere in this log."""
        if self.log is None:
            return 0
        position = self._position
        return max(0, self.log.end - max(self.log.first, self.log.first if position is None else position))

    @property
    def _position(self) -> int | None:
        return None if self.kept is None or self.made_again else self.kept.next_offset

    def skipped(self, target: int) -> int:
        """Messages that are in the log, unread, and skipped when reading starts at ``target``."""
        if self.log is None:
            return 0
        return max(0, target - max(self.log.first, self._position or 0))

    def read_again(self, target: int) -> int:
        if self.log is None or self._position is None:
            return 0
        return max(0, min(self._position, self.log.end) - target)


@dataclass(frozen=True, slots=True)
class Move:
    """``target``: the offset to read on from, or ``None`` to forget a partition that no longer exists."""

    standing: Standing
    target: int | None

    @property
    def skipped(self) -> int:
        return 0 if self.target is None else self.standing.skipped(self.target)

    @property
    def read_again(self) -> int:
        return 0 if self.target is None else self.standing.read_again(self.target)


def describe(standing: Standing) -> dict[str, Any]:
    """What is printed of one partition, by the names of columns."""
    kept, log = standing.kept, standing.log
    return {
        "topic": standing.partition.topic,
        "partition": standing.partition.partition,
        "stored": None if kept is None else kept.next_offset,
        "stored_topic_id": None if kept is None else kept.topic_id,
        "topic_id": None if log is None else log.topic_id,
        "first": None if log is None else log.first,
        "end": None if log is None else log.end,
        "left": standing.left,
        "gone": standing.gone,
        "problem": standing.problem,
    }


def describe_move(move: Move) -> dict[str, Any]:
    return {
        **describe(move.standing),
        "target": move.target,
        "skipped": move.skipped,
        "read_again": move.read_again,
    }


def summary(moves: Sequence[Move], *, rows: bool) -> list[str]:
    """What happens to messages, in words. ``rows``: the group is a persister's, which stores them by key."""
    lines = []
    skipped, again = sum(move.skipped for move in moves), sum(move.read_again for move in moves)
    gone = sum(move.standing.gone for move in moves)
    if skipped:
        lines.append(f"Skipped, and never read by this group: up to {skipped:,} messages that are in the log.")
    if again:
        then = (
            "each is stored once nevertheless, for rows are keyed: metrics by series and time, the rest by message id"
            if rows
            else "what adds them up, as aggregates do, counts them twice"
        )
        lines.append(f"Read again: up to {again:,} messages; {then}.")
    if not skipped and not again:
        lines.append("No message in the log is skipped, none is read again.")
    if gone:
        lines.append(f"Lost already: {gone:,} offsets were deleted from the log before they were read.")
    again_made = sorted({move.standing.partition.topic for move in moves if move.standing.made_again})
    lines += [
        f"Topic {topic} was deleted and recreated: what the old one held beyond the stored offset is gone."
        for topic in again_made
    ]
    return lines
