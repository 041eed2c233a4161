# SPDX-License-Identifier: Apache-2.0
"""The producer's book: every message that is on its way, the room it takes, and what became of it.

Two locks, because one costs as much as the rest of `send`, which therefore takes neither:
- ``serving`` is held by whoever serves the client, so every delivery callback runs under it; whatever else
  settles messages or hangs a watcher on them takes it as well;
- ``entry`` orders those who reserve room.

A plain send only adds itself to ``outstanding`` and its size to ``entered_bytes``. A plain bulk is in ``bulks``
until it is delivered or somebody asks for its messages; meanwhile ``room_messages`` is less by what it takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.delivery import Outcome, classify
from monasca_common.kafka.errors import DeliveryAbandoned, DeliveryError, TransportError
from monasca_common.kafka.producing.latch import Latch
from monasca_common.kafka.producing.pending import Pending, Watcher
from monasca_common.kafka.transport.base import RawMessage

if TYPE_CHECKING:
    from monasca_common.kafka.producing.bulk import Bulk

# librdkafka reports identical connection errors of a broker once in 30 s: one that it kept silent about came
# within that time after one that it told of.
_SILENT_SECONDS = 35.0
# Undelivered messages that hold no room of the budget (their listener was told, or their caller was interrupted)
# are kept for the next flush, up to this many.
_KEPT_WITHOUT_ROOM = 10_000
_DELIVERED = Outcome.DELIVERED


@dataclass(frozen=True, slots=True)
class Untold:
    """Sends that are undelivered or on their way, how many others were delivered, and a latch on the former."""

    pendings: list[Pending]
    delivered: int
    latch: Latch


class Ledger:
    def __init__(
        self, clock: Clock, fault: Callable[[Any], TransportError], *, budget_messages: int, budget_bytes: int
    ) -> None:
        """``fault`` makes a `TransportError` of the client's own error."""
        self.fault = fault
        self.serving = threading.RLock()
        self.outstanding: dict[Pending, None] = {}  # oldest first
        self.bulks: dict[Bulk, None] = {}  # oldest first; their messages are not in `outstanding`
        # Two counters, each with one kind of writer. `+=` of senders in several threads is not exact by any promise of
        # the language: the budget would be off by a message, no outcome would.
        self.entered_bytes = 0
        self.left_bytes = 0
        self.opened: list[Latch] = []  # by callbacks, since serving began
        self.delivered = 0  # sends that no flush has told of yet
        # Of delivered sends, to be used again while there is traffic: the garbage collector walks over new objects by
        # the hundred thousand, for a quarter of the cost of a send. Nobody else holds them: only watched ones are told.
        self.spare: list[Pending] = []
        self.waiting_for_room: list[tuple[int, int, Latch]] = []
        self.last_error: TransportError | None = None
        self.budget_messages = budget_messages
        self.room_messages = budget_messages  # less bulks, and the undelivered that wait to be told; under `entry`
        self.budget_bytes = budget_bytes
        self.now = clock.monotonic()  # refreshed whenever the client is served: precise enough, and free in `send`
        self._clock = clock
        self._entry = threading.Lock()
        self.own_ids: dict[tuple[str, bytes], Pending] = {}  # callers' own ids that are outstanding
        self._undelivered: list[Pending] = []  # sends that no flush has told of yet; they keep their room
        self._also_undelivered: deque[Pending] = deque(maxlen=_KEPT_WITHOUT_ROOM)
        self._trouble_at = float("-inf")

    def tick(self) -> None:
        self.now = self._clock.monotonic()

    # Room

    @property
    def used_bytes(self) -> int:
        return self.entered_bytes - self.left_bytes

    @property
    def outstanding_messages(self) -> int:
        return len(self.outstanding) + sum([bulk.left for bulk in list(self.bulks)])

    @property
    def busy(self) -> bool:
        return bool(self.outstanding or self.bulks)

    def fits(self, messages: int, size: int) -> bool:
        return len(self.outstanding) + messages <= self.room_messages and self.used_bytes + size <= self.budget_bytes

    @property
    def is_shut(self) -> bool:
        return self.budget_bytes < 0

    def ever_fits(self, messages: int, size: int) -> bool:
        return messages <= self.budget_messages and size <= self.budget_bytes

    def enter(self, pendings: Sequence[Pending], size: int) -> bool:
        """Reserve room for all of them and enter them, or do nothing."""
        with self._entry:
            if not self.fits(len(pendings), size):
                return False
            self.entered_bytes += size
            self.outstanding |= dict.fromkeys(pendings)
            return True

    def enter_bulk(self, bulk: Bulk) -> bool:
        with self._entry:
            if not self.fits(bulk.left, bulk.size):
                return False
            self.entered_bytes += bulk.size
            self.room_messages -= bulk.left
            self.bulks[bulk] = None
            return True

    def break_up(self, bulk: Bulk) -> list[Pending]:
        """From now on its messages are in the book one by one, each as far as it got."""
        with self.serving:
            pendings = bulk.pendings()
            if bulk in self.bulks:
                left = [pending for pending in pendings if pending.outcome is None]
                with self._entry:
                    del self.bulks[bulk]
                    self.outstanding |= dict.fromkeys(left)
                    self.room_messages += len(pendings)
                self.left_bytes += bulk.size - sum([pending.size for pending in left])
                bulk.latch.left = len(left)
            return pendings

    def _all_outstanding(self) -> list[Pending]:
        """Under the ``serving`` lock, and good for as long as it is held: a delivered send is used again."""
        for bulk in list(self.bulks):
            self.break_up(bulk)
        return list(self.outstanding)

    def ask_for_room(self, messages: int, size: int) -> Latch:
        """A latch that opens when there is room for this much."""
        latch = Latch(1)
        with self._entry:
            if not self.ever_fits(messages, size):  # shut since the caller looked
                latch.count_down()
            self.waiting_for_room.append((messages, size, latch))
        if self.fits(messages, size):
            self.offer_room()  # it was made between the caller's look and ours, when nobody was seen waiting
        return latch

    def open_latches(self) -> int:
        """Wake the callers whose bulks are settled, all at once after serving: woken one by one they would contend
        with the remaining callbacks. Under the ``serving`` lock. How many they are."""
        opened, self.opened = self.opened, []
        for latch in opened:
            latch.wake()
        return len(opened)

    def offer_room(self) -> None:
        """Wake those who wait for room, once a quarter is free: one at a time would be a thread switch a message."""
        with self._entry:
            crowded = self.busy and not self.fits(self.budget_messages // 4, self.budget_bytes // 4)
            still_waiting = []
            for waiter in self.waiting_for_room:
                messages, size, latch = waiter
                if self.fits(messages, size) and not crowded:
                    latch.count_down()
                else:
                    still_waiting.append(waiter)
            self.waiting_for_room = still_waiting

    def stop_asking(self, latch: Latch) -> None:
        with self._entry:
            self.waiting_for_room = [waiter for waiter in self.waiting_for_room if waiter[2] is not latch]

    def shut(self) -> None:
        """Nobody enters any more, and those who wait for room learn it."""
        with self._entry:
            self.budget_bytes = -1
            waiting, self.waiting_for_room = self.waiting_for_room, []
        for _, _, latch in waiting:
            latch.count_down()

    def attach(self, own: Sequence[Pending]) -> dict[Pending, Pending]:
        """For messages under a caller's own id: which of them are on their way already, and as what.

        Those get the newcomer's watchers as well, and the newcomer must not be entered.
        """
        attached: dict[Pending, Pending] = {}
        with self.serving:
            for pending in own:
                first = self.own_ids.setdefault((pending.topic, pending.message_id or b""), pending)
                if first is not pending:
                    watchers = (*(first.watchers or ()), *(pending.watchers or ()))
                    sends = not _awaited(pending) or not _awaited(first)
                    if sends and (_awaited(first) or _awaited(pending) or first not in self.outstanding):
                        watchers = (*watchers, self)  # others are told of it; that does not tell its sender
                    first.watchers = watchers
                    attached[pending] = first
        return attached

    def withdraw(self, pending: Pending, error: DeliveryError, own: Sequence[Watcher] = ()) -> None:
        """It was attached to, perhaps, but never entered: those who did hear that it is not sent; ``own`` do not."""
        with self.serving:
            self.own_ids.pop((pending.topic, pending.message_id or b""), None)
            pending.error = error
            pending.outcome = Outcome.FAILED
            for watcher in pending.watchers or ():
                if watcher not in own:
                    watcher.settled(pending)

    # Outcomes

    def trouble(self, error: TransportError) -> None:
        """A client-wide error: from now on a rejection may hide an earlier attempt that was written."""
        self.last_error = error
        self._trouble_at = self._clock.monotonic()

    def settle_answered(self, pending: Pending, error: TransportError | None, message: RawMessage) -> None:
        """The client's word on a message."""
        if pending.outcome is not None:
            return  # given up before
        if error is None:
            pending.partition = message.partition()
            pending.offset = message.offset()
            self._settle(pending, _DELIVERED)
        else:
            trouble = self._trouble_at >= pending.queued_at - _SILENT_SECONDS
            outcome, pending.error = classify(error, trouble=trouble, own_time=pending.has_own_time())
            self._settle(pending, outcome)

    def settle_delivered(self, bulk: Bulk) -> None:
        """All of it was acknowledged; said by the callback of its last message."""
        with self._entry:
            del self.bulks[bulk]
            self.room_messages += len(bulk)
        self.left_bytes += bulk.size
        bulk.records = []
        bulk.latch.left = 0
        self.opened.append(bulk.latch)
        if self.waiting_for_room:
            self.offer_room()

    def settle(self, pendings: Iterable[Pending], outcome: Outcome, error: DeliveryError) -> None:
        """Our own, not the client's, word on messages that are still on their way."""
        with self.serving:
            for pending in pendings:
                if pending.outcome is None:
                    pending.error = error
                    self._settle(pending, outcome)

    def settle_all(self, outcome: Outcome, error: DeliveryError) -> None:
        with self.serving:
            self.settle(self._all_outstanding(), outcome, error)

    def _settle(self, pending: Pending, outcome: Outcome) -> None:
        if outcome is Outcome.FAILED and pending.doubtful:
            outcome = Outcome.UNKNOWN
        if self.own_ids and pending.message_id is not None:
            self.own_ids.pop((pending.topic, pending.message_id), None)
        pending.outcome = outcome
        if outcome is _DELIVERED:
            pending.record = None
        if self._must_be_told(pending, outcome):
            self._undelivered.append(pending)
            self._take_room(1)
            self.outstanding.pop(pending, None)
        elif self.outstanding.pop(pending, pending) is None:
            self.left_bytes += pending.size
        for watcher in pending.watchers or ():
            watcher.settled(pending)
        if self.waiting_for_room:
            self.offer_room()

    def _take_room(self, messages: int) -> None:
        with self._entry:
            self.room_messages -= messages

    def _must_be_told(self, pending: Pending, outcome: Outcome) -> bool:
        """Whether a flush must still tell of this one; what nobody collects must not grow without bound."""
        if _awaited(pending):
            return False
        if outcome is _DELIVERED:
            self.delivered += 1
            return False
        if pending.watchers:
            self._also_undelivered.append(pending)
            return False
        return True

    # Waiting

    def watch(self, pendings: Iterable[Pending]) -> Latch:
        """A latch on all of these that are still on their way."""
        latch = Latch(1)  # counted down at the end, so that it cannot open while it is being hung
        with self.serving:
            for pending in pendings:
                if pending.outcome is None:
                    pending.watchers = (latch, *(pending.watchers or ()))
                    latch.left += 1
            latch.count_down()
        return latch

    def unwatch(self, latch: Latch, pendings: Iterable[Pending]) -> None:
        """Nobody waits on this latch any more: one that is asked about again and again must not collect them."""
        with self.serving:
            for pending in pendings:
                if pending.outcome is None:
                    pending.watchers = tuple(watcher for watcher in pending.watchers or () if watcher is not latch)

    def disown(self, latch: Latch, pendings: Iterable[Pending], delivered: int = 0) -> None:
        """Nobody waits for these any more: a flush tells of them, as of sends, and of ``delivered`` others."""
        with self.serving:
            self.delivered += delivered
            for pending in pendings:
                pending.watchers = tuple(watcher for watcher in pending.watchers or () if watcher is not latch)
                if pending.outcome is None and pending not in self.outstanding:
                    self.withdraw(pending, DeliveryAbandoned("interrupted while it waited for room; it was not sent"))
                if pending.outcome is not None:
                    self.settled(pending)

    def settled(self, pending: Pending) -> None:
        """As a watcher of its messages: a flush tells of this one, which holds no room."""
        if pending.outcome is _DELIVERED:
            self.delivered += 1
        else:
            self._also_undelivered.append(pending)

    def _is_to_be_told(self, pending: Pending) -> bool:
        """Whether a flush is to tell of it; of one that others wait for as well, once."""
        if self in (pending.watchers or ()):
            pending.watchers = tuple(watcher for watcher in pending.watchers or () if watcher is not self)
            return True
        return not _awaited(pending)

    def untold(self, *, watching_all: bool = False) -> Untold:
        """The sends no flush has told of. ``watching_all``: the latch is on what others wait for as well."""
        with self.serving:
            on_their_way = self._all_outstanding() if watching_all else list(self.outstanding)
            waiting = [pending for pending in on_their_way if self._is_to_be_told(pending)]
            undelivered = [*self._undelivered, *self._also_undelivered]
            self.left_bytes += sum(pending.size for pending in self._undelivered)
            self._take_room(-len(self._undelivered))
            self._undelivered.clear()
            self._also_undelivered.clear()
            delivered, self.delivered = self.delivered, 0
            latch = self.watch(on_their_way if watching_all else waiting)
        return Untold(undelivered + waiting, delivered, latch)

    def oldest_age(self) -> float:
        """Seconds since the oldest unacknowledged message was queued; 0 when there is none."""
        queued_at = [pending.queued_at for pending in list(self.outstanding)[:1]]
        queued_at += [bulk.queued_at for bulk in list(self.bulks)[:1]]
        return max(0.0, self._clock.monotonic() - min(queued_at)) if queued_at else 0.0


def _awaited(pending: Pending) -> bool:
    """Whether a caller learns of it by a report: then no flush tells of it."""
    return any(isinstance(watcher, Latch) for watcher in pending.watchers or ())
