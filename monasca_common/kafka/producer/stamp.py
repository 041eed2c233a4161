# SPDX-License-Identifier: Apache-2.0
"""What messages have in common that go to one topic with timestamps of one bucket of event time.

An audit counts what was delivered by topic and bucket. To ask each message for its time once it is acknowledged would
cost a tenth of a `send`. So where a topic's log keeps the time that its sender sets, the producer sets it, and knows
before a message leaves where it will count: its callback only files it under its stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class EventBucket:
    """A span of event time, in milliseconds since 1970: from ``start_ms`` to just before ``end_ms``."""

    __slots__ = ("end_ms", "ended_at", "is_over", "now_ms", "start_ms")

    def __init__(self, start_ms: int = 0, end_ms: int = 0, now_ms: int = 0) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.now_ms = now_ms  # the timestamp to send: always within the bucket. 0: the client's own
        self.is_over = False  # from then on no topic gets a stamp of it
        self.ended_at: float | None = None  # monotonic seconds: from then on no message does


class Counted(Protocol):
    """The part of a message on its way that is counted."""

    size: int
    value_bytes: int
    queued_at: float


class DeliveredGroup(NamedTuple):
    """Messages that were acknowledged together. When the first and the last of them were queued: monotonic seconds."""

    messages: int
    bytes: int
    first_queued_at: float
    last_queued_at: float


class Stamped(Protocol):
    """What has the stamp for the next message to a topic."""

    stamp: Stamp


class Stamp:
    """Callbacks append to it, under the ``serving`` lock; the thread that serves the client then counts."""

    __slots__ = ("asks", "bucket", "delivered", "groups", "kept", "topic", "uniform")

    def __init__(self, topic: str = "", bucket: EventBucket | None = None, *, asks: bool = False) -> None:
        """Without a topic: of messages that are not counted, or, if it ``asks``, that are each asked for their time."""
        self.topic = topic
        self.bucket = bucket or EventBucket()
        self.asks = asks
        self.uniform = True  # whether all its sends take equally much of the budget beside their values
        self.delivered: list[Any] = []  # sends, to be used again
        self.kept: list[Counted] = []  # delivered as well, but their callers keep them
        self.groups: list[DeliveredGroup] = []

    def grouped(self, messages: Sequence[Counted]) -> tuple[DeliveredGroup, ...]:
        """What there is to count of these, in the order in which they were acknowledged."""
        if not (self.topic and messages):
            return ()
        return self._group(messages, sum([message.value_bytes for message in messages]))

    def grouped_sends(self, messages: Sequence[Counted], size: int) -> tuple[DeliveredGroup, ...]:
        """As `grouped`, of sends that take ``size`` bytes of the budget in sum."""
        if not (self.topic and self.uniform):
            return self.grouped(messages)
        return self._group(messages, size - len(messages) * (messages[0].size - messages[0].value_bytes))

    def _group(self, messages: Sequence[Counted], value_bytes: int) -> tuple[DeliveredGroup, ...]:
        return (DeliveredGroup(len(messages), value_bytes, messages[0].queued_at, messages[-1].queued_at),)
