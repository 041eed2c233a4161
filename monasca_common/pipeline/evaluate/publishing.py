# SPDX-License-Identifier: Apache-2.0
"""Publishes what waits in the outbox of alarms: transitions of rounds, and what a crash of the API left."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from monasca_common.alarms import outbox
from monasca_common.alarms.outbox import TRANSITION, Unpublished
from monasca_common.kafka import KafkaProducer, Record
from monasca_common.kafka.errors import MessageTooLarge
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.evaluate.metrics import EVALUATE, lost_transitions
from monasca_common.pipeline.source.offset_store import OffsetStore

LOG = logging.getLogger(__name__)

_MOST_AT_ONCE = 500


class TransitionPublisher:
    """Kafka acknowledges before the outbox is cleared. Who crashes in between publishes again, with the same ids."""

    def __init__(self, offset_store: OffsetStore, producer: KafkaProducer, topic: str) -> None:
        self._offset_store = offset_store
        self._producer = producer
        self._topic = topic
        self.lost = lost_transitions()

    def publish(self) -> int:
        """How many were published. What Kafka does not take stays, with all that come after it."""
        published = 0
        while rows := self._waiting():
            done, lost = self._deliver_in_order(rows)
            fail_point("evaluate.before_clearing")
            if done or lost:
                with self._offset_store.writing() as connection:
                    outbox.clear(connection, [*done, *lost])
            published += len(done)
            if len(done) + len(lost) < len(rows):
                break
        return published

    def _waiting(self) -> list[Unpublished]:
        with self._offset_store.reading() as connection:
            return outbox.waiting(connection, TRANSITION, _MOST_AT_ONCE)

    def _deliver_in_order(self, rows: Sequence[Unpublished]) -> tuple[list[Unpublished], list[Unpublished]]:
        """As `_deliver`, one change of each alarm at a time: if Kafka took a later one and not the one before it,
        these would arrive in another order."""
        done, lost = list[Unpublished](), list[Unpublished]()
        stuck = set[str]()
        for turn in _turns(rows):
            sent = [row for row in turn if row.key not in stuck]
            if sent:
                delivered, refused = self._deliver(sent)
                stuck |= {row.key for row in sent} - {row.key for row in (*delivered, *refused)}
                done, lost = done + delivered, lost + refused
        return done, lost

    def _deliver(self, rows: Sequence[Unpublished]) -> tuple[list[Unpublished], list[Unpublished]]:
        """Those that are acknowledged, and those that Kafka never takes, which would be in the way of others."""
        records = [Record(row.value, key=row.key.encode(), message_id=row.message_id) for row in rows]
        report = self._producer.publish(self._topic, records)
        left: dict[int, Exception | None] = {
            delivery.index: delivery.error for delivery in (*report.failed, *report.unknown)
        }
        lost = [index for index, error in left.items() if isinstance(error, MessageTooLarge)]
        for index in lost:
            self.lost.labels(EVALUATE).inc()
            LOG.error("a transition of alarm %s is lost, without a notification: %s", rows[index].key, left[index])
        if len(left) > len(lost):
            LOG.warning("%d transitions of alarms stay in the outbox", len(left) - len(lost))
        return [row for index, row in enumerate(rows) if index not in left], [rows[index] for index in lost]


def _turns(rows: Sequence[Unpublished]) -> list[list[Unpublished]]:
    """The first change of each alarm, then the second of each that has one, and so on."""
    earlier: Counter[str] = Counter()
    turns: list[list[Unpublished]] = []
    for row in rows:
        if earlier[row.key] == len(turns):
            turns.append([])
        turns[earlier[row.key]].append(row)
        earlier[row.key] += 1
    return turns
