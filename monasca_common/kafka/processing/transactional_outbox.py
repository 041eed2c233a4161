# SPDX-License-Identifier: Apache-2.0
"""Outputs and the offsets they came from in one transaction, and what an abort does to work in progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.errors import RetriableError, TransactionError, UndeliveredError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import Batch, Record
from monasca_common.kafka.offsets import OffsetTracker, Progress
from monasca_common.kafka.processing.lanes import Bell, Lane, Lanes, Task
from monasca_common.kafka.processing.outbox import Abandoned, portions, raise_if_pointless, shrink_to_fit
from monasca_common.kafka.producer import KafkaProducer

LOG = logging.getLogger(__name__)

_ACKNOWLEDGE_SECONDS = 30.0
_REST_SECONDS = 0.2  # after an abort, so that one whose cause lasts does not spin


class TransactionalOutbox:
    """What an `Outbox` does, one task at a time, each with its offsets in a transaction.

    After an abort everything in memory is void, for it is going to be read again: handler threads get `Abandoned`
    until the polling thread has called `rewind`.
    """

    def __init__(self, producer: KafkaProducer, consumer: KafkaConsumer, lanes: Lanes, tracker: OffsetTracker) -> None:
        self._producer = producer
        self._consumer = consumer
        self._lanes = lanes
        self._tracker = tracker
        self._one_at_a_time = threading.Lock()
        self._aborted = threading.Event()

    @property
    def aborted(self) -> bool:
        """What was polled until now must not be handed out: the consumer was sent back."""
        return self._aborted.is_set()

    def deliver(self, lane: Lane, task: Task, outputs: Mapping[str, Sequence[Record]]) -> None:
        """Outputs and the offsets of the task, all or nothing.

        Raises `Abandoned` when it was aborted, `UndeliveredError` when an output is refused for what it is.
        """
        with self._transaction(lane, task):
            for topic, records in outputs.items():
                for portion in portions(records, self._producer.settings):
                    self._publish(topic, portion)

    def bury(self, lane: Lane, task: Task, topic: str, letters: Sequence[Record]) -> None:
        """Dead letters and the offsets of the task, all or nothing."""
        with self._transaction(lane, task):
            for portion in portions(letters, self._producer.settings):
                shrink_to_fit(portion, lambda left: self._publish(topic, left))

    @contextmanager
    def _transaction(self, lane: Lane, task: Task) -> Iterator[None]:
        part = task.part
        with self._one_at_a_time:
            if lane.dead or self.aborted:
                raise Abandoned
            try:
                with self._producer.transaction() as transaction:
                    yield
                    fail_point("processor.in_transaction")
                    transaction.commit_offsets(self._consumer, Batch((part,)))
            except (TransactionError, RetriableError, UndeliveredError) as error:
                self._aborted.set()
                self._lanes.drop(self._lanes.partitions())
                LOG.warning("a transaction was aborted, its inputs are read again: %s", error)
                if isinstance(error, UndeliveredError):
                    raise
                raise Abandoned from error
            self._tracker.done_range(part.topic_partition, part.epoch, part.offsets[0], part.next_offset)
            self._tracker.committed({part.topic_partition: Progress(part.epoch, part.next_offset)})

    def _publish(self, topic: str, records: Sequence[Record]) -> None:
        report = self._producer.publish(topic, records, timeout=_ACKNOWLEDGE_SECONDS)
        if not report.ok:
            raise_if_pointless(report)
            raise TransactionError(f"records for {topic} were not acknowledged in time: {report!r}")

    def rewind(self) -> None:
        """On the polling thread: forget everything in memory, and read on from what is committed. While nobody tells
        what that is, `aborted` holds, and this is to be called again."""
        Bell(self._consumer.clock).wait(_REST_SECONDS)
        partitions = self._lanes.partitions() | self._consumer.assignment()
        with self._one_at_a_time:
            self._lanes.drop(partitions)
            self._tracker.forget(partitions)
            try:
                self._consumer.seek_to_committed()
            except RetriableError as unanswered:
                LOG.warning("it is not known yet where to read again after an abort: %s", unanswered)
            else:
                self._aborted.clear()
