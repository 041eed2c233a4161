# SPDX-License-Identifier: Apache-2.0
"""Dead letters read from a topic, and a group's notes: records that list handled dead letters after the group's
offset."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """A dead letter. ``origin``: ``topic/partition/offset`` of its message, or only the topic, or ``""`` if unknown.
    ``replays``: the number of times the message was replayed. ``first_origin``, ``first_failure_ms``: the origin and
    failure time of the message before its first replay. ``obstacle``: the reason why it cannot be replayed, or ``""``.
    ``refusal``: the reason why its topic refused it, or ``""``; a refused dead letter stays pending for another run."""

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

        def text(name: str) -> str:  # in one line, because any client can write line breaks
            return " ".join((headers.get(name) or b"").decode(errors="replace").split())

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


class ReplayLog:
    """The dead letters read from each partition, and whether the group's notes list them."""

    def __init__(self, group: str) -> None:
        self._prefix = _NOTE_KEY + group.encode() + b"/"
        self._handled: dict[TopicPartition, dict[int, bool]] = defaultdict(dict)  # by offset

    def read(self, message: Message) -> None:
        """Add a message. Call this in offset order."""
        handled = self._handled[TopicPartition(message.topic, message.partition)]
        if not is_note(message):
            handled.setdefault(message.offset, False)
        elif self._is_of_group(message.key or b""):
            handled.update((offset, True) for offset in _listed(message.value) if offset in handled)

    def _is_of_group(self, key: bytes) -> bool:
        """Return whether a note belongs to this group, and not to a group whose name starts with this group's name and
        a slash."""
        return key.startswith(self._prefix) and key.count(b"/", len(self._prefix)) == 1

    def is_handled(self, partition: TopicPartition, offset: int) -> bool:
        return self._handled[partition].get(offset) is True

    def is_pending(self, partition: TopicPartition, offset: int) -> bool:
        return self._handled[partition].get(offset) is False

    def pending_count(self) -> int:
        """Return the number of pending dead letters read so far."""
        return sum(not is_handled for handled in self._handled.values() for is_handled in handled.values())

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


def _listed(value: bytes | None) -> Iterator[int]:
    """Return the offsets in a note, or no offsets if another program wrote the record."""
    try:
        for first, last in json.loads(value or b"[]"):
            yield from range(int(first), min(int(last), int(first) + MAX_NOTED) + 1)
    except (ValueError, TypeError, OverflowError, RecursionError):
        LOG.warning("ignoring an unreadable note about replayed dead letters")
