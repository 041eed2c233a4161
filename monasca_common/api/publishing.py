# SPDX-License-Identifier: Apache-2.0
"""Publishes a request's messages; an error response counts the delivered, failed and unknown messages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from monasca_common.api.limits import RETRY_AFTER_SECONDS, RequestSlots, request_slots
from monasca_common.api.log_fields import Reason
from monasca_common.api.problems import Problem, too_large, unavailable
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import DeliveryReport, MessageTooLarge, PooledProducer, ProducerPool, QueueFull, Record
from monasca_common.models.errors import Violation

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """Messages for one topic. Posted messages have no keys: their partition does not matter, because storage orders
    metrics by version, and a key would send all messages of a tenant to one partition."""

    topic: str
    records: Sequence[bytes | Record]


class TopicRequestSlots:
    """The slots for posts that wait for Kafka: some are reserved per topic, and all topics share the others.
    Thread-safe."""

    def __init__(self, slots: RequestSlots) -> None:
        self._own, self._common = slots.own_of_topic, slots.common
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, topic: str) -> bool:
        """Take a slot if one is free, and return whether one was."""
        with self._lock:
            taken = self._taken.get(topic, 0)
            if taken >= self._own:
                if not self._common:
                    return False
                self._common -= 1
            self._taken[topic] = taken + 1
            return True

    def give_back(self, topic: str) -> None:
        with self._lock:
            self._taken[topic] -= 1
            if self._taken[topic] >= self._own:
                self._common += 1


class Publishing:
    """Publishes the messages of requests; shared by the threads of a worker."""

    def __init__(self, producers: ProducerPool, settings: ApiSettings) -> None:
        self._producers = producers
        self._slots = TopicRequestSlots(request_slots(settings))
        self._seconds = settings.publish_timeout_seconds

    def publish(self, *bulks: TopicMessages, keyed: bool) -> None:
        """Publish messages, and return after all are acknowledged. The slots of all topics are taken before any message
        is sent. Raises `Problem`, with the counts if messages were sent: 503, or 413 for too many messages, or if all
        undelivered messages are too large for Kafka.

        ``keyed``: an earlier request may already have sent messages with these ids.
        """
        reports = self.attempt(*bulks, keyed=keyed)
        if not all(report.ok for report in reports):
            raise _undelivered(reports)

    def publish_fitting(self, bulk: TopicMessages, indices: Sequence[int], *, keyed: bool) -> list[Violation]:
        """Publish like `publish`, but return a violation for each message that is too large for Kafka. ``indices``: the
        positions of the messages in the request."""
        [report] = self.attempt(bulk, keyed=keyed)
        large = [
            Violation(f"item {indices[failed.index]}", f"has {error.size} bytes: at most {error.limit} are allowed")
            for failed in report.failed
            if isinstance(error := failed.error, MessageTooLarge)
        ]
        if len(large) < len(report.failed) + len(report.unknown):
            raise _undelivered([report])
        return large

    def attempt(self, *bulks: TopicMessages, keyed: bool) -> list[DeliveryReport]:
        """Publish like `publish`, but return a report for each bulk that has messages.

        Raises `Problem` if no message was sent: 503, or 413 for more messages than can be in flight.
        """
        pending: list[tuple[PooledProducer, TopicMessages]] = []
        try:
            for bulk in bulks:
                producer = self._producers.of(bulk.topic)
                count, most = len(bulk.records), producer.producer.settings.budget_messages
                if count > most:  # the producer never has room for them
                    raise too_large(
                        f"the request has {count} messages, more than budget_messages in group [kafka], {most}: send "
                        "it in parts"
                    )
                # Refuse posts to a stalled topic immediately, so that a hung broker does not occupy threads and memory.
                if not producer.accepts():
                    raise _refused(f"{bulk.topic} does not acknowledge messages", bulks, keyed=keyed)
                if not self._slots.take(bulk.topic):
                    raise _refused(f"{bulk.topic} has reached its limit of waiting requests", bulks, keyed=keyed)
                pending.append((producer, bulk))
            deadline = time.monotonic() + self._seconds
            reports = []
            while pending:
                producer, bulk = pending[0]
                if bulk.records:
                    report = producer.publish(bulk.records, max(0.0, deadline - time.monotonic()))
                    is_refused = report.failed and isinstance(report.failed[0].error, QueueFull)
                    if is_refused and (left := deadline - time.monotonic()) > 0:
                        # The messages are larger than the whole budget; a retry sends them in parts.
                        report = producer.producer.retry(report, timeout=left)
                    reports.append(report)
                # Release the slot now, so that no request holds a slot of one topic while it waits for another.
                pending.pop(0)
                self._slots.give_back(bulk.topic)
        finally:
            for _, bulk in pending:
                self._slots.give_back(bulk.topic)
        return reports


def _refused(reason: str, bulks: Sequence[TopicMessages], *, keyed: bool) -> Problem:
    messages = sum(len(bulk.records) for bulk in bulks)
    failed, unknown = (0, messages) if keyed else (messages, 0)
    return unavailable(
        f"Kafka's topic {reason}, so no message of this request was sent: repeat the request later",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        reason=Reason.KAFKA,
        details={"delivered": 0, "failed": failed, "unknown": unknown},
    )


def _undelivered(reports: Sequence[DeliveryReport]) -> Problem:
    failed = [delivery for report in reports for delivery in report.failed]
    undelivered = [*failed, *(delivery for report in reports for delivery in report.unknown)]
    delivered = sum(report.delivered_count for report in reports)
    counts = {"delivered": delivered, "failed": len(failed), "unknown": len(undelivered) - len(failed)}
    LOG.warning("%d messages of a request were not delivered; first error: %s", len(undelivered), undelivered[0].error)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    if all(isinstance(delivery.error, MessageTooLarge) for delivery in undelivered):
        return too_large(
            f"messages of the request: {counted}; the failed ones exceed Kafka's maximum size: make them smaller "
            f"({undelivered[0].error})",
            details=counts,
        )
    return unavailable(
        f"messages of the request: {counted} (failed: not stored; unknown: possibly stored): repeat the request, with "
        "an Idempotency-Key so that no message is stored twice",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        reason=Reason.KAFKA,
        details=counts,
    )
