# SPDX-License-Identifier: Apache-2.0
"""Counts delivered messages by topic and by buckets of event time, for audits.

The event time of a message is the timestamp of its record. All messages of a plain bulk get the same, so the bulk is
counted as a whole; only on topics whose records keep what their sender sets.

Any other message has the client's, which knows it once the message is acknowledged. To ask for it costs a twentieth of
a `send`, so where all that was acknowledged together must be of one bucket, nobody asks: every message that is in the
book since after the bucket began, with a timestamp of the client's own, is of that bucket or of a later one, and no
later one has begun. Else each message is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.transport.base import RawMessage

_CREATE_TIME = 1
_STEP_MS = 50.0  # the wall clock was set if it moved by more than this against the other clock
_LOOK_SECONDS = 0.05  # how often the book is searched for what is older than the bucket


@dataclass(slots=True)
class DeliveryCount:
    """What was delivered to one topic in one bucket. ``delay_ms``: from timestamps to acknowledgements, in sum; where
    messages were acknowledged together, estimated from the first and the last of them."""

    messages: int = 0
    bytes: int = 0
    delay_ms: int = 0
    max_delay_ms: int = 0

    def add(self, messages: int, size: int, delay_ms: int, max_delay_ms: int) -> None:
        self.messages += messages
        self.bytes += size
        self.delay_ms += delay_ms
        self.max_delay_ms = max(self.max_delay_ms, max_delay_ms)


#: What is delivered of a plain bulk: its topic, its timestamp in milliseconds, the number of messages, their bytes, and
#: one of them.
CountedBulk = tuple[str, int, int, int, RawMessage | None]

#: By topic, and the beginning of a bucket in milliseconds since 1970.
DeliveryCounts = dict[tuple[str, int], DeliveryCount]


class _CountedBook(Protocol):
    """The part of the book that tells how old what is on its way is."""

    def oldest_queued_at(self) -> float: ...


class DeliveryCounter:
    """Callbacks append to what is ``acknowledged``; the thread that serves the client then calls `settle`."""

    def __init__(self, book: _CountedBook, clock: Clock, bucket_seconds: int) -> None:
        self.acknowledged: list[RawMessage] = []  # what is not part of a plain bulk
        self.acknowledged_bulks: list[CountedBulk] = []
        self.stamped_topics: set[str] = set()  # whose records surely keep the timestamp that their sender sets
        self.own_times = False  # whether any message ever had a timestamp of its sender's
        self._book = book
        self._clock = clock
        self._length_ms = bucket_seconds * 1000
        self._lock = threading.Lock()
        self._counts: DeliveryCounts = {}
        self._held: DeliveryCounts | None = None  # of a transaction that is open
        self._bucket_ms = -1
        self._began_at = 0.0
        self._is_sure = False  # whether all in the book is of this bucket, or of a later one
        self._look_at = 0.0
        self._drift_ms = 0.0

    def settle(self) -> None:
        """Count what was acknowledged since the last call. Under the ``serving`` lock."""
        if self.acknowledged_bulks:
            self._settle_bulks()
        if self.acknowledged:
            self._settle_messages()

    def time_ms(self) -> int:
        """The timestamp for messages that are sent now."""
        return self._clock.time_ms()

    def take(self) -> DeliveryCounts:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def begin(self) -> None:
        """A transaction begins: what is delivered in it counts once it is committed."""
        with self._lock:
            self._held = {}

    def end(self, *, committed: bool) -> None:
        with self._lock:
            held, self._held = self._held, None
            for (topic, bucket_ms), count in (held or {}).items() if committed else ():
                self._add(topic, bucket_ms, count.messages, count.bytes, count.delay_ms, count.max_delay_ms)

    def _settle_bulks(self) -> None:
        bulks = self.acknowledged_bulks[:]
        del self.acknowledged_bulks[: len(bulks)]
        now_ms = self._clock.time_ms()
        with self._lock:
            for topic, time_ms, messages, size, message in bulks:
                if message is not None:
                    time_ms = self._time_of(message)
                delay_ms = max(0, now_ms - time_ms)
                self._add(topic, self._bucket(time_ms), messages, size, messages * delay_ms, delay_ms)

    def _settle_messages(self) -> None:
        messages = self.acknowledged[:]
        del self.acknowledged[: len(messages)]
        now, now_ms = self._clock.monotonic(), self._clock.time_ms()
        self._look(now, now_ms)
        with self._lock:
            if not (self._is_sure and not self.own_times and self._count_together(messages, now_ms)):
                self._count_each(messages, now_ms)
        if not self._is_sure and now >= self._look_at:
            # What is acknowledged from now on is in the book at this moment, or enters it later.
            self._is_sure = self._book.oldest_queued_at() >= self._began_at
            self._look_at = now + _LOOK_SECONDS

    def _bucket(self, time_ms: int) -> int:
        """When the bucket of this time began."""
        return time_ms // self._length_ms * self._length_ms

    def _time_of(self, message: RawMessage) -> int:
        """The timestamp of its record; it tells who sets those of its topic."""
        kind, time_ms = message.timestamp()
        if kind == _CREATE_TIME:
            self.stamped_topics.add(message.topic())
        else:
            self.stamped_topics.discard(message.topic())
        return time_ms

    def _look(self, now: float, now_ms: int) -> None:
        """Note whether another bucket has begun, or the clock was set."""
        bucket_ms = self._bucket(now_ms)
        drift_ms = now_ms - now * 1000
        if bucket_ms != self._bucket_ms or abs(drift_ms - self._drift_ms) > _STEP_MS:
            self._bucket_ms, self._began_at, self._is_sure = bucket_ms, now, False
        self._drift_ms = drift_ms

    def _count_together(self, messages: Sequence[RawMessage], now_ms: int) -> bool:
        """Whether they could be counted together: all of one topic, with timestamps of the client."""
        kind: Any = type(messages[0])
        topic, first_ms, last_ms = messages[0].topic(), self._time_of(messages[0]), self._time_of(messages[-1])
        if topic not in self.stamped_topics or len(set(map(kind.topic, messages))) > 1:
            return False
        number = len(messages)
        size = sum(map(len, messages))
        oldest_ms, youngest_ms = max(0, now_ms - first_ms), max(0, now_ms - last_ms)
        delay_ms = number * (oldest_ms + youngest_ms) // 2
        self._add(topic, self._bucket_ms, number, size, delay_ms, max(oldest_ms, youngest_ms))
        return True

    def _count_each(self, messages: Sequence[RawMessage], now_ms: int) -> None:
        for message in messages:
            time_ms = self._time_of(message)
            delay_ms = max(0, now_ms - time_ms)
            self._add(message.topic(), self._bucket(time_ms), 1, len(message), delay_ms, delay_ms)

    def _add(self, topic: str, bucket_ms: int, messages: int, size: int, delay_ms: int, max_delay_ms: int) -> None:
        counts = self._counts if self._held is None else self._held
        count = counts.get((topic, bucket_ms))
        if count is None:
            count = counts[topic, bucket_ms] = DeliveryCount()
        count.add(messages, size, delay_ms, max_delay_ms)
