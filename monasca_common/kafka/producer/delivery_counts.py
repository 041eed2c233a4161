# SPDX-License-Identifier: Apache-2.0
"""Counts delivered messages by topic and by buckets of event time, for audits.

The event time of a message is the timestamp of its record. Where the log keeps the time that its sender sets, messages
have a `Stamp` that knows their bucket; whether it does is asked of a topic's first message in each bucket. Messages of
which that is not known, those of logs that set their own time, and those with a time of the caller's are asked for
theirs once they are acknowledged.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.producer.stamp import EventBucket, Stamp, Stamped
from monasca_common.kafka.transport.base import RawMessage

_CREATE_TIME = 1


@dataclass(slots=True)
class DeliveryCount:
    """What was delivered to one topic in one bucket. ``delay_ms``: from timestamps to acknowledgements, in sum; where
    messages were acknowledged together, estimated from the first and the last of them."""

    messages: int = 0
    bytes: int = 0
    delay_ms: int = 0
    max_delay_ms: int = 0

    def add(self, messages: int, size: int, delay_ms: int, max_delay_ms: int) -> None:
        most = max(self.max_delay_ms, max_delay_ms)
        # No call from here until the caller deletes what is counted: nothing of it can be interrupted.
        self.messages += messages
        self.bytes += size
        self.delay_ms += delay_ms
        self.max_delay_ms = most


#: By topic, and the beginning of a bucket in milliseconds since 1970.
DeliveryCounts = dict[tuple[str, int], DeliveryCount]


class _CountedBook(Protocol):
    """The part of the book that tells how old what is on its way is."""

    def oldest_queued_at(self) -> float: ...


class DeliveryCounter:
    """Callbacks append to what is ``acknowledged`` and to `Stamp`s; the thread that serves the client then calls
    `settle`."""

    def __init__(self, book: _CountedBook, clock: Clock, bucket_seconds: int) -> None:
        self.acknowledged: deque[RawMessage] = deque()  # to be asked for their time
        self.asking = Stamp(asks=True)
        self.stamps: tuple[Stamp, ...] = (self.asking,)  # of all that is on its way
        self._book = book
        self._clock = clock
        self._length_ms = bucket_seconds * 1000
        self._lock = threading.RLock()  # a signal handler that closes may interrupt its owner
        self._topics: dict[str, Stamped] = {}
        self._bucket = EventBucket()
        self._counts: DeliveryCounts = {}
        self._held: DeliveryCounts | None = None  # of a transaction that is open

    def enroll(self, topic: str, stamped: Stamped) -> None:
        """From now on ``stamped`` has the stamp for messages to the topic."""
        with self._lock:
            self._topics[topic] = stamped
            stamped.stamp = self.asking

    def tick(self) -> None:
        """Refresh the timestamp for messages that are sent now."""
        now_ms = self._clock.time_ms()
        bucket = self._bucket
        if bucket.start_ms <= now_ms < bucket.end_ms:
            bucket.now_ms = now_ms
        else:  # also where the clock was set back
            self._begin_bucket(now_ms)

    def settle(self) -> None:
        """Count what was acknowledged since the last call. Under the ``serving`` lock."""
        for stamp in self.stamps:
            if stamp.kept:
                listed = stamp.kept
                kept = listed[:]
                groups, number = stamp.grouped(kept), len(kept)
                # No call from here to the end of the block: nothing of it can be interrupted.
                if stamp.kept is listed:  # else a signal handler that closes has done it
                    stamp.kept = listed[number:]
                    stamp.groups += groups
            if stamp.groups:
                self._settle_groups(stamp)
        if self.acknowledged:
            self._settle_asked()

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

    def _begin_bucket(self, now_ms: int) -> None:
        """Each topic is asked again how its log keeps time; until its answer, messages are asked for theirs."""
        with self._lock:
            start_ms, before = self._start(now_ms), self._bucket
            self._bucket = EventBucket(start_ms, start_ms + self._length_ms, now_ms)
            for stamped in self._topics.values():
                stamped.stamp = self.asking
            # A message gets its stamp when it is in the book: what has one of the bucket before was queued by now, and
            # is seen in the book.
            before.ended_at = self._clock.monotonic()
            oldest = self._book.oldest_queued_at()
            self.stamps = tuple([stamp for stamp in self.stamps if self._is_in_use(stamp, oldest)])

    def _is_in_use(self, stamp: Stamp, oldest_queued_at: float) -> bool:
        """Whether a message on its way may have it, or one that is not counted yet."""
        if stamp is self.asking or stamp.delivered or stamp.kept or stamp.groups:
            return True
        return stamp.bucket.ended_at is None or oldest_queued_at <= stamp.bucket.ended_at

    def _start(self, time_ms: int) -> int:
        """When the bucket of this time began."""
        return time_ms // self._length_ms * self._length_ms

    def _settle_groups(self, stamp: Stamp) -> None:
        now = self._clock.monotonic()
        with self._lock:
            while stamp.groups:
                messages, size, first_queued_at, last_queued_at = stamp.groups[-1]
                first_ms, last_ms = _milliseconds(now - first_queued_at), _milliseconds(now - last_queued_at)
                delay_ms = messages * (first_ms + last_ms) // 2
                self._add(stamp.topic, stamp.bucket.start_ms, messages, size, delay_ms, max(first_ms, last_ms))
                del stamp.groups[-1]

    def _settle_asked(self) -> None:
        now_ms = self._clock.time_ms()
        with self._lock:
            while self.acknowledged:
                message = self.acknowledged[0]
                topic = message.topic()
                kind, time_ms = message.timestamp()
                self._learn(topic, keeps_time=kind == _CREATE_TIME)
                delay_ms = max(0, now_ms - time_ms)
                self._add(topic, self._start(time_ms), 1, len(message), delay_ms, delay_ms)
                del self.acknowledged[0]

    def _learn(self, topic: str, *, keeps_time: bool) -> None:
        """Whether the topic's log keeps the time that is sent."""
        stamped = self._topics.get(topic)
        if stamped is None:
            return
        if not keeps_time:
            stamped.stamp = self.asking
        elif stamped.stamp is self.asking:
            stamped.stamp = Stamp(topic, self._bucket)
            self.stamps += (stamped.stamp,)

    def _add(self, topic: str, bucket_ms: int, messages: int, size: int, delay_ms: int, max_delay_ms: int) -> None:
        counts = self._counts if self._held is None else self._held
        count = counts.get((topic, bucket_ms))
        if count is None:
            count = counts[topic, bucket_ms] = DeliveryCount()
        count.add(messages, size, delay_ms, max_delay_ms)


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
