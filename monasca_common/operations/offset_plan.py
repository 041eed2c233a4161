# SPDX-License-Identifier: Apache-2.0
"""Computes how moving a group's offsets would affect its messages, before any offset is changed.

Counts are offset differences. Control records and compaction leave gaps, so the number of messages can be smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monasca_common.kafka import Admin, ConfigurationError
from monasca_common.kafka.message import TopicPartition

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The position of a group in a partition. ``topic_id``: the id of the topic, if it was stored with the position."""

    next_offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The log of a partition: offsets from ``first`` up to, but not including, ``end``. ``written_end``: the end
    including open transactions, which some clients read, or ``None`` if it equals ``end``."""

    topic_id: str
    first: int
    end: int
    written_end: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition of a group. ``kept``: its stored position, or ``None``. ``log``: ``None`` if the partition does not
    exist."""

    partition: TopicPartition
    kept: GroupOffset | None
    log: LogSpan | None

    @property
    def is_recreated(self) -> bool:
        """Whether the stored position belongs to a deleted topic of the same name."""
        return (
            self.kept is not None
            and self.log is not None
            and self.kept.topic_id is not None
            and self.kept.topic_id != self.log.topic_id
        )

    @property
    def problem(self) -> str:
        """The reason why a consumer cannot continue, or an empty string if it can."""
        if self.log is None:
            return "no such partition"
        if self.is_recreated:
            return "topic deleted and recreated"
        if self.kept is not None and self.kept.next_offset < self.log.first:
            return f"{self.log.first - self.kept.next_offset:,} deleted unread"
        if self.kept is not None and self.kept.next_offset > max(self.log.end, self.log.written_end or 0):
            return "beyond the end of the log"
        return ""

    @property
    def left(self) -> int:
        """The number of messages from the group's position, or from the start if it has no position, to the end."""
        if self.log is None:
            return 0
        position = self.position
        return max(0, self.log.end - max(self.log.first, self.log.first if position is None else position))

    @property
    def position(self) -> int | None:
        return None if self.kept is None or self.is_recreated else self.kept.next_offset


@dataclass(frozen=True, slots=True)
class Move:
    """A move. ``target``: the new position, or ``None`` to delete the position in a partition that no longer exists."""

    offsets: PartitionOffsets
    target: int | None

    @property
    def skipped(self) -> int:
        """The number of unread messages in the log before the target."""
        log = self.offsets.log
        if self.target is None or log is None:
            return 0
        return max(0, self.target - max(log.first, self.offsets.position or 0))

    @property
    def read_again(self) -> int:
        """The number of messages from the target to the current position."""
        log, position = self.offsets.log, self.offsets.position
        if self.target is None or log is None or position is None:
            return 0
        return max(0, min(position, log.end) - self.target)


def read_partition_offsets(
    admin: Admin, known: Mapping[TopicPartition, GroupOffset], chosen: Mapping[str, Sequence[int]]
) -> list[PartitionOffsets]:
    """Return each chosen partition. Without partition numbers, return all partitions of the topic, and partitions that
    are only in ``known``. ``known``: all positions of the group. ``chosen``: partition numbers by topic. Raises
    `ConfigurationError` for a topic or partition that does not exist.
    """
    found = []
    for topic, numbers in chosen.items():
        if topic not in admin.topic_ids([topic], timeout=_ANSWER_SECONDS):
            raise ConfigurationError(f"topic {topic!r} does not exist: correct its name, or create it first")
        description = admin.describe_topic(topic)
        missing = [number for number in numbers if number >= description.partitions]
        if missing:
            raise ConfigurationError(
                f"topic {topic!r} has {description.partitions} partitions, but no partition {missing[0]}"
            )
        wanted = [TopicPartition(topic, number) for number in numbers or range(description.partitions)]
        firsts, ends = admin.first_offsets(wanted), admin.end_offsets(wanted)
        beyond = [each for each in wanted if each in known and known[each].next_offset > ends[each]]
        written = admin.end_offsets(beyond, open_transactions=True)
        logs = {each: LogSpan(description.topic_id, firsts[each], ends[each], written.get(each)) for each in wanted}
        found += [PartitionOffsets(each, known.get(each), logs[each]) for each in wanted]
        if not numbers:
            former = sorted(each for each in known if each.topic == topic and each not in firsts)
            found += [PartitionOffsets(each, known[each], None) for each in former]
    return found


def targets_at_time(admin: Admin, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """Return the first offset with this time or a later time, or the end of the log."""
    found = admin.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {partition: end if (at := found[partition]) is None else at for partition, end in ends.items()}


def targets_at_offset(logs: Mapping[TopicPartition, LogSpan], offset: int) -> dict[TopicPartition, int]:
    """Return the given offset for each partition. Raises `ConfigurationError` if it is outside the log."""
    for partition, log in logs.items():
        if not log.first <= offset <= log.end:
            place = f"{partition.topic}/{partition.partition}"
            raise ConfigurationError(
                f"{place} has offsets from {log.first} to {log.end}, but not {offset}: use one of these offsets, only "
                f"for this partition (--topic {partition.topic}:{partition.partition})"
            )
    return dict.fromkeys(logs, offset)
