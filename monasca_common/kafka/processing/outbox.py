# SPDX-License-Identifier: Apache-2.0
"""Sending what must be acknowledged before anything is committed, however long that takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.dead_letter import can_shrink, shrink
from monasca_common.kafka.delivery import Delivery, DeliveryReport
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryRefused,
    FatalError,
    FencedError,
    MessageTooLarge,
    MessagingError,
    UndeliveredError,
)
from monasca_common.kafka.message import Record
from monasca_common.kafka.processing.lanes import Bell, Lane, Task
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.producing.drafts import PLAIN_OVERHEAD_BYTES
from monasca_common.kafka.settings import ProducerSettings

LOG = logging.getLogger(__name__)

# One wait for acknowledgements; in between it is looked whether the partition is still ours.
_SLICE_SECONDS = 1.0
_REST_SECONDS = 0.1
_BUDGET_SHARE = 4  # a bulk takes a quarter of the producer's budget at most: a whole one would wait for all others


class Abandoned(Exception):
    """The partition was given up while its outputs were on their way."""


class Outbox:
    """Delivers records until they are acknowledged, always under the same ids. Used by the handler threads.

    Raises `UndeliveredError` for records that are refused for what they are (too large, invalid), `Abandoned` once
    the lane is dead, and whatever makes further attempts pointless: a missing permission, a fenced or closed producer.
    """

    def __init__(self, producer: KafkaProducer, clock: Clock) -> None:
        self._producer = producer
        self._clock = clock

    def deliver(self, lane: Lane, _task: Task, outputs: Mapping[str, Sequence[Record]]) -> None:
        for topic, records in outputs.items():
            for portion in portions(records, self._producer.settings):
                self._deliver(lane, topic, portion)

    def bury(self, lane: Lane, _task: Task, topic: str, letters: Sequence[Record]) -> None:
        """`deliver` for dead letters: one that is too large with its origin is cut until it fits."""
        for portion in portions(letters, self._producer.settings):
            shrink_to_fit(portion, lambda left: self._deliver(lane, topic, left))

    def _deliver(self, lane: Lane, topic: str, records: Sequence[Record]) -> None:
        report = self._producer.publish(topic, records, timeout=_SLICE_SECONDS)
        while not report.ok:
            raise_if_pointless(report)
            if lane.dead:
                raise Abandoned
            undelivered = report.failed + report.unknown
            LOG.warning(
                "%d records for %s have no acknowledgement yet: %s", len(undelivered), topic, undelivered[0].error
            )
            if report.failed:
                Bell(self._clock).wait(_REST_SECONDS)
            report = self._producer.retry(report, timeout=_SLICE_SECONDS)


def portions(records: Sequence[Record], settings: ProducerSettings) -> Iterator[Sequence[Record]]:
    """The records in bulks that the producer's budget has room for, however many outputs a batch has."""
    most, most_bytes = max(1, settings.budget_messages // _BUDGET_SHARE), settings.budget_bytes // _BUDGET_SHARE
    start = size = 0
    for index, record in enumerate(records):
        weight = PLAIN_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
        weight += sum(len(name) + len(value or b"") for name, value in record.headers)
        if index > start and (index - start == most or size + weight > most_bytes):
            yield records[start:index]
            start, size = index, 0
        size += weight
    if records:
        yield records[start:]


def raise_if_pointless(report: DeliveryReport) -> None:
    """Raise what no retry of the report can change."""
    undelivered = report.failed + report.unknown
    for cause in filter(None, map(_cause, undelivered)):
        if isinstance(cause, AuthorizationError | AuthenticationError | FencedError | FatalError):
            raise cause
    if any(delivery.error is not None and delivery.error.permanent for delivery in undelivered):
        raise UndeliveredError(report)


def _cause(delivery: Delivery) -> MessagingError | None:
    return delivery.error.cause if isinstance(delivery.error, DeliveryRefused) else None


def shrink_to_fit(letters: Sequence[Record], send: Callable[[Sequence[Record]], None]) -> None:
    """``send`` dead letters; those that are too large with their origin are cut until they are not."""
    while letters:
        try:
            send(letters)
            return
        except UndeliveredError as refused:
            letters = shrunk(letters, refused)


def shrunk(letters: Sequence[Record], refused: UndeliveredError) -> list[Record]:
    """What is left to send: the letters that were too large cut, the others that are undelivered as they were."""
    left = []
    for delivery in refused.report.failed + refused.report.unknown:
        letter, error = letters[delivery.index], delivery.error
        if not isinstance(error, MessageTooLarge):
            if error is not None and error.permanent:
                raise refused
            left.append(letter)
        elif can_shrink(letter):
            left.append(shrink(letter, error.size, error.limit))
        else:
            raise refused
    return left
