# SPDX-License-Identifier: Apache-2.0
"""Publishes the outcomes of notifications to the topic ``alarm-notifications``.

The transaction that records an outcome writes it to the outbox, and it is removed when Kafka has acknowledged it. After
a crash, another process publishes it under the same message id.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monasca_common.alarms import outbox
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.outbox import Unpublished
from monasca_common.kafka import MessagingError, Record
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.notification.ledger import NOTIFICATION
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.restarts import PublishingLoop
from monasca_common.storage.errors import StorageError

if TYPE_CHECKING:
    from monasca_common.kafka import KafkaProducer

LOG = logging.getLogger(__name__)

_MOST_AT_ONCE = 500
_MOST_REMEMBERED = 10_000  # more stay in the outbox until a scan finds them
_LOOK_SECONDS = 30.0  # between two scans of the outbox


class NotificationAnnouncer(PublishingLoop):
    """Any thread may call `add`. Rows that are not published at `stop` stay in the outbox."""

    name = "announcer"
    expected = (MessagingError, StorageError)

    def __init__(self, database: AlarmsDatabase, producer: ProducerSettings, topic: str, clock: Clock) -> None:
        super().__init__("the announcer of notifications", producer, clock)
        self.health = LoopHealth(self.name, clock, trouble="")
        self._database = database
        self._topic = topic
        self._due: deque[Unpublished] = deque(maxlen=_MOST_REMEMBERED)
        self._wake = threading.Event()
        self._refusal = ""  # why Kafka did not acknowledge the last publish
        self._refused_ms = 0

    def add(self, row: Unpublished) -> None:
        """Publish a row soon. Call it after the commit."""
        self._due.append(row)
        self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def failed(self, error: Exception) -> None:
        self.health.failed(error)

    def publish_due(self, producer: KafkaProducer) -> float:
        self.health.turned()
        self._wake.wait(_LOOK_SECONDS)
        self._wake.clear()
        own = [self._due.popleft() for _ in range(min(len(self._due), _MOST_AT_ONCE))]
        if own:
            self._publish(producer, own)
        else:
            before_ms = self.clock.time_ms() - outbox.LEFT_AFTER_MS
            if self._refused_ms < before_ms:  # refused rows are found by this scan, or another process published them
                self._refusal = ""
            while left := outbox.left(self._database, NOTIFICATION, before_ms=before_ms, limit=_MOST_AT_ONCE):
                if not self._publish(producer, left):
                    break
        if self._due:
            self._wake.set()
        self.health.turned(self._refusal)
        return 0.0

    def _publish(self, producer: KafkaProducer, rows: Sequence[Unpublished]) -> bool:
        """Return whether Kafka acknowledged all of them."""
        records = [Record(each.value, key=each.key.encode(), message_id=each.message_id) for each in rows]
        report = producer.publish(self._topic, records)
        kept = {delivery.index: delivery.error for delivery in (*report.failed, *report.unknown)}
        outbox.remove(self._database, [row for index, row in enumerate(rows) if index not in kept])
        self._refusal = ""
        if kept:
            self._refused_ms = self.clock.time_ms()
            self._refusal = f"{len(kept)} messages to {self._topic} stay in the outbox: {next(iter(kept.values()))}"
            LOG.warning("%s", self._refusal)
        return not kept
