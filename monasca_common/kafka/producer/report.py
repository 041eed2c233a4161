# SPDX-License-Identifier: Apache-2.0
"""`DeliveryReport`: the outcomes of a bulk, or of the sends before a flush."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from monasca_common.kafka.errors import Delivery, UndeliveredError
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.table import Bulk, DeliveryAttempt


class DeliveryReport:
    """The outcomes of a bulk (or of the sends before a flush) at the time of the report.

    It owns the bytes of undelivered messages, so that `KafkaProducer.retry` can send them again with the same ids. It
    is valid only in its process.
    """

    def __init__(
        self, attempts: Mapping[int, DeliveryAttempt], *, bulk: Bulk | None = None, delivered_before: int = 0
    ) -> None:
        """``attempts``: messages by their position in the bulk. ``bulk``: the bulk with all other messages, which are
        delivered. ``delivered_before``: the number of delivered sends that are only counted."""
        self._attempts = attempts
        self._bulk = bulk
        self._delivered_before = delivered_before
        # Only the outcomes of delivered messages can no longer change, so all other outcomes are copied now.
        outcomes = {index: attempt.snapshot(index) for index, attempt in attempts.items()}
        self._undelivered = {index: each for index, each in outcomes.items() if each[0] is not Outcome.DELIVERED}

    @cached_property
    def delivered(self) -> tuple[Delivery, ...]:
        """The delivered messages, in the order of the bulk. Sends delivered before the flush are only counted."""
        of_bulk = [] if self._bulk is None else self._bulk.delivered()
        found = [delivery for delivery in of_bulk if delivery.index not in self._attempts]
        found += [
            attempt.snapshot(index)[1] for index, attempt in self._attempts.items() if index not in self._undelivered
        ]
        return tuple(sorted(found, key=lambda delivery: delivery.index))

    @cached_property
    def failed(self) -> tuple[Delivery, ...]:
        """The messages that are definitely not in the log."""
        return tuple(delivery for outcome, delivery in self._undelivered.values() if outcome is Outcome.FAILED)

    @cached_property
    def unknown(self) -> tuple[Delivery, ...]:
        """The messages that may be in the log, or are still in flight."""
        return tuple(delivery for outcome, delivery in self._undelivered.values() if outcome is Outcome.UNKNOWN)

    @property
    def delivered_count(self) -> int:
        messages = len(self._attempts) if self._bulk is None else self._bulk.next - self._bulk.first
        return self._delivered_before + messages - len(self._undelivered)

    @property
    def ok(self) -> bool:
        """Whether all messages are delivered."""
        return not self._undelivered

    @property
    def retriable(self) -> bool:
        """Whether `KafkaProducer.retry` can deliver more: some undelivered messages are not refused permanently, and
        their producer has no fatal error. Another or reopened producer can also retry the report."""
        return any(self._attempts[index].can_be_retried for index in self._undelivered)

    def latest(self) -> dict[int, DeliveryAttempt]:
        """Return the last attempt of each message that has one, for `KafkaProducer.retry`."""
        return {index: attempt.latest for index, attempt in self._attempts.items()}

    def with_attempts(self, latest: Mapping[int, DeliveryAttempt]) -> DeliveryReport:
        """Return a report on the same messages after these attempts."""
        return DeliveryReport(latest, bulk=self._bulk, delivered_before=self._delivered_before)

    def raise_for_undelivered(self) -> None:
        """Raise an `UndeliveredError` with this report unless all messages are delivered."""
        if self._undelivered:
            raise UndeliveredError(self)

    def __repr__(self) -> str:
        return (
            f"<DeliveryReport delivered={self.delivered_count} failed={len(self.failed)} unknown={len(self.unknown)}>"
        )
