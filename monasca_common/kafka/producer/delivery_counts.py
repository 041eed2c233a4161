# SPDX-License-Identifier: Apache-2.0
"""Counts delivered messages by topic and by buckets of event time, for audits.

The event time of a message is the timestamp of its record. Where the log keeps the time that its sender sets, messages
have a `Stamp` that knows their bucket; whether it does is asked of a topic's first message in each bucket. Messages of
which that is not known, those of logs that set their own time, and those with a time of the caller's are asked for
theirs once they are acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any, Protocol

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


#: By topic, and the beginning of a bucket in milliseconds since 1970.
DeliveryCounts = dict[tuple[str, int], DeliveryCount]


class _CountedBook(Protocol):
    """The part of the book that tells how old what is on its way is."""

    def oldest_queued_at(self) -> float: ...


class DeliveryCounter:
    """Callbacks append to what is ``acknowledged`` and to `Stamp`s; the thread that serves the client then calls
    `settle`.

    It has no lock: a signal handler that closes may interrupt whoever had it. What belongs together stands together,
    with no call in between, so neither another thread nor a handler comes there; what they did before is seen.
    """

    def __init__(self, book: _CountedBook, clock: Clock, bucket_seconds: int) -> None:
        self.acknowledged: deque[RawMessage] = deque()  # to be asked for their time
        self.asking = Stamp(asks=True)
        self.stamps: tuple[Stamp, ...] = (self.asking,)  # of all that is on its way
        self._book = book
        self._clock = clock
        self._length_ms = bucket_seconds * 1000
        self._topics: dict[str, Stamped] = {}
        self._bucket = EventBucket()
        self._counts: DeliveryCounts = {}
        self._held: DeliveryCounts | None = None  # of a transaction that is open

    def enroll(self, topic: str, stamped: Stamped) -> None:
        """From now on ``stamped`` has the stamp for messages to the topic."""
        stamped.stamp = self.asking
        before = self._topics.get(topic)
        self._topics[topic] = stamped
        if before is not None:
            before.stamp = self.asking  # a sender may still have it

    def tick(self) -> None:
        """Refresh the timestamp for messages that are sent now."""
        now_ms = self._clock.time_ms()
        bucket = self._bucket
        if bucket.start_ms <= now_ms < bucket.end_ms and not bucket.is_over:
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
                # No call from here to the end of the block.
                if stamp.kept is listed:
                    stamp.kept = listed[number:]
                    stamp.groups += groups
            while self._settle_group(stamp):
                pass
        while self._settle_asked():
            pass

    def take(self) -> DeliveryCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, {}
        return {key: count for key, count in list(counts.items()) if count.messages}

    def begin(self) -> None:
        """A transaction begins: what is delivered in it counts once it is committed."""
        self._held = {}

    def end(self, *, committed: bool) -> None:
        held, self._held = self._held, None
        left = deque((held or {}).items() if committed else ())
        while left:
            key, count = left[0]
            self._count(left, left[0], key, count)

    def _begin_bucket(self, now_ms: int) -> None:
        """Each topic is asked again how its log keeps time; until its answer, messages are asked for theirs.

        Interrupted before the bucket is the current one, it is begun again by the next tick.
        """
        before = self._bucket
        before.is_over = True
        for stamped in list(self._topics.values()):
            stamped.stamp = self.asking
        # A message gets its stamp when it is in the book: what has one of the bucket before was queued by now, and is
        # seen in the book.
        before.ended_at = self._clock.monotonic()
        start_ms = self._start(now_ms)
        bucket = EventBucket(start_ms, start_ms + self._length_ms, now_ms)
        if self._bucket is before:
            self._bucket = bucket
        self._forget_unused_stamps()

    def _forget_unused_stamps(self) -> None:
        oldest = self._book.oldest_queued_at()
        stamps = self.stamps
        used = tuple([stamp for stamp in stamps if self._is_in_use(stamp, oldest)])
        if self.stamps is stamps:  # else the next bucket does it
            self.stamps = used

    def _is_in_use(self, stamp: Stamp, oldest_queued_at: float) -> bool:
        """Whether a message on its way may have it, or one that is not counted yet."""
        if stamp is self.asking or stamp.delivered or stamp.kept or stamp.groups:
            return True
        return stamp.bucket.ended_at is None or oldest_queued_at <= stamp.bucket.ended_at

    def _start(self, time_ms: int) -> int:
        """When the bucket of this time began."""
        return time_ms // self._length_ms * self._length_ms

    def _settle_group(self, stamp: Stamp) -> bool:
        """Whether there was one. No call between the two looks at the groups: a handler that closes takes them all."""
        if not stamp.groups:
            return False
        group = stamp.groups[0]
        now = self._clock.monotonic()
        first_ms, last_ms = _milliseconds(now - group.first_queued_at), _milliseconds(now - group.last_queued_at)
        delay_ms = group.messages * (first_ms + last_ms) // 2
        count = DeliveryCount(group.messages, group.bytes, delay_ms, max(first_ms, last_ms))
        self._count(stamp.groups, group, (stamp.topic, stamp.bucket.start_ms), count)
        return True

    def _settle_asked(self) -> bool:
        """As `_settle_group`, of messages that are asked."""
        if not self.acknowledged:
            return False
        message = self.acknowledged[0]
        topic = message.topic()
        kind, time_ms = message.timestamp()
        self._learn(topic, keeps_time=kind == _CREATE_TIME)
        delay_ms = max(0, self._clock.time_ms() - time_ms)
        count = DeliveryCount(1, len(message), delay_ms, delay_ms)
        self._count(self.acknowledged, message, (topic, self._start(time_ms)), count)
        return True

    def _learn(self, topic: str, *, keeps_time: bool) -> None:
        """Whether the topic's log keeps the time that is sent."""
        stamped = self._topics.get(topic)
        if stamped is None:
            return
        if not keeps_time:
            stamped.stamp = self.asking
        elif stamped.stamp is self.asking and not self._bucket.is_over:
            stamp = Stamp(topic, self._bucket)
            self.stamps += (stamp,)
            if not stamp.bucket.is_over:
                stamped.stamp = stamp
            if self._topics.get(topic) is not stamped:
                stamped.stamp = self.asking

    def _count(self, queue: MutableSequence[Any], head: object, key: tuple[str, int], delivered: DeliveryCount) -> None:
        """Count the head of a queue and take it off, unless another thread, or a signal handler, did meanwhile."""
        counts = self._counts if self._held is None else self._held
        count = counts.setdefault(key, DeliveryCount())
        most = max(count.max_delay_ms, delivered.max_delay_ms)
        # No call from here on. If the counts were taken meanwhile, the caller, who finds the head still there, calls
        # again.
        if queue and queue[0] is head and counts is (self._counts if self._held is None else self._held):
            count.messages += delivered.messages
            count.bytes += delivered.bytes
            count.delay_ms += delivered.delay_ms
            count.max_delay_ms = most
            del queue[0]


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
