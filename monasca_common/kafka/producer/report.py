# SPDX-License-Identifier: Apache-2.0
"""`DeliveryReport`: the outcomes of a bulk, or of the sends before a flush."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from monasca_common.kafka.errors import UndeliveredError, UndeliveredReport, WrongType
from monasca_common.kafka.producer.outcome import Delivery, Outcome


class Reported(Protocol):
    """The part of a message that a report uses; `Pending` has it."""

    outcome: Outcome | None

    def snapshot(self, index: int) -> tuple[Outcome, Delivery]:
        """The current outcome of the message."""
        ...

    @property
    def its_producer_is_finished(self) -> bool:
        """Whether a retry by the producer that sent it cannot deliver it."""
        ...


class DeliveredWhole(Protocol):
    """A delivered bulk, whose messages are created on demand."""

    def __len__(self) -> int: ...

    def pendings(self) -> Sequence[Reported]: ...


class DeliveryReport:
    """The outcomes of a bulk (or of the sends before a flush) at the time of the report.

    It owns the bytes of what is not delivered, so that `KafkaProducer.retry` can send it again under the same
    ids; it does not outlive its process.
    """

    def __init__(self, messages: Sequence[Reported] | DeliveredWhole, *, delivered_before: int = 0) -> None:
        """``delivered_before``: sends that were delivered earlier, of which only the number is kept."""
        self._messages = messages
        self._delivered_before = delivered_before
        # What is delivered stays so and is read when asked for; everything else may change, so it is copied now.
        self._undelivered = (
            {}
            if not isinstance(messages, Sequence)
            else {
                index: pending.snapshot(index)
                for index, pending in enumerate(self._pendings)
                if pending.outcome is not Outcome.DELIVERED
            }
        )

    @property
    def _pendings(self) -> Sequence[Any]:
        return self._messages if isinstance(self._messages, Sequence) else self._messages.pendings()

    @cached_property
    def delivered(self) -> tuple[Delivery, ...]:
        """The delivered messages, in the order of the bulk. Sends that were delivered before the flush are only
        counted."""
        return tuple(
            pending.snapshot(index)[1] for index, pending in enumerate(self._pendings) if index not in self._undelivered
        )

    @cached_property
    def failed(self) -> tuple[Delivery, ...]:
        """The messages that are surely not in the log."""
        return tuple(delivery for outcome, delivery in self._undelivered.values() if outcome is Outcome.FAILED)

    @cached_property
    def unknown(self) -> tuple[Delivery, ...]:
        """The messages that may be in the log, or are still in flight."""
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
        """Whether `KafkaProducer.retry` can deliver any more: not all that is left is refused for good, and its
        producer is not finished by a fatal error. Another producer may retry it, and the same one once reopened."""
        return any(
            delivery.error is not None
            and not delivery.error.permanent
            and not self._pendings[index].its_producer_is_finished
            for index, (_, delivery) in self._undelivered.items()
        )

    def raise_for_undelivered(self) -> None:
        """Raise `UndeliveredError`, which carries this report, unless everything is delivered."""
        if self._undelivered:
            raise UndeliveredError(self)

    def __repr__(self) -> str:
        return (
            f"<DeliveryReport delivered={self.delivered_count} failed={len(self.failed)} unknown={len(self.unknown)}>"
        )


def checked_report(report: UndeliveredReport) -> DeliveryReport:
    """Raises `WrongType` for what no producer made."""
    if not isinstance(report, DeliveryReport):
        raise WrongType(f"report: a report is a DeliveryReport, not {type(report).__name__}")
    return report
