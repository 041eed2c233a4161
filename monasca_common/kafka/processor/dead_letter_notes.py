# SPDX-License-Identifier: Apache-2.0
"""Dead letters as they are read, and a group's notes: records that name the dead letters it has dealt with after its
offset."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from monasca_common.kafka.message import MESSAGE_ID_HEADER, Message, Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import (
    ATTEMPTS,
    ERROR_CLASS,
    ERROR_TEXT,
    FIRST_FAILURE,
    FIRST_ORIGIN,
    GROUP,
    HEADER_PREFIX,
    NOTE_KEY,
    ORIGIN_MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    REPLAYS,
    VALUE_CUT_FROM,
    is_note,
)

LOG = logging.getLogger(__name__)

AT_ONCE = 500  # letters that one note names, at most


MAX_REPLAYS = 3

_REMEMBERED_IDS = 1_000_000
_DIGITS = 19  # of a number with 64 bits; Python reads no number with thousands of them


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it was read. ``origin``: ``topic/partition/offset`` of its message, or only the topic, or empty
    where its writer did not say. ``replays``: how often the message was sent back before. ``first_origin``,
    ``first_failure_ms``: of the message before it was ever sent back. ``stays``: why it cannot be sent back; empty if
    it can. ``refusal``: why its topic did not take it, so that it waits for another run."""

    message: Message
    origin_topic: str
    origin: str
    group: str
    error: str
    attempts: int
    replays: int
    stays: str
    first_failure_ms: int | None = None
    refusal: str = ""
    first_origin: str = ""

    @classmethod
    def of(cls, message: Message, max_replays: int = MAX_REPLAYS) -> Letter:
        headers = dict(message.headers)

        def text(name: str) -> str:
            return (headers.get(name) or b"").decode(errors="replace")

        def number(name: str) -> int:
            digits = text(name)
            return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else 0

        place = (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)
        topic, replays = text(ORIGIN_TOPIC), number(REPLAYS)
        stays = ""
        if not topic:
            stays = "it does not say which topic it came from"
        elif VALUE_CUT_FROM in headers:
            stays = "its value was cut"
        elif replays >= max_replays:
            stays = f"it was sent back {replays} times already: repair its reader first"
        origin = "/".join(filter(None, map(text, place)))
        return cls(
            message,
            origin_topic=topic,
            origin=origin,
            group=text(GROUP),
            error=": ".join(filter(None, (text(ERROR_CLASS), text(ERROR_TEXT)))),
            attempts=number(ATTEMPTS),
            replays=replays,
            stays=stays,
            first_failure_ms=number(FIRST_FAILURE) or None,
            first_origin=text(FIRST_ORIGIN) or origin,
        )

    @property
    def place(self) -> str:
        """Where the letter is, as ``topic/partition/offset``."""
        return f"{self.message.topic}/{self.message.partition}/{self.message.offset}"

    def original(self) -> Record:
        """The message as it was, under the id that it had: readers know it by that. Headers count its replays, and
        say where it was first and when it failed first, which its next letter keeps."""
        headers: list[tuple[str, bytes | None]] = [
            each
            for each in self.message.headers
            if each[0] != MESSAGE_ID_HEADER and not each[0].startswith(HEADER_PREFIX)
        ]
        headers.append((REPLAYS, b"%d" % (self.replays + 1)))
        if self.first_origin:
            headers.append((FIRST_ORIGIN, self.first_origin.encode()))
        if self.first_failure_ms is not None:
            headers.append((FIRST_FAILURE, b"%d" % self.first_failure_ms))
        return Record(self.message.value, key=self.message.key, headers=tuple(headers), message_id=self.message_id)

    @property
    def message_id(self) -> bytes:
        """The id of the message that died, by which its readers know it."""
        return dict(self.message.headers).get(ORIGIN_MESSAGE_ID) or self.message.message_id

    @property
    def goes(self) -> bool:
        """Whether it is sent back."""
        return not self.stays and not self.refusal


class SentMessages:
    """The messages that were sent back, by the topic that they came from and their ids: the last million of them."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, bytes], None] = {}

    def add(self, letter: Letter) -> None:
        self._ids[letter.origin_topic, letter.message_id] = None
        if len(self._ids) > _REMEMBERED_IDS:
            del self._ids[next(iter(self._ids))]

    def has(self, letter: Letter) -> bool:
        return (letter.origin_topic, letter.message_id) in self._ids


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
