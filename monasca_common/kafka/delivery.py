# SPDX-License-Identifier: Apache-2.0
"""Outcomes: what became of each message that was handed over.

*delivered*: a broker acknowledged it. *failed*: it is surely not in the log. *unknown*: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from monasca_common.kafka.errors import (
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    TransportError,
    UndeliveredError,
)

if TYPE_CHECKING:
    from monasca_common.kafka.producing.bulk import Bulk
    from monasca_common.kafka.producing.pending import Pending

_PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
# Refused for what the message is, not for when or by whom it was sent: sending it again is useless.
_PERMANENT = frozenset({"INVALID_RECORD", "INVALID_MSG"})
# Said of a whole batch for one of its messages: at fault are those whose time is the caller's.
_FOR_ITS_TIME = "INVALID_TIMESTAMP"


class Outcome(Enum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one message. ``index``: its place in the bulk, 0 for a `KafkaProducer.send`.

    ``partition`` and ``offset`` are known once it is delivered (``offset`` may stay ``None`` even then);
    ``error`` tells why it is not.
    """

    index: int
    message_id: bytes | None
    topic: str
    partition: int | None
    offset: int | None
    error: DeliveryError | None


DeliveryListener = Callable[[Delivery], None]


class DeliveryReport:
    """What became of a bulk (or of the sends before a flush), as it was when the report was made.

    It owns the bytes of what is not delivered, so that `KafkaProducer.retry` can send it again under the same
    ids; it does not outlive its process.
    """

    def __init__(
        self, messages: Sequence[Pending] | Bulk, *, delivered_before: int = 0, all_delivered: bool = False
    ) -> None:
        """A `Bulk` is delivered whole, and its messages are made when they are asked for.

        ``delivered_before``: sends that were delivered earlier, of which only the number is kept.
        """
        self._messages = messages
        self._delivered_before = delivered_before
        # What is delivered stays so and is read when asked for; everything else may change, so it is copied now.
        self._undelivered = (
            {}
            if all_delivered or not isinstance(messages, Sequence)
            else {
                index: pending.snapshot(index)
                for index, pending in enumerate(self._pendings)
                if pending.outcome is not Outcome.DELIVERED
            }
        )

    @property
    def _pendings(self) -> Sequence[Pending]:
        return self._messages if isinstance(self._messages, Sequence) else self._messages.pendings()

    @cached_property
    def delivered(self) -> tuple[Delivery, ...]:
        """In the order of the bulk. Sends that were delivered before the flush are only counted."""
        return tuple(
            pending.snapshot(index)[1] for index, pending in enumerate(self._pendings) if index not in self._undelivered
        )

    @cached_property
    def failed(self) -> tuple[Delivery, ...]:
        """Surely not in the log."""
        return tuple(delivery for outcome, delivery in self._undelivered.values() if outcome is Outcome.FAILED)

    @cached_property
    def unknown(self) -> tuple[Delivery, ...]:
        """Perhaps in the log, or still on their way."""
        return tuple(delivery for outcome, delivery in self._undelivered.values() if outcome is Outcome.UNKNOWN)

    @property
    def delivered_count(self) -> int:
        return self._delivered_before + len(self._messages) - len(self._undelivered)

    @property
    def ok(self) -> bool:
        """Whether everything is delivered."""
        return not self._undelivered

    @property
    def retriable(self) -> bool:
        """Whether `KafkaProducer.retry` can deliver any more: not all that is left is refused for good."""
        return any(
            delivery.error is not None and not delivery.error.permanent for _, delivery in self._undelivered.values()
        )

    def raise_for_undelivered(self) -> None:
        """Raise `UndeliveredError`, which carries this report, unless everything is delivered."""
        if self._undelivered:
            raise UndeliveredError(self)

    def __repr__(self) -> str:
        return (
            f"<DeliveryReport delivered={self.delivered_count} failed={len(self.failed)} unknown={len(self.unknown)}>"
        )


def classify(cause: TransportError, *, trouble: bool, own_time: bool = False) -> tuple[Outcome, DeliveryError]:
    """The outcome of a message that the client gave back with ``cause``.

    ``trouble``: a connection error was seen since it was queued, so that an attempt before the one that was
    rejected may have been written. Only what is *surely* not in the log is failed; codes not listed are unknown.
    ``own_time``: its timestamp is the caller's.
    """
    if cause.name in _PURGED:
        return Outcome.UNKNOWN, DeliveryAbandoned("given up by the producer before an answer came")
    if cause.name == "_UNKNOWN_PARTITION":
        return Outcome.FAILED, DeliveryRefused(cause, permanent=False)
    if cause.from_broker and not trouble:
        permanent = cause.name in _PERMANENT or (cause.name == _FOR_ITS_TIME and own_time)
        return Outcome.FAILED, DeliveryRefused(cause, permanent=permanent)
    return Outcome.UNKNOWN, DeliveryRefused(cause, permanent=False)
