# SPDX-License-Identifier: Apache-2.0
"""The producer's book: every message in flight, and the one place that settles it.

The life of a message: **reserved** (it has room, and is in the book), **handed over** (to the client), **settled**
(delivered, failed or unknown, and out of the book). The thread that takes it out of ``outstanding`` owns its outcome.
Its watchers are notified: the call that waits for it, a listener, or the book itself, if the next `flush` reports it.

Two locks, because one costs as much as the rest of `send`, which therefore takes neither:
- ``serving`` is held by the thread that serves the client, so every delivery callback runs under it; everything
  else that settles messages or adds a watcher takes it as well;
- ``budget.lock`` orders reservations.

A plain send only adds itself to ``outstanding`` and its size to ``budget.entered_bytes``. Its callback takes it out;
`Ledger.reckon` frees the room of all that one poll found delivered. A plain bulk is in ``bulks`` until it is delivered
or somebody asks for its messages; meanwhile ``budget.room_messages`` is less by what it takes.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import (
    AuthorizationError,
    DeliveryAbandoned,
    DeliveryError,
    LargerThanBudget,
    TransportError,
)
from monasca_common.kafka.producer.budget import Budget
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.producer.in_flight import Bulk, DoubtfulPending, Latch, Pending, PlainBulk
from monasca_common.kafka.producer.listeners import Listener, Listeners
from monasca_common.kafka.producer.outcome import Outcome, classify
from monasca_common.kafka.producer.stamp import Stamp, Stamped
from monasca_common.kafka.transport.base import RawMessage

LOG = logging.getLogger(__name__)

# librdkafka reports identical connection errors of a broker once in 30 s: one that it kept silent about came
# within that time after one that it reported.
_SILENT_SECONDS = 35.0
# Undelivered messages that were reported elsewhere are kept for the next flush as well, up to this many.
_KEPT_ALTHOUGH_TOLD = 10_000
_queued_at = operator.attrgetter("queued_at")
_DELIVERED, _FAILED, _UNKNOWN = Outcome.DELIVERED, Outcome.FAILED, Outcome.UNKNOWN


@dataclass(slots=True)
class Unreported:
    """What a flush has taken from the book to report it: undelivered or on its way, and how many were delivered."""

    pendings: list[Pending] = field(default_factory=list)
    delivered: int = 0
    latch: Latch = field(default_factory=lambda: Latch(0))  # on those on their way


def let_go(lock: threading.RLock) -> None:
    """Release the lock if Ctrl-C came between its acquisition and the block that releases it: else no other thread
    could have it."""
    with contextlib.suppress(RuntimeError):  # another thread has it
        while True:
            lock.release()


class Ledger:
    def __init__(
        self, clock: Clock, fault: Callable[[Any], TransportError], *, budget_messages: int, budget_bytes: int
    ) -> None:
        """``fault`` converts the client's own error to a `TransportError`."""
        self._fault = fault
        self.serving = threading.RLock()
        self.outstanding: dict[Pending, None] = {}  # as they were entered
        self.bulks: dict[PlainBulk, None] = {}  # as they were entered; their messages are not in `outstanding`
        self.budget = Budget(self.outstanding, max_messages=budget_messages, max_bytes=budget_bytes)
        self.listeners = Listeners()
        self.opened: list[Latch] = []  # by callbacks, since serving began
        self.delivered = 0  # sends that no flush has reported yet
        # Delivered sends, to be used again while there is traffic: the garbage collector walks over new objects by
        # the hundred thousand, for a quarter of the cost of a send. Nobody else holds them: only watched ones are
        # notified.
        self.spare: list[Pending] = []
        self.attentive = False
        self.last_error: TransportError | None = None
        self.finished: TransportError | None = None  # the client's fatal error
        self.now = clock.monotonic()  # refreshed whenever the client is served: precise enough, and free in `send`
        self.own_ids: dict[tuple[str, bytes], Pending] = {}  # callers' own ids that are outstanding
        self.counter: DeliveryCounter | None = None
        self.stamp = Stamp()  # of what gets the client's time, or the caller's
        self.acknowledged: deque[RawMessage] = deque()  # the counter's, where there is one
        self._clock = clock
        self._refusals: dict[str, TransportError] = {}  # topics that this principal may not write to
        self._undelivered: list[Pending] = []  # sends for the next flush; they keep their room
        self._left_behind: list[Pending] = []  # undelivered, of calls that were interrupted
        self._told_undelivered: deque[Pending] = deque(maxlen=_KEPT_ALTHOUGH_TOLD)
        self._cut_short: dict[Pending, None] = {}  # their call was interrupted: the client may never have had them
        self._trouble_at = float("-inf")

    def take_over_serving(self, seconds: float) -> bool:
        """Make sure that ``serving`` is to be had; whether a thread lost it that had it for longer than ``seconds`` of
        real time, because its call of the client hangs. What that brings, if it ever comes back, finds its messages
        settled, and a lock that nobody else uses."""
        lock = self.serving
        try:
            if lock.acquire(timeout=max(0.0, seconds)):
                lock.release()
                return False
        except BaseException:  # Ctrl-C between the two
            let_go(lock)
            raise
        if lock is self.serving:
            LOG.error("a poll or flush of the Kafka client has not come back: messages are settled without it")
            self.serving = threading.RLock()
        return True

    def fault(self, error: Any) -> TransportError:
        """The `TransportError` for the client's own."""
        return self._fault(error)

    def tick(self) -> None:
        self.now = self._clock.monotonic()
        if self.counter is not None:
            self.counter.tick()

    @property
    def outstanding_messages(self) -> int:
        return len(self.outstanding) + sum([bulk.left for bulk in list(self.bulks)])

    @property
    def busy(self) -> bool:
        return bool(self.outstanding or self.bulks)

    def oldest_age(self) -> float:
        """Seconds since the oldest unacknowledged message was queued; 0 when there is none.

        The first of the book need not be the oldest: what waited for room, or was part of a bulk that is broken up, is
        entered behind younger ones. So all are looked at, here and not in `send`.
        """
        return max(0.0, self._clock.monotonic() - self.oldest_queued_at())

    def count_deliveries(self, bucket_seconds: int) -> DeliveryCounter:
        """Count them from now on; call it before anything is sent."""
        self.counter = DeliveryCounter(self, self._clock, bucket_seconds)
        self.acknowledged = self.counter.acknowledged
        self.stamp = self.counter.asking
        return self.counter

    def know(self, topic: str, limit: Stamped) -> None:
        """A topic's limit is known: from now on messages get its stamp."""
        limit.stamp = self.stamp
        if self.counter is not None:
            self.counter.enroll(topic, limit)

    def served(self) -> None:
        """The client was served. Under the ``serving`` lock."""
        self.tick()
        self.reckon()

    def reckon(self) -> None:
        """Do for all sends that callbacks found delivered what is left to do. Under the ``serving`` lock."""
        for stamp in (self.stamp,) if self.counter is None else self.counter.stamps:
            if stamp.delivered:
                self._reckon(stamp)
        if self.attentive:
            self._offer_room_if_it_can()
        if self.counter is not None:
            self.counter.settle()

    def _reckon(self, stamp: Stamp) -> None:
        listed = stamp.delivered
        delivered = listed[:]
        messages, size = len(delivered), sum([pending.size for pending in delivered])
        groups = stamp.grouped_sends(delivered, size)
        # No call from here to the end of the block: nothing of it can be interrupted.
        if stamp.delivered is listed:  # else a signal handler that closes has done it
            stamp.delivered = listed[messages:]
            stamp.groups += groups
            self.delivered += messages
            self.budget.left_bytes += size
            self.spare += delivered

    def oldest_queued_at(self) -> float:
        """When the oldest message in the book was queued; infinity without one."""
        return min(map(_queued_at, [*self.outstanding, *self.bulks]), default=float("inf"))

    # Reserved

    def enter(self, bulk: Bulk | PlainBulk) -> bool:
        """Reserve room for all of it and enter it, or do nothing."""
        messages = len(bulk)
        plain = {bulk: None} if isinstance(bulk, PlainBulk) else {}
        entries = {} if isinstance(bulk, PlainBulk) else dict.fromkeys(bulk.fresh)
        with self.budget.lock:
            if not self.budget.fits(messages, bulk.size):
                return False
            # No call from here to the end of the block: nothing of it can be interrupted.
            self.budget.entered_bytes += bulk.size
            if plain:
                self.budget.room_messages -= messages
                self.bulks |= plain
            else:
                self.outstanding |= entries
            return True

    def ask_for_room(self, messages: int, size: int) -> Latch:
        """A latch that opens when there is room for this much, or can never be any."""
        with self.budget.lock:
            self.attentive = True
            latch = self.budget.ask(messages, size)
        if self.budget.fits(messages, size):
            self._offer_room()  # it was made between the caller's look and ours, when nobody was seen waiting
        return latch

    def stop_asking(self, latch: Latch) -> None:
        with self.budget.lock:
            self.budget.stop_asking(latch)

    def _offer_room(self) -> None:
        with self.budget.lock:
            self.budget.offer()
            self.attentive = bool(self.budget.waiting or self._refusals)

    def _offer_room_if_it_can(self) -> None:
        """Unless another thread has the budget: it may be interrupted by a signal handler that closes, and waits for
        ``serving``. Whoever serves next offers it."""
        lock = self.budget.lock
        try:
            if lock.acquire(blocking=False):
                try:
                    self._offer_room()
                finally:
                    lock.release()
        except BaseException:  # Ctrl-C between the two
            let_go(lock)
            raise

    def shut(self) -> None:
        """Admit no more messages, and wake the callers that wait for room."""
        with self.budget.lock:
            self.budget.shut()

    def break_up(self, bulk: PlainBulk) -> list[Pending]:
        """Replace it in the book by its single messages, each in its current state."""
        with self.serving:
            pendings = bulk.pendings()
            left = dict.fromkeys([pending for pending in pendings if pending.outcome is None])
            messages, messages_left = len(pendings), len(left)
            settled_bytes = bulk.size - sum([pending.size for pending in left])
            delivered = bulk.delivered_part()
            with self.budget.lock:  # no call in this block: nothing of it can be interrupted
                if bulk in self.bulks:
                    del self.bulks[bulk]
                    self.outstanding |= left
                    self.budget.room_messages += messages
                    self.budget.left_bytes += settled_bytes
                    bulk.latch.left = messages_left
                    bulk.stamp.groups += delivered
            return pendings

    def break_up_before_it_is_handed_over(self, bulk: PlainBulk) -> Bulk:
        """Break it up; its messages are all reserved."""
        bulk.instead = Bulk(self.break_up(bulk), bulk.latch)
        return bulk.instead

    def attach(self, own: Sequence[Pending]) -> dict[Pending, Pending]:
        """The messages with a caller's own id that are in flight already, each with the message in flight.

        Those get the newcomer's watchers as well, and the newcomer must not be entered. However often it is sent again,
        a flush reports it once.
        """
        attached: dict[Pending, Pending] = {}
        with self.serving:
            for pending in own:
                first = self.own_ids.setdefault((pending.topic, pending.message_id or b""), pending)
                if first is not pending:
                    if pending.doubtful:
                        first.__class__ = DoubtfulPending  # the same message: an earlier attempt may have been written
                    first.watchers = self._joined(first, pending)
                    attached[pending] = first
        return attached

    def _joined(self, first: Pending, newcomer: Pending) -> tuple[object, ...]:
        """Who hears of the first once the newcomer's watchers do, too; the book at most once. While the first waits for
        room, at most twice: its own sender may yet get `QueueFull`, so that it is not sent."""
        watchers = first.watchers or ()
        most = 1 if first in self.outstanding else 2
        has_enough = watchers.count(self) >= most
        return (*watchers, *[each for each in newcomer.watchers or () if each is not self or not has_enough])

    # Settled

    def settle_answered(self, pending: Pending, error: Any, message: RawMessage) -> None:
        """Settle a message by the client's answer. A repeated call after an interrupt does what is left."""
        if pending.outcome is not None:
            self._tell(pending)
        elif error is None:
            pending.partition = message.partition()
            pending.offset = message.offset()
            if self._refusals:
                self._forget_refusal(pending.topic)
            self._settle(pending, _DELIVERED, message=message)
        else:
            fault = self.fault(error)
            trouble = self._trouble_at >= pending.queued_at - _SILENT_SECONDS
            outcome, pending.error = classify(fault, trouble=trouble, own_time=pending.has_own_time())
            if isinstance(fault, AuthorizationError) and not fault.fatal:
                self._note_refusal(pending.topic, fault)
            self._settle(pending, outcome)

    def settle_delivered(self, bulk: PlainBulk) -> None:
        """Settle a bulk of which all was acknowledged; the callback of its last message calls this."""
        messages = len(bulk)
        groups = bulk.delivered_whole()
        with self.budget.lock:  # no call in this block: nothing of it can be interrupted
            if bulk in self.bulks:
                del self.bulks[bulk]
                self.budget.room_messages += messages
                self.budget.left_bytes += bulk.size
                bulk.records = []
                bulk.stamp.groups += groups
                bulk.latch.left = 0
                self.opened += (bulk.latch,)
        if self.attentive:
            if self._refusals:
                self._forget_refusal(bulk.topic)
            self._offer_room()

    def settle(self, pendings: Iterable[Pending], outcome: Outcome, error: DeliveryError) -> None:
        """Settle messages in the book ourselves, without an answer of the client."""
        with self.serving:
            for pending in pendings:
                if pending.outcome is None:
                    pending.error = error
                    self._settle(pending, outcome)
            self.open_latches()

    def settle_all(self, outcome: Outcome, error: DeliveryError) -> None:
        with self.serving:
            for bulk in list(self.bulks):
                self.break_up(bulk)
            self.settle(list(self.outstanding), outcome, error)

    def refuse(self, bulk: Bulk | PlainBulk, error: DeliveryError) -> None:
        """Settle a bulk that was never entered, because there was no room for it."""
        self.withdraw(bulk.fresh if isinstance(bulk, Bulk) else self.break_up(bulk), error)

    def withdraw(self, pendings: Iterable[Pending], error: DeliveryError, own: Sequence[object] = ()) -> None:
        """Settle messages that were never entered. Callers that attached to one are notified that it is not sent;
        ``own``, the watchers of a call that raises, are not. One that never has room is refused for that."""
        with self.serving:
            for pending in pendings:
                watchers = list(pending.watchers or ())
                for watcher in own:
                    watchers.remove(watcher)
                pending.watchers = tuple(watchers)
                pending.error = self.larger_than_budget(pending) or error
                self._settle(pending, Outcome.FAILED, entered=False)
            self.open_latches()

    def larger_than_budget(self, pending: Pending) -> LargerThanBudget | None:
        """Why the message can never have room, however long it waits; ``None``: it can."""
        most = self.budget.max_bytes
        if self.budget.is_shut or pending.size <= most:
            return None
        return LargerThanBudget(pending.topic, pending.size, most)

    def take_out(self, pending: Pending) -> bool:
        """Undo a send that was not handed over; whether it was still in the book: else a close reports it."""
        with self.budget.lock:
            if pending not in self.outstanding:
                return False
            del self.outstanding[pending]
            self.budget.left_bytes += pending.size
            return True

    def _settle(
        self, pending: Pending, outcome: Outcome, *, entered: bool = True, message: RawMessage | None = None
    ) -> None:
        """Settle a message: the one place that does. Under ``serving``. ``message``: what the client acknowledged."""
        if self.own_ids and self._first(pending) is pending:
            self.own_ids.pop((pending.topic, pending.message_id or b""), None)
        watchers = pending.watchers
        for_flush = watchers is None or self in watchers
        alone = for_flush and all(watcher is self for watcher in watchers or ())
        cut_short = pending in self._cut_short
        with self.budget.lock:
            # From here to the end of the block there is no call: nothing of it can be interrupted.
            if entered:
                if pending not in self.outstanding:
                    return  # its sender has taken it out, and owns its outcome
                del self.outstanding[pending]
            if cut_short:
                del self._cut_short[pending]
            if outcome is _FAILED and pending.doubtful:
                outcome = _UNKNOWN
            pending.outcome = outcome
            if watchers is None:
                pending.watchers = ()
            keeps_room = False
            if outcome is _DELIVERED:
                pending.record = None
                self.delivered += for_flush
                if pending.stamp.asks and message is not None:
                    self.acknowledged += (message,)
                elif self.counter is not None:
                    pending.stamp.kept += (pending,)
            elif cut_short and for_flush:
                self._left_behind += (pending,)
            elif for_flush and alone and entered:
                self._undelivered += (pending,)
                self.budget.room_messages -= 1
                keeps_room = True
            elif for_flush:
                self._told_undelivered += (pending,)
            if entered and not keeps_room:
                self.budget.left_bytes += pending.size
        self._tell(pending)

    def _tell(self, pending: Pending) -> None:
        """Notify the watchers that have not been notified yet that it is settled."""
        while pending.watchers:
            watcher: Any = pending.watchers[0]
            kind = watcher.__class__
            # No call from here to the end of the loop: a watcher that is taken off the list is notified.
            pending.watchers = pending.watchers[1:]
            if kind is Latch:
                watcher.left -= 1
                if not watcher.left:
                    self.opened += (watcher,)
            elif kind is Listener:
                self.listeners.due += ((watcher, pending),)
        if self.listeners.due:
            self.listeners.wake()
        if self.attentive:
            self._offer_room()

    def open_latches(self) -> int:
        """Wake the callers whose bulks are settled, all at once after serving: woken one by one they would contend
        with the remaining callbacks. Under the ``serving`` lock. How many they are."""
        opened = 0
        while self.opened:  # one that is woken twice, because of an interrupt, looks twice
            self.opened[-1].set()
            del self.opened[-1]
            opened += 1
        return opened

    # Errors

    def note_trouble(self, error: TransportError) -> None:
        """A client-wide error: from now on a rejection may hide an earlier attempt that was written."""
        self.last_error = error
        self._trouble_at = self._clock.monotonic()

    def _note_refusal(self, topic: str, error: TransportError) -> None:
        """Note that the topic is refused, until one of its messages is delivered."""
        with self.budget.lock:
            self._refusals[topic] = error
            self.attentive = True
        self.last_error = error

    def _forget_refusal(self, topic: str) -> None:
        """Forget the refusal, because a message of the topic was delivered."""
        if self._refusals.pop(topic, None) is not None and isinstance(self.last_error, AuthorizationError):
            self.last_error = next(iter(self._refusals.values()), None)

    def start_again(self) -> None:
        """Begin with another client: errors of the one before do not count any more."""
        self.finished = self.last_error = None
        self._refusals.clear()
        self._trouble_at = float("-inf")

    # Watchers

    def watch(self, pendings: Iterable[Pending]) -> Latch:
        """A latch on all of these that are still in flight."""
        latch = Latch(1)  # counted down at the end, so that it cannot open while it is being hung
        with self.serving:
            for pending in pendings:
                if pending.outcome is None:
                    pending.watchers = (latch, *([self] if pending.watchers is None else pending.watchers))
                    latch.left += 1
            latch.count_down()
        return latch

    def watch_all(self) -> Latch:
        with self.serving:
            for bulk in list(self.bulks):
                self.break_up(bulk)
            return self.watch(list(self.outstanding))

    def unwatch(self, latch: Latch, pendings: Iterable[Pending]) -> None:
        """Remove a latch that no thread waits on any more, because its caller has a report."""
        with self.serving:
            for pending in pendings:
                if pending.watchers:
                    pending.watchers = tuple([watcher for watcher in pending.watchers if watcher is not latch])

    def collect(self, into: Unreported, *, settled_only: bool = False) -> None:
        """Take what the next flush reports. If the caller is interrupted, it gives back what ``into`` has."""
        with self.serving:
            self.reckon()
            entries = [] if settled_only else list(self.outstanding)
            on_their_way = [pending for pending in entries if self._is_for_flush(pending)]
            latch = Latch(len(on_their_way))
            pendings = [*self._undelivered, *self._left_behind, *self._told_undelivered, *on_their_way]
            held_bytes, held = sum([pending.size for pending in self._undelivered]), len(self._undelivered)
            none_told: deque[Pending] = deque(maxlen=_KEPT_ALTHOUGH_TOLD)
            with self.budget.lock:
                # No call in this block: nothing of it can be interrupted.
                into.latch = latch
                into.pendings = pendings
                into.delivered, self.delivered = self.delivered, 0
                self._undelivered = []
                self._left_behind = []
                self._told_undelivered = none_told
                self.budget.left_bytes += held_bytes
                self.budget.room_messages += held
            for pending in on_their_way:
                pending.watchers = (latch, *[watcher for watcher in pending.watchers or () if watcher is not self])

    def _is_for_flush(self, pending: Pending) -> bool:
        return pending.watchers is None or self in pending.watchers

    def give_back(self, unreported: Unreported) -> None:
        """Give back what an interrupted flush took, so that the next one reports it."""
        with self.serving:
            self.delivered += unreported.delivered
            for pending in unreported.pendings:
                self._leave_to_flush(pending, unreported.latch)

    def leave(self, bulk: Bulk | PlainBulk) -> None:
        """The call that handed it over was interrupted: the next flush reports it. What was not handed over is failed,
        and its room is free; the rest is on its way, unless the client never had it."""
        with self.serving:
            latch = bulk.latch
            if isinstance(bulk, PlainBulk) and bulk.instead is not None:
                bulk = bulk.instead
            if isinstance(bulk, PlainBulk):
                pendings = self.break_up(bulk)
                reserved = pendings[bulk.reserved_from() :]
            else:
                self.unwatch(latch, [self._first(pending) for pending in bulk.pendings])
                pendings = [pending for pending in bulk.fresh if self._first(pending) is pending]
                drawn = [pending for its_own in bulk.reserved.values() for pending in its_own]
                reserved = [pending for pending in drawn if self._first(pending) is pending]
            error = DeliveryAbandoned("interrupted before it was handed over; it was not sent")
            for pending in reserved:
                if pending.outcome is None:
                    self._cut_short[pending] = None
                    pending.watchers = self._watchers_of_flush(pending, latch)
                    pending.error = error
                    self._settle(pending, Outcome.FAILED, entered=pending in self.outstanding)
            given_up = set(reserved)
            for pending in pendings:
                if pending in self.outstanding:
                    self._cut_short[pending] = None
                if pending not in given_up:
                    self._leave_to_flush(pending, latch)
            self.open_latches()

    def _first(self, pending: Pending) -> Pending:
        """The message in flight with the caller's own id, if that is another object."""
        return self.own_ids.get((pending.topic, pending.message_id or b""), pending)

    def _leave_to_flush(self, pending: Pending, latch: Latch) -> None:
        if pending in self.outstanding:
            pending.watchers = self._watchers_of_flush(pending, latch)
        elif pending.outcome is None:
            return  # it was never entered, or it is kept for reuse
        elif pending.outcome is _DELIVERED:
            self.delivered += 1
        else:
            self._left_behind.append(pending)

    def _watchers_of_flush(self, pending: Pending, latch: Latch) -> tuple[object, ...]:
        others = [watcher for watcher in pending.watchers or () if watcher is not latch and watcher is not self]
        return (*others, self)

    def settle_what_no_client_had(self) -> None:
        """After a purge the clients have answered for all that they had: they never had what is left of interrupted
        calls."""
        error = DeliveryAbandoned("interrupted as it was handed over; the client never had it")
        self.settle(list(self._cut_short), Outcome.FAILED, error)
