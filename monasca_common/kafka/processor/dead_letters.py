# SPDX-License-Identifier: Apache-2.0
"""Dead letters: the topic of messages that cannot be handled, their headers, and their limits."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.kafka.errors import ConfigurationError, DeadLetterLimit, MessageTooLarge, UndeliveredError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Message, Record, TopicPartition

ORIGIN_TOPIC = "dead-letter-origin-topic"
ORIGIN_PARTITION = "dead-letter-origin-partition"
ORIGIN_OFFSET = "dead-letter-origin-offset"
ORIGIN_TIMESTAMP = "dead-letter-origin-timestamp"  # milliseconds; empty where the log had none
ORIGIN_MESSAGE_ID = "dead-letter-origin-message-id"
GROUP = "dead-letter-group"
ERROR_CLASS = "dead-letter-error-class"
ERROR_TEXT = "dead-letter-error-text"
ATTEMPTS = "dead-letter-attempts"
FIRST_FAILURE = "dead-letter-first-failure"  # milliseconds since the epoch
VALUE_CUT_FROM = "dead-letter-value-cut-from"  # the original length in bytes
KEY_AND_HEADERS_DROPPED = "dead-letter-key-and-headers-dropped"
REPLAYS = "dead-letter-replays"  # of a message that was sent back: how often
FIRST_ORIGIN = "dead-letter-first-origin"  # of a message that was sent back: topic/partition/offset where it was first

NOTE_KEY = b"dead-letter-note/"  # of a record that names letters which were dealt with; the group's name follows

MAX_REPLAYS = 3

_HEADERS = "dead-letter-"
_MAX_ERROR_TEXT = 1000
_REMEMBERED_IDS = 1_000_000
_DIGITS = 19  # of a number with 64 bits; Python reads no number with thousands of them


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Send what cannot be handled to ``topic``, within limits.

    ``topic``: ``None`` for the consumer's ``dead_letter_topic``, or without one the origin's name with ``.dlq``.
    ``max_consecutive``: so many in a row, per partition, are taken; the next ends the loop.
    ``max_ratio``: at most ``max_ratio * window`` among the last ``window`` messages of all partitions.
    """

    topic: str | None = None
    max_consecutive: int | None = None
    max_ratio: float | None = None
    window: int = 1000

    def __post_init__(self) -> None:
        if self.max_consecutive is not None and self.max_consecutive < 0:
            raise ConfigurationError(f"DeadLetters(max_consecutive={self.max_consecutive}): it must be 0 or more")
        if self.max_ratio is not None and not 0 <= self.max_ratio <= 1:
            raise ConfigurationError(f"DeadLetters(max_ratio={self.max_ratio}): it must be a share, from 0 to 1")
        if self.window < 1:
            raise ConfigurationError(f"DeadLetters(window={self.window}): it must be at least 1 message")

    def topic_for(self, origin: str, configured: str | None = None) -> str:
        return self.topic or configured or f"{origin}.dlq"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message becomes a dead letter: the last error, the number of attempts, and the time of the first
    failure."""

    error: Exception
    attempts: int
    first_failed_ms: int


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
            each for each in self.message.headers if each[0] != MESSAGE_ID_HEADER and not each[0].startswith(_HEADERS)
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


def dead_letter(message: Message, failure: Failure, group: str) -> Record:
    """The record for the dead-letter topic: value, key and headers kept, the origin added.

    Its own id is the same after a crash and a second try, so that a reader can drop the repeat. One of a message that
    was sent back keeps where that was first, and when it failed first.
    """
    kept = tuple(header for header in message.headers if header[0] not in (MESSAGE_ID_HEADER, FIRST_FAILURE))
    headers = dict(message.headers)
    earlier_failure = headers.get(FIRST_FAILURE) if REPLAYS in headers else None
    timestamp = "" if message.timestamp_ms is None else str(message.timestamp_ms)
    text = _text(failure.error)[:_MAX_ERROR_TEXT]
    origin: Headers = (
        (ORIGIN_MESSAGE_ID, message.message_id),
        (ORIGIN_TOPIC, message.topic.encode()),
        (ORIGIN_PARTITION, b"%d" % message.partition),
        (ORIGIN_OFFSET, b"%d" % message.offset),
        (ORIGIN_TIMESTAMP, timestamp.encode()),
        (GROUP, group.encode()),
        (ERROR_CLASS, _class_name(failure.error).encode()),
        (ERROR_TEXT, text.encode(errors="backslashreplace")),
        (ATTEMPTS, b"%d" % failure.attempts),
        (FIRST_FAILURE, earlier_failure or b"%d" % failure.first_failed_ms),
    )
    own_id = f"{group}/{message.topic}/{message.partition}/{message.offset}".encode()
    return Record(message.value, key=message.key, headers=kept + origin, message_id=own_id)


def is_note(message: Message) -> bool:
    """Whether this names letters that were dealt with, and is not a letter itself: that has the key of its message,
    which may be anything, but tells its origin."""
    if message.key is None or not message.key.startswith(NOTE_KEY):
        return False
    return all(name != ORIGIN_TOPIC for name, _ in message.headers)


# A header's two lengths as varints, with room for how differently clients count a record's size.
_HEADER_OVERHEAD = 32


def can_shrink(letter: Record) -> bool:
    """Whether there is anything left to leave out."""
    return all(name != KEY_AND_HEADERS_DROPPED for name, _ in letter.headers)


def shrink(letter: Record, size: int, limit: int) -> Record:
    """A dead letter of ``size`` bytes made to fit ``limit``: its value is cut, its origin kept.

    Where that cannot be enough, the value, the key and the message's own headers go; the origin stays.
    """
    value = letter.value or b""
    was_cut = any(name == VALUE_CUT_FROM for name, _ in letter.headers)
    note: Headers = () if was_cut else ((VALUE_CUT_FROM, b"%d" % len(value)),)
    excess = size - limit + sum(len(name) + len(text or b"") + _HEADER_OVERHEAD for name, text in note)
    if excess <= len(value):
        return replace(letter, value=value[: len(value) - excess], headers=letter.headers + note)
    provenance = tuple(header for header in letter.headers if header[0].startswith("dead-letter-"))
    return replace(letter, value=b"", key=None, headers=(*provenance, *note, (KEY_AND_HEADERS_DROPPED, b"1")))


def shrunk(letters: Sequence[Record], refused: UndeliveredError) -> list[Record]:
    """What is left to send after a publish: the letters that were too large cut, the others that are undelivered as
    they were. Raises ``refused`` if one can neither be delivered nor cut."""
    left = []
    for delivery in refused.report.failed + refused.report.unknown:
        letter, error = letters[delivery.index], delivery.error
        if not isinstance(error, MessageTooLarge):
            if error is not None and error.permanent:
                raise refused
            left.append(letter)
        elif can_shrink(letter):
            left.append(shrink(letter, error.size, error.limit))
        else:
            raise refused
    return left


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:  # it is a user's class: its flaw must not keep the letter from being written
        return f"its text cannot be had: {type(second).__name__}"


def _class_name(error: Exception) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class DeadLetterCount:
    """How many went to the dead letters lately, against the limits of a `DeadLetters`. Thread-safe."""

    def __init__(self, limits: DeadLetters) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._seen = 0
        self._recent: deque[int] = deque()  # positions among everything seen, of the dead letters in the window
        self._in_a_row: Counter[TopicPartition] = Counter()

    def passed(self, partition: TopicPartition, count: int) -> None:
        """``count`` messages of the partition were handled."""
        if not count:
            return
        with self._lock:
            self._seen += count
            self._in_a_row[partition] = 0

    def admit_some(
        self, partition: TopicPartition, errors: Mapping[int, Exception], total: int
    ) -> tuple[list[int], DeadLetterLimit | None]:
        """`admit` those of ``total`` messages that have an error, by position, and count the others as passed.

        Returns the positions that the limits let through and, if one was crossed after these, that limit.
        """
        admitted: list[int] = []
        following = 0
        for index in sorted(errors):
            self.passed(partition, index - following)
            following = index + 1
            try:
                self.admit(partition, errors[index])
            except DeadLetterLimit as limit:
                return admitted, limit
            admitted.append(index)
        self.passed(partition, total - following)
        return admitted, None

    def admit(self, partition: TopicPartition, error: Exception) -> None:
        """Count one more dead letter, or raise `DeadLetterLimit`: then it must be neither sent nor committed."""
        limits = self._limits
        with self._lock:
            position = self._seen + 1
            while self._recent and self._recent[0] <= position - limits.window:
                self._recent.popleft()
            in_a_row, recent = self._in_a_row[partition] + 1, len(self._recent) + 1
            if limits.max_consecutive is not None and in_a_row > limits.max_consecutive:
                broken = f"{in_a_row} messages in a row (max_consecutive={limits.max_consecutive})"
            elif limits.max_ratio is not None and recent > limits.max_ratio * limits.window:
                broken = f"{recent} of the last {limits.window} messages (max_ratio={limits.max_ratio})"
            else:
                self._seen = position
                self._recent.append(position)
                self._in_a_row[partition] = in_a_row
                return
        raise DeadLetterLimit(
            f"{broken} could not be handled, the last one from {partition.topic}/{partition.partition}: it stays "
            "uncommitted; repair the handler or the input and start again, or raise the limit"
        ) from error

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another member owns now."""
        with self._lock:
            for partition in partitions:
                self._in_a_row.pop(partition, None)
