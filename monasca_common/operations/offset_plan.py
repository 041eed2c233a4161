# SPDX-License-Identifier: Apache-2.0
"""What moving a group's offsets means for its messages: computed before anything is changed, and shown to the operator.

Counts are differences of offsets. Control records and compaction leave gaps in them, so fewer messages may be meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monasca_common.kafka import Admin, ConfigurationError
from monasca_common.kafka.message import TopicPartition

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class GroupOffset:
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
class PartitionOffsets:
    """One partition of a group: what is kept of it, ``None`` before its first reader, and what the log holds.

    ``log``: ``None`` where the partition does not exist (any more).
    """

    partition: TopicPartition
    kept: GroupOffset | None
    log: LogSpan | None

    @property
    def is_recreated(self) -> bool:
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
        if self.is_recreated:
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
        return None if self.kept is None or self.is_recreated else self.kept.next_offset

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

    standing: PartitionOffsets
    target: int | None

    @property
    def skipped(self) -> int:
        return 0 if self.target is None else self.standing.skipped(self.target)

    @property
    def read_again(self) -> int:
        return 0 if self.target is None else self.standing.read_again(self.target)


def read_partition_offsets(
    admin: Admin, known: Mapping[TopicPartition, GroupOffset], chosen: Mapping[str, Sequence[int]]
) -> list[PartitionOffsets]:
    """Return one for each chosen partition; without numbers, for all of the topic's and those that only ``known`` has.

    ``known``: all offsets of the group. ``chosen``: numbers of partitions by topic. Raises `ConfigurationError` for a
    topic or partition that does not exist.
    """
    standings = []
    for topic, numbers in chosen.items():
        if topic not in admin.topic_ids([topic], timeout=_ANSWER_SECONDS):
            raise ConfigurationError(f"there is no topic {topic!r} to read on in: correct its name, or create it first")
        description = admin.describe_topic(topic)
        missing = [number for number in numbers if number >= description.partitions]
        if missing:
            raise ConfigurationError(f"topic {topic!r} has {description.partitions} partitions, and no {missing[0]}")
        wanted = [TopicPartition(topic, number) for number in numbers or range(description.partitions)]
        firsts, ends = admin.first_offsets(wanted), admin.end_offsets(wanted)
        beyond = [each for each in wanted if each in known and known[each].next_offset > ends[each]]
        written = admin.end_offsets(beyond, open_transactions=True)
        logs = {each: LogSpan(description.topic_id, firsts[each], ends[each], written.get(each)) for each in wanted}
        standings += [PartitionOffsets(each, known.get(each), logs[each]) for each in wanted]
        if not numbers:
            former = sorted(each for each in known if each.topic == topic and each not in firsts)
            standings += [PartitionOffsets(each, known[each], None) for each in former]
    return standings


def targets_at_time(admin: Admin, logs: Mapping[TopicPartition, LogSpan], time_ms: int) -> dict[TopicPartition, int]:
    """Return the first offset of this time or later; the end where there is none."""
    found = admin.offsets_for_times(dict.fromkeys(logs, time_ms))
    return {partition: log.end if (at := found[partition]) is None else at for partition, log in logs.items()}


def targets_at_offset(logs: Mapping[TopicPartition, LogSpan], offset: int) -> dict[TopicPartition, int]:
    """Raises `ConfigurationError` for an offset that a log does not have."""
    for partition, log in logs.items():
        if not log.first <= offset <= log.end:
            place = f"{partition.topic}/{partition.partition}"
            raise ConfigurationError(
                f"{place} has offsets from {log.first} to {log.end}, and no {offset}: name one of them, for this "
                f"partition alone (--topic {partition.topic}:{partition.partition})"
            )
    return dict.fromkeys(logs, offset)


def shifted_targets(standings: Iterable[PartitionOffsets], by: int) -> dict[TopicPartition, int]:
    """Return offsets within the logs. Raises `ConfigurationError` for a partition without an offset."""
    targets = {}
    for each in standings:
        if each.log is None:
            continue
        if each.kept is None or each.is_recreated:
            raise ConfigurationError(
                f"{each.partition.topic}/{each.partition.partition} has no offset of this topic to shift: say "
                "--to-earliest, --to-latest, --to-datetime, --by-duration or --to-offset"
            )
        targets[each.partition] = min(max(each.kept.next_offset + by, each.log.first), each.log.end)
    return targets


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
    again_made = sorted({move.standing.partition.topic for move in moves if move.standing.is_recreated})
    lines += [
        f"Topic {topic} was deleted and recreated: what the old one held beyond the stored offset is gone."
        for topic in again_made
    ]
    return lines
