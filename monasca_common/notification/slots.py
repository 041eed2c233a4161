# SPDX-License-Identifier: Apache-2.0
"""Limits concurrent sends by tenant, by host and by method. Slow receivers therefore occupy few threads, and a tenant
with many hosts and methods does not delay other tenants.

A notification without a free slot waits if a slot is expected soon. Otherwise it gets a *turn*: the time of its next
try. The turns of a receiver are spaced by the duration of its attempts, so that most tries find a free slot.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock

_WORTH_WAITING_SECONDS = 0.25
_MOST_WAIT_SECONDS = 1.0
_SOONEST_TURN_SECONDS = 1.0
_FIRST_GUESS_SECONDS = 0.02  # the assumed duration of the first attempt at a receiver
_WEIGHT = 0.3  # weight of the latest duration in the mean
_MOST_IDLE = 10_000  # maximum number of queues that are kept while nothing is sent
_HANG_SECONDS = 1.0  # after a failed attempt of this duration, the host counts as hanging for every method
_SHARE_OF_HANGING = 4
_MOST_IN_ALL = 4


class TenantSlots:
    """Shares ``most`` slots among tenants. Thread-safe.

    A tenant may hold half of the slots that other tenants do not hold, so slots remain for a tenant that has none. Even
    if no slot is free, a tenant may hold one. All tenants together hold at most `_MOST_IN_ALL` times ``most``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._freed = threading.Condition()

    def limit(self, tenant: str) -> int:
        """Return the number of slots that the tenant may hold now."""
        total = self._held.total()
        least = 1 if total < _MOST_IN_ALL * self._most else 0
        return max(least, (self._most - total + self._held[tenant]) // 2)

    def acquire(self, tenant: str, seconds: float) -> bool:
        """Wait for a slot at most ``seconds``. Return whether the tenant got a slot."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._held[tenant] < self.limit(tenant), seconds):
                return False
            self._held[tenant] += 1
            return True

    def release(self, tenant: str) -> None:
        with self._freed:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
            self._freed.notify_all()


@dataclass(slots=True, eq=False)
class Slot:
    """The right to send. ``turn_seconds``: the delay until the next try; ``None``: the notification may be sent now.

    Set ``sent_since`` when sending begins, and ``failed`` if the receiver does not accept the notification.
    """

    queues: Sequence[_Queue]
    turn_seconds: float | None = None
    sent_since: float | None = None
    failed: bool = False
    is_left: bool = False


class Slots:
    """The slots of all receivers. Thread-safe.

    ``at_method``: the number of slots of a method; 1 after a failed attempt. ``at_destination``: the number of slots of
    a host; a quarter after an attempt that hung. ``most_turn_seconds``: the maximum delay of a turn.
    """

    def __init__(self, at_method: int, at_destination: int, most_turn_seconds: float, clock: Clock) -> None:
        self._at_method = at_method
        self._at_destination = at_destination
        self._most_turn_seconds = most_turn_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}
        self._being_sent: set[str] = set()

    @contextlib.contextmanager
    def slot(self, method_id: str, destination: str, subject: str, tenant: str, threads: TenantSlots) -> Iterator[Slot]:
        """Yield a slot, which is freed at the end of the block.

        Notifications with the same ``subject`` are sent one at a time. ``destination``: the host; empty if the notifier
        opens no connection. ``threads``: the caller's threads, which tenants share.
        """
        slot = self._enter(method_id, destination, subject, tenant, threads)
        try:
            yield slot
        except BaseException:
            slot.failed = True
            raise
        finally:
            if slot.turn_seconds is None:
                self.leave(slot)
                with self._lock:
                    self._being_sent.discard(subject)

    def leave(self, slot: Slot) -> None:
        """Free the slot early, because the receiver has responded and only the outcome remains to be recorded."""
        with self._lock:
            if not slot.is_left:
                slot.is_left = True
                for queue in slot.queues:
                    queue.leave(slot, self._clock.monotonic())

    def _enter(self, method_id: str, destination: str, subject: str, tenant: str, threads: TenantSlots) -> Slot:
        with self._lock:
            if len(self._queues) > _MOST_IDLE:
                self._queues = {key: queue for key, queue in self._queues.items() if queue.is_used}
            queues = self._queues_of(method_id, destination, tenant, threads)
            for queue in queues:
                queue.wait(self._clock.monotonic())
            now = self._clock.monotonic()
            if subject in self._being_sent or not all(queue.is_free for queue in queues):
                turns = [queue.turn_seconds(now, self._most_turn_seconds) for queue in queues if not queue.is_free]
                soonest = min(_SOONEST_TURN_SECONDS, self._most_turn_seconds)
                return Slot((), max([soonest, *turns]))
            self._being_sent.add(subject)
            slot = Slot(queues)
            for queue in queues:
                queue.enter(slot)
            return slot

    def _queues_of(self, method_id: str, destination: str, tenant: str, threads: TenantSlots) -> list[_Queue]:
        def at_method(queue: _Queue) -> int:
            return 1 if queue.is_failing else self._at_method

        def at_destination(queue: _Queue) -> int:
            return max(1, self._at_destination // _SHARE_OF_HANGING) if queue.is_failing else self._at_destination

        def of_tenant(_: _Queue) -> int:
            return threads.limit(tenant)

        queues = [
            self._queue(("method", method_id), at_method),
            self._queue((tenant, threads), of_tenant, threads=(threads, tenant)),
        ]
        if destination:
            queues.append(self._queue(("host", destination), at_destination, tolerated_seconds=_HANG_SECONDS))
        return queues

    def _queue(
        self,
        key: Hashable,
        limit: Callable[[_Queue], int],
        *,
        tolerated_seconds: float = 0.0,
        threads: tuple[TenantSlots, str] | None = None,
    ) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self._lock, limit, tolerated_seconds, threads)
        return queue


class _Queue:
    """The slots of one receiver or tenant, and the number of threads that wait for one. The caller holds the lock.

    ``is_failing``: the last attempt failed and lasted at least ``tolerated_seconds``. ``threads``: the shared slots
    and the tenant. Each slot of this queue takes one of the shared slots for the tenant.
    """

    def __init__(
        self,
        lock: threading.Lock,
        limit: Callable[[_Queue], int],
        tolerated_seconds: float,
        threads: tuple[TenantSlots, str] | None,
    ) -> None:
        self.waiting = 0
        self.is_failing = False
        self._slots: list[Slot] = []
        self._get_limit = limit
        self._tolerated_seconds = tolerated_seconds
        self._threads = threads
        self._mean_seconds = _FIRST_GUESS_SECONDS  # the duration of an attempt
        self._turns_until = 0.0  # the time of the last turn
        self._freed = threading.Condition(lock)

    @property
    def is_free(self) -> bool:
        return len(self._slots) < self._get_limit(self)

    @property
    def is_used(self) -> bool:
        return bool(self._slots or self.waiting)

    def wait(self, now: float) -> None:
        """Wait for a slot if one is expected soon."""
        if self.is_free or (self.waiting + 1) * self._pace_seconds(now) > _WORTH_WAITING_SECONDS:
            return
        self.waiting += 1
        self._freed.wait_for(lambda: self.is_free, _MOST_WAIT_SECONDS)
        self.waiting -= 1

    def enter(self, slot: Slot) -> None:
        self._slots.append(slot)
        if self._threads is not None:
            threads, tenant = self._threads
            threads.acquire(tenant, 0.0)

    def leave(self, slot: Slot, now: float) -> None:
        self._slots.remove(slot)
        if self._threads is not None:
            threads, tenant = self._threads
            threads.release(tenant)
        if slot.sent_since is not None:
            seconds = now - slot.sent_since
            self._mean_seconds += (seconds - self._mean_seconds) * _WEIGHT
            self.is_failing = slot.failed and seconds >= self._tolerated_seconds
        self._freed.notify(self._get_limit(self))

    def turn_seconds(self, now: float, most_turn_seconds: float) -> float:
        """Return the delay until the next turn."""
        self._turns_until = max(self._turns_until, now) + self._pace_seconds(now)
        return min(self._turns_until - now, most_turn_seconds)

    def _pace_seconds(self, now: float) -> float:
        """Return the time between two turns: the mean duration, or the age of the oldest attempt, per slot."""
        since = (slot.sent_since for slot in self._slots if slot.sent_since is not None)
        seconds = max(self._mean_seconds, now - min(since, default=now))
        return seconds / max(1, self._get_limit(self))
