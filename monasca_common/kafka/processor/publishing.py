# SPDX-License-Identifier: Apache-2.0
"""Sending what must be acknowledged before anything is committed, however long that takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from monasca_common.kafka.clock import Clock, Signal
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryRefused,
    FatalError,
    FencedError,
    MessagingError,
    UndeliveredError,
)
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import Record
from monasca_common.kafka.processor.dead_letters import shrunk
from monasca_common.kafka.processor.queues import Lane, Task
from monasca_common.kafka.producer.outcome import Delivery
from monasca_common.kafka.producer.outgoing import portions
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport

LOG = logging.getLogger(__name__)

# One wait for acknowledgements; in between it is looked whether the partition is still ours.
_SLICE_SECONDS = 1.0
_REST_SECONDS = 0.1


class Abandoned(Exception):
    """The partition was given up while its outputs were on their way."""


class AcknowledgedPublisher:
    """Delivers records until they are acknowledged, always under the same ids. Used by the handler threads.

    Raises `UndeliveredError` for records that are refused for what they are (too large, invalid), `Abandoned` once
    the lane is dead, and whatever makes further attempts pointless: a missing permission, a fenced or closed producer.
    """

    def __init__(self, producer: KafkaProducer, clock: Clock, log_limit: LogLimit) -> None:
        self._producer = producer
        self._clock = clock
        self._log_limit = log_limit

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
            error = undelivered[0].error
            more = self._log_limit.admit("acknowledgement", topic, type(error).__name__)
            if more is not None:
                LOG.warning("%d records for %s have no acknowledgement yet: %s%s", len(undelivered), topic, error, more)
            if report.failed:
                Signal().wait(self._clock, _REST_SECONDS)
            report = self._producer.retry(report, timeout=_SLICE_SECONDS)


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
