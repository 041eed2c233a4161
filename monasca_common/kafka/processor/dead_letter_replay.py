# SPDX-License-Identifier: Apache-2.0
"""Sends dead letters back to the topics that they came from, after the handler or the input was repaired.

What was dealt with is remembered in Kafka. The group's offset is where the first letter waits. Letters that were chosen
behind it are named by a note, which is written behind them to their own partition: it lives longer than they do.
With a transactional producer messages, notes and offsets become visible together, so a crash sends nothing twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from monasca_common.kafka.clock import Signal
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import (
    DeliveryRefused,
    MessageTooLarge,
    OffsetOutOfRange,
    RetriableError,
    TransactionError,
)
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Batch, Message, PartitionBatch, Record, TopicPartition
from monasca_common.kafka.processor import dead_letters
from monasca_common.kafka.producer.outcome import Delivery
from monasca_common.kafka.producer.producer import KafkaProducer

LOG = logging.getLogger(__name__)

MAX_REPLAYS = 3
PATIENCE_SECONDS = 30.0

_POLL_SECONDS = 0.2
_AT_ONCE = 500  # letters of one transaction
_REMEMBERED_IDS = 1_000_000
_PREFIX = "dead-letter-"
_DIGITS = 19  # of a number with 64 bits; Python reads no number with thousands of them
_REPEATED = "its message goes back by another letter"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it was read. ``origin``: ``topic/partition/offset`` of its message, or only the topic, or empty
    where its writer did not say. ``replays``: how often the message was sent back before. ``stays``: why it cannot be
    sent back; empty if it can."""

    message: Message
    origin_topic: str
    origin: str
    group: str
    error: str
    attempts: int
    replays: int
    stays: str
    first_failure_ms: int | None = None

    @classmethod
    def of(cls, message: Message, max_replays: int = MAX_REPLAYS) -> Letter:
        headers = dict(message.headers)

        def text(name: str) -> str:
            return (headers.get(name) or b"").decode(errors="replace")

        def number(name: str) -> int:
            digits = text(name)
            return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else 0

        place = (dead_letters.ORIGIN_TOPIC, dead_letters.ORIGIN_PARTITION, dead_letters.ORIGIN_OFFSET)
        topic, replays = text(dead_letters.ORIGIN_TOPIC), number(dead_letters.REPLAYS)
        stays = ""
        if not topic:
            stays = "it does not say which topic it came from"
        elif dead_letters.VALUE_CUT_FROM in headers:
            stays = "its value was cut"
        elif replays >= max_replays:
            stays = f"it was sent back {replays} times already: repair its reader first"
        return cls(
            message,
            origin_topic=topic,
            origin="/".join(filter(None, map(text, place))),
            group=text(dead_letters.GROUP),
            error=": ".join(filter(None, (text(dead_letters.ERROR_CLASS), text(dead_letters.ERROR_TEXT)))),
            attempts=number(dead_letters.ATTEMPTS),
            replays=replays,
            stays=stays,
            first_failure_ms=number(dead_letters.FIRST_FAILURE) or None,
        )

    @property
    def place(self) -> str:
        """Where the letter is, as ``topic/partition/offset``."""
        return f"{self.message.topic}/{self.message.partition}/{self.message.offset}"

    def original(self) -> Record:
        """The message as it was, under the id that it had: readers know it by that. A header counts its replays."""
        headers = [each for each in self.message.headers if each[0] != MESSAGE_ID_HEADER]
        return Record(
            self.message.value,
            key=self.message.key,
            headers=(
                *(each for each in headers if not each[0].startswith(_PREFIX)),
                (dead_letters.REPLAYS, b"%d" % (self.replays + 1)),
            ),
            message_id=self.message_id,
        )

    @property
    def message_id(self) -> bytes:
        """The id of the message that died, by which its readers know it."""
        return dict(self.message.headers).get(dead_letters.ORIGIN_MESSAGE_ID) or self.message.message_id


@dataclass(frozen=True, slots=True)
class _Row:
    """An offset of a topic of letters. ``letter``: ``None`` for one that was dealt with before, and for a note."""

    offset: int
    letter: Letter | None
    chosen: bool


class _Notes:
    """The letters of each partition that a group has dealt with behind its offset."""

    def __init__(self, group: str) -> None:
        self._prefix = dead_letters.NOTE_KEY + group.encode() + b"/"
        self._offsets: dict[TopicPartition, set[int]] = {}

    def read(self, part: PartitionBatch) -> None:
        for index, key in enumerate(part.keys):
            if key is None or not key.startswith(self._prefix) or not dead_letters.is_note(part.message(index)):
                continue
            offsets = self._offsets.setdefault(part.topic_partition, set())
            for first, last in _ranges(part.values[index]):
                offsets.update(range(first, last + 1))

    def has(self, partition: TopicPartition, offset: int) -> bool:
        return offset in self._offsets.get(partition, ())

    def record(self, partition: TopicPartition, offsets: Sequence[int]) -> Record:
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
            yield int(first), min(int(last), int(first) + _AT_ONCE)
    except (ValueError, TypeError, OverflowError, RecursionError):
        LOG.warning("a note of letters that were sent back cannot be read, and is ignored")


class DeadLetterReplay:
    """Reads what a topic of dead letters holds when it starts, and no more: a letter that comes back meanwhile is left
    to the next run. ``consumer``: of that topic, in a group of its own, which remembers what was sent back.

    ``chosen``: which letters are handled; the others wait on. ``max_replays``: how often one message is sent back at
    most. ``limit``: how many letters one run handles at most. ``rate``: how many a second at most.
    ``patience_seconds``: how long it waits for partitions, and for messages that are known to be there.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        *,
        chosen: Callable[[Letter], bool] | None = None,
        max_replays: int = MAX_REPLAYS,
        limit: int | None = None,
        rate: float | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._consumer = consumer
        self._chosen = chosen
        self._max_replays = max_replays
        self._limit = limit
        self._rate = rate
        self._patience_seconds = patience_seconds
        self._notes = _Notes(consumer.settings.group_id)
        self._known_ends: dict[TopicPartition, int] | None = None
        self._with_gap: set[TopicPartition] = set()  # a letter before the ones handled now waits on
        self._sent: dict[tuple[str, bytes], None] = {}

    def waiting(self) -> int:
        """How many offsets are left, up to where each partition ended at first; not each need be a letter."""
        return sum(max(0, end - (self._consumer.position(partition) or 0)) for partition, end in self._ends().items())

    def letters(self) -> Iterator[Letter]:
        """What `send` would handle; nothing is sent or committed."""
        for _, rows in self._portions():
            for row in rows:
                if row.letter is not None and row.chosen:
                    yield self._once(row.letter)
                    self._remember([row.letter])

    def dealt_with(self) -> Callable[[TopicPartition, int], bool]:
        """Tells whether a letter was dealt with before, by partition and offset."""
        self._ends()
        starts = {one: self._consumer.position(one) or 0 for one in self._consumer.assignment()}
        self._read_notes()
        return lambda partition, offset: offset < starts.get(partition, 0) or self._notes.has(partition, offset)

    def send(self, producer: KafkaProducer) -> Iterator[Letter]:
        """Send back what can be, and commit; each letter once it is dealt with.

        With a ``transactional_id``, that no other topic and group uses, both happen together: neither a crash nor a
        second process sends a letter twice; the second one ends the first, with `FencedError`. Without one, what was
        sent back and is not committed, after a crash for instance, is sent again by the next run, under the same id.
        Raises `UndeliveredError` or `TransactionError`, after a commit of the letters before.
        """
        transactional = producer.settings.transactional_id is not None
        if transactional:
            producer.init_transactions()  # before it looks what was dealt with: from now on nobody else does
            self._known_ends = None
        handle = self._in_transactions if transactional else self._one_after_the_other
        started, count = self._consumer.clock.monotonic(), 0
        for partition, rows in self._portions():
            for letters in handle(producer, partition, rows):
                self._remember(letters)
                count += len(letters)
                yield from letters
            self._pace(started, count)

    def _in_transactions(
        self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]
    ) -> Iterator[list[Letter]]:
        letters = self._letters(rows)
        refused: list[int] = []
        try:
            with producer.transaction() as transaction:
                for letter in letters:
                    if not letter.stays:
                        heard = partial(_hear, refused, letter.message.offset)
                        transaction.send(letter.origin_topic, letter.original(), on_delivery=heard)
                dealt_with = self._account(partition, rows)
                if dealt_with.noted:
                    transaction.send(partition.topic, self._notes.record(partition, dealt_with.noted))
                if dealt_with.next_offset is not None:
                    transaction.commit_offsets(_GroupThatReadsOn(self._consumer), {partition: dealt_with.next_offset})  # type: ignore[dict-item]
                fail_point("replay.before_commit")
        except TransactionError:
            before = [row for row in rows if row.offset < min(refused, default=0)]
            if before:
                yield from self._in_transactions(producer, partition, before)
            raise
        fail_point("replay.after_commit")
        self._with_gap |= {partition} if dealt_with.gap else set()
        yield letters

    def _one_after_the_other(
        self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]
    ) -> Iterator[list[Letter]]:
        letters = self._letters(rows)
        handled: list[Letter] = []
        try:
            for topic, run in groupby(letters, lambda letter: "" if letter.stays else letter.origin_topic):
                same = list(run)
                if not topic:
                    handled += same
                    yield same
                    continue
                report = producer.publish(topic, [letter.original() for letter in same])
                undelivered = (each.index for each in (*report.failed, *report.unknown))
                delivered = same[: min(undelivered, default=len(same))]
                handled += delivered
                yield delivered
                report.raise_for_undelivered()
        finally:  # also when a letter could not be delivered, or at Ctrl-C: those before it are done
            waits = {letter.message.offset for letter in letters[len(handled) :]}
            stop = min(waits, default=rows[-1].offset + 1)
            self._keep(producer, partition, [row for row in rows if row.offset < stop])

    def _keep(self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]) -> None:
        dealt_with = self._account(partition, rows)
        self._with_gap |= {partition} if dealt_with.gap else set()
        if dealt_with.noted:
            note = self._notes.record(partition, dealt_with.noted)
            producer.publish(partition.topic, [note]).raise_for_undelivered()
        fail_point("replay.before_commit")
        if dealt_with.next_offset is not None:
            self._consumer.commit({partition: dealt_with.next_offset})

    def _account(self, partition: TopicPartition, rows: Sequence[_Row]) -> _DealtWith:
        """What is to be remembered once these rows are dealt with."""
        gap, next_offset, noted = partition in self._with_gap, None, []
        for row in rows:
            gap |= row.letter is not None and not row.chosen
            if not gap:
                next_offset = row.offset + 1
            elif row.letter is not None and row.chosen:
                noted.append(row.offset)
        return _DealtWith(next_offset, noted, gap)

    def _letters(self, rows: Sequence[_Row]) -> list[Letter]:
        """The letters to handle; a message that is in several of them goes back once."""
        letters: list[Letter] = []
        here: set[tuple[str, bytes]] = set()
        for row in rows:
            if row.letter is None or not row.chosen:
                continue
            letter = self._once(row.letter)
            if not letter.stays and (which := (letter.origin_topic, letter.message_id)) in here:
                letter = replace(letter, stays=_REPEATED)
            elif not letter.stays:
                here.add(which)
            letters.append(letter)
        return letters

    def _once(self, letter: Letter) -> Letter:
        repeated = not letter.stays and (letter.origin_topic, letter.message_id) in self._sent
        return replace(letter, stays=_REPEATED) if repeated else letter

    def _remember(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            if not letter.stays:
                self._sent[letter.origin_topic, letter.message_id] = None
        while len(self._sent) > _REMEMBERED_IDS:
            del self._sent[next(iter(self._sent))]

    def _portions(self) -> Iterator[tuple[TopicPartition, list[_Row]]]:
        """The letters that wait, and what is between them, in portions of one partition."""
        self._read_notes()
        size = _AT_ONCE if self._rate is None else max(1, min(_AT_ONCE, int(self._rate)))
        left = self._limit
        for part in self._parts():
            rows: list[_Row] = []
            count = 0
            for message in part:
                rows.append(self._row(part.topic_partition, message))
                count += rows[-1].chosen
                if count in (size, left):
                    yield part.topic_partition, rows
                    left = None if left is None else left - count
                    if left == 0:
                        return
                    rows, count = [], 0
            if rows:
                yield part.topic_partition, rows
                left = None if left is None else left - count

    def _row(self, partition: TopicPartition, message: Message) -> _Row:
        if dead_letters.is_note(message) or self._notes.has(partition, message.offset):
            return _Row(message.offset, None, chosen=False)
        letter = Letter.of(message, self._max_replays)
        return _Row(message.offset, letter, chosen=self._chosen is None or self._chosen(letter))

    def _read_notes(self) -> None:
        """Read everything once: a note comes behind the letters that it is of."""
        self._ends()
        starts = {one: self._consumer.position(one) for one in self._consumer.assignment()}
        for part in self._parts():
            self._notes.read(part)
        for partition, start in starts.items():
            if start is not None and partition in self._consumer.assignment():
                self._consumer.seek(partition, start)

    def _parts(self) -> Iterator[PartitionBatch]:
        """The messages, up to where each partition ended at first."""
        ends = self._ends()
        reached: dict[TopicPartition, int] = {}
        deadline = self._deadline()
        while unread := self._unread(ends, reached):
            batch = self._poll()
            reached |= {partition: at.next_offset for partition, at in self._consumer.take_ends().items()}
            if not len(batch) and self._consumer.clock.monotonic() > deadline:
                raise RetriableError(
                    f"no letter for {self._patience_seconds:g} s, and {_named(unread)} has more: look at the brokers"
                )
            for part in batch.partitions:
                count = sum(offset < ends.get(part.topic_partition, 0) for offset in part.offsets)
                if count:
                    yield part.slice(0, count)
            if len(batch):
                deadline = self._deadline()

    def _ends(self) -> dict[TopicPartition, int]:
        """Where each partition ended at first; empty when another reader has them all."""
        if self._known_ends is None:
            consumer, deadline = self._consumer, self._deadline()
            while not consumer.assignment() and consumer.clock.monotonic() < deadline:
                self._poll()
            self._known_ends = consumer.seek_to_end()
            consumer.seek_to_committed()  # what a poll returned was not handled: it comes again
        return self._known_ends

    def _pace(self, started: float, count: int) -> None:
        """Wait until so many letters may have been sent."""
        if self._rate is not None:
            clock = self._consumer.clock
            Signal().wait(clock, max(0.0, started + count / self._rate - clock.monotonic()))

    def _unread(
        self, ends: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The partitions that are still ours and not at their ends; an end may lie behind what is no message."""
        consumer = self._consumer
        mine = consumer.assignment() & ends.keys()
        return [one for one in sorted(mine) if max(consumer.position(one) or 0, reached.get(one, 0)) < ends[one]]

    def _poll(self) -> Batch:
        batch = self._consumer.poll(timeout=_POLL_SECONDS)
        for error in batch.errors:
            if isinstance(error, OffsetOutOfRange):
                LOG.warning("letters were deleted, by retention or a purge, before they were sent back: %s", error)
                self._consumer.seek_to_beginning([error.partition])
            elif not isinstance(error, RetriableError):
                raise error
        return batch

    def _deadline(self) -> float:
        return self._consumer.clock.monotonic() + self._patience_seconds


@dataclass(frozen=True, slots=True)
class _DealtWith:
    """``next_offset``: where the group's offset moves; ``None``: it stays. ``noted``: what a note has to name."""

    next_offset: int | None
    noted: list[int]
    gap: bool


class _GroupThatReadsOn:
    """The group of a consumer whose transactions end without it: it reads on, because what they held is kept."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def next_offsets(self, what: Any) -> Mapping[TopicPartition, int]:
        return self._consumer.next_offsets(what)

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    def seek_to_committed(self) -> None:
        return


def _hear(refused: list[int], offset: int, delivery: Delivery) -> None:
    """Note the letter whose message was refused itself; the others of its transaction are only aborted with it."""
    if isinstance(delivery.error, DeliveryRefused | MessageTooLarge):
        refused.append(offset)


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions)
