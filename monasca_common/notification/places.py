# SPDX-License-Identifier: Apache-2.0
"""How many notifications are sent to one method, and to one destination, at once: so that a slow receiver keeps few
threads and delays no other, however many methods lead to it.

Who finds no place waits for one as long as that is quick. Otherwise it is told when its turn comes: turns at one
receiver follow each other at its pace, so that what waits is not tried again and again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from monasca_common.kafka.clock import Clock

_WORTH_WAITING_SECONDS = 0.25
_MOST_WAIT_SECONDS = 1.0
_SOONEST_TURN_SECONDS = 1.0
_FIRST_GUESS_SECONDS = 0.02  # what a receiver takes of which nothing is known
_WEIGHT = 0.3  # of the latest duration in the mean
_MOST_IDLE = 10_000  # methods and destinations that are remembered while nothing is sent to them
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
        self._methods: dict[str, _Queue] = {}
        self._destinations: dict[str, _Queue] = {}
        self._being_sent: set[str] = set()

    @contextlib.contextmanager
    def place(self, method_id: str, destination: str, notice_id: str) -> Iterator[SendingPlace]:
        """For one notice, which is never sent twice at once. ``destination``: empty where nothing is connected to."""
        made = self._enter(method_id, destination, notice_id)
        try:
            yield made
        except BaseException:
            made.failed = True
            raise
        finally:
            if made.turn_seconds is None:
                self.leave(made)
                with self._lock:
                    self._being_sent.discard(notice_id)

    def leave(self, place: SendingPlace) -> None:
        """Another may be sent; what is still to be recorded of this one takes none of the receiver's time."""
        with self._lock:
            if not place.is_left:
                place.is_left = True
                for queue in place.queues:
                    queue.leave(place, self._clock.monotonic())

    def _enter(self, method_id: str, destination: str, notice_id: str) -> SendingPlace:
        with self._lock:
            queues = self._queues(method_id, destination)
            for queue in queues:
                queue.wait(self._clock.monotonic())
            now = self._clock.monotonic()
            if notice_id in self._being_sent or not all(queue.is_free for queue in queues):
                turns = [queue.turn_seconds(now, self._most_turn_seconds) for queue in queues if not queue.is_free]
                soonest = min(_SOONEST_TURN_SECONDS, self._most_turn_seconds)
                return SendingPlace(queues, max([soonest, *turns]))
            self._being_sent.add(notice_id)
            made = SendingPlace(queues)
            for queue in queues:
                queue.places.append(made)
            return made

    def _queues(self, method_id: str, destination: str) -> list[_Queue]:
        self._forget_idle()
        method = self._methods.get(method_id)
        if method is None:
            method = self._methods[method_id] = _Queue(self._lock, self._at_method, 1, 0.0)
        if not destination:
            return [method]
        shared = self._destinations.get(destination)
        if shared is None:
            fewer = max(1, self._at_destination // _SHARE_OF_HANGING)
            shared = self._destinations[destination] = _Queue(self._lock, self._at_destination, fewer, _HANG_SECONDS)
        return [method, shared]

    def _forget_idle(self) -> None:
        if len(self._methods) > _MOST_IDLE:
            self._methods = {known: each for known, each in self._methods.items() if each.is_used}
        if len(self._destinations) > _MOST_IDLE:
            self._destinations = {known: each for known, each in self._destinations.items() if each.is_used}


class _Queue:
    """Who is sent to one receiver, and who waits for that.

    ``fewer``: the limit after a failure that took ``tolerated_seconds`` or longer. The lock is its caller's.
    """

    def __init__(self, lock: threading.Lock, most: int, fewer: int, tolerated_seconds: float) -> None:
        self.places: list[SendingPlace] = []
        self.waiting = 0
        self._most = most
        self._fewer = fewer
        self._tolerated_seconds = tolerated_seconds
        self._is_failing = False
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
        return self._fewer if self._is_failing else self._most

    def wait(self, now: float) -> None:
        """For a place, if one is to be expected soon."""
        if self.is_free or (self.waiting + 1) * self._seconds(now) / self._limit > _WORTH_WAITING_SECONDS:
            return
        self.waiting += 1
        self._freed.wait_for(lambda: self.is_free, _MOST_WAIT_SECONDS)
        self.waiting -= 1

    def leave(self, place: SendingPlace, now: float) -> None:
        self.places.remove(place)
        if place.sent_since is not None:
            seconds = now - place.sent_since
            self._mean_seconds += (seconds - self._mean_seconds) * _WEIGHT
            self._is_failing = place.failed and seconds >= self._tolerated_seconds
        self._freed.notify(self._limit)

    def turn_seconds(self, now: float, most_turn_seconds: float) -> float:
        """When it is the turn of the next one."""
        self._turns_until = max(self._turns_until, now) + self._seconds(now) / self._limit
        return min(self._turns_until - now, most_turn_seconds)

    def _seconds(self, now: float) -> float:
        """What the receiver takes for one: as long as on the average, or as the oldest that is being sent."""
        since = (place.sent_since for place in self.places if place.sent_since is not None)
        return max(self._mean_seconds, now - min(since, default=now))
