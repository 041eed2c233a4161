# SPDX-License-Identifier: Apache-2.0
"""Dead letters: publishes messages that cannot be handled, within limits, with their origin in headers."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import (
    ConfigurationError,
    DeadLetterLimit,
    MessageTooLarge,
    MessagingError,
    Poison,
    UndeliveredError,
)
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Message, Record, TopicPartition
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.publishing import OutputPublisher
from monasca_common.kafka.processor.queues import Lane, Task
from monasca_common.kafka.settings import ConsumerSettings

LOG = logging.getLogger(__name__)

ORIGIN_TOPIC = "dead-letter-origin-topic"
ORIGIN_PARTITION = "dead-letter-origin-partition"
ORIGIN_OFFSET = "dead-letter-origin-offset"
ORIGIN_TIMESTAMP = "dead-letter-origin-timestamp"  # milliseconds; empty if the log had none
ORIGIN_MESSAGE_ID = "dead-letter-origin-message-id"
GROUP = "dead-letter-group"
ERROR_CLASS = "dead-letter-error-class"
ERROR_TEXT = "dead-letter-error-text"
ATTEMPTS = "dead-letter-attempts"
FIRST_FAILURE = "dead-letter-first-failure"  # milliseconds since the epoch
VALUE_CUT_FROM = "dead-letter-value-cut-from"  # the original length in bytes
KEY_AND_HEADERS_DROPPED = "dead-letter-key-and-headers-dropped"
REPLAYS = "dead-letter-replays"  # number of replays of a replayed message
FIRST_ORIGIN = "dead-letter-first-origin"  # first topic/partition/offset of a replayed message

HEADER_PREFIX = "dead-letter-"
_ORIGIN_HEADERS = frozenset(
    {ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP, ORIGIN_MESSAGE_ID, GROUP, ERROR_CLASS, ERROR_TEXT}
    | {ATTEMPTS, FIRST_FAILURE, VALUE_CUT_FROM, REPLAYS, FIRST_ORIGIN}
)
_MAX_ERROR_TEXT = 1000
# The two lengths of a header as varints, with a margin because clients compute the size of a record differently.
_HEADER_OVERHEAD = 32
_MAX_REASON = 200
_WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Publishes messages that cannot be handled to ``topic``, within limits.

    If ``topic`` is ``None``, the consumer's ``dead_letter_topic`` is used or, if that is unset, the origin topic's name
    followed by ``.dlq``. ``max_consecutive``: maximum dead letters in a row per partition; one more ends the loop.
    ``max_ratio``: at most ``max_ratio * window`` of the last ``window`` messages of all partitions can be dead letters.
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


@dataclass(slots=True)
class DeadLetterPublisher:
    """Publishes the dead letters of one processor, on its handler threads. ``count`` checks the limits."""

    policy: DeadLetters
    settings: ConsumerSettings
    clock: Clock
    hooks: Hooks
    publisher: OutputPublisher
    log_limit: LogLimit
    count: DeadLetterCount = field(init=False)

    def __post_init__(self) -> None:
        self.count = DeadLetterCount(self.policy)

    def topics(self) -> list[str]:
        """Return the dead-letter topics of the consumer's topics; each must exist."""
        return sorted({self._topic(origin) for origin in self.settings.topics})

    def send(self, lane: Lane, task: Task, errors: Sequence[Exception]) -> None:
        """Publish a dead letter per message of the task, and wait until all are acknowledged. Raises `Abandoned`."""
        messages = list(task.part)
        failed_ms = self.clock.time_ms() if task.first_failed_ms is None else task.first_failed_ms
        letters = []
        for message, error in zip(messages, errors, strict=True):
            self.hooks.call("before_dead_letter", message, error)
            letters.append(dead_letter(message, error, self.settings.group_id, task.attempts, failed_ms))
        topic = self._topic(task.part.topic_partition.topic)
        with self.publisher.session(lane, task) as send:
            for portion in self.publisher.portions(letters):
                shrink_to_fit(portion, partial(send, topic))
        for message, error in zip(messages, errors, strict=True):
            self._log(message, error)
            self.hooks.call("after_dead_letter", message, error)

    def _log(self, message: Message, error: Exception) -> None:
        more = self.log_limit.admit("dead letter", message.topic, type(error).__name__)
        if more is not None:
            place = (message.topic, message.partition, message.offset)
            LOG.warning("dead letter of %s/%d offset %d: %s%s", *place, reason_without_payload(message, error), more)

    def _topic(self, origin: str) -> str:
        return self.policy.topic_for(origin, self.settings.dead_letter_topic)


def reason_without_payload(message: Message, error: Exception) -> str:
    """Return the reason for a dead letter as one log line, without words that the message contains. For an error whose
    text is not meant for operators, return only the name of its class."""
    name = type(error).__name__
    if not isinstance(error, Poison | MessagingError):
        return name
    payload = b" ".join(filter(None, (message.key, message.value, *(value for _, value in message.headers))))
    text = " ".join(str(error).split())[:_MAX_REASON]
    return f"{name}: {_WORD.sub(lambda word: '…' if word[0].encode() in payload else word[0], text)}"


def dead_letter(message: Message, error: Exception, group: str, attempts: int, first_failed_ms: int) -> Record:
    """Return the dead letter of a message, with its value, key, headers and origin. ``error``: the last error.

    The id of a dead letter is the same after a crash and another attempt, so that readers can drop the duplicate. The
    dead letter of a replayed message keeps the first origin and the time of the first failure.
    """
    kept = tuple(header for header in message.headers if header[0] not in (MESSAGE_ID_HEADER, FIRST_FAILURE))
    headers = dict(message.headers)
    earlier_failure = headers.get(FIRST_FAILURE) if REPLAYS in headers else None
    timestamp = "" if message.timestamp_ms is None else str(message.timestamp_ms)
    origin: Headers = (
        (ORIGIN_MESSAGE_ID, message.message_id),
        (ORIGIN_TOPIC, message.topic.encode()),
        (ORIGIN_PARTITION, b"%d" % message.partition),
        (ORIGIN_OFFSET, b"%d" % message.offset),
        (ORIGIN_TIMESTAMP, timestamp.encode()),
        (GROUP, group.encode()),
        (ERROR_CLASS, _class_name(error).encode()),
        (ERROR_TEXT, _text(error)[:_MAX_ERROR_TEXT].encode(errors="backslashreplace")),
        (ATTEMPTS, b"%d" % attempts),
        (FIRST_FAILURE, earlier_failure or b"%d" % first_failed_ms),
    )
    own_id = f"{group}/{message.topic}/{message.partition}/{message.offset}".encode()
    return Record(message.value, key=message.key, headers=kept + origin, message_id=own_id)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:  # a defect in the user's error class must not prevent the dead letter
        return f"the text of the error is not available: {type(second).__name__}"


def shrink(letter: Record, size: int, limit: int) -> Record:
    """Cut the value of a dead letter of ``size`` bytes so that the dead letter has at most ``limit`` bytes.

    If that is not enough, drop the value, the key and the message's headers. The origin remains, in headers of at most
    1000 bytes, because the message itself can have an id of any size, and headers with these names.
    """
    value = letter.value or b""
    was_cut = any(name == VALUE_CUT_FROM for name, _ in letter.headers)
    note: Headers = () if was_cut else ((VALUE_CUT_FROM, b"%d" % len(value)),)
    excess = size - limit + sum(len(name) + len(text or b"") + _HEADER_OVERHEAD for name, text in note)
    if excess <= len(value):
        return replace(letter, value=value[: len(value) - excess], headers=letter.headers + note)
    origin = {name: (text or b"")[:_MAX_ERROR_TEXT] for name, text in letter.headers if name in _ORIGIN_HEADERS}
    return replace(letter, value=b"", key=None, headers=(*origin.items(), *note, (KEY_AND_HEADERS_DROPPED, b"1")))


def shrink_to_fit(letters: Sequence[Record], send: Callable[[Sequence[Record]], None]) -> None:
    """``send`` dead letters. Resend undelivered dead letters as long as some can be cut, because the headers with the
    origin can make them too large. Raises the `UndeliveredError` of ``send`` if no retry can succeed."""
    while letters:
        try:
            send(letters)
            return
        except UndeliveredError as refused:
            left, any_cut = [], False
            for delivery in refused.report.failed + refused.report.unknown:
                letter, error = letters[delivery.index], delivery.error
                if isinstance(error, MessageTooLarge) and letter != (cut := shrink(letter, error.size, error.limit)):
                    letter, any_cut = cut, True
                elif error is not None and error.permanent:
                    raise
                left.append(letter)
            if not any_cut:
                raise
            letters = left


def _class_name(error: Exception) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class DeadLetterCount:
    """Counts recent dead letters against the limits of a `DeadLetters`. Thread-safe."""

    def __init__(self, limits: DeadLetters) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._seen = 0
        self._recent: deque[int] = deque()  # positions of the dead letters in the window, counted over all messages
        self._in_a_row: Counter[TopicPartition] = Counter()

    def passed(self, partition: TopicPartition, count: int) -> None:
        """Count ``count`` handled messages of the partition."""
        with self._lock:
            if count > 0:
                self._seen += count
                self._in_a_row[partition] = 0

    def admit_some(
        self, partition: TopicPartition, errors: Mapping[int, Exception], counted: int
    ) -> tuple[list[int], DeadLetterLimit | None]:
        """`admit` each message with an error, by its position. Count the others before the last one as passed, except
        the first ``counted``. Return the admitted positions and, if the next message exceeds a limit, the error."""
        admitted: list[int] = []
        for index in sorted(errors):
            self.passed(partition, index - counted)
            counted = max(counted, index + 1)
            try:
                self.admit(partition, errors[index])
            except DeadLetterLimit as limit:
                return admitted, limit
            admitted.append(index)
        return admitted, None

    def admit(self, partition: TopicPartition, error: Exception) -> None:
        """Count one more dead letter. Raises `DeadLetterLimit` if it must be neither sent nor committed."""
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
            f"{broken} could not be handled, the last one from {partition.topic}/{partition.partition}: it is not "
            "committed; repair the handler or the input and start again, or raise the limit"
        ) from error

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that now belong to another member."""
        with self._lock:
            for partition in partitions:
                self._in_a_row.pop(partition, None)
