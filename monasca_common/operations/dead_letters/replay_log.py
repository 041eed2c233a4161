# SPDX-License-Identifier: Apache-2.0
"""Dead letters read from a topic, and a group's notes: records that list handled dead letters after the group's
offset."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from monasca_common.kafka import Message, Record, TopicPartition, dead_letters
from monasca_common.kafka.message import MESSAGE_ID_HEADER

LOG = logging.getLogger(__name__)

MAX_NOTED = 500  # maximum number of dead letters in a note
MAX_REPLAYS = 3

_NOTE_KEY = b"dead-letter-note/"  # followed by the group's name
_REMEMBERED_IDS = 1_000_000
_DIGITS = 19  # digits of a 64-bit number; Python refuses to parse thousands of digits


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter. ``origin``: ``topic/partition/offset`` of its message, or only the topic, or empty if unknown.
    ``replays``: the number of times the message was replayed. ``first_origin``, ``first_failure_ms``: the origin and
    failure time of the message before its first replay. ``obstacle``: the reason why it cannot be replayed, or empty.
    ``refusal``: the reason why its topic refused it, or empty; a refused dead letter stays pending for another run."""

    message: Message
    origin_topic: str
    origin: str
    group: str
    error: str
    attempts: int
    replays: int
    obstacle: str
    first_failure_ms: int | None = None
    refusal: str = ""
    first_origin: str = ""

    @classmethod
    def of(cls, message: Message, max_replays: int = MAX_REPLAYS) -> DeadLetter:
        headers = dict(message.headers)

        def text(name: str) -> str:
            return (headers.get(name) or b"").decode(errors="replace")

        def number(name: str) -> int:
            digits = text(name)
            return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else 0

        place = (dead_letters.ORIGIN_TOPIC, dead_letters.ORIGIN_PARTITION, dead_letters.ORIGIN_OFFSET)
        topic, replays = text(dead_letters.ORIGIN_TOPIC), number(dead_letters.REPLAYS)
        obstacle = ""
        if not topic:
            obstacle = "its original topic is unknown"
        elif dead_letters.VALUE_CUT_FROM in headers:
            obstacle = "its value was truncated"
        elif replays >= max_replays:
            obstacle = f"it was already replayed {replays} times: repair its consumer first"
        origin = "/".join(filter(None, map(text, place)))
        return cls(
            message,
            origin_topic=topic,
            origin=origin,
            group=text(dead_letters.GROUP),
            error=": ".join(filter(None, (text(dead_letters.ERROR_CLASS), text(dead_letters.ERROR_TEXT)))),
            attempts=number(dead_letters.ATTEMPTS),
            replays=replays,
            obstacle=obstacle,
            first_failure_ms=number(dead_letters.FIRST_FAILURE) or None,
            first_origin=text(dead_letters.FIRST_ORIGIN) or origin,
        )

    @property
    def place(self) -> str:
        """The ``topic/partition/offset`` of the dead letter."""
        return f"{self.message.topic}/{self.message.partition}/{self.message.offset}"

    def original(self) -> Record:
        """Return the original message with its message id. Its headers contain the number of replays, the first origin
        and the time of the first failure; if the message fails again, its dead letter keeps these headers."""
        headers: list[tuple[str, bytes | None]] = [
            each
            for each in self.message.headers
            if each[0] != MESSAGE_ID_HEADER and not each[0].startswith(dead_letters.HEADER_PREFIX)
        ]
        headers.append((dead_letters.REPLAYS, b"%d" % (self.replays + 1)))
        if self.first_origin:
            headers.append((dead_letters.FIRST_ORIGIN, self.first_origin.encode()))
        if self.first_failure_ms is not None:
            headers.append((dead_letters.FIRST_FAILURE, b"%d" % self.first_failure_ms))
        return Record(self.message.value, key=self.message.key, headers=tuple(headers), message_id=self.message_id)

    @property
    def message_id(self) -> bytes:
        """The id of the original message, by which consumers recognize it."""
        return dict(self.message.headers).get(dead_letters.ORIGIN_MESSAGE_ID) or self.message.message_id

    @property
    def is_replayable(self) -> bool:
        return not self.obstacle and not self.refusal


class SentMessages:
    """The original topics and message ids of the last million replayed messages."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, bytes], None] = {}

    def add(self, letter: DeadLetter) -> None:
        self._ids[letter.origin_topic, letter.message_id] = None
        if len(self._ids) > _REMEMBERED_IDS:
            del self._ids[next(iter(self._ids))]

    def has(self, letter: DeadLetter) -> bool:
        return (letter.origin_topic, letter.message_id) in self._ids


def is_note(message: Message) -> bool:
    """Return whether this record is a note. The key of a dead letter can look like the key of a note, but only dead
    letters have headers that name their origin."""
    if message.key is None or not message.key.startswith(_NOTE_KEY):
        return False
    return all(name != dead_letters.ORIGIN_TOPIC for name, _ in message.headers)


class _Mark(IntEnum):
    """The content of an offset: a dead letter, or `NOTHING` for a note or a missing message."""

    NOTHING = 0
    PENDING = 1
    HANDLED = 2


class ReplayLog:
    """The dead letters read from each partition, and whether the group's notes list them. It uses one byte per
    offset."""

    def __init__(self, group: str) -> None:
        self._prefix = _NOTE_KEY + group.encode() + b"/"
        self._firsts: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, bytearray] = {}

    def read(self, message: Message) -> None:
        """Add a message. Call this in the order of offsets."""
        partition = TopicPartition(message.topic, message.partition)
        first = self._firsts.setdefault(partition, message.offset)
        marks = self._marks.setdefault(partition, bytearray())
        gap = message.offset - first - len(marks)
        if gap < 0:
            return  # already read
        marks.extend(bytes(gap))
        if not is_note(message):
            marks.append(_Mark.PENDING)
        elif self._is_of_group(message.key or b""):
            for lowest, highest in _ranges(message.value):
                begin, end = max(0, lowest - first), max(0, highest + 1 - first)
                marks[begin:end] = marks[begin:end].replace(bytes([_Mark.PENDING]), bytes([_Mark.HANDLED]))

    def _is_of_group(self, key: bytes) -> bool:
        """Return whether a note belongs to this group, and not to a group whose name starts with this group's name and
        a slash."""
        return key.startswith(self._prefix) and key.count(b"/", len(self._prefix)) == 1

    def forget_before(self, partition: TopicPartition, offset: int) -> None:
        """Remove offsets that are before the group's offset or were deleted."""
        if self._firsts.get(partition, offset) < offset:
            del self._marks[partition][: offset - self._firsts[partition]]
            self._firsts[partition] = offset

    def is_handled(self, partition: TopicPartition, offset: int) -> bool:
        return self._mark(partition, offset) == _Mark.HANDLED

    def is_pending(self, partition: TopicPartition, offset: int) -> bool:
        return self._mark(partition, offset) == _Mark.PENDING

    def _mark(self, partition: TopicPartition, offset: int) -> int:
        index = offset - self._firsts.get(partition, 0)
        marks = self._marks.get(partition, b"")
        return marks[index] if 0 <= index < len(marks) else _Mark.NOTHING

    def pending_count(self) -> int:
        """Return the number of pending dead letters read so far."""
        return sum(marks.count(_Mark.PENDING) for marks in self._marks.values())

    def note(self, partition: TopicPartition, offsets: Sequence[int]) -> Record:
        """Return the note that lists these ascending offsets as handled."""
        runs: list[list[int]] = []
        for offset in offsets:
            if runs and offset == runs[-1][1] + 1:
                runs[-1][1] = offset
            else:
                runs.append([offset, offset])
        key = self._prefix + b"%d/%d" % (partition.partition, offsets[0])
        return Record(json.dumps(runs).encode(), key=key, partition=partition.partition)


def _ranges(value: bytes | None) -> Iterator[tuple[int, int]]:
    """Return the ranges in a note, or no ranges if another program wrote the record."""
    try:
        for first, last in json.loads(value or b"[]"):
            yield int(first), min(int(last), int(first) + MAX_NOTED)
    except (ValueError, TypeError, OverflowError, RecursionError):
        LOG.warning("ignoring an unreadable note of replayed dead letters")
