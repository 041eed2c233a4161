# SPDX-License-Identifier: Apache-2.0
"""What is in flight: a message, a plain bulk of messages, and the latch that a caller waits on.

A plain bulk is bytes without headers, under ids of ours, that one caller waits for. While all goes well nobody looks
at one message of it, so it is one entry of the book and its messages share what they have in common: a `Pending` for
each would cost a third of a `publish`. The first answer that is not an acknowledgement, and every other need for
single messages, breaks it up into `Pending`s.

Callbacks are written so that Ctrl-C, which Python raises where one function calls another or a loop begins again,
leaves a message either untouched or settled: what belongs together stands together, with no call in between.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from types import MethodType
from typing import Any, Protocol

from monasca_common.kafka.clock import Signal
from monasca_common.kafka.errors import DeliveryError, DeliveryTimeout, TransportError
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.producer.outcome import Delivery, Outcome
from monasca_common.kafka.producer.stamp import DeliveredGroup, Stamp
from monasca_common.kafka.transport.base import RawMessage


class Latch(Signal):
    """Opens when everything that it was hung on is settled. It is set then, and to have its waiter look in between."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def count_down(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.set()

    @property
    def open(self) -> bool:
        return self.left <= 0


class Room(Protocol):
    """The part of the budget that a callback uses."""

    left_bytes: int


class Book(Protocol):
    """The part of the book that a message uses; `Ledger` has it."""

    outstanding: dict[Pending, None]
    stamp: Stamp
    opened: list[Latch]
    own_ids: dict[tuple[str, bytes], Pending]
    attentive: bool  # whether a delivered send is of interest to anybody beside the next flush
    now: float
    finished: TransportError | None
    counter: DeliveryCounter | None
    acknowledged: deque[RawMessage]

    @property
    def budget(self) -> Room: ...

    def settle_answered(self, pending: Pending, error: Any, message: RawMessage) -> None: ...

    def settle_delivered(self, bulk: PlainBulk) -> None: ...

    def break_up(self, bulk: PlainBulk) -> list[Pending]: ...

    def settle(self, pendings: Iterable[Pending], outcome: Outcome, error: DeliveryError) -> None: ...

    def watch(self, pendings: Iterable[Pending]) -> Latch: ...

    def unwatch(self, latch: Latch, pendings: Iterable[Pending]) -> None: ...

    def fault(self, error: Any) -> TransportError: ...


_DELIVERED = Outcome.DELIVERED  # an enumeration's members are slow to look up


class Pending:
    """One message on its way: the callback that librdkafka calls and the record of what happened, in one object.

    ``watchers`` are notified of its outcome: the latch of a call that waits, a listener, the book itself if the next
    flush reports it. ``None``: only the next flush, and only the number of delivered ones is kept. Once it is settled
    and they are notified, there are none: ``()``.
    """

    # One slotted object a message is what makes knowing every outcome affordable: the benchmarks show each slot.
    __slots__ = (
        "error",
        "key",
        "ledger",
        "message_id",
        "offset",
        "outcome",
        "partition",
        "queued_at",
        "record",
        "size",
        "stamp",
        "successor",
        "topic",
        "value_bytes",
        "watchers",
    )

    ledger: Book
    topic: str
    message_id: bytes | None
    record: bytes | Record | None  # as it was handed over, until it is delivered
    key: bytes | None
    size: int  # bytes it takes of the budget
    value_bytes: int
    stamp: Stamp  # as soon as it is handed over
    queued_at: float  # monotonic seconds; a few milliseconds early at most
    watchers: tuple[object, ...] | None
    outcome: Outcome | None  # None: still on its way
    successor: Pending | None  # the same message, sent again
    error: DeliveryError
    partition: int
    offset: int | None

    doubtful = False  # whether an attempt before this one may have been written

    def __call__(self, error: Any, message: RawMessage) -> None:
        # The two common cases, a delivered send and a delivered message of a bulk, are `Ledger._settle` written out: of
        # a microsecond and of three that a message costs, its calls would be a third.
        ledger, watchers = self.ledger, self.watchers
        if error is None and not ledger.attentive:
            stamp = self.stamp
            if watchers is None:
                # `Ledger.reckon` does the rest for all of them, which costs less.
                if stamp.asks:
                    ledger.acknowledged += (message,)
                del ledger.outstanding[self]
                self.record = None
                stamp.delivered.append(self)
                return
            if len(watchers) == 1 and watchers[0].__class__ is Latch and not ledger.own_ids:
                latch: Any = watchers[0]
                offset, partition = message.offset(), message.partition()
                if stamp.asks:
                    ledger.acknowledged += (message,)
                elif ledger.counter is not None:
                    stamp.kept += (self,)
                self.partition = partition
                self.offset = offset
                self.outcome = _DELIVERED
                self.watchers = ()
                self.record = None
                del ledger.outstanding[self]
                ledger.budget.left_bytes += self.size
                latch.left -= 1
                if not latch.left:
                    ledger.opened += (latch,)
                return
        try:
            ledger.settle_answered(self, error, message)
        except BaseException:  # Ctrl-C: no other callback comes for this message
            ledger.settle_answered(self, error, message)
            raise

    def has_own_time(self) -> bool:
        return isinstance(self.record, Record) and self.record.timestamp_ms is not None

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """The current outcome of the message."""
        outcome = self.outcome
        if outcome is _DELIVERED:
            return outcome, Delivery(index, self.message_id, self.topic, self.partition, self.offset, None)
        error = self.error if outcome is not None else _still_on_its_way()
        return outcome or Outcome.UNKNOWN, Delivery(index, self.message_id, self.topic, None, None, error)

    @property
    def its_producer_is_finished(self) -> bool:
        return self.ledger.finished is not None


class DoubtfulPending(Pending):
    """A message that is sent again although an earlier attempt may have been written: no refusal makes it *failed*."""

    __slots__ = ()
    doubtful = True


def _still_on_its_way() -> DeliveryError:
    return DeliveryTimeout("no answer within the time given; the message is still on its way")


class Bulk:
    """The messages of one call, reserved as a whole. Each message that is still in ``reserved`` is not handed over yet:
    the thread that draws it hands it over, and no other can."""

    __slots__ = ("fresh", "latch", "own", "pendings", "reserved", "size")

    def __init__(
        self,
        pendings: list[Pending],
        latch: Latch | None = None,
        own: Sequence[Pending] = (),
        reserved: Iterable[Pending] | None = None,
    ) -> None:
        """``own``: the messages with the caller's own ids. ``reserved``: by default all of them."""
        self.pendings = pendings
        self.latch = latch or Latch(0)
        self.own = own
        self.take_fresh(pendings, reserved)

    def take_fresh(self, fresh: list[Pending], reserved: Iterable[Pending] | None = None) -> None:
        """Set the messages to be entered; the others are in flight already, with the same ids."""
        self.fresh = fresh
        self.size = sum([pending.size for pending in fresh])
        left = fresh if reserved is None else list(reserved)
        topics = dict.fromkeys([pending.topic for pending in left])
        self.reserved = {
            topic: iter(left if len(topics) == 1 else [pending for pending in left if pending.topic == topic])
            for topic in topics
        }

    def __len__(self) -> int:
        return len(self.fresh)


class PlainBulk:
    """A `Bulk` as one entry of the book."""

    __slots__ = (
        "_offsets",
        "_partitions",
        "_pendings",
        "instead",
        "key",
        "latch",
        "ledger",
        "left",
        "limit",
        "message_ids",
        "overhead_bytes",
        "places",
        "queued_at",
        "records",
        "size",
        "stamp",
        "topic",
    )

    def __init__(
        self,
        ledger: Book,
        topic: str,
        records: list[bytes],
        key: bytes | None,
        message_ids: list[bytes] | None,
        overhead_bytes: int,
        limit: object = None,
    ) -> None:
        """``overhead_bytes``: what a message takes of the budget beside its record. ``limit``: the topic's, which all
        of them keep."""
        self.ledger = ledger
        self.topic = topic
        self.records = records  # until all are delivered
        self.key = key
        self.message_ids = message_ids
        self.overhead_bytes = overhead_bytes
        self.size = sum(map(len, records)) + overhead_bytes * len(records)
        self.limit = limit
        self.instead: Bulk | None = None  # its messages, where they are handed over one by one
        self.queued_at = ledger.now
        self.stamp = ledger.stamp  # until it is handed over
        self.left = len(records)
        self.latch = Latch(len(records))
        self.places = iter(range(len(records)))  # of what is reserved, and not handed over
        self._partitions: list[int | None] = [None] * len(records)  # None: still on its way
        self._offsets: list[int | None] = [None] * len(records)
        self._pendings: list[Pending] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def callbacks(self) -> Iterator[Callable[[Any, RawMessage], None]]:
        """For each message the one that librdkafka calls: of all objects that know their place, the cheapest. Drawing
        one takes its message out of ``places``."""
        partitions, offsets = self._partitions, self._offsets

        def answered(index: int, error: Any, message: RawMessage) -> None:
            if error is not None or self._pendings is not None:
                try:
                    self.ledger.break_up(self)[index](error, message)
                except BaseException:  # Ctrl-C: no other callback comes for this message
                    self.ledger.break_up(self)[index](error, message)
                    raise
                return
            offset, partition = message.offset(), message.partition()
            offsets[index] = offset
            partitions[index] = partition
            self.left -= 1
            if not self.left:
                try:
                    self.ledger.settle_delivered(self)
                except BaseException:  # Ctrl-C: no other callback comes for this bulk
                    self.ledger.settle_delivered(self)
                    raise

        return map(MethodType, repeat(answered), self.places)

    def reserved_from(self) -> int:
        """The index of the first message that is not handed over; they are handed over in order."""
        return len(self) - operator.length_hint(self.places)

    @property
    def is_delivered(self) -> bool:
        """Whether all of it is delivered, and no single message was needed."""
        return not self.left and self._pendings is None

    def delivered_whole(self) -> tuple[DeliveredGroup, ...]:
        """What there is to count of it once all is delivered."""
        if not self.stamp.topic:
            return ()
        value_bytes = self.size - self.overhead_bytes * len(self)
        return (DeliveredGroup(len(self), value_bytes, self.queued_at, self.queued_at),)

    def delivered_part(self) -> tuple[DeliveredGroup, ...]:
        """What there is to count of what is delivered so far."""
        return self.stamp.grouped([pending for pending in self.pendings() if pending.outcome is Outcome.DELIVERED])

    def pendings(self) -> list[Pending]:
        """Its messages, each of which speaks for itself from now on: for `Ledger.break_up`, until all is delivered."""
        if self._pendings is None:
            self._pendings = [self._pending(index) for index in range(len(self))]
        return self._pendings

    def _pending(self, index: int) -> Pending:
        pending = Pending()
        pending.ledger = self.ledger
        pending.topic = self.topic
        pending.key = self.key
        pending.message_id = None if self.message_ids is None else self.message_ids[index]
        pending.queued_at = self.queued_at
        pending.stamp = self.stamp
        pending.watchers = (self.latch,)
        pending.successor = None
        pending.value_bytes = len(self.records[index]) if self.records else 0  # all of it is counted
        partition = self._partitions[index]
        if partition is None:
            pending.record = self.records[index]
            pending.size = pending.value_bytes + self.overhead_bytes
            pending.outcome = None
        else:
            pending.record = None
            pending.size = 0  # of the budget
            pending.outcome = Outcome.DELIVERED
            pending.partition = partition
            pending.offset = self._offsets[index]
        return pending
