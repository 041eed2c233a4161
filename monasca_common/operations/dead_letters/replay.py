# SPDX-License-Identifier: Apache-2.0
"""Sends dead letters back to their original topics after the handler or the input has been repaired.

Progress is stored in Kafka: the group's offset is the first pending dead letter. Handled dead letters after that offset
are listed in a note, which is a later record in the same partition, so retention deletes the note after the dead
letters. With a transactional producer, messages, notes and offsets are committed together, so a crash sends no message
twice. If a topic refuses a message, its dead letter stays pending and does not block other dead letters.
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
    MAX_NOTED,
    MAX_REPLAYS,
    DeadLetter,
    ReplayLog,
    SentMessages,
    is_note,
)
from monasca_common.runtime.shutdown import POLL_SECONDS

LOG = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0  # the time-out for an assignment, and for reading existing messages

_REPEATED = "its message is replayed from another dead letter"
_NO_SUCH_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"})
# Refusals by a topic, which affect all its dead letters, and refusals because of a message's size. Any other error can
# be a failure of the brokers, or an abort caused by another dead letter.
_BECAUSE_OF_TOPIC = _NO_SUCH_TOPIC | {"TOPIC_AUTHORIZATION_FAILED"}
_BECAUSE_OF_SIZE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})


@dataclass(frozen=True, slots=True)
class _Row:
    """An offset of a dead-letter topic. ``letter``: ``None`` for a note or a handled dead letter."""

    offset: int
    letter: DeadLetter | None
    chosen: bool

    @property
    def is_pending(self) -> bool:
        """Whether the offset has a dead letter that stays pending for another run."""
        return self.letter is not None and (not self.chosen or bool(self.letter.refusal))

    @property
    def is_handled(self) -> bool:
        return self.letter is not None and not self.is_pending


class DeadLetterReplay:
    """Replays the dead letters that a topic has at the start of the run. The next run handles newer dead letters.

    ``consumer``: reads the topic in a group used only for replays, whose offsets record the progress. ``chosen``:
    returns whether to handle a dead letter; the other dead letters stay pending. ``max_replays``: the maximum number of
    replays of a message. ``limit``: the maximum number of dead letters per run, not counting refused ones. ``rate``:
    the maximum number per second. ``sent``: the replayed messages; share it between topics to replay each message once.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        *,
        chosen: Callable[[DeadLetter], bool] | None = None,
        max_replays: int = MAX_REPLAYS,
        limit: int | None = None,
        rate: float | None = None,
        sent: SentMessages | None = None,
    ) -> None:
        self._consumer = consumer
        self._chosen = chosen
        self._max_replays = max_replays
        self._left = limit
        self._rate = rate
        self._known_notes: ReplayLog | None = None
        self._known_ends: dict[TopicPartition, int] | None = None
        self._with_gap: set[TopicPartition] = set()  # partitions in which an earlier dead letter stays pending
        self._sent = SentMessages() if sent is None else sent
        self._refusals: dict[str, str] = {}  # by topic: why it accepts no messages, or ""

    def pending_count(self) -> int:
        """Return the number of dead letters that are initially pending; reads all records after the group's offset."""
        return self._notes().pending_count()

    def offsets_left(self) -> int:
        """Return the number of offsets to read up to the initial ends; not all are dead letters."""
        return sum(max(0, end - (self._consumer.position(partition) or 0)) for partition, end in self._ends().items())

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the dead letters that `send` would handle, without sending or committing."""
        for _, rows in self._portions():
            for row in rows:
                if row.letter is not None and row.chosen:
                    letter = self._once(row.letter)
                    self._remember([letter])
                    yield letter

    def send(self, producer: KafkaProducer) -> Iterator[DeadLetter]:
        """Replay messages and commit the progress. Yield each dead letter after it is handled or refused. A refused
        dead letter (too large, or without a topic) stays pending for another run and does not block others.

        With a ``transactional_id``, which must be unique to the topic and group, messages and progress are committed in
        one transaction: neither a crash nor a second process sends a message twice, and a second process stops the
        first one with `FencedError`. Without it, the next run repeats messages that were sent but not committed, with
        the same ids.

        Raises `UndeliveredError` or `TransactionError` if the brokers accept no message; the progress of earlier dead
        letters is committed. Raises `ConsumerError` if a commit without a transaction fails.
        """
        transactional = producer.settings.transactional_id is not None
        if transactional:
            producer.init_transactions()  # this comes first, because it stops other processes from committing progress
            self._known_ends = self._known_notes = None
        handle = self._in_transactions if transactional else self._without_transactions
        started, count = self._consumer.clock.monotonic(), 0
        for partition, rows in self._portions():
            for letters in handle(producer, partition, rows):
                self._remember(letters)
                count += len(letters)
                yield from letters
            self._pace(started, count)

    def _in_transactions(
        self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]
    ) -> Iterator[list[DeadLetter]]:
        refused: dict[int, DeliveryError] = {}
        while True:
            rows = [self._refused(row, refused) for row in rows]
            letters = self._letters(rows)
            progress = self._progress(partition, rows)
            try:
                self._send_in_transaction(producer, partition, letters, progress)
                break
            except TransactionError as error:
                refused = _refused_of(letters, error)
                if not refused:
                    raise
        fail_point("replay.after_commit")
        self._with_gap |= {partition} if progress.gap else set()
        yield letters

    def _send_in_transaction(
        self,
        producer: KafkaProducer,
        partition: TopicPartition,
        letters: Sequence[DeadLetter],
        progress: _Progress,
    ) -> None:
        with producer.transaction() as transaction:
            for letter in letters:
                if letter.is_replayable:
                    transaction.send(letter.origin_topic, letter.original())
            if progress.noted:
                transaction.send(partition.topic, self._notes().note(partition, progress.noted))
            if progress.next_offset is not None:
                # After an abort, send the dead letters in memory again.
                transaction.commit_offsets(self._consumer, {partition: progress.next_offset}, seek_back=False)
            fail_point("replay.before_commit")

    def _without_transactions(
        self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]
    ) -> Iterator[list[DeadLetter]]:
        unsent = {row.offset for row in rows if row.is_handled}
        try:
            for topic, run in groupby(
                self._letters(rows), lambda letter: letter.origin_topic if letter.is_replayable else ""
            ):
                same = list(run)
                undelivered: dict[int, DeliveryError | None] = {}
                if topic:
                    report = producer.publish(topic, [letter.original() for letter in same])
                    undelivered = {each.index: each.error for each in (*report.failed, *report.unknown)}
                handled = []
                for index, letter in enumerate(same):
                    error = undelivered.get(index)
                    if index not in undelivered:
                        unsent.discard(letter.message.offset)
                        handled.append(letter)
                    elif error is not None and _is_refusal(error):
                        handled.append(replace(letter, refusal=_reason(error)))
                yield handled
                if len(handled) < len(same):
                    report.raise_for_undelivered()
        finally:  # also after errors and Ctrl-C, so that delivered messages count as replayed
            self._store(
                producer, partition, [replace(row, chosen=row.chosen and row.offset not in unsent) for row in rows]
            )

    def _refused(self, row: _Row, refused: Mapping[int, DeliveryError]) -> _Row:
        """Mark the row as refused if its dead letter or its topic was refused."""
        letter, error = row.letter, refused.get(row.offset)
        if letter is None or not letter.is_replayable:
            return row
        if isinstance(error, DeliveryRefused) and error.cause.name in _BECAUSE_OF_TOPIC:
            self._refusals[letter.origin_topic] = _reason(error)
        refusal = _reason(error) if error is not None else self._refusals.get(letter.origin_topic, "")
        return replace(row, letter=replace(letter, refusal=refusal)) if refusal else row

    def _refusal(self, topic: str) -> str:
        """Return the reason why this topic accepts no messages, or an empty string if it accepts them."""
        if topic not in self._refusals:
            self._refusals[topic] = "" if is_topic_name(topic) else f"{topic!r} is not a topic name: {TOPIC_NAME_RULE}"
            try:
                if not self._refusals[topic]:
                    self._consumer.partition_count(topic)
            except TransportError as error:
                if isinstance(error, RetriableError):
                    raise
                is_missing = error.name in _NO_SUCH_TOPIC
                self._refusals[topic] = f"there is no topic {topic}" if is_missing else f"topic {topic}: {error}"
        return self._refusals[topic]

    def _store(self, producer: KafkaProducer, partition: TopicPartition, rows: Sequence[_Row]) -> None:
        progress = self._progress(partition, rows)
        self._with_gap |= {partition} if progress.gap else set()
        if progress.noted:
            note = self._notes().note(partition, progress.noted)
            producer.publish(partition.topic, [note]).raise_for_undelivered()
        fail_point("replay.before_commit")
        if progress.next_offset is not None:
            error = self._consumer.commit({partition: progress.next_offset})[partition].error
            if error is not None:
                raise ConsumerError(
                    f"offset {progress.next_offset} of {_named([partition])} was not committed, so the next run "
                    f"sends the same messages again, with the same ids: {error}"
                ) from error

    def _progress(self, partition: TopicPartition, rows: Sequence[_Row]) -> _Progress:
        """Return the progress to store after these rows are handled."""
        gap, next_offset, noted = partition in self._with_gap, None, []
        for row in rows:
            gap |= row.is_pending
            if not gap:
                next_offset = row.offset + 1
            elif row.is_handled:
                noted.append(row.offset)
        return _Progress(next_offset, noted, gap)

    def _letters(self, rows: Sequence[_Row]) -> list[DeadLetter]:
        """Return the dead letters to handle. A message with several dead letters is replayed once."""
        letters: list[DeadLetter] = []
        here: set[tuple[str, bytes]] = set()
        for row in rows:
            if row.letter is None or not row.chosen:
                continue
            letter = self._once(row.letter)
            if letter.is_replayable and (which := (letter.origin_topic, letter.message_id)) in here:
                letter = replace(letter, obstacle=_REPEATED)
            elif letter.is_replayable:
                here.add(which)
            letters.append(letter)
        return letters

    def _once(self, letter: DeadLetter) -> DeadLetter:
        return replace(letter, obstacle=_REPEATED) if letter.is_replayable and self._sent.has(letter) else letter

    def _remember(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            if self._left is not None and not letter.refusal:
                self._left -= 1
            if letter.is_replayable:
                self._sent.add(letter)

    def _portions(self) -> Iterator[tuple[TopicPartition, list[_Row]]]:
        """Yield pending dead letters and the offsets between them in portions, each from one partition."""
        notes = self._notes()
        size = MAX_NOTED if self._rate is None else max(1, min(MAX_NOTED, int(self._rate)))
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
        if is_note(message) or notes.is_handled(partition, message.offset):
            return _Row(message.offset, None, chosen=False)
        letter = DeadLetter.of(message, self._max_replays)
        chosen = self._chosen is None or self._chosen(letter)
        if chosen and letter.is_replayable:
            letter = replace(letter, refusal=self._refusal(letter.origin_topic))
        return _Row(message.offset, letter, chosen=chosen)

    def _notes(self) -> ReplayLog:
        """Read the whole topic once, because notes follow their dead letters."""
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
        """Yield the messages up to the initial ends."""
        ends = self._ends()
        reached: dict[TopicPartition, int] = {}
        deadline = self._deadline()
        while unread := self._unread(ends, reached):
            batch = self._poll()
            reached |= {partition: at.next_offset for partition, at in self._consumer.take_ends().items()}
            if not len(batch) and self._consumer.clock.monotonic() > deadline:
                raise RetriableError(
                    f"no message for {_PATIENCE_SECONDS:g} s, although {_named(unread)} has more: check the brokers"
                )
            for part in batch.partitions:
                count = sum(offset < ends.get(part.topic_partition, 0) for offset in part.offsets)
                if count:
                    yield part.slice(0, count)
            if len(batch):
                deadline = self._deadline()

    def _ends(self) -> dict[TopicPartition, int]:
        """Return the initial ends of the assigned partitions, or no ends if other members own all partitions."""
        if self._known_ends is None:
            consumer, deadline = self._consumer, self._deadline()
            while not consumer.assignment() and consumer.clock.monotonic() < deadline:
                self._poll()
            self._known_ends = consumer.seek_to_end()
            consumer.seek_to_committed()  # re-read the messages of earlier polls
        return self._known_ends

    def _pace(self, started: float, count: int) -> None:
        """Wait until the rate permits this number of messages."""
        if self._rate is not None:
            clock = self._consumer.clock
            Signal().wait(clock, max(0.0, started + count / self._rate - clock.monotonic()))

    def _unread(
        self, ends: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Return the assigned partitions that have not been read to their ends. Control records can precede an end."""
        consumer = self._consumer
        owned = sorted(consumer.assignment() & ends.keys())
        return [each for each in owned if max(consumer.position(each) or 0, reached.get(each, 0)) < ends[each]]

    def _poll(self) -> Batch:
        batch = self._consumer.poll(timeout=POLL_SECONDS)
        for error in batch.errors:
            if isinstance(error, OffsetOutOfRange):
                LOG.warning("dead letters were deleted by retention or a purge before they were replayed: %s", error)
                self._consumer.seek_to_beginning([error.partition])
            elif not isinstance(error, RetriableError):
                raise error
        return batch

    def _deadline(self) -> float:
        return self._consumer.clock.monotonic() + _PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress to store. ``next_offset``: the group's new offset, or ``None`` to keep it. ``noted``: offsets to list in
    the note."""

    next_offset: int | None
    noted: list[int]
    gap: bool


def _refused_of(letters: Iterable[DeadLetter], aborted: TransactionError) -> dict[int, DeliveryError]:
    """Return the errors of refused messages, without messages that were only aborted together with them."""
    report = aborted.report
    undelivered = () if report is None else (*report.failed, *report.unknown)
    errors = {(each.topic, each.message_id): each.error for each in undelivered}
    refused = {}
    for letter in letters:
        error = errors.get((letter.origin_topic, letter.message_id))
        if letter.is_replayable and error is not None and _is_refusal(error):
            refused[letter.message.offset] = error
    return refused


def _is_refusal(error: DeliveryError) -> bool:
    """Return whether the error affects only the message or its topic, so that other messages can be delivered."""
    if isinstance(error, DeliveryRefused):
        return error.permanent or error.cause.name in _BECAUSE_OF_TOPIC | _BECAUSE_OF_SIZE
    return isinstance(error, MessageTooLarge)


def _reason(error: DeliveryError) -> str:
    """Return the reason without the message's size, so that equal reasons are counted together."""
    if isinstance(error, MessageTooLarge):
        return f"larger than the {error.limit} bytes that topic {error.topic} accepts"
    return f"refused by its topic: {error}"


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions)
