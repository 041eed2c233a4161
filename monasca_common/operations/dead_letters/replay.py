# SPDX-License-Identifier: Apache-2.0
"""Sends dead letters back to the topics that they came from, after the handler or the input was repaired.

What was dealt with is remembered in Kafka. The group's offset is where the first letter waits. Letters that were chosen
behind it are named by a note, which is written behind them to their own partition: it lives longer than they do.
With a transactional producer messages, notes and offsets become visible together, so a crash sends nothing twice.
A letter that its topic refuses waits on like one that was not chosen, and those behind it go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from monasca_common.kafka import (
    Batch,
    ConsumerError,
    DeliveryError,
    DeliveryRefused,
    KafkaConsumer,
    KafkaProducer,
    Message,
    MessageTooLarge,
    OffsetOutOfRange,
    PartitionBatch,
    RetriableError,
    TopicPartition,
    TransactionError,
    TransportError,
)
from monasca_common.kafka.clock import Signal
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.operations.dead_letters.replay_log import (
    AT_ONCE,
    MAX_REPLAYS,
    Letter,
    ReplayLog,
    SentMessages,
    is_note,
)
from monasca_common.runtime.polling import POLL_SECONDS

LOG = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0

_REPEATED = "its message goes back by another letter"
_NO_SUCH_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"})
# What is refused because of its topic, and would be with any letter; because of itself. All else may be the brokers'
# trouble, or the end of a transaction that another letter has spoiled.
_BECAUSE_OF_TOPIC = _NO_SUCH_TOPIC | {"TOPIC_AUTHORIZATION_FAILED"}
_BECAUSE_OF_SIZE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})


@dataclass(frozen=True, slots=True)
class _Row:
    """An offset of a topic of letters. ``letter``: ``None`` for one that was dealt with before, and for a note."""

    offset: int
    letter: Letter | None
    chosen: bool

    @property
    def waits(self) -> bool:
        """Whether it is a letter that is left to another run."""
        return self.letter is not None and (not self.chosen or bool(self.letter.refusal))

    @property
    def is_handled(self) -> bool:
        return self.letter is not None and not self.waits


class DeadLetterReplay:
    """Reads what a topic of dead letters holds when it starts, and no more: a letter that comes back meanwhile is left
    to the next run. ``consumer``: of that topic, in a group of its own, which remembers what was sent back.

    ``chosen``: which letters are handled; the others wait on. ``max_replays``: how often one message is sent back at
    most. ``limit``: how many letters one run handles at most, without those that are refused. ``rate``: how many a
    second at most. ``sent``: what goes back once alone; replays of several topics that share it, once in all of them.
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
        sent: SentMessages | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._consumer = consumer
        self._chosen = chosen
        self._max_replays = max_replays
        self._left = limit
        self._rate = rate
        self._patience_seconds = patience_seconds
        self._known_notes: ReplayLog | None = None
        self._known_ends: dict[TopicPartition, int] | None = None
        self._with_gap: set[TopicPartition] = set()  # a letter before the ones handled now waits on
        self._sent = SentMessages() if sent is None else sent
        self._refusals: dict[str, str] = {}  # why a topic takes no letter; empty if it does

    def waiting(self) -> int:
        """How many letters waited when it began. Reads all that the group has not read."""
        return self._notes().waiting()

    def offsets_left(self) -> int:
        """How many are left to read, up to where each partition ended at first; not each need be a letter."""
        return sum(max(0, end - (self._consumer.position(partition) or 0)) for partition, end in self._ends().items())

    def letters(self) -> Iterator[Letter]:
        """What `send` would handle; nothing is sent or committed."""
        for _, rows in self._portions():
            for row in rows:
                if row.letter is not None and row.chosen:
                    letter = self._once(row.letter)
                    self._remember([letter])
                    yield letter

    def dealt_with(self) -> Callable[[TopicPartition, int], bool]:
        """Tells whether a letter was dealt with before, by partition and offset."""
        self._ends()
        starts = {one: self._consumer.position(one) or 0 for one in self._consumer.assignment()}
        notes = self._notes()
        return lambda partition, offset: offset < starts.get(partition, 0) or notes.is_dealt_with(partition, offset)

    def send(self, producer: KafkaProducer) -> Iterator[Letter]:
        """Send back what can be, and commit; each letter once it is dealt with, or refused: one that its topic does not
        take, because it is too large or there is no such topic, waits for another run, and holds up no others.

        With a ``transactional_id``, that no other topic and group uses, both happen together: neither a crash nor a
        second process sends a letter twice; the second one ends the first, with `FencedError`. Without one, what was
        sent back and is not committed, after a crash for instance, is sent again by the next run, under the same id.
        Raises `UndeliveredError` or `TransactionError`, after a commit of the letters before, where the brokers take
        nothing; `ConsumerError` if a commit without a transaction fails.
        """
        transactional = producer.settings.transactional_id is not None
        if transactional:
            producer.init_transactions()  # before it looks what was dealt with: from now on nobody else does
            self._known_ends = self._known_notes = None
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
        refused: dict[int, DeliveryError] = {}
        while True:
            rows = [self._refused(row, refused) for row in rows]
            letters = self._letters(rows)
            dealt_with = self._account(partition, rows)
            try:
                self._send_together(producer, partition, letters, dealt_with)
                break
            except TransactionError as error:
                refused = _refused_of(letters, error)
                if not refused:
                    raise
        fail_point("replay.after_commit")
        self._with_gap |= {partition} if dealt_with.gap else set()
        yield letters

    def _send_together(
        self,
        producer: KafkaProducer,
        partition: TopicPartition,
        letters: Sequence[Letter],
        dealt_with: _DealtWith,
    ) -> None:
        """One transaction."""
        with producer.transaction() as transaction:
            for letter in letters:
                if letter.goes:
                    transaction.send(letter.origin_topic, letter.original())
            if dealt_with.noted:
                transaction.send(partition.topic, self._notes().note(partition, dealt_with.noted))
            if dealt_with.next_offset is not None:
                # An abort is repeated with the letters in memory.
                transaction.commit_offsets(self._consumer, {partition: dealt_with.next_offset}, seek_back=False)
            fail_point("replay.before_commit")

    def _one_after_the_other(
        self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]
    ) -> Iterator[list[Letter]]:
        waiting = {row.offset for row in rows if row.is_handled}
        try:
            for topic, run in groupby(self._letters(rows), lambda letter: letter.origin_topic if letter.goes else ""):
                same = list(run)
                undelivered: dict[int, DeliveryError | None] = {}
                if topic:
                    report = producer.publish(topic, [letter.original() for letter in same])
                    undelivered = {each.index: each.error for each in (*report.failed, *report.unknown)}
                told = []
                for index, letter in enumerate(same):
                    error = undelivered.get(index)
                    if index not in undelivered:
                        waiting.discard(letter.message.offset)
                        told.append(letter)
                    elif error is not None and _is_refusal(error):
                        told.append(replace(letter, refusal=_reason(error)))
                yield told
                if len(told) < len(same):
                    report.raise_for_undelivered()
        finally:  # also when the brokers take nothing, or at Ctrl-C: what was delivered is done
            self._keep(
                producer, partition, [replace(row, chosen=row.chosen and row.offset not in waiting) for row in rows]
            )

    def _refused(self, row: _Row, refused: Mapping[int, DeliveryError]) -> _Row:
        """Without what waits since it was refused: the letter itself, or any of its topic."""
        letter, error = row.letter, refused.get(row.offset)
        if letter is None or not letter.goes:
            return row
        if isinstance(error, DeliveryRefused) and error.cause.name in _BECAUSE_OF_TOPIC:
            self._refusals[letter.origin_topic] = _reason(error)
        refusal = _reason(error) if error is not None else self._refusals.get(letter.origin_topic, "")
        return replace(row, letter=replace(letter, refusal=refusal)) if refusal else row

    def _refusal(self, topic: str) -> str:
        """Why this topic takes no letter; empty if it seems to."""
        if topic not in self._refusals:
            self._refusals[topic] = "" if is_topic_name(topic) else f"{topic!r} is not a topic: {TOPIC_NAME_RULE}"
            try:
                if not self._refusals[topic]:
                    self._consumer.partition_count(topic)
            except TransportError as error:
                if isinstance(error, RetriableError):
                    raise
                there_is_none = error.name in _NO_SUCH_TOPIC
                self._refusals[topic] = f"there is no topic {topic}" if there_is_none else f"topic {topic}: {error}"
        return self._refusals[topic]

    def _keep(self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]) -> None:
        dealt_with = self._account(partition, rows)
        self._with_gap |= {partition} if dealt_with.gap else set()
        if dealt_with.noted:
            note = self._notes().note(partition, dealt_with.noted)
            producer.publish(partition.topic, [note]).raise_for_undelivered()
        fail_point("replay.before_commit")
        if dealt_with.next_offset is not None:
            error = self._consumer.commit({partition: dealt_with.next_offset})[partition].error
            if error is not None:
                raise ConsumerError(
                    f"the offset {dealt_with.next_offset} of {_named([partition])} was not committed, so the next run "
                    f"sends the same messages again, under the same ids: {error}"
                ) from error

    def _account(self, partition: TopicPartition, rows: Sequence[_Row]) -> _DealtWith:
        """What is to be remembered once these rows are dealt with."""
        gap, next_offset, noted = partition in self._with_gap, None, []
        for row in rows:
            gap |= row.waits
            if not gap:
                next_offset = row.offset + 1
            elif row.is_handled:
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
            if letter.goes and (which := (letter.origin_topic, letter.message_id)) in here:
                letter = replace(letter, stays=_REPEATED)
            elif letter.goes:
                here.add(which)
            letters.append(letter)
        return letters

    def _once(self, letter: Letter) -> Letter:
        return replace(letter, stays=_REPEATED) if letter.goes and self._sent.has(letter) else letter

    def _remember(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            if self._left is not None and not letter.refusal:
                self._left -= 1
            if letter.goes:
                self._sent.add(letter)

    def _portions(self) -> Iterator[tuple[TopicPartition, list[_Row]]]:
        """The letters that wait, and what is between them, in portions of one partition."""
        notes = self._notes()
        size = AT_ONCE if self._rate is None else max(1, min(AT_ONCE, int(self._rate)))
        for part in self._parts():
            rows: list[_Row] = []
            count = 0
            for message in part:
                rows.append(self._row(notes, part.topic_partition, message))
                count += rows[-1].is_handled
                if count in (size, self._left):
                    yield part.topic_partition, rows
                    if self._left == 0:
                        return
                    rows, count = [], 0
            if rows:
                yield part.topic_partition, rows

    def _row(self, notes: ReplayLog, partition: TopicPartition, message: Message) -> _Row:
        if is_note(message) or notes.is_dealt_with(partition, message.offset):
            return _Row(message.offset, None, chosen=False)
        letter = Letter.of(message, self._max_replays)
        chosen = self._chosen is None or self._chosen(letter)
        if chosen and letter.goes:
            letter = replace(letter, refusal=self._refusal(letter.origin_topic))
        return _Row(message.offset, letter, chosen=chosen)

    def _notes(self) -> ReplayLog:
        """Reads everything once: a note comes behind the letters that it is of."""
        if self._known_notes is None:
            self._ends()
            starts = {one: self._consumer.position(one) for one in self._consumer.assignment()}
            notes = ReplayLog(self._consumer.settings.group_id)
            for part in self._parts():
                for message in part:
                    notes.read(message)
            for partition, start in starts.items():
                if start is not None and partition in self._consumer.assignment():
                    self._consumer.seek(partition, start)
            self._known_notes = notes
        return self._known_notes

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
        batch = self._consumer.poll(timeout=POLL_SECONDS)
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


def _refused_of(letters: Iterable[Letter], aborted: TransactionError) -> dict[int, DeliveryError]:
    """The offsets of the letters whose messages were refused themselves; the others are only aborted with them."""
    report = aborted.report
    undelivered = () if report is None else (*report.failed, *report.unknown)
    errors = {(each.topic, each.message_id): each.error for each in undelivered}
    refused = {}
    for letter in letters:
        error = errors.get((letter.origin_topic, letter.message_id))
        if letter.goes and error is not None and _is_refusal(error):
            refused[letter.message.offset] = error
    return refused


def _is_refusal(error: DeliveryError) -> bool:
    """Whether it is because of the message or its topic, so that others may be delivered."""
    if isinstance(error, DeliveryRefused):
        return error.permanent or error.cause.name in _BECAUSE_OF_TOPIC | _BECAUSE_OF_SIZE
    return isinstance(error, MessageTooLarge)


def _reason(error: DeliveryError) -> str:
    """The same for letters of different sizes, so that they can be counted together."""
    if isinstance(error, MessageTooLarge):
        return f"larger than the {error.limit} bytes that topic {error.topic} takes"
    return f"not taken by its topic: {error}"


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions)
