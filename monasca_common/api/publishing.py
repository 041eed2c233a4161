# SPDX-License-Identifier: Apache-2.0
"""Publishes a request's messages; the answer says how many are delivered, failed or unknown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monasca_common.api.limits import RETRY_AFTER_SECONDS
from monasca_common.api.notes import Reason
from monasca_common.api.problems import Problem, unavailable
from monasca_common.api.reopening import Reopening
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import DeliveryReport, KafkaProducer, MessageTooLarge, Record

LOG = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """Messages for one topic. They have no key: which partition a metric takes means nothing, since the version
    says what is stored last, and a tenant's key would put the largest tenant into one partition."""

    topic: str
    records: Sequence[bytes | Record]


class Publishing:
    """Publishes for requests; shared by the threads of a worker."""

    def __init__(
        self,
        producer: KafkaProducer,
        settings: ApiSettings,
        reopening: Reopening | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.producer = producer
        self._reopening = reopening or Reopening(producer)
        self._seconds = settings.publish_timeout_seconds
        self._stalled_after = settings.stalled_after_seconds
        self._monotonic = monotonic
        self._stalled = False
        self._look_again_at = float("-inf")

    def publish(self, *bulks: TopicMessages, keyed: bool) -> None:
        """Return once every message is acknowledged. Raises `Problem`: 503 (or 413, for a message that no retry can
        deliver), with the counts.

        ``keyed``: the messages have ids that an earlier request may have used.
        """
        if self.stalled:
            raise _stalled(sum(len(bulk.records) for bulk in bulks), keyed=keyed)
        deadline = self._monotonic() + self._seconds
        reports = [
            self.producer.publish(bulk.topic, bulk.records, timeout=max(0.0, deadline - self._monotonic()))
            for bulk in bulks
            if bulk.records
        ]
        if not all(report.ok for report in reports):
            raise _undelivered(reports)

    @property
    def stalled(self) -> bool:
        """Whether Kafka has left a message unacknowledged for too long. Then nobody waits for it: a frozen broker
        must not take a thread and a body of each client until its deadline, and what cannot be sent would fill the
        budget. What is on its way ends the state by being acknowledged, so nothing needs to be tried out."""
        now = self._monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + _LOOK_AGAIN_SECONDS
            self._reopening.reopen_if_finished()
            self._stalled = self.producer.health().oldest_unacknowledged_seconds > self._stalled_after
        return self._stalled


def _stalled(messages: int, *, keyed: bool) -> Problem:
    failed, unknown = (0, messages) if keyed else (messages, 0)
    return unavailable(
        "Kafka has not acknowledged anything for a while, so nothing of this request was sent: send it again later",
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
