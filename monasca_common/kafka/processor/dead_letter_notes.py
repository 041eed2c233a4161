# SPDX-License-Identifier: Apache-2.0
"""Which dead letters wait, by the notes of a group: records that name letters which it has dealt with behind its
offset."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from enum import IntEnum

from monasca_common.kafka.message import Message, Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import NOTE_KEY, is_note

LOG = logging.getLogger(__name__)

AT_ONCE = 500  # letters that one note names, at most


class _Mark(IntEnum):
    """What is at an offset: a letter, or no message or a note (`NOTHING`)."""

    NOTHING = 0
    WAITS = 1
    DEALT_WITH = 2


class DeadLetterNotes:
    """The letters of each partition that were read, and whether a note of the group names them. Keeps a byte for each
    offset that was read."""

    def __init__(self, group: str) -> None:
        self._prefix = NOTE_KEY + group.encode() + b"/"
        self._firsts: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, bytearray] = {}

    def read(self, message: Message) -> None:
        """In the order of offsets: a note comes behind the letters that it is of."""
        partition = TopicPartition(message.topic, message.partition)
        first = self._firsts.setdefault(partition, message.offset)
        marks = self._marks.setdefault(partition, bytearray())
        gap = message.offset - first - len(marks)
        if gap < 0:
            return  # it was read before
        marks.extend(bytes(gap))
        if not is_note(message):
            marks.append(_Mark.WAITS)
        elif self._is_of_group(message.key or b""):
            for lowest, highest in _ranges(message.value):
                begin, end = max(0, lowest - first), max(0, highest + 1 - first)
                marks[begin:end] = marks[begin:end].replace(bytes([_Mark.WAITS]), bytes([_Mark.DEALT_WITH]))

    def _is_of_group(self, key: bytes) -> bool:
        """And not of another whose name begins with this one's and a slash."""
        return key.startswith(self._prefix) and key.count(b"/", len(self._prefix)) == 1

    def forget_before(self, partition: TopicPartition, offset: int) -> None:
        """The group's offset has moved there, or they were deleted."""
        if self._firsts.get(partition, offset) < offset:
            del self._marks[partition][: offset - self._firsts[partition]]
            self._firsts[partition] = offset

    def is_dealt_with(self, partition: TopicPartition, offset: int) -> bool:
        return self._mark(partition, offset) == _Mark.DEALT_WITH

    def waits(self, partition: TopicPartition, offset: int) -> bool:
        return self._mark(partition, offset) == _Mark.WAITS

    def _mark(self, partition: TopicPartition, offset: int) -> int:
        index = offset - self._firsts.get(partition, 0)
        marks = self._marks.get(partition, b"")
        return marks[index] if 0 <= index < len(marks) else _Mark.NOTHING

    def waiting(self) -> int:
        """How many letters wait among those that were read."""
        return sum(marks.count(_Mark.WAITS) for marks in self._marks.values())

    def first_waiting(self, partition: TopicPartition) -> int | None:
        """The offset of the first letter that waits."""
        index = self._marks.get(partition, bytearray()).find(_Mark.WAITS)
        return None if index < 0 else self._firsts[partition] + index

    def note(self, partition: TopicPartition, offsets: Sequence[int]) -> Record:
        """The note that these offsets, which ascend, were dealt with."""
        runs: list[list[int]] = []
        for offset in offsets:
            if runs and offset == runs[-1][1] + 1:
                runs[-1][1] = offset
            else:
                runs.append([offset, offset])
        key = self._prefix + b"%d/%d" % (partition.partition, offsets[0])
        return Record(json.dumps(runs).encode(), key=key, partition=partition.partition)


def _ranges(value: bytes | None) -> Iterator[tuple[int, int]]:
    """None from what somebody else wrote under such a key."""
    try:
        for first, last in json.loads(value or b"[]"):
            yield int(first), min(int(last), int(first) + AT_ONCE)
    except (ValueError, TypeError, OverflowError, RecursionError):
        LOG.warning("a note of letters that were sent back cannot be read, and is ignored")
