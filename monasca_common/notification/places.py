# SPDX-License-Identifier: Apache-2.0
"""How many notifications are sent to one method at once, so that a slow receiver keeps few threads and delays no other.

Who finds no place waits for one as long as that is quick. Otherwise it is told when its turn comes: turns of one
method follow each other at the pace of its receiver, so that what waits is not tried again and again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from monasca_common.kafka.clock import Clock

_WORTH_WAITING_SECONDS = 0.25
_MOST_WAIT_SECONDS = 1.0
_SOONEST_TURN_SECONDS = 1.0
_FIRST_GUESS_SECONDS = 0.02  # what a receiver takes of which nothing is known
_WEIGHT = 0.3  # of the latest duration in the mean
_MOST_IDLE = 10_000  # methods that are remembered while nothing is sent to them


class MethodPlace:
    """``turn_seconds``: ``None`` where it may be sent now, else when it may be tried again. Set ``failed`` where the
    receiver did not take it."""

    __slots__ = ("began", "failed", "is_left", "turn_seconds")

    def __init__(self, began: float, turn_seconds: float | None = None) -> None:
        self.began = began
        self.turn_seconds = turn_seconds
        self.is_left = turn_seconds is not None
        self.failed = False


class MethodPlaces:
    """Thread-safe. ``most``: at one method; one that failed last has a single place.

    ``most_turn_seconds``: how far ahead a turn may be.
    """

    def __init__(self, most: int, most_turn_seconds: float, clock: Clock) -> None:
        self._most = most
        self._most_turn_seconds = most_turn_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._methods: dict[str, _Queue] = {}
        self._being_sent: set[str] = set()

    @contextlib.contextmanager
    def place(self, method_id: str, notice_id: str) -> Iterator[MethodPlace]:
        """For one notice, which is never sent twice at once."""
        made = self._enter(method_id, notice_id)
        try:
            yield made
        except BaseException:
            made.failed = True
            raise
        finally:
            if made.turn_seconds is None:
                self.leave(method_id, made)
                with self._lock:
                    self._being_sent.discard(notice_id)

    def leave(self, method_id: str, place: MethodPlace) -> None:
        """Another may be sent; what is still to be recorded of this one takes none of the receiver's time."""
        with self._lock:
            if place.is_left:
                return
            place.is_left = True
            queue = self._methods[method_id]
            queue.began.remove(place.began)
            queue.seconds += (self._clock.monotonic() - place.began - queue.seconds) * _WEIGHT
            queue.failing = place.failed
            queue.freed.notify(1 if place.failed else self._most)

    def _enter(self, method_id: str, notice_id: str) -> MethodPlace:
        with self._lock:
            receiver = self._methods.get(method_id)
            if receiver is None:
                self._forget_idle()
                receiver = self._methods[method_id] = _Queue(self._lock)
            if not self._is_free(receiver) and self._is_worth_waiting(receiver):
                receiver.waiting += 1
                receiver.freed.wait_for(lambda: self._is_free(receiver), _MOST_WAIT_SECONDS)
                receiver.waiting -= 1
            now = self._clock.monotonic()
            if notice_id in self._being_sent or not self._is_free(receiver):
                return MethodPlace(now, self._turn_seconds(receiver, now))
            self._being_sent.add(notice_id)
            receiver.began.append(now)
            return MethodPlace(now)

    def _is_free(self, receiver: _Queue) -> bool:
        return len(receiver.began) < self._limit(receiver)

    def _limit(self, receiver: _Queue) -> int:
        return 1 if receiver.failing else self._most

    def _is_worth_waiting(self, receiver: _Queue) -> bool:
        each = self._seconds(receiver, self._clock.monotonic())
        return (receiver.waiting + 1) * each / self._limit(receiver) <= _WORTH_WAITING_SECONDS

    def _seconds(self, receiver: _Queue, now: float) -> float:
        """What the receiver takes for one: as long as on the average, or as the oldest that is under way."""
        return max(receiver.seconds, now - receiver.began[0] if receiver.began else 0.0)

    def _turn_seconds(self, receiver: _Queue, now: float) -> float:
        receiver.turns_until = max(receiver.turns_until, now) + self._seconds(receiver, now) / self._limit(receiver)
        soonest = min(_SOONEST_TURN_SECONDS, self._most_turn_seconds)
        return max(soonest, min(receiver.turns_until - now, self._most_turn_seconds))

    def _forget_idle(self) -> None:
        if len(self._methods) >= _MOST_IDLE:
            self._methods = {known: each for known, each in self._methods.items() if each.began or each.waiting}


class _Queue:
    """``began``: of those under way, the oldest first. ``seconds``: the mean of what one takes. ``turns_until``: up to
    when turns are given out."""

    __slots__ = ("began", "failing", "freed", "seconds", "turns_until", "waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self.began: deque[float] = deque()
        self.seconds = _FIRST_GUESS_SECONDS
        self.failing = False
        self.waiting = 0
        self.turns_until = 0.0
        self.freed = threading.Condition(lock)
