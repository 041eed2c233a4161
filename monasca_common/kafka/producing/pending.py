# SPDX-License-Identifier: Apache-2.0
"""One message on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from monasca_common.kafka.delivery import Delivery, Outcome
from monasca_common.kafka.errors import DeliveryError, DeliveryTimeout
from monasca_common.kafka.message import Record
from monasca_common.kafka.producing.latch import Latch
from monasca_common.kafka.transport.base import RawMessage

if TYPE_CHECKING:
    from monasca_common.kafka.producing.ledger import Ledger

_DELIVERED = Outcome.DELIVERED  # an enumeration's members are slow to look up


class Watcher(Protocol):
    """Hears, under the ``serving`` lock, that a message was settled."""

    def settled(self, pending: Pending) -> None: ...


class Pending:
    """One message on its way: the callback that librdkafka calls and the record of what happened, in one object.

    ``watchers`` is ``None`` for a send that nobody waits for: of those only the number of delivered is kept.
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
        "successor",
        "topic",
        "watchers",
    )

    ledger: Ledger
    topic: str
    message_id: bytes | None
    record: bytes | Record | None  # as it was handed over, until it is delivered
    key: bytes | None
    size: int  # bytes it takes of the budget
    queued_at: float  # monotonic seconds; a few milliseconds early at most
    watchers: tuple[Watcher, ...] | None
    outcome: Outcome | None  # None: still on its way
    successor: Pending | None  # the same message, sent again
    error: DeliveryError
    partition: int
    offset: int | None

    doubtful = False  # whether an attempt before this one may have been written

    def __call__(self, error: Any, message: RawMessage) -> None:
        # The two common cases, a send and a message of a bulk, are written out; `Ledger.settle_answered` has them all.
        ledger = self.ledger
        watchers = self.watchers
        if error is not None or self.outcome is not None:
            ledger.settle_answered(self, None if error is None else ledger.fault(error), message)
            return
        if watchers is None:
            del ledger.outstanding[self]
            ledger.delivered += 1
            ledger.left_bytes += self.size
            self.record = None
            ledger.spare.append(self)
            if ledger.waiting_for_room:
                ledger.offer_room()
            return
        if len(watchers) == 1 and watchers[0].__class__ is Latch and not ledger.own_ids:
            latch = watchers[0]
            self.partition = message.partition()
            self.offset = message.offset()
        else:
            ledger.settle_answered(self, None, message)
            return
        self.outcome = _DELIVERED
        self.record = None
        del ledger.outstanding[self]
        ledger.left_bytes += self.size
        latch.left -= 1
        if not latch.left:
            ledger.opened.append(latch)
        if ledger.waiting_for_room:
            ledger.offer_room()

    def has_own_time(self) -> bool:
        return isinstance(self.record, Record) and self.record.timestamp_ms is not None

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """What is known of it now."""
        outcome = self.outcome
        if outcome is _DELIVERED:
            return outcome, Delivery(index, self.message_id, self.topic, self.partition, self.offset, None)
        error = self.error if outcome is not None else _still_on_its_way()
        return outcome or Outcome.UNKNOWN, Delivery(index, self.message_id, self.topic, None, None, error)


class DoubtfulPending(Pending):
    """Sent again although an earlier attempt may have been written: whatever refuses it, it never *surely* failed."""

    __slots__ = ()
    doubtful = True


def _still_on_its_way() -> DeliveryError:
    return DeliveryTimeout("no answer within the time given; the message is still on its way")
