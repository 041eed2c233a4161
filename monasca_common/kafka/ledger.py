# SPDX-License-Identifier: Apache-2.0
"""The producer's book: every message that is on its way, the room it takes, and what became of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.delivery import Delivery, Outcome, classify
from monasca_common.kafka.errors import DeliveryError, DeliveryTimeout, TransportError
from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.base import RawMessage

# librdkafka reports identical connection errors of a broker once in 30 s: one that it kept silent about came
# within that time after one that it told of.
_SILENT_SECONDS = 35.0
# Undelivered sends whose listener was told already are kept for the next flush, up to this many.
_KEPT_AFTER_LISTENER = 10_000


class Watcher(Protocol):
    """Hears, with the ledger's lock held, that a message was settled."""

    def settled(self, pending: Pending) -> None: ...


class Latch:
    """Opens when everything that it was hung on is settled; one thread may wait on ``lock``."""

    __slots__ = ("_guard", "_left", "lock")

    def __init__(self, left: int) -> None:
        self._left = left
        self._guard = threading.Lock()  # what it hangs on may be in the books of several producers
        self.lock = threading.Lock()
        if left:
            self.lock.acquire()

    def settled(self, pending: Pending) -> None:
        self.count_down()

    def count_up(self) -> None:
        with self._guard:
            self._left += 1

    def count_down(self) -> None:
        with self._guard:
            self._left -= 1
            if self._left == 0:
                self.lock.release()

    @property
    def open(self) -> bool:
        return self._left <= 0


class Pending:
    """One message on its way: the callback that librdkafka calls and the record of what happened, in one object.

    ``watchers`` is ``None`` for a send that nobody waits for: of those only the number of delivered is kept.
    """

    # One slotted object a message is what makes knowing every outcome affordable: the benchmarks show each slot.
    __slots__ = (
        "error",
        "key",
        "ledger",
        "message_id",
        "offset",
        "outcome",
        "partition",
        "queued_at",
        "record",
        "size",
        "successor",
        "topic",
        "watchers",
    )

    ledger: Ledger
    topic: str
    message_id: bytes | None
    record: bytes | Record | None  # as it was handed over, until it is delivered
    key: bytes | None
    size: int  # bytes it takes of the budget
    queued_at: float  # monotonic seconds; a few milliseconds early at most
    watchers: tuple[Watcher, ...] | None
    outcome: Outcome | None  # None: still on its way
    successor: Pending | None  # the same message, sent again
    error: DeliveryError
    partition: int
    offset: int

    doubtful = False  # whether an attempt before this one may have been written

    def __call__(self, error: Any, message: RawMessage) -> None:
        ledger = self.ledger
        with ledger.lock:
            if error is None and self.watchers is None and self.outcome is None:
                del ledger.outstanding[self]
                self.outcome = Outcome.DELIVERED
                ledger.used_messages -= 1
                ledger.used_bytes -= self.size
                ledger.delivered += 1
                if ledger.waiting_for_room:
                    ledger.offer_room()
            else:
                ledger.settle_answered(self, None if error is None else ledger.fault(error), message)

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """What is known of it now."""
        outcome = self.outcome
        if outcome is Outcome.DELIVERED:
            offset = self.offset if self.offset >= 0 else None
            return outcome, Delivery(index, self.message_id, self.topic, self.partition, offset, None)
        error = self.error if outcome is not None else _still_on_its_way()
        return outcome or Outcome.UNKNOWN, Delivery(index, self.message_id, self.topic, None, None, error)


class DoubtfulPending(Pending):
    """Sent again although an earlier attempt may have been written: whatever refuses it, it never *surely* failed."""

    __slots__ = ()
    doubtful = True


class Ledger:
    """``lock`` guards everything here, and is never held while the client or a user's code runs."""

    def __init__(
        self, clock: Clock, fault: Callable[[Any], TransportError], *, budget_messages: int, budget_bytes: int
    ) -> None:
        """``fault`` makes a `TransportError` of the client's own error."""
        self.fault = fault
        self.lock = threading.Lock()
        self.outstanding: dict[Pending, None] = {}  # oldest first
        self.own_ids: dict[tuple[str, bytes], Pending] = {}  # callers' own ids that are outstanding
        self.used_messages = 0
        self.used_bytes = 0
        self.delivered = 0  # sends that no flush has told of yet
        self.waiting_for_room: list[tuple[int, int, Latch]] = []
        self.last_error: TransportError | None = None
        self.now = clock.monotonic()  # refreshed whenever the client is served: precise enough, and free in `send`
        self._clock = clock
        self.budget_messages = budget_messages
        self.budget_bytes = budget_bytes
        self._undelivered: list[Pending] = []  # sends that no flush has told of yet; they keep their room
        self._told_by_listener: deque[Pending] = deque(maxlen=_KEPT_AFTER_LISTENER)
        self._trouble_at = float("-inf")

    def tick(self) -> None:
        self.now = self._clock.monotonic()

    # Room

    def fits(self, messages: int, size: int) -> bool:
        return self.used_messages + messages <= self.budget_messages and self.used_bytes + size <= self.budget_bytes

    def ever_fits(self, messages: int, size: int) -> bool:
        return messages <= self.budget_messages and size <= self.budget_bytes

    def admit(
        self, pendings: Sequence[Pending], size: int, own: Sequence[Pending] = ()
    ) -> dict[Pending, Pending] | Latch:
        """Reserve room for all and enter them; without room, a latch that opens when there is some.

        ``own``: those under a caller's own id. Where that id is still outstanding nothing new is entered: the
        result maps the newcomer to the one that is on its way, which now has the newcomer's watchers as well.
        """
        with self.lock:
            if not self.fits(len(pendings), size):
                latch = Latch(1)
                self.waiting_for_room.append((len(pendings), size, latch))
                return latch
            attached: dict[Pending, Pending] = {}
            for pending in own:
                first = self.own_ids.setdefault((pending.topic, pending.message_id or b""), pending)
                if first is not pending:
                    first.watchers = (*(first.watchers or ()), *(pending.watchers or ()))
                    attached[pending] = first
            entered = [pending for pending in pendings if pending not in attached] if attached else pendings
            self.used_messages += len(entered)
            self.used_bytes += size - sum(pending.size for pending in attached)
            self.outstanding.update(dict.fromkeys(entered))
            return attached

    def offer_room(self) -> None:
        """Wake those who wait for room, once a quarter is free: one at a time would be a thread switch a message."""
        crowded = self.used_messages > self.budget_messages * 3 // 4 or self.used_bytes > self.budget_bytes * 3 // 4
        still_waiting = []
        for waiter in self.waiting_for_room:
            messages, size, latch = waiter
            if self.fits(messages, size) and not (crowded and self.outstanding):
                latch.count_down()
            else:
                still_waiting.append(waiter)
        self.waiting_for_room = still_waiting

    def stop_waiting_for_room(self, latch: Latch) -> None:
        with self.lock:
            self.waiting_for_room = [waiter for waiter in self.waiting_for_room if waiter[2] is not latch]

    # Outcomes

    def trouble(self, error: TransportError) -> None:
        """A client-wide error: from now on a rejection may hide an earlier attempt that was written."""
        with self.lock:
            self.last_error = error
            self._trouble_at = self._clock.monotonic()

    def settle_answered(self, pending: Pending, error: TransportError | None, message: RawMessage) -> None:
        """With the lock held: the client's word on a message."""
        if pending not in self.outstanding:
            return  # given up before
        if error is None:
            pending.partition = message.partition()
            pending.offset = message.offset()
            self._settle(pending, Outcome.DELIVERED)
        else:
            trouble = self._trouble_at >= pending.queued_at - _SILENT_SECONDS
            outcome, pending.error = classify(error, trouble=trouble)
            self._settle(pending, outcome)

    def settle(self, pendings: Iterable[Pending], outcome: Outcome, error: DeliveryError) -> None:
        """Ours, not the client's, word on messages that are still outstanding."""
        with self.lock:
            for pending in pendings:
                if pending in self.outstanding:
                    pending.error = error
                    self._settle(pending, outcome)

    def refuse(self, pendings: Iterable[Pending], error: DeliveryError) -> None:
        """Messages that were never admitted."""
        for pending in pendings:
            pending.error = error
            pending.outcome = Outcome.UNKNOWN if pending.doubtful else Outcome.FAILED

    def _settle(self, pending: Pending, outcome: Outcome) -> None:
        if outcome is Outcome.FAILED and pending.doubtful:
            outcome = Outcome.UNKNOWN
        del self.outstanding[pending]
        if self.own_ids and pending.message_id is not None:
            self.own_ids.pop((pending.topic, pending.message_id), None)
        pending.outcome = outcome
        if self._keeps_room(pending, outcome):
            self._undelivered.append(pending)
        else:
            self.used_messages -= 1
            self.used_bytes -= pending.size
        if outcome is Outcome.DELIVERED:
            pending.record = None
        for watcher in pending.watchers or ():
            watcher.settled(pending)
        if self.waiting_for_room:
            self.offer_room()

    def _keeps_room(self, pending: Pending, outcome: Outcome) -> bool:
        """Whether a flush must still tell of this one; what nobody collects must not grow without bound."""
        watchers = pending.watchers or ()
        if any(isinstance(watcher, Latch) for watcher in watchers):
            return False
        if outcome is Outcome.DELIVERED:
            self.delivered += 1
            return False
        if watchers:
            self._told_by_listener.append(pending)
            return False
        return True

    # Waiting

    def watch(self, pendings: Iterable[Pending]) -> Latch:
        """A latch on all of these that are still outstanding, in whichever producer's book."""
        latch = Latch(1)  # counted down at the end, so that it cannot open while it is being hung
        for pending in pendings:
            with pending.ledger.lock:
                if pending.outcome is None:
                    pending.watchers = (*(pending.watchers or ()), latch)
                    latch.count_up()
        latch.count_down()
        return latch

    def untold(self) -> tuple[list[Pending], int, Latch]:
        """The sends no flush has told of: undelivered or outstanding ones, the number delivered, and a latch."""
        latch = Latch(1)
        with self.lock:
            waiting = [pending for pending in self.outstanding if not _told(pending)]
            for pending in waiting:
                pending.watchers = (*(pending.watchers or ()), latch)
                latch.count_up()
            undelivered = [*self._undelivered, *self._told_by_listener]
            self.used_messages -= len(self._undelivered)
            self.used_bytes -= sum(pending.size for pending in self._undelivered)
            self._undelivered.clear()
            self._told_by_listener.clear()
            delivered, self.delivered = self.delivered, 0
        latch.count_down()
        return undelivered + waiting, delivered, latch

    def oldest_age(self) -> float:
        """Seconds since the oldest unacknowledged message was queued; 0 when there is none."""
        with self.lock:
            oldest = next(iter(self.outstanding), None)
            return 0.0 if oldest is None else max(0.0, self._clock.monotonic() - oldest.queued_at)


def _told(pending: Pending) -> bool:
    return any(isinstance(watcher, Latch) for watcher in pending.watchers or ())


def _still_on_its_way() -> DeliveryError:
    return DeliveryTimeout("no answer within the time given; the message is still on its way")
