# SPDX-License-Identifier: Apache-2.0
"""Retries that are not due yet wait in the database, and not in memory: none keeps a due one behind it from its turn.

A thread of each process publishes those that are due to the retry topic. A row is removed once Kafka has acknowledged
its message: a crash between publishes it twice, and the ledger knows the repeat.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.kafka import KafkaProducer, MessagingError, Record
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.notification.retries import Retry
from monasca_common.runtime.restarts import PublishingLoop
from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

_WAITING = tables.notification_waiting
_INSERT, _OWN = _WAITING.insert(), (_WAITING.c.id == sa.bindparam("own_id"), _WAITING.c.attempt == sa.bindparam("of"))
_REMOVE = _WAITING.delete().where(*_OWN)
_REMOVE_CLAIMED = _WAITING.delete().where(*_OWN, _WAITING.c.due == sa.bindparam("claimed"))
_CLAIM = _WAITING.update().where(*_OWN).values(due=sa.bindparam("claimed"))
_MOST_AT_ONCE = 500
_LOOK_SECONDS = 1.0
_CLAIM_SECONDS = 60.0  # how long a row is one process's; longer than publishing takes
_PUBLISH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DueRetry:
    """A row that is claimed until ``claimed_ms``."""

    id: str
    attempt: int
    value: bytes
    claimed_ms: int

    @property
    def record(self) -> Record:
        return Record(self.value, key=self.id.encode(), message_id=f"{self.id}/{self.attempt}/due".encode())


class WaitingRetries:
    """The table. Each method raises `StorageError`."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def park(self, retry: Retry, value: bytes) -> None:
        """Have ``value`` published when the retry is due."""
        row = {"id": retry.notice.id, "attempt": retry.attempt, "due": retry.not_before_ms, "value": value}

        def work(connection: sa.Connection) -> None:
            connection.execute(_REMOVE, {"own_id": retry.notice.id, "of": retry.attempt})
            connection.execute(_INSERT, row)

        self._database.write(work)

    def claim(self, now_ms: int) -> list[DueRetry]:
        """Those that are due, the longest first; no other process gets them for a while."""
        columns = (_WAITING.c.id, _WAITING.c.attempt, _WAITING.c.value)
        due = sa.select(*columns).where(_WAITING.c.due <= now_ms).order_by(_WAITING.c.due).limit(_MOST_AT_ONCE)
        claimed_ms = now_ms + round(_CLAIM_SECONDS * 1000)

        def work(connection: sa.Connection) -> list[DueRetry]:
            rows = connection.execute(due.with_for_update(skip_locked=True)).all()
            if rows:
                connection.execute(
                    _CLAIM, [{"own_id": row.id, "of": row.attempt, "claimed": claimed_ms} for row in rows]
                )
            return [DueRetry(*row, claimed_ms) for row in rows]

        return self._database.write(work)

    def remove(self, published: Sequence[DueRetry]) -> None:
        """Those that still are as they were claimed: what waits again meanwhile stays."""
        rows = [{"own_id": each.id, "of": each.attempt, "claimed": each.claimed_ms} for each in published]
        self._database.write(lambda connection: connection.execute(_REMOVE_CLAIMED, rows))


class RetryTimer(PublishingLoop):
    """Publishes what is due to ``topic`` until `stop`. Create it after the fork."""

    expected = (MessagingError, StorageError)
    longest_seconds = 5.0  # a retry is late by no more than that

    def __init__(self, waiting: WaitingRetries, topic: str, settings: ProducerSettings, clock: Clock) -> None:
        super().__init__("publishing retries that are due", settings, clock)
        self._waiting = waiting
        self._topic = topic

    def publish_due(self, producer: KafkaProducer) -> float:
        return 0.0 if self._publish(producer) == _MOST_AT_ONCE else _LOOK_SECONDS

    def _publish(self, producer: KafkaProducer) -> int:
        """How many were due; those that Kafka did not acknowledge are due again when their claim ends."""
        due = self._waiting.claim(self.clock.time_ms())
        if due:
            report = producer.publish(self._topic, [each.record for each in due], timeout=_PUBLISH_SECONDS)
            if report.delivered:
                self._waiting.remove([due[delivery.index] for delivery in report.delivered])
            if not report.ok:
                LOG.warning("%d retries that are due were not published: %r", len(due), report)
        return len(due)
