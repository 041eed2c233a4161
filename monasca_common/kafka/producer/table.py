# SPDX-License-Identifier: Apache-2.0
"""The in-flight table: which messages have no outcome yet, how much of the budget they take, and who waits for them.

A message is its **sequence**, a number of its producer. A `SequenceRange` has consecutive sequences of one topic: the
bulk that a caller waits for, or the sends between two turns of the serving thread. Outcomes arrive in batches, sorted
by sequence, and are counted off the ranges. A message gets an object of its own, a `DeliveryAttempt`, only where
somebody asks about it alone: it has a listener or the caller's own id, it was not delivered, or a report names it.

The life of a message: **reserved** (it has a sequence and takes room in the budget), **handed over** (to the client),
**settled** (delivered, failed or unknown). `Table.settle` settles what the client reports, `Table.settle_locally` what
is given up without it; both do it in `Table._settle`.

Every method takes ``lock`` for a short time and never waits with it; those of the section "with the lock held" leave
that to their caller. A signal handler may interrupt any of them on the main thread, at a call or at the end of a turn
of a loop: steps that belong together have neither between them. Only the serving thread takes in outcomes, so no
signal handler interrupts that: Python runs those on the main thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Protocol

from monasca_common.kafka.clock import Clock, Signal, SystemClock
from monasca_common.kafka.errors import (
    AuthorizationError,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    DeliveryTimeout,
    LargerThanBudget,
    QueueFull,
    TransportError,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.outcome import Delivery, DeliveryListener, Outcome, classify, is_purged
from monasca_common.kafka.producer.outgoing import PLAIN_OVERHEAD_BYTES
from monasca_common.kafka.transport.base import Outcomes, UndeliveredMessage, message_id

# librdkafka reports identical connection errors of a broker once in 30 s: one that it kept silent about came
# within that time after one that it reported.
_SILENT_SECONDS = 35.0
_FINISHED_SPANS = 64  # kept behind one that is not finished, before the list is cleared of them
_SPAN_SENDS = 4096  # sequences that are set aside for the sends to one topic at a time
_DELIVERED, _FAILED, _UNKNOWN = Outcome.DELIVERED, Outcome.FAILED, Outcome.UNKNOWN


class Latch(Signal):
    """Opens when everything that it was hung on is settled, by whatever table."""

    __slots__ = ("_left", "_lock_of_left")

    def __init__(self, left: int) -> None:
        super().__init__()
        self._left = left
        self._lock_of_left = RLock()

    def add(self) -> None:
        with self._lock_of_left:
            self._left += 1

    def count_down(self) -> None:
        with self._lock_of_left:
            self._left -= 1
        if self._left == 0:
            self.set()

    @property
    def open(self) -> bool:
        return self._left <= 0


class DeliveryAttempt:
    """One message of which somebody knows alone: an attempt to deliver it."""

    __slots__ = (
        "doubtful",
        "error",
        "for_flush",
        "latches",
        "listeners",
        "message_id",
        "offset",
        "outcome",
        "own",
        "partition",
        "record",
        "sequence",
        "size",
        "span",
        "successor",
        "table",
        "topic",
        "wants_id",
    )

    def __init__(
        self,
        topic: str,
        record: Record | None,
        message_id: bytes | None,
        size: int,
        *,
        own: bool = False,
        wants_id: bool = False,
        doubtful: bool = False,
    ) -> None:
        self.topic = topic
        self.record = record  # None until it is undelivered: the client has its bytes
        self.message_id = message_id
        self.size = size  # bytes that it takes of the budget
        self.own = own  # whether the id is the caller's
        self.wants_id = wants_id  # whether it gets one with its sequence, unless it has one
        self.doubtful = doubtful  # whether an attempt before this one may have been written
        self.table: Table | None = None  # once it is reserved or refused
        self.span: SequenceRange | None = None
        self.sequence = -1
        self.outcome: Outcome | None = None
        self.error: DeliveryError | None = None
        self.partition: int | None = None
        self.offset: int | None = None
        self.successor: DeliveryAttempt | None = None  # the same message, sent again
        self.latches: list[Latch] = []
        self.listeners: list[DeliveryListener] = []
        self.for_flush = False  # whether the next flush reports it

    @property
    def latest(self) -> DeliveryAttempt:
        """The last attempt at the same message."""
        attempt = self
        while attempt.successor is not None:
            attempt = attempt.successor
        return attempt

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None

    @property
    def is_worth_sending(self) -> bool:
        """Whether it is neither delivered, nor in flight, nor refused permanently."""
        return self.outcome in (_FAILED, _UNKNOWN) and not (self.error is not None and self.error.permanent)

    @property
    def can_be_retried(self) -> bool:
        """Whether a retry by the producer that sent it can change its outcome."""
        finished = self.table is not None and self.table.finished is not None
        return not finished and not (self.error is not None and self.error.permanent)

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """The current outcome of the message."""
        outcome = self.outcome
        if outcome is _DELIVERED:
            return outcome, Delivery(index, self.message_id, self.topic, self.partition, self.offset, None)
        error = self.error if outcome is not None else _still_in_flight()
        return outcome or _UNKNOWN, Delivery(index, self.message_id, self.topic, None, None, error)


def _still_in_flight() -> DeliveryError:
    return DeliveryTimeout("no answer within the time given; the message is still on its way")


def next_attempt(old: DeliveryAttempt) -> DeliveryAttempt:
    """The same message under the same id, for another attempt."""
    doubtful = old.doubtful or old.outcome is _UNKNOWN
    return DeliveryAttempt(old.topic, old.record, old.message_id, old.size, own=old.own, doubtful=doubtful)


class SequenceRange:
    """Consecutive sequences of one topic."""

    __slots__ = (
        "attempts",
        "bytes",
        "columns",
        "end",
        "first",
        "id_prefix",
        "is_bulk",
        "key",
        "latch",
        "latches",
        "next",
        "over",
        "queued_at",
        "settled",
        "topic",
        "values",
    )

    def __init__(self, topic: str, first: int, end: int, id_prefix: bytes | None, queued_at: float) -> None:
        self.topic = topic
        self.first = first
        self.next = first  # the first sequence that is not reserved
        self.end = end
        self.id_prefix = id_prefix
        self.queued_at = queued_at  # monotonic seconds
        self.settled = 0
        self.bytes = 0  # that what is in flight of it takes of the budget
        self.over = True  # nothing of it is in flight, and nothing more enters: not yet or not any more in the table
        self.is_bulk = False
        self.values: list[bytes] = []  # of a bulk of bytes
        self.key: bytes | None = None
        self.attempts: dict[int, DeliveryAttempt] = {}  # by sequence
        self.columns: list[tuple[Sequence[int], Sequence[int], Sequence[int]]] = []  # of delivered messages
        self.latch = Latch(1)  # of the caller that waits for a bulk of bytes
        self.latches: list[Latch] = []

    table = None  # latches are hung on it by its own producer alone

    @property
    def is_settled(self) -> bool:
        return self.over

    @property
    def is_delivered(self) -> bool:
        """Whether all of it is delivered, and no message has an object of its own."""
        return self.over and not self.attempts

    @property
    def in_flight(self) -> int:
        return self.next - self.first - self.settled

    def unsettled(self) -> list[int]:
        """The sequences in flight."""
        settled = {sequence for sequences, _, _ in self.columns for sequence in sequences}
        settled.update(sequence for sequence, attempt in self.attempts.items() if attempt.outcome is not None)
        return [sequence for sequence in range(self.first, self.next) if sequence not in settled]

    def attempt(self, sequence: int) -> DeliveryAttempt:
        """The message of this sequence as a `DeliveryAttempt`."""
        attempt = self.attempts.get(sequence)
        if attempt is None:
            record = Record(self.values[sequence - self.first], self.key) if self.values else None
            given_id = None if self.id_prefix is None else message_id(self.id_prefix, sequence)
            attempt = DeliveryAttempt(self.topic, record, given_id, 0 if record is None else plain_size(record))
            attempt.sequence, attempt.span = sequence, self
            attempt.for_flush = not self.is_bulk
            self.attempts[sequence] = attempt
        return attempt

    def delivered(self) -> list[Delivery]:
        """The delivered messages of a bulk of bytes, in its order."""
        found = []
        for sequences, partitions, offsets in self.columns:
            for sequence, partition, offset in zip(sequences, partitions, offsets, strict=True):
                given_id = None if self.id_prefix is None else message_id(self.id_prefix, sequence)
                at = offset if offset >= 0 else None
                found.append(Delivery(sequence - self.first, given_id, self.topic, partition, at, None))
        found.sort(key=lambda delivery: delivery.index)
        return found


def plain_size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"") + PLAIN_OVERHEAD_BYTES


NO_RANGE = SequenceRange("", 0, 0, None, 0.0)


class Destination(Protocol):
    """Where sends to one topic go: `TopicLimit` has it."""

    span: SequenceRange
    id_prefix: bytes | None


class Table:
    """The messages in flight of one producer, and its budget."""

    def __init__(self, id_prefix: bytes, *, max_messages: int, max_bytes: int) -> None:
        self.id_prefix = id_prefix
        self.lock = RLock()  # a signal handler that closes may interrupt its owner
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0  # that take room: in flight, waiting for their listeners, or for a flush to report them
        self.bytes = 0
        self.shut_down = False  # nothing more is admitted
        self.on_undelivered: Callable[[TransportError], None] = lambda error: None  # what the client says of a message
        self.clock: Clock = SystemClock()
        self.now = self.clock.monotonic()
        self.last_error: TransportError | None = None
        self.finished: TransportError | None = None  # the client's fatal error
        self.due: deque[tuple[DeliveryListener, DeliveryAttempt]] = deque()  # listeners to call, in order
        self._next = 0
        self._spans: list[SequenceRange] = []  # in order of their sequences
        self._firsts: list[int] = []
        self._finished_spans = 0  # of those, behind one that is not
        self._sending: dict[str, Destination] = {}  # topics whose span is open
        self._own_ids: dict[tuple[str, bytes], DeliveryAttempt] = {}  # in flight
        self._asking: list[tuple[int, int, Latch]] = []  # callers who wait for room
        self._delivered = 0  # sends that no flush has reported yet
        self._undelivered: list[DeliveryAttempt] = []  # the same; they keep their room
        self._refusals: dict[str, TransportError] = {}  # topics that this principal may not write to
        self._trouble_at = float("-inf")

    def use_clock(self, clock: Clock) -> None:
        self.clock = clock
        self.now = clock.monotonic()

    # Reserved

    def reserve(self, attempts: Sequence[DeliveryAttempt]) -> list[DeliveryAttempt] | None:
        """Reserve messages of any topics; `None`: there is no room.

        Returns for each the attempt that is in flight: another one where the caller's own id is in flight already.
        """
        with self.lock:
            reserved = self._attached(attempts)
            fresh = [attempt for attempt in attempts if reserved[attempt] is attempt]
            if not self._fits(len(fresh), sum([attempt.size for attempt in fresh])):
                return None
            for of_topic in by_topic(fresh).values():
                self._reserve_span(of_topic)
            for attempt, first in reserved.items():
                if first is not attempt:
                    self._attach(attempt, first)
            return [reserved[attempt] for attempt in attempts]

    def ask_for_room(self, messages: int, size: int) -> Latch:
        """A latch that opens when there is room for this much, or can never be any."""
        with self.lock:
            latch = Latch(1)
            self._asking.append((messages, size, latch))
            self._offer_room()
            return latch

    def stop_asking(self, latch: Latch) -> None:
        with self.lock:
            self._asking = [each for each in self._asking if each[2] is not latch]

    def why_no_room(self, attempts: Sequence[DeliveryAttempt]) -> DeliveryError:
        if self.shut_down:
            return DeliveryAbandoned("the producer was closed before there was room; it was not sent")
        if len(attempts) == 1 and attempts[0].size > self.max_bytes:
            return LargerThanBudget(attempts[0].topic, attempts[0].size, self.max_bytes)
        size = sum([attempt.size for attempt in attempts])
        return QueueFull(
            f"no room for {len(attempts)} messages of {size} bytes: the budget is {self.max_messages} messages and "
            f"{self.max_bytes} bytes; Kafka is slow or unavailable, or flush was never called to collect undelivered "
            "sends"
        )

    def can_fit(self, messages: int, size: int) -> bool:
        """Whether so much can ever have room."""
        return messages <= self.max_messages and size <= self.max_bytes and not self.shut_down

    def room_of(self, attempts: Sequence[DeliveryAttempt]) -> tuple[int, int]:
        """How many messages and bytes `reserve` needs room for."""
        with self.lock:
            fresh = [attempt for attempt, first in self._attached(attempts).items() if first is attempt]
            return len(fresh), sum([attempt.size for attempt in fresh])

    def refuse(self, attempts: Sequence[DeliveryAttempt]) -> list[DeliveryAttempt]:
        """Settle messages that were never reserved, because there was no room for them; returns the attempts to report,
        as `reserve`: those whose ids are in flight are not refused."""
        error = self.why_no_room(attempts)
        reported = []
        with self.lock:
            for attempt in attempts:
                name = (attempt.topic, attempt.message_id or b"")
                first = self._own_ids.get(name) if attempt.own else None
                reported.append(first or attempt)
                if first is not None:
                    self._attach(attempt, first)
                    continue
                attempt.table = self
                attempt.outcome = _UNKNOWN if attempt.doubtful else _FAILED
                attempt.error = self.why_no_room((attempt,)) if attempt.size > self.max_bytes else error
                self._give_id(attempt, self._next)
                self._next += 1
        return reported

    # Settled

    def settle(self, outcomes: Outcomes) -> None:
        """Take in what one call of the client brought."""
        sequences = outcomes.sequences
        with self.lock:
            index, count = 0, len(sequences)
            while index < count:
                span, until = self._find(sequences[index])
                end = max(bisect_left(sequences, until, index), index + 1)
                if span is not None:
                    self._settle_delivered(span, outcomes, index, end)
                index = end
            for message in outcomes.undelivered:
                self._settle_undelivered(message)
            self._close_sends()
            self._offer_room()

    def settle_locally(self, attempts: Iterable[DeliveryAttempt], outcome: Outcome, error: DeliveryError) -> None:
        """Settle messages that the client does not have."""
        with self.lock:
            for attempt in attempts:
                span = attempt.span
                if attempt.outcome is None and span is not None and not span.over:
                    self._settle(span, attempt, outcome, error)
                    self._finish_if_settled(span)
            self._offer_room()

    def attempt(self, span: SequenceRange, sequence: int) -> DeliveryAttempt:
        """The message of this sequence as a `DeliveryAttempt`."""
        with self.lock:
            attempt = span.attempt(sequence)
            attempt.table = self
            return attempt

    def abandon(self, spans: Iterable[SequenceRange], error: DeliveryError) -> None:
        """Give up all that is in flight in these: the outcome is unknown."""
        with self.lock:
            for span in spans:
                if span.over:
                    continue
                for sequence in span.unsettled():
                    attempt = span.attempt(sequence)
                    lost = attempt.record is None
                    attempt.size = attempt.size or span.bytes // span.in_flight
                    self._settle(span, attempt, _UNKNOWN, _bytes_are_lost(error) if lost else error)
                span.end = span.next
                self._finish_if_settled(span)
            self._offer_room()

    def abandon_bulk(self, span: SequenceRange, error: DeliveryError) -> None:
        """As `abandon_attempts`, for a plain bulk."""
        with self.lock:
            self._delivered += sum([len(sequences) for sequences, _, _ in span.columns])
            self.abandon((span,), error)
            self.abandon_attempts(span.attempts.values(), error)

    def abandon_attempts(self, attempts: Iterable[DeliveryAttempt], error: DeliveryError) -> None:
        """The call that waited for these was interrupted: what is in flight is unknown, and the next flush reports the
        messages."""
        with self.lock:
            for attempt in attempts:
                if attempt.successor is not None:  # another call sent it
                    attempt.successor.for_flush = True
                    continue
                if attempt.outcome is None:
                    if attempt.span is None or attempt.span.over:
                        self._reserve_span((attempt,))
                    attempt.for_flush = True
                    self.settle_locally((attempt,), _UNKNOWN, error)
                elif not attempt.for_flush:
                    self.restore_report(0, (attempt,))

    def give_up_send(self, sequence: int, record: Record, outcome: Outcome, error: DeliveryError) -> None:
        """Settle a plain send that the client did not take, or that was interrupted."""
        with self.lock:
            span, _ = self._find(sequence)
            if span is not None:
                attempt = self.attempt(span, sequence)
                attempt.record, attempt.size = record, plain_size(record)
                self.settle_locally((attempt,), outcome, error)

    def shut(self) -> None:
        """Admit no more messages."""
        with self.lock:
            self.shut_down = True
            self._close_sends(also_unused=True)
            for _, _, latch in self._asking:
                latch.count_down()
            self._asking = []

    def spans(self) -> list[SequenceRange]:
        """The spans of which something is in flight."""
        with self.lock:
            self._close_sends()
            for span in self._spans[:]:
                self._finish_if_settled(span)  # what an interrupted call closed
            return [span for span in self._spans if not span.over]

    # Waited for, and reported

    def sends(self) -> list[SequenceRange]:
        """The spans of sends that are in flight."""
        with self.lock:
            return [span for span in self.spans() if self._has_sends(span)]

    def latch_on(self, what: Iterable[SequenceRange | DeliveryAttempt]) -> Latch:
        """A latch that opens when all of these are settled."""
        latch = Latch(1)  # counted down at the end, so that it cannot open while it is being hung
        for each in what:
            table = each.table or self
            with table.lock:
                if not each.is_settled:
                    each.latches.append(latch)
                    latch.add()
        latch.count_down()
        return latch

    def take_off(self, latch: Latch, what: Iterable[SequenceRange | DeliveryAttempt]) -> None:
        """Remove a latch that no thread waits on any more."""
        for each in what:
            with (each.table or self).lock:
                if latch in each.latches:
                    each.latches.remove(latch)

    def reported(self, in_flight: Iterable[DeliveryAttempt]) -> None:
        """A flush has reported these, so that no other one does, and has made room."""
        with self.lock:
            for attempt in in_flight:
                attempt.for_flush = False
            self._offer_room()

    def restore_report(self, delivered: int, attempts: Iterable[DeliveryAttempt]) -> None:
        """Give back what an interrupted flush took, for the next one to report."""
        with self.lock:
            self._delivered += delivered
            for attempt in attempts:
                attempt.for_flush = True
                if attempt.outcome is _DELIVERED:
                    self._delivered += 1
                elif attempt.outcome is not None:
                    self.messages += 1
                    self.bytes += attempt.size
                    self._undelivered.append(attempt)

    def undelivered_of(self, span: SequenceRange) -> dict[int, DeliveryAttempt]:
        """The messages of a plain bulk that have an attempt of their own, by their place: all not delivered."""
        with self.lock:
            if not span.over:
                for sequence in span.unsettled():
                    self.attempt(span, sequence)
            return {sequence - span.first: attempt for sequence, attempt in span.attempts.items()}

    def listener_returned(self, attempt: DeliveryAttempt) -> None:
        """A listener of the message was called; the last one frees its room."""
        with self.lock:
            attempt.listeners.pop()
            waits_for_flush = attempt.for_flush and attempt.outcome is not _DELIVERED
            if not attempt.listeners and not waits_for_flush:
                self.release(1, attempt.size)

    def release(self, messages: int, size: int) -> None:
        with self.lock:
            self.messages -= messages
            self.bytes -= size
            self._offer_room()

    # Looked at

    @property
    def busy(self) -> bool:
        return any(span.in_flight for span in list(self._spans))

    @property
    def messages_in_flight(self) -> int:
        return sum([span.in_flight for span in list(self._spans)])

    def oldest_age(self) -> float:
        """Seconds since the oldest message in flight was queued; 0 when there is none."""
        oldest = min([span.queued_at for span in list(self._spans) if span.in_flight], default=None)
        return 0.0 if oldest is None else max(0.0, self.clock.monotonic() - oldest)

    def tick(self) -> None:
        """Note the time for messages that are reserved from now on."""
        now = self.clock.monotonic()
        with self.lock:
            if now != self.now:
                self.now = now
                self._close_sends()

    def note_trouble(self, error: TransportError) -> None:
        """A client-wide error: from now on a rejection may hide an earlier attempt that was written."""
        self.last_error = error
        self._trouble_at = self.clock.monotonic()

    def start_again(self) -> None:
        """Begin with another client: errors of the one before do not count any more."""
        self.finished = self.last_error = None
        self._refusals.clear()
        self._trouble_at = float("-inf")

    # With the lock held: nothing interrupts a caller that has it between the last step of these and their result

    def reserve_send(self, to: Destination, topic: str, size: int) -> int:
        """The sequence for one plain message, as `KafkaProducer.send` reserves it; below 0: there is no room."""
        return self._next_send(to, topic, size) if self._fits(1, size) else -1

    def reserve_bulk(
        self, topic: str, values: list[bytes], key: bytes | None, id_prefix: bytes | None, size: int
    ) -> SequenceRange | None:
        """A span of plain messages that one caller waits for; `None`: there is no room."""
        count = len(values)
        if not self._fits(count, size):
            return None
        span = self._new_span(topic, count, id_prefix)
        span.values = values
        span.key = key
        span.is_bulk = True
        span.next = span.end
        span.bytes = size
        span.latches.append(span.latch)
        self._enter(span, count, size)
        return span

    def take_report(
        self, waited_for: Iterable[SequenceRange]
    ) -> tuple[int, list[DeliveryAttempt], list[DeliveryAttempt]]:
        """What a flush reports: how many sends were delivered, those that were not, and those that are still in flight
        of the spans that it waited for."""
        in_flight = []
        for span in waited_for:
            if not span.over:
                attempts = [self.attempt(span, sequence) for sequence in span.unsettled()]
                in_flight += [attempt for attempt in attempts if attempt.for_flush]
        delivered, undelivered = self._delivered, self._undelivered
        count, size = len(undelivered), sum([attempt.size for attempt in undelivered])
        self._delivered, self._undelivered = 0, []
        self.messages -= count
        self.bytes -= size
        return delivered, undelivered, in_flight

    def _fits(self, messages: int, size: int) -> bool:
        within = self.messages + messages <= self.max_messages and self.bytes + size <= self.max_bytes
        return within and not self.shut_down

    def _new_span(self, topic: str, length: int, id_prefix: bytes | None) -> SequenceRange:
        return SequenceRange(topic, self._next, self._next + length, id_prefix, self.clock.monotonic())

    def _enter(self, span: SequenceRange, messages: int, size: int) -> None:
        """Add a new span whose messages take this much room. It has no call: no signal handler interrupts it."""
        span.over = False
        self._next = span.end
        self._spans += [span]
        self._firsts += [span.first]
        self.messages += messages
        self.bytes += size

    def _next_send(self, to: Destination, topic: str, size: int) -> int:
        span = to.span
        if span.next == span.end:
            if self._sending.get(topic, to) is not to:  # the topic's limit was replaced while its span was open
                self._close_sends(also_unused=True)
            span = self._new_span(topic, _SPAN_SENDS, to.id_prefix)
            self._enter(span, 0, 0)
            to.span = span
            self._sending[topic] = to
        sequence = span.next
        span.next += 1
        span.bytes += size
        self.messages += 1
        self.bytes += size
        return sequence

    def _close_sends(self, *, also_unused: bool = False) -> None:
        """End the spans that sends use: the next send of each topic opens another."""
        for topic, to in list(self._sending.items()):
            span = to.span
            if span.next > span.first or also_unused:
                del self._sending[topic]
                to.span = NO_RANGE
                span.end = span.next
                self._finish_if_settled(span)

    def _attached(self, attempts: Iterable[DeliveryAttempt]) -> dict[DeliveryAttempt, DeliveryAttempt]:
        attached = {}
        ids: dict[tuple[str, bytes], DeliveryAttempt] = {}
        for attempt in attempts:
            first = attempt
            if attempt.own and attempt.message_id is not None:
                name = (attempt.topic, attempt.message_id)
                first = self._own_ids.get(name) or ids.setdefault(name, attempt)
            attached[attempt] = first
        return attached

    def _attach(self, attempt: DeliveryAttempt, first: DeliveryAttempt) -> None:
        """The message is in flight already, as ``first``."""
        attempt.successor = first
        first.for_flush |= attempt.for_flush
        first.listeners += attempt.listeners
        first.doubtful |= attempt.doubtful

    def _reserve_span(self, attempts: Sequence[DeliveryAttempt]) -> None:
        count, size = len(attempts), sum([attempt.size for attempt in attempts])
        span = self._new_span(attempts[0].topic, count, None)
        span.is_bulk = True
        span.next = span.end
        span.bytes = size
        for sequence, attempt in enumerate(attempts, span.first):
            attempt.table, attempt.span, attempt.sequence = self, span, sequence
            self._give_id(attempt, sequence)
            span.attempts[sequence] = attempt
            if attempt.own and attempt.message_id is not None:
                self._own_ids[attempt.topic, attempt.message_id] = attempt
        self._enter(span, count, size)

    def _give_id(self, attempt: DeliveryAttempt, sequence: int) -> None:
        if attempt.message_id is None and attempt.wants_id:
            attempt.message_id = message_id(self.id_prefix, sequence)

    def _find(self, sequence: int) -> tuple[SequenceRange | None, int]:
        """The span of a sequence, and where it ends; without one, where the next begins."""
        place = bisect_right(self._firsts, sequence) - 1
        if place >= 0 and sequence < self._spans[place].end:
            span = self._spans[place]
            return (None if span.over else span), span.end
        following = place + 1
        return None, self._firsts[following] if following < len(self._firsts) else self._next

    def _settle_delivered(self, span: SequenceRange, outcomes: Outcomes, start: int, end: int) -> None:
        """Settle consecutive messages of one span."""
        sequences = outcomes.sequences[start:end]
        if self._refusals:
            self._forget_refusal(span.topic)
        if span.attempts:
            self._settle_one_by_one(span, outcomes, start, end)
            return
        count = end - start
        size = outcomes.bytes[end - 1] - (outcomes.bytes[start - 1] if start else 0) + count * PLAIN_OVERHEAD_BYTES
        span.settled += count
        span.bytes -= size
        self.messages -= count
        self.bytes -= size
        if not span.is_bulk:
            self._delivered += count
        if span.is_bulk or span.in_flight or span.next < span.end:
            span.columns.append((sequences, outcomes.partitions[start:end], outcomes.offsets[start:end]))
        self._finish_if_settled(span)

    def _settle_one_by_one(self, span: SequenceRange, outcomes: Outcomes, start: int, end: int) -> None:
        columns = outcomes.sequences, outcomes.partitions, outcomes.offsets, outcomes.bytes
        before = outcomes.bytes[start - 1] if start else 0
        for place in range(start, end):
            sequence, partition, offset, total = (column[place] for column in columns)
            attempt = span.attempts.get(sequence)
            if attempt is None:
                size = total - before + PLAIN_OVERHEAD_BYTES
                span.settled += 1
                span.bytes -= size
                self.messages -= 1
                self.bytes -= size
                if not span.is_bulk:
                    self._delivered += 1
                span.columns.append(((sequence,), (partition,), (offset,)))
            elif attempt.outcome is None:
                attempt.partition = partition
                attempt.offset = offset if offset >= 0 else None
                attempt.size = attempt.size or total - before + PLAIN_OVERHEAD_BYTES
                self._settle(span, attempt, _DELIVERED, None)
            before = total
        self._finish_if_settled(span)

    def _settle_undelivered(self, message: UndeliveredMessage) -> None:
        span, _ = self._find(message.sequence)
        if span is None or message.sequence >= span.next:
            return  # it was given up before
        attempt = span.attempt(message.sequence)
        if attempt.outcome is not None:
            return
        if attempt.record is None:
            attempt.record = Record(message.value, message.key)
            attempt.size = plain_size(attempt.record)
        cause = message.error
        self.on_undelivered(cause)
        if self.finished is not None and is_purged(cause):
            self._settle(span, attempt, _UNKNOWN, DeliveryRefused(self.finished, permanent=False))
        else:
            if isinstance(cause, AuthorizationError) and not cause.fatal:
                self._refusals[span.topic] = self.last_error = cause
            trouble = self._trouble_at >= span.queued_at - _SILENT_SECONDS
            own_time = attempt.record.timestamp_ms is not None
            self._settle(span, attempt, *classify(cause, trouble=trouble, own_time=own_time))
        self._finish_if_settled(span)

    def _settle(
        self, span: SequenceRange, attempt: DeliveryAttempt, outcome: Outcome, error: DeliveryError | None
    ) -> None:
        """Settle one message: the place where it gets its outcome, and where whoever waits for it is notified."""
        if outcome is _FAILED and attempt.doubtful:
            outcome = _UNKNOWN
        attempt.table = self
        attempt.error = error  # first: a report may be made at this moment
        attempt.outcome = outcome
        span.settled += 1
        span.bytes -= attempt.size
        if attempt.own and attempt.message_id is not None:
            self._own_ids.pop((attempt.topic, attempt.message_id), None)
        keeps_room = bool(attempt.listeners)
        self.due.extend([(listener, attempt) for listener in attempt.listeners])
        if outcome is _DELIVERED:
            attempt.record = None
            self._delivered += bool(attempt.for_flush or attempt.listeners)
        elif attempt.for_flush:
            self._undelivered.append(attempt)
            keeps_room = True
        if not keeps_room:
            self.messages -= 1
            self.bytes -= attempt.size
        for latch in attempt.latches:
            latch.count_down()
        attempt.latches = []

    def _finish_if_settled(self, span: SequenceRange) -> None:
        if span.over or span.in_flight or span.next < span.end:
            return
        span.over = True
        for latch in span.latches:
            latch.count_down()
        span.latches = []
        if not any(attempt.outcome is not _DELIVERED for attempt in span.attempts.values()):
            span.values = []
        self._finished_spans += 1
        if self._finished_spans > _FINISHED_SPANS + len(self._spans) // 2:
            self._spans = [each for each in self._spans if not each.over]
            self._firsts = [each.first for each in self._spans]
            self._finished_spans = 0

    def _has_sends(self, span: SequenceRange) -> bool:
        return not span.is_bulk or any(attempt.for_flush or attempt.listeners for attempt in span.attempts.values())

    def _offer_room(self) -> None:
        """Wake the callers whose room is free."""
        for asking in self._asking[:]:
            messages, size, latch = asking
            if self._fits(messages, size) or not self.can_fit(messages, size):
                self._asking.remove(asking)
                latch.count_down()

    def _forget_refusal(self, topic: str) -> None:
        """Forget the refusal, because a message of the topic was delivered."""
        if self._refusals.pop(topic, None) is not None and isinstance(self.last_error, AuthorizationError):
            self.last_error = next(iter(self._refusals.values()), None)


def _bytes_are_lost(error: DeliveryError) -> DeliveryError:
    lost = DeliveryAbandoned(f"{error}; the client did not give its bytes back, so it cannot be sent again")
    lost.permanent = True
    return lost


def by_topic(attempts: Iterable[DeliveryAttempt]) -> Mapping[str, list[DeliveryAttempt]]:
    grouped: dict[str, list[DeliveryAttempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.topic, []).append(attempt)
    return grouped
