# SPDX-License-Identifier: Apache-2.0
"""How many notifications are sent at once for one tenant, to one host and to one method: so that slow receivers keep
few threads and delay no other tenant, however many hosts and methods lead to them.

Who finds no place waits for one as long as that is quick. Otherwise it is told when its turn comes: turns at one
receiver follow each other at its pace, so that what waits is not tried again and again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from monasca_common.kafka.clock import Clock
from monasca_common.notification.shared_slots import SharedSlots

_WORTH_WAITING_SECONDS = 0.25
_MOST_WAIT_SECONDS = 1.0
_SOONEST_TURN_SECONDS = 1.0
_FIRST_GUESS_SECONDS = 0.02  # what a receiver takes of which nothing is known
_WEIGHT = 0.3  # of the latest duration in the mean
_MOST_IDLE = 10_000  # queues that are remembered while nothing is sent
# A failure that took so long kept a thread: the destination hangs, whoever's method it was.
_HANG_SECONDS = 1.0
_SHARE_OF_HANGING = 4


class SendingPlace:
    """``turn_seconds``: ``None`` where it may be sent now, else when it may be tried again. Set ``sent_since`` when
    sending begins, and ``failed`` where the receiver did not take it."""

    __slots__ = ("failed", "is_left", "queues", "sent_since", "turn_seconds")

    def __init__(self, queues: Sequence[_Queue], turn_seconds: float | None = None) -> None:
        self.queues = queues
        self.turn_seconds = turn_seconds
        self.sent_since: float | None = None
        self.is_left = turn_seconds is not None
        self.failed = False


class SendingPlaces:
    """Thread-safe. ``at_method``: at one method at once; one that failed last has a single place. ``at_destination``: a
    quarter of them at one where an attempt hung last.

    ``most_turn_seconds``: how far ahead a turn may be.
    """

    def __init__(self, at_method: int, at_destination: int, most_turn_seconds: float, clock: Clock) -> None:
        self._at_method = at_method
        self._at_destination = at_destination
        self._most_turn_seconds = most_turn_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Hashable, _Queue] = {}
        self._being_sent: set[str] = set()

    @contextlib.contextmanager
    def place(
        self, method_id: str, destination: str, subject: str, tenant: str, threads: SharedSlots
    ) -> Iterator[SendingPlace]:
        """Of one ``subject`` only one notification is sent at once. ``destination``: empty where nothing is connected
        to. ``threads``: those of the caller, which tenants share."""
        made = self._enter(method_id, destination, subject, tenant, threads)
        try:
            yield made
        except BaseException:
            made.failed = True
            raise
        finally:
            if made.turn_seconds is None:
                self.leave(made)
                with self._lock:
                    self._being_sent.discard(subject)

    def leave(self, place: SendingPlace) -> None:
        """Another may be sent; what is still to be recorded of this one takes none of the receiver's time."""
        with self._lock:
            if not place.is_left:
                place.is_left = True
                for queue in place.queues:
                    queue.leave(place, self._clock.monotonic())

    def _enter(self, method_id: str, destination: str, subject: str, tenant: str, threads: SharedSlots) -> SendingPlace:
        with self._lock:
            self._forget_idle()
            queues = [self._method(method_id), self._tenant(tenant, threads)]
            if destination:
                queues.append(self._destination(destination))
            for queue in queues:
                queue.wait(self._clock.monotonic())
            now = self._clock.monotonic()
            if subject in self._being_sent or not all(queue.is_free for queue in queues):
                turns = [queue.turn_seconds(now, self._most_turn_seconds) for queue in queues if not queue.is_free]
                soonest = min(_SOONEST_TURN_SECONDS, self._most_turn_seconds)
                return SendingPlace(queues, max([soonest, *turns]))
            self._being_sent.add(subject)
            made = SendingPlace(queues)
            for queue in queues:
                queue.enter(made)
            return made

    def _method(self, method_id: str) -> _Queue:
        def limit(queue: _Queue) -> int:
            return 1 if queue.is_failing else self._at_method

        return self._queue(("method", method_id), limit)

    def _destination(self, destination: str) -> _Queue:
        fewer = max(1, self._at_destination // _SHARE_OF_HANGING)

        def limit(queue: _Queue) -> int:
            return fewer if queue.is_failing else self._at_destination

        return self._queue(("host", destination), limit, tolerated_seconds=_HANG_SECONDS)

    def _tenant(self, tenant: str, threads: SharedSlots) -> _Queue:
        return self._queue((tenant, threads), lambda _: threads.limit(tenant), held=(threads, tenant))

    def _queue(self, key: Hashable, *arguments: Any, **named: Any) -> _Queue:
        queue = self._known.get(key)
        if queue is None:
            queue = self._known[key] = _Queue(self._lock, *arguments, **named)
        return queue

    def _forget_idle(self) -> None:
        if len(self._known) > _MOST_IDLE:
            self._known = {key: each for key, each in self._known.items() if each.is_used}


class _Queue:
    """Who is sent to one receiver, and who waits for that.

    ``is_failing``: the last attempt failed after ``tolerated_seconds`` or longer. ``held``: of whose slots each place
    takes one. The lock is its caller's.
    """

    def __init__(
        self,
        lock: threading.Lock,
        limit: Callable[[_Queue], int],
        *,
        tolerated_seconds: float = 0.0,
        held: tuple[SharedSlots, str] | None = None,
    ) -> None:
        self.places: list[SendingPlace] = []
        self.waiting = 0
        self.is_failing = False
        self._get_limit = limit
        self._tolerated_seconds = tolerated_seconds
        self._held = held
        self._mean_seconds = _FIRST_GUESS_SECONDS  # of what one takes
        self._turns_until = 0.0  # up to when turns are given out
        self._freed = threading.Condition(lock)

    @property
    def is_free(self) -> bool:
        return len(self.places) < self._limit

    @property
    def is_used(self) -> bool:
        return bool(self.places or self.waiting)

    @property
    def _limit(self) -> int:
        return self._get_limit(self)

    def wait(self, now: float) -> None:
        """For a place, if one is to be expected soon."""
        if self.is_free or (self.waiting + 1) * self._pace(now) > _WORTH_WAITING_SECONDS:
            return
        self.waiting += 1
        self._freed.wait_for(lambda: self.is_free, _MOST_WAIT_SECONDS)
        self.waiting -= 1

    def enter(self, place: SendingPlace) -> None:
        self.places.append(place)
        if self._held is not None:
            threads, tenant = self._held
            threads.acquire(tenant, 0.0)

    def leave(self, place: SendingPlace, now: float) -> None:
        self.places.remove(place)
        if self._held is not None:
            threads, tenant = self._held
            threads.release(tenant)
        if place.sent_since is not None:
            seconds = now - place.sent_since
            self._mean_seconds += (seconds - self._mean_seconds) * _WEIGHT
            self.is_failing = place.failed and seconds >= self._tolerated_seconds
        self._freed.notify(self._limit)

    def turn_seconds(self, now: float, most_turn_seconds: float) -> float:
        """When it is the turn of the next one."""
        self._turns_until = max(self._turns_until, now) + self._pace(now)
        return min(self._turns_until - now, most_turn_seconds)

    def _pace(self, now: float) -> float:
        """The seconds from one turn to the next."""
        return self._seconds(now) / max(1, self._limit)

    def _seconds(self, now: float) -> float:
        """What the receiver takes for one: as long as on the average, or as the oldest that is being sent."""
        since = (place.sent_since for place in self.places if place.sent_since is not None)
        return max(self._mean_seconds, now - min(since, default=now))
