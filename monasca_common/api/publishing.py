# SPDX-License-Identifier: Apache-2.0
"""Publishes a request's messages; the answer says how many are delivered, failed or unknown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monasca_common.api.limits import RETRY_AFTER_SECONDS, RequestSlots, request_slots
from monasca_common.api.log_fields import Reason
from monasca_common.api.problems import Problem, unavailable
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import DeliveryReport, MessageTooLarge, PooledProducer, ProducerPool, Record

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """Messages for one topic. They have no key: which partition a metric takes means nothing, since the version
    says what is stored last, and a tenant's key would put the largest tenant into one partition."""

    topic: str
    records: Sequence[bytes | Record]


class TopicRequestSlots:
    """Of the posts that wait for Kafka: some are each topic's own, the others are common. Thread-safe."""

    def __init__(self, slots: RequestSlots) -> None:
        self._own, self._common = slots.own_of_topic, slots.common
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, topic: str) -> bool:
        """Return whether there was one."""
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
    """Publishes for requests; shared by the threads of a worker."""

    def __init__(
        self,
        producers: ProducerPool,
        settings: ApiSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producers = producers
        self._slots = TopicRequestSlots(request_slots(settings))
        self._seconds = settings.publish_timeout_seconds
        self._monotonic = monotonic

    def publish(self, *bulks: TopicMessages, keyed: bool) -> None:
        """Return once every message is acknowledged. Raises `Problem`: 503 (or 413, for a message that no retry can
        deliver), with the counts. Before anything is sent all of its topics have a slot for it.

        ``keyed``: the messages have ids that an earlier request may have used.
        """
        reports = self.attempt(*bulks, keyed=keyed)
        if not all(report.ok for report in reports):
            raise _undelivered(reports)

    def attempt(self, *bulks: TopicMessages, keyed: bool) -> list[DeliveryReport]:
        """As `publish`, for who needs to know which messages are acknowledged: a report for each bulk that has any.

        Raises `Problem` (503) where nothing was sent.
        """
        entered: list[tuple[PooledProducer, TopicMessages]] = []
        try:
            for bulk in bulks:
                producer = self._producers.of(bulk.topic)
                # Nobody waits for a stalled topic: a frozen broker must not take a thread and a body of each client.
                if not producer.accepts():
                    raise _refused(f"{bulk.topic} has acknowledged nothing for a while", bulks, keyed=keyed)
                if not self._slots.take(bulk.topic):
                    raise _refused(f"{bulk.topic} is waited for by as many requests as may", bulks, keyed=keyed)
                entered.append((producer, bulk))
            deadline = self._monotonic() + self._seconds
            reports = []
            while entered:
                producer, bulk = entered[0]
                if bulk.records:
                    reports.append(producer.publish(bulk.records, max(0.0, deadline - self._monotonic())))
                # At once: who waits for one topic holds no slot of another.
                entered.pop(0)
                self._slots.give_back(bulk.topic)
        finally:
            for _, bulk in entered:
                self._slots.give_back(bulk.topic)
        return reports


def _refused(which: str, bulks: Sequence[TopicMessages], *, keyed: bool) -> Problem:
    messages = sum(len(bulk.records) for bulk in bulks)
    failed, unknown = (0, messages) if keyed else (messages, 0)
    return unavailable(
        f"Kafka's topic {which}, so nothing of this request was sent: send it again later",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        reason=Reason.KAFKA,
        details={"delivered": 0, "failed": failed, "unknown": unknown},
    )


def _undelivered(reports: Sequence[DeliveryReport]) -> Problem:
    undelivered = [delivery for report in reports for delivery in (*report.failed, *report.unknown)]
    counts = {
        "delivered": sum(report.delivered_count for report in reports),
        "failed": sum(len(report.failed) for report in reports),
        "unknown": sum(len(report.unknown) for report in reports),
    }
    LOG.warning("%d messages of a request are not delivered, the first: %s", len(undelivered), undelivered[0].error)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    too_large = [delivery for delivery in undelivered if isinstance(delivery.error, MessageTooLarge)]
    if len(too_large) == len(undelivered):
        return Problem(
            413,
            "Content Too Large",
            f"of the request's messages {told}: those that failed are larger than Kafka takes and always will be: "
            f"make them smaller ({too_large[0].error})",
            details=counts,
        )
    return unavailable(
        f"of the request's messages {told} (failed: surely not stored; unknown: perhaps): send the same request again, "
        "with an Idempotency-Key so that nothing is stored twice",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        reason=Reason.KAFKA,
        details=counts,
    )
