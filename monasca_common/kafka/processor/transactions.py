# SPDX-License-Identifier: Apache-2.0
"""Outputs and the offsets they came from in one transaction, and what an abort does to work in progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from monasca_common.kafka.clock import Signal
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import RetriableError, TransactionError, UndeliveredError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import Batch, OffsetAndEpoch, Record
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.publishing import Abandoned, raise_if_pointless, shrink_to_fit
from monasca_common.kafka.processor.queues import Lane, Lanes, Task
from monasca_common.kafka.producer.outgoing import portions
from monasca_common.kafka.producer.producer import KafkaProducer

LOG = logging.getLogger(__name__)

_ACKNOWLEDGE_SECONDS = 30.0
_REST_SECONDS = 0.2  # after an abort, so that one whose cause lasts does not spin
_INIT_SECONDS = 2.0  # the time-out of one attempt, because a stop waits for it


class TransactionalPublisher:
    """What an `AcknowledgedPublisher` does, one task at a time, each with its offsets in a transaction.

    After an abort everything in memory is void, because it is read again: handler threads get `Abandoned`
    until the polling thread has called `rewind`.
    """

    def __init__(
        self, producer: KafkaProducer, consumer: KafkaConsumer, lanes: Lanes, tracker: OffsetTracker, hooks: Hooks
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._lanes = lanes
        self._tracker = tracker
        self._hooks = hooks
        self._one_at_a_time = threading.Lock()
        self._aborted = threading.Event()

    @property
    def aborted(self) -> bool:
        """What was polled until now must not be handed out: the consumer was sent back."""
        return self._aborted.is_set()

    def open(self, stopping: Callable[[], bool]) -> None:
        """Before anything is read: end what the process before this one left open, or its commit could come late.

        Raises `FatalError` when the client does not come back from it, and what makes further attempts pointless.
        """
        while not stopping():
            try:
                self._producer.init_transactions(_INIT_SECONDS)
                return
            except RetriableError as error:
                LOG.warning("transactions cannot begin yet: %s", error)
                Signal().wait(self._consumer.clock, _REST_SECONDS)

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
                    self._hooks.call("before_commit", {part.topic_partition: part.next_offset})
                    fail_point("processor.in_transaction")
                    transaction.commit_offsets(self._consumer, Batch((part,)), seek_back=False)
            except (TransactionError, RetriableError, UndeliveredError) as error:
                self._aborted.set()
                self._lanes.drop(self._lanes.partitions())
                self._hooks.call("after_commit", {part.topic_partition: error})
                LOG.warning("a transaction was aborted, its inputs are read again: %s", error)
                if isinstance(error, UndeliveredError):
                    raise
                raise Abandoned from error
            self._tracker.done_range(part.topic_partition, part.epoch, part.start_offset, part.next_offset)
            self._tracker.committed({part.topic_partition: OffsetAndEpoch(part.epoch, part.next_offset)})
            self._hooks.call("after_commit", {part.topic_partition: None})

    def _publish(self, topic: str, records: Sequence[Record]) -> None:
        report = self._producer.publish(topic, records, timeout=_ACKNOWLEDGE_SECONDS)
        if not report.ok:
            raise_if_pointless(report)
            raise TransactionError(f"records for {topic} were not acknowledged in time: {report!r}")

    def rewind(self) -> None:
        """Forget everything in memory, and read on from the committed offsets. The polling thread calls it. While these
        are unknown, or a handler thread is in a transaction, `aborted` stays true, and it must be called again."""
        Signal().wait(self._consumer.clock, _REST_SECONDS)
        partitions = self._lanes.partitions() | self._consumer.assignment()
        # Without a wait: the holder may be in a call that hangs, and the polling thread must go on polling.
        if not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._lanes.drop(partitions)
            self._tracker.forget(partitions)
            self._consumer.seek_to_committed()
        except RetriableError as unanswered:
            LOG.warning("it is not known yet where to read again after an abort: %s", unanswered)
        else:
            self._aborted.clear()
        finally:
            self._one_at_a_time.release()
