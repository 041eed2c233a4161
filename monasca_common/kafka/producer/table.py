# SPDX-License-Identifier: Apache-2.0
"""The in-flight table: the messages without an outcome, their size in the budget, and the threads that wait for them.

The **sequence** of a message is a number that is unique in its producer. A `Bulk` has consecutive sequences of one
topic: the messages of one call, or the plain sends between two passes of the serving thread, for which sequences and
room are reserved in advance (`open_sends`). A message gets its own object, a `DeliveryAttempt`, only if it is more than
plain bytes, if it was not delivered, or if a report names it.

The life of a message: **reserved** (`reserve`: it has a sequence and takes room in the budget), **handed over** (to the
client, by the producer), **settled** (delivered, failed or unknown). The client's outcomes arrive in batches, sorted by
sequence, and `settle` subtracts them from the bulks; `give_up` settles without the client. Each message that has an
object gets its outcome in `_settle`.

Every method holds ``lock`` for a short time and never waits with it. Python runs a signal handler only on the main
thread, at a call or at the end of a loop iteration, so there is neither a call nor a loop between steps that a handler
must not separate. Only the serving thread collects outcomes, so no signal handler interrupts the collection.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from threading import RLock, get_ident

from monasca_common.kafka.clock import Clock, Signal, SystemClock
from monasca_common.kafka.errors import (
    AuthorizationError,
    Delivery,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    DeliveryTimeout,
    LargerThanBudget,
    QueueFull,
    TransportError,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.outgoing import BUDGET_SHARE, PLAIN_OVERHEAD_BYTES, size_of
from monasca_common.kafka.producer.outcome import PURGED, DeliveryListener, Outcome, classify
from monasca_common.kafka.transport.base import Outcomes, ProducerTransport, UndeliveredMessage, message_id
from monasca_common.kafka.transport.reservation import Reservation

# librdkafka reports identical connection errors of a broker once per 30 s, so an unreported error occurs at most 30 s
# after a reported one.
_SILENT_SECONDS = 35.0
_SENDS = 4096  # number of sends reserved for one topic at a time
_DELIVERED, _FAILED, _UNKNOWN = Outcome.DELIVERED, Outcome.FAILED, Outcome.UNKNOWN
_first = attrgetter("first")


class Waiter(Signal):
    """Wakes a thread once ``is_over()``, which the table calls with its lock after each change."""

    __slots__ = ("is_over", "over")

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self.is_over = is_over
        self.over = False


def all_over(what: Iterable[Bulk | DeliveryAttempt]) -> Callable[[], bool]:
    """Return a condition for a `Waiter`: whether all of these bulks are settled."""
    left = list(what)

    def is_over() -> bool:
        while left and left[-1].over:
            left.pop()
        return not left

    return is_over


@dataclass(slots=True, eq=False)
class DeliveryAttempt:
    """An attempt to deliver one message."""

    bulk: Bulk
    record: Record | None  # None: the client has its bytes
    message_id: bytes | None  # the caller's id, or that of an earlier attempt; None until the reservation creates one
    size: int  # bytes that it takes in the budget
    doubtful: bool = False  # whether an earlier attempt may have been written
    sequence: int = -1
    outcome: Outcome | None = None
    error: DeliveryError | None = None
    partition: int | None = None
    offset: int | None = None
    successor: DeliveryAttempt | None = None  # next attempt of the same message, or the attempt already in flight
    listeners: list[DeliveryListener] = field(default_factory=list)
    for_flush: bool = False  # whether the next flush reports it

    @property
    def latest(self) -> DeliveryAttempt:
        """The last attempt of the same message."""
        attempt = self
        while attempt.successor is not None:
            attempt = attempt.successor
        return attempt

    @property
    def over(self) -> bool:
        return self.outcome is not None

    @property
    def is_worth_sending(self) -> bool:
        """Whether the message is not delivered, not in flight and not permanently refused."""
        return self.error is not None and not self.error.permanent

    @property
    def can_be_retried(self) -> bool:
        """Whether a retry by the same producer can change the outcome."""
        return self.bulk.table.finished is None and (self.error is None or not self.error.permanent)

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """Return the current outcome of the message."""
        outcome = self.outcome
        if outcome is _DELIVERED:
            return outcome, Delivery(index, self.message_id, self.bulk.topic, self.partition, self.offset, None)
        error = self.error
        if outcome is None:
            error = DeliveryTimeout("no response within the given time; the message is still in flight")
        return outcome or _UNKNOWN, Delivery(index, self.message_id, self.bulk.topic, None, None, error)


def next_attempt(old: DeliveryAttempt, bulk: Bulk) -> DeliveryAttempt:
    """Create another attempt for the same message with the same id."""
    return DeliveryAttempt(bulk, old.record, old.message_id, old.size, old.doubtful or old.outcome is _UNKNOWN)


@dataclass(slots=True, eq=False)
class Bulk:
    """Messages of one topic with consecutive sequences: plain messages in ``values``, or other messages in
    ``attempts``."""

    table: Table
    topic: str
    id_prefix: bytes | None  # None: plain messages get no ids
    key: bytes | None = None  # of plain messages
    values: list[bytes] = field(default_factory=list)
    ids: list[bytes] | None = None  # of plain messages, if the caller gave them
    size: int = 0  # bytes that its messages in flight take in the budget
    largest: int = 0  # bytes, of plain messages
    first: int = 0  # sequence; the table numbers them when it reserves room
    next: int = 0  # sequences before it are reserved
    reservation: Reservation | None = None  # sends take sequences from it until `Table.close_sends`
    settled: int = 0  # number of messages that are settled, or attached to one already in flight
    queued_at: float = 0.0  # monotonic seconds
    is_new: bool = True  # not reserved yet
    of_sends: bool = False
    over: bool = False  # all settled
    attempts: dict[int, DeliveryAttempt] = field(default_factory=dict)  # by position
    columns: list[tuple[Sequence[int], Sequence[int], Sequence[int]]] = field(default_factory=list)  # of delivered ones

    @property
    def in_flight(self) -> int:
        end = self.next if self.reservation is None else self.reservation.next
        return end - self.first - self.settled

    def add(self, attempt: DeliveryAttempt) -> None:
        place = len(self.attempts)
        self.attempts[place] = attempt  # no call after this, so no signal handler interrupts it
        self.next = place + 1
        self.size += attempt.size

    def id_of(self, place: int) -> bytes | None:
        """Return the id of a plain message."""
        return self.ids[place] if self.ids else self.id_prefix and message_id(self.id_prefix, self.first + place)

    def attempt(self, sequence: int) -> DeliveryAttempt:
        """Return the message of this sequence as a `DeliveryAttempt`."""
        place = sequence - self.first
        attempt = self.attempts.get(place)
        if attempt is None:
            record, own_id = Record(self.values[place], self.key) if self.values else None, self.id_of(place)
            size = 0 if record is None else size_of(record, record.key, own_id if self.ids else None)
            attempt = DeliveryAttempt(self, record, own_id, size)
            attempt.sequence = sequence
            attempt.for_flush = self.of_sends
            self.attempts[place] = attempt
        return attempt

    @property
    def is_for_flush(self) -> bool:
        """Whether a flush waits for this bulk."""
        return self.of_sends or any(each.for_flush or each.listeners for each in self.attempts.values())

    def unsettled(self) -> list[DeliveryAttempt]:
        """Return the messages in flight."""
        if self.over:
            return []
        delivered = {sequence for sequences, _, _ in self.columns for sequence in sequences}
        attempts = [self.attempt(each) for each in range(self.first, self.next) if each not in delivered]
        return [attempt for attempt in attempts if attempt.outcome is None and attempt.successor is None]

    def all_over(self) -> Callable[[], bool]:
        """Return a condition: whether all messages of the bulk are settled, including messages in flight for another
        call."""
        with self.table.lock:
            return all_over([self, *(each.latest for each in self.attempts.values() if each.successor is not None)])

    def delivered(self) -> list[Delivery]:
        """Return the delivered messages that have no object."""
        found = []
        for columns in self.columns:
            for sequence, partition, offset in zip(*columns, strict=True):
                place, at = sequence - self.first, offset if offset >= 0 else None
                found.append(Delivery(place, self.id_of(place), self.topic, partition, at, None))
        return found


class Table:
    """The messages in flight of one producer, and its budget."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self.lock = RLock()  # a signal handler that sends may interrupt its owner
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0  # messages that use room: in flight, with pending listeners, or not yet reported by a flush
        self.bytes = 0
        self.shut_down = False  # no further messages are admitted
        self.clock: Clock = SystemClock()
        self.on_undelivered: Callable[[TransportError], None] = lambda error: None  # the client's error of a message
        self.last_error: TransportError | None = None
        self.finished: TransportError | None = None  # the client's fatal error
        self.due: deque[tuple[DeliveryListener, DeliveryAttempt]] = deque()  # listeners to call, in order
        self.callers: dict[int, None] = {}  # threads in a call of this producer, and its own: none may wait
        self.waiters: dict[Waiter, None] = {}
        self._next = 0
        self._bulks: list[Bulk] = []  # bulks with messages in flight, and open bulks of sends, by sequence
        self._open: list[Bulk] = []  # open bulks of sends
        self._by_id = defaultdict[str, dict[bytes, int]](dict)  # sequences in flight, by topic and earlier id
        self._delivered = 0  # delivered sends that no flush has reported yet
        self._undelivered: list[DeliveryAttempt] = []  # undelivered sends, which keep their room
        self._refusals: dict[str, TransportError] = {}  # topics that this principal may not write to
        self._trouble_at = float("-inf")

    @contextmanager
    def as_caller(self) -> Iterator[None]:
        """Mark this thread as one of the producer's own threads."""
        self.callers[get_ident()] = None
        try:
            yield
        finally:
            del self.callers[get_ident()]

    # Reserve

    def reserve(self, bulk: Bulk, *, anyway: bool = False) -> bool:
        """Reserve room and sequences for all messages of the bulk or none; return whether they are reserved. A
        message whose id is in flight is attached to the message in flight, and uses no room. ``anyway``: reserve even
        without room, because the messages are about to be settled."""
        with self.lock:
            if not bulk.is_new:
                return True
            self._attach(bulk)
            if not (anyway or self.has_room(bulk)):
                self.close_sends()  # open sends can have reserved more room than they use
            messages, size, now = bulk.in_flight, bulk.size, self.clock.monotonic()
            if not (anyway or self.has_room(bulk)):
                return False
            self.messages += messages  # no call since the check, so no signal handler takes this room
            self.bytes += size
            bulk.first = self._next
            bulk.next += bulk.first
            bulk.queued_at = now
            bulk.is_new = False
            self._next = bulk.next
            insort(self._bulks, bulk, key=_first)  # a signal handler may have added reservations
            self._by_id[bulk.topic].update(zip(bulk.ids or (), range(bulk.first, bulk.next), strict=False))
            self._identify(bulk)
            self._finish_if_settled(bulk)
            return True

    def open_sends(
        self, topic: str, id_prefix: bytes | None, size: int, transport: ProducerTransport, largest: int
    ) -> Reservation:
        """Return a reservation for the next plain sends to the topic, of at most ``largest`` bytes each; the
        reservation can be too small for a key and a value of ``size`` bytes."""
        with self.lock:
            if self.messages >= self.max_messages or self.bytes + size + PLAIN_OVERHEAD_BYTES > self.max_bytes:
                self.close_sends()
            bulk = Bulk(self, topic, id_prefix, of_sends=True, is_new=False, queued_at=self.clock.monotonic())
            free = 0 if self.shut_down else self.max_messages - self.messages  # no call after this
            count = 0 if free <= 0 else _SENDS if free > _SENDS * BUDGET_SHARE else free // BUDGET_SHARE + 1
            room = self.max_bytes - self.bytes if count else 0
            room = 0 if room < 0 else room // BUDGET_SHARE  # leaves room for sends to other topics
            first = bulk.first = self._next
            self._next = bulk.next = first + count
            self.messages += count
            self.bytes += room
            bulk.size = room
            try:
                reservation = transport.new_reservation(
                    first, bulk.next, room, largest, PLAIN_OVERHEAD_BYTES, id_prefix
                )
                bulk.reservation = reservation
                insort(self._bulks, bulk, key=_first)
                self._open += [bulk]
            except BaseException:
                self.messages -= count
                self.bytes -= room
                if bulk in self._bulks:
                    self._bulks.remove(bulk)
                raise
            return reservation

    def close_sends(self) -> None:
        """End the reservations of sends, and free their unused room."""
        with self.lock:
            for bulk in self._open[::-1]:
                reservation = bulk.reservation
                if reservation is not None:
                    reservation.close()
                if bulk.reservation is not None:  # no call follows, because a signal handler could close it
                    if self._next == bulk.next:
                        self._next = bulk.reservation.next  # the remaining sequences are still unused
                    self.messages -= bulk.next - bulk.reservation.next
                    self.bytes -= bulk.reservation.left
                    bulk.size -= bulk.reservation.left
                    bulk.next = bulk.reservation.next
                    bulk.reservation = None
                self._finish_if_settled(bulk)
                if bulk in self._open:
                    self._open.remove(bulk)

    def has_room(self, bulk: Bulk) -> bool:
        messages, size = self.messages + bulk.in_flight, self.bytes + bulk.size
        return messages <= self.max_messages and size <= self.max_bytes and not self.shut_down

    def can_have_room(self, bulk: Bulk) -> bool:
        return bulk.in_flight <= self.max_messages and bulk.size <= self.max_bytes and not self.shut_down

    def refuse(self, bulk: Bulk) -> DeliveryError:
        """Settle messages that the budget has no room for; return the last message's error. No flush reports these
        messages."""
        why = "Kafka is slow or unavailable, or flush was never called to collect undelivered sends"
        if not self.can_have_room(bulk):
            why = "publish fewer messages at a time, or retry the report, which sends them in parts"
        error: DeliveryError = QueueFull(
            f"no room for {bulk.in_flight} messages of {bulk.size} bytes: the budget is {self.max_messages} messages "
            f"and {self.max_bytes} bytes; {why}"
        )
        if self.shut_down:
            error = DeliveryAbandoned("the producer was closed before there was room; the message was not sent")
        own_error = error
        with self.lock:
            self.reserve(bulk, anyway=True)
            for attempt in bulk.unsettled():
                attempt.for_flush, attempt.listeners = False, []
                is_too_large = attempt.size > self.max_bytes and not self.shut_down
                own_error = LargerThanBudget(bulk.topic, attempt.size, self.max_bytes) if is_too_large else error
                self._settle(attempt, _FAILED, own_error)
        return own_error

    # Settle

    def settle(self, outcomes: Outcomes) -> None:
        """Settle messages with the outcomes of one client call."""
        sequences = outcomes.sequences
        with self.lock:
            self.close_sends()
            start = 0
            while start < len(sequences):
                bulk = self._find(sequences[start])
                end = start + 1 if bulk is None else bisect_left(sequences, bulk.next, start)
                if bulk is not None:
                    self._settle_delivered(bulk, outcomes, start, end)
                start = end
            for message in outcomes.undelivered:
                self._settle_undelivered(message)
            self.wake_waiters()

    def give_up(self, attempts: Iterable[DeliveryAttempt], outcome: Outcome, error: DeliveryError) -> None:
        """Settle messages without an outcome from the client."""
        with self.lock:
            for attempt in attempts:
                if attempt.outcome is None and attempt.successor is None:
                    bulk, why = attempt.bulk, error
                    if attempt.record is None:
                        attempt.size = bulk.size // bulk.in_flight  # an estimate, because only the client knows it
                        why = DeliveryAbandoned(f"{error}; the client kept its bytes, so it cannot be sent again")
                        why.permanent = True
                    self._settle(attempt, outcome, why)
            self.wake_waiters()

    def give_up_bulks(self, bulks: Iterable[Bulk], outcome: Outcome, error: DeliveryError) -> None:
        """Settle all messages of these bulks that are in flight."""
        for bulk in bulks:
            with self.lock:
                self.give_up(bulk.unsettled(), outcome, error)

    def interrupt(self, bulks: Iterable[Bulk]) -> None:
        """Record that the call with these bulks was interrupted: the next flush reports unsettled messages as
        unknown."""
        error = DeliveryAbandoned("the call that sent it was interrupted")
        with self.lock:
            for bulk in bulks:
                self.reserve(bulk, anyway=True)
                self._identify(bulk)  # perhaps the reservation was interrupted
                unsettled = bulk.unsettled()
                latest = [attempt.latest for attempt in bulk.attempts.values()]  # perhaps in flight for another call
                unreported = [attempt for attempt in latest if not (attempt.for_flush or attempt.listeners)]
                self.report_later(sum([len(sequences) for sequences, _, _ in bulk.columns]), unreported)
                self.give_up(unsettled, _UNKNOWN, error)

    def shut(self) -> None:
        """Admit no further messages."""
        with self.lock:
            self.shut_down = True
            self.close_sends()
            self.wake_waiters()

    # Wait and report

    def unfinished(self, *, of_sends: bool = False) -> list[Bulk]:
        """Return the bulks with messages in flight; ``of_sends``: only the bulks that a flush waits for."""
        with self.lock:
            self.close_sends()
            for bulk in self._bulks[:]:
                self._finish_if_settled(bulk)  # an interrupted call may not have removed it
            return [bulk for bulk in self._bulks if bulk.is_for_flush or not of_sends]

    def wake_waiters(self) -> None:
        """Wake the threads whose messages have room, or are settled."""
        with self.lock:
            for waiter in list(self.waiters):
                if waiter.is_over():
                    waiter.over = True
                    waiter.set()

    def attempts_of(self, bulk: Bulk) -> dict[int, DeliveryAttempt]:
        """Return the undelivered messages of a bulk, and its delivered messages that have an attempt, by position."""
        with self.lock:
            bulk.unsettled()  # creates the attempts of messages in flight
            return {place: attempt.latest for place, attempt in sorted(bulk.attempts.items())}

    def take_report(self, waited_for: Iterable[Bulk]) -> tuple[int, list[DeliveryAttempt]]:
        """Return the number of delivered sends, and the attempts for the report of a flush: undelivered sends, and
        messages still in flight in the bulks that the flush waited for. The caller holds the lock."""
        in_flight = [attempt for bulk in waited_for for attempt in bulk.unsettled() if attempt.for_flush]
        attempts = [*self._undelivered, *in_flight]
        delivered, count = self._delivered, len(self._undelivered)
        size = sum([attempt.size for attempt in self._undelivered])
        self._delivered, self._undelivered = 0, []  # no call from here, so no signal handler can interrupt these lines
        self.messages -= count
        self.bytes -= size
        return delivered, attempts

    def reported(self, attempts: Iterable[DeliveryAttempt]) -> None:
        """Free the room of messages that a flush has reported, so that no other flush reports the same messages. The
        caller holds the lock."""
        for attempt in attempts:
            attempt.for_flush = attempt.for_flush and attempt.over
        self.wake_waiters()

    def report_later(self, delivered: int, attempts: Iterable[DeliveryAttempt]) -> None:
        """Let the next flush report these messages, because an interrupted call cannot; until then they keep their
        room."""
        with self.lock:
            known = set(self._undelivered)
            for attempt in attempts:
                was_for_flush, attempt.for_flush = attempt.for_flush, True
                if attempt.outcome is _DELIVERED:
                    delivered += not was_for_flush  # otherwise it is already counted
                elif attempt.over and attempt not in known:
                    known.add(attempt)
                    size = attempt.size
                    self._undelivered += [attempt]  # no call after this, so no signal handler interrupts it
                    self.messages += 1
                    self.bytes += size
            self._delivered += delivered

    def listener_returned(self, attempt: DeliveryAttempt) -> None:
        """Record that a listener of the message has returned; the last one frees the room."""
        with self.lock:
            attempt.listeners.pop()
            waits_for_flush = attempt.for_flush and attempt.outcome is not _DELIVERED
            if not attempt.listeners and not waits_for_flush:
                self.messages -= 1
                self.bytes -= attempt.size
                self.wake_waiters()

    # Monitor

    def in_flight(self) -> tuple[int, int, float]:
        """Return the number of messages and bytes in flight, and the age of the oldest one in seconds."""
        messages, size, oldest = 0, 0, math.inf
        for bulk in self._bulks[:]:  # without the lock, which may remain locked after a fork
            count = bulk.in_flight
            if count:
                messages += count
                oldest = min(oldest, bulk.queued_at)
                reservation = bulk.reservation  # no call after this, so no other thread can end the bulk
                size += bulk.size if reservation is None else bulk.size - reservation.left
        return messages, size, max(0.0, self.clock.monotonic() - oldest)

    def note_trouble(self, error: TransportError) -> None:
        """Record a client-wide error: from now on, a rejected message can have an earlier attempt that was written."""
        self.last_error = error
        self._trouble_at = self.clock.monotonic()

    def start_again(self) -> None:
        """Forget earlier errors, because another client is used from now on."""
        self.finished = self.last_error = None
        self._refusals.clear()
        self._trouble_at = float("-inf")

    # With the lock held

    def _attach(self, bulk: Bulk) -> None:
        """Attach each message that is already in flight, or earlier in the bulk, to the attempt that is sent."""
        here: dict[bytes, DeliveryAttempt] = {}
        known = self._by_id[bulk.topic]
        if bulk.ids and (len(set(bulk.ids)) < bulk.next or not known.keys().isdisjoint(bulk.ids)):
            for place in range(bulk.next):
                bulk.attempt(place)
            bulk.values, bulk.ids = [], None
        for attempt in bulk.attempts.values():
            if attempt.message_id is None or attempt.successor is not None:
                continue
            other = self._find(sequence := known.get(attempt.message_id, -1))
            first = here.setdefault(attempt.message_id, attempt) if other is None else other.attempt(sequence)
            if first is not attempt:
                first.for_flush |= attempt.for_flush
                first.listeners += attempt.listeners
                first.doubtful |= attempt.doubtful
                attempt.successor = first
                bulk.settled += 1
                bulk.size -= attempt.size

    def _identify(self, bulk: Bulk) -> None:
        """Assign sequences and ids to the messages that have objects."""
        for place, attempt in bulk.attempts.items():
            if attempt.successor is None and attempt.outcome is None:
                attempt.sequence = bulk.first + place
                if attempt.message_id is not None:
                    self._by_id[bulk.topic][attempt.message_id] = attempt.sequence
                elif bulk.id_prefix is not None:
                    attempt.message_id = message_id(bulk.id_prefix, attempt.sequence)

    def _find(self, sequence: int) -> Bulk | None:
        place = bisect_right(self._bulks, sequence, key=_first) - 1
        return self._bulks[place] if place >= 0 and sequence < self._bulks[place].next else None

    def _settle_delivered(self, bulk: Bulk, outcomes: Outcomes, start: int, end: int) -> None:
        """Settle consecutive messages of one bulk."""
        if bulk.attempts and end - start > 1:
            for place in range(start, end):
                self._settle_delivered(bulk, outcomes, place, place + 1)
            return
        if self._refusals.pop(bulk.topic, None) is not None and isinstance(self.last_error, AuthorizationError):
            self.last_error = next(iter(self._refusals.values()), None)
        columns = outcomes.sequences[start:end], outcomes.partitions[start:end], outcomes.offsets[start:end]
        count, known = end - start, self._by_id[bulk.topic]
        size = outcomes.bytes[end - 1] - (outcomes.bytes[start - 1] if start else 0) + count * PLAIN_OVERHEAD_BYTES
        attempt = bulk.attempts.get(columns[0][0] - bulk.first)
        if attempt is None:
            for own_id in [bulk.ids[each - bulk.first] for each in columns[0]] if bulk.ids else ():
                size += len(own_id)
                known.pop(own_id, None)
            bulk.columns.append(columns)
            bulk.settled += count
            bulk.size -= size
            self.messages -= count
            self.bytes -= size
            self._delivered += count if bulk.of_sends else 0
            self._finish_if_settled(bulk)
        elif attempt.outcome is None:
            attempt.partition = columns[1][0]
            attempt.offset = columns[2][0] if columns[2][0] >= 0 else None
            attempt.size = attempt.size or size
            self._settle(attempt, _DELIVERED, None)

    def _settle_undelivered(self, message: UndeliveredMessage) -> None:
        bulk = self._find(message.sequence)
        if bulk is None:
            return
        if message.taken is None and any(message.sequence in sequences for sequences, _, _ in bulk.columns):
            return  # it was delivered after all
        attempt = bulk.attempt(message.sequence)
        if attempt.outcome is not None:
            return  # it was already given up
        if attempt.record is None:
            attempt.record = Record(message.value, message.key)
            attempt.size = size_of(attempt.record, message.key)
        cause = message.error
        self.on_undelivered(cause)
        if message.taken is False:
            self._settle(attempt, _FAILED, DeliveryRefused(cause, permanent=False))
            return
        if self.finished is not None and cause.name in PURGED:
            self._settle(attempt, _UNKNOWN, DeliveryRefused(self.finished, permanent=False))
            return
        if isinstance(cause, AuthorizationError) and not cause.fatal:
            self._refusals[bulk.topic] = self.last_error = cause
        trouble = self._trouble_at >= bulk.queued_at - _SILENT_SECONDS
        self._settle(attempt, *classify(cause, trouble=trouble, own_time=attempt.record.timestamp_ms is not None))

    def _settle(self, attempt: DeliveryAttempt, outcome: Outcome, error: DeliveryError | None) -> None:
        """Settle one message. Only this method sets the outcome."""
        if outcome is _FAILED and attempt.doubtful:
            outcome = _UNKNOWN
        bulk, for_flush = attempt.bulk, attempt.for_flush
        known, own_id = self._by_id[bulk.topic], attempt.message_id or b""
        to_call = [(listener, attempt) for listener in attempt.listeners]
        is_known = known.get(own_id) == attempt.sequence
        attempt.error = error  # no call after this, so no signal handler interrupts; reports may exist now
        attempt.outcome = outcome
        bulk.settled += 1
        bulk.size -= attempt.size
        if is_known:
            del known[own_id]
        self.due += to_call
        if outcome is _DELIVERED:
            attempt.record = None
            if for_flush or to_call:
                self._delivered += 1
        elif for_flush:
            self._undelivered += [attempt]
        if not (to_call or (for_flush and outcome is not _DELIVERED)):
            self.messages -= 1
            self.bytes -= attempt.size
        self._finish_if_settled(bulk)

    def _finish_if_settled(self, bulk: Bulk) -> None:
        if bulk.in_flight or bulk.reservation is not None:
            return
        if not any(attempt.outcome is not _DELIVERED for attempt in bulk.attempts.values()):
            bulk.values = []
        if bulk.of_sends:
            bulk.columns = []  # a flush only counts them
        bulk.over = True
        place = bisect_left(self._bulks, bulk.first, key=_first)
        while place < len(self._bulks) and self._bulks[place] is not bulk:  # an empty bulk has the same first sequence
            place += 1
        del self._bulks[place : place + 1]  # unless a signal handler that sends has removed the bulk
