# SPDX-License-Identifier: Apache-2.0
"""Which partitions of a topic answer, while a message of it is unacknowledged for long: one without leader, perhaps.

Posts have no key, so any partition will do: those that answer get them then, and the one that is stuck stops nobody
but those whose messages it has.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable
from typing import Final

_SLOW_SHARE: Final = 0.2  # of the time after which a topic counts as stalled
_FIRST_TRY_SECONDS: Final = 1.0  # after the topic counts as stalled
_SAMPLE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 600.0
_MOST_REMEMBERED: Final = 100_000  # ids


class AnsweringPartitions:
    """State that takes ``now`` (monotonic seconds). A race between threads costs a post a choice, and no more."""

    def __init__(self, *, stalled_after_seconds: float, try_after_seconds: float) -> None:
        """``try_after_seconds``: after so long a post is left to the client's own choice, to see whether more
        partitions answer, and then ever more seldom, because each may leave its messages with one that is stuck.
        Where none is known to answer, all posts are refused until one has tried: so the first tries soon."""
        self._stalled_after = stalled_after_seconds
        self._slow_after = _SLOW_SHARE * stalled_after_seconds
        self._try_after = self._pause = try_after_seconds
        self._slow = False
        self._try_at = self._first_try_at = 0.0
        self._trying = threading.Lock()
        self._sample_at = float("-inf")
        self._acknowledged: dict[int, float] = {}  # when a post began that this partition has acknowledged
        self._answering: tuple[int, ...] = ()
        self._unanswered: set[bytes] = set()
        self._turns = itertools.count()

    def look(self, oldest_seconds: float, now: float) -> None:
        """``oldest_seconds``: the age of the topic's oldest unacknowledged message."""
        was_slow, self._slow = self._slow, oldest_seconds > self._slow_after
        if not self._slow:
            self._answering = ()
            if was_slow:
                self._unanswered = set()
            return
        if not was_slow:
            self._pause = self._try_after
            self._try_at = now + self._pause
            self._first_try_at = now - oldest_seconds + self._stalled_after + _FIRST_TRY_SECONDS
        # Well after the oldest: what was acknowledged in the moment before all of Kafka froze says nothing.
        since = now - oldest_seconds + self._slow_after / 2
        acknowledged = list(self._acknowledged.items())
        self._answering = tuple([partition for partition, began in acknowledged if began >= since])

    @property
    def any(self) -> bool:
        return bool(self._answering)

    def tries(self, now: float) -> bool:
        """Whether this post is one that tries; the next one is so later, and no other one meanwhile."""
        if now < self._next_try_at():
            return False
        with self._trying:
            if now < self._next_try_at():
                return False
            if now >= self._try_at:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._first_try_at = math.inf
            self._try_at = now + self._pause
            return True

    def _next_try_at(self) -> float:
        return self._try_at if self._answering else min(self._try_at, self._first_try_at)

    def choose(self, now: float) -> int | None:
        """One of those that answer in turn; ``None``: the client chooses."""
        answering = self._answering
        if not answering or self.tries(now):
            return None
        return answering[next(self._turns) % len(answering)]

    def wants_to_know(self, now: float) -> bool:
        """Whether it learns from this post: only now and then while nothing is slow, since it costs to look."""
        if not self._slow and now < self._sample_at:
            return False
        self._sample_at = now + _SAMPLE_SECONDS
        return True

    def acknowledged(self, partitions: Iterable[int], began: float) -> None:
        """``began``: when the post did."""
        for partition in partitions:
            self._acknowledged[partition] = began

    def unanswered(self, chosen: int | None, message_ids: Iterable[bytes | None]) -> None:
        """Messages of a post have no answer. The partition that was ``chosen`` for it is not chosen again, unless they
        had none before: a repeat waits for its first attempt, wherever that went."""
        ids = {message_id for message_id in message_ids if message_id is not None}
        is_repeat = not self._unanswered.isdisjoint(ids)
        if len(self._unanswered) > _MOST_REMEMBERED:
            self._unanswered = set()
        self._unanswered |= ids
        if chosen is not None and not is_repeat:
            self._acknowledged.pop(chosen, None)
            self._answering = tuple([other for other in self._answering if other != chosen])
