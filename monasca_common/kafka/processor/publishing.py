# SPDX-License-Identifier: Apache-2.0
"""Publishes outputs and dead letters, which must be acknowledged before their input is committed.

`AcknowledgedPublisher` retries until they are acknowledged. `TransactionalPublisher` commits them and the offsets of
their input in one transaction; after an abort all messages in memory are read again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from monasca_common.kafka.clock import Clock, Signal
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryRefused,
    FatalError,
    FencedError,
    RetriableError,
    TransactionError,
    UndeliveredError,
)
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import Batch, OffsetAndEpoch, Record
from monasca_common.kafka.outgoing import portions
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.queues import Lane, Lanes, Task
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport

LOG = logging.getLogger(__name__)

_SLICE_SECONDS = 1.0  # wait for acknowledgements between two checks for a revoked partition
_RETRY_REST_SECONDS = 0.1
_ACKNOWLEDGE_SECONDS = 30.0  # the limit in a transaction, which is aborted afterwards
_ABORT_REST_SECONDS = 0.2  # wait after an abort, so that a persistent cause does not make the loop spin
_INIT_SECONDS = 2.0  # time-out of one attempt, which delays a stop

Send = Callable[[str, Sequence[Record]], None]


class Abandoned(Exception):
    """The task ended before its outputs were acknowledged, and its messages will be read again."""


class OutputPublisher(ABC):
    """Publishes the outputs and dead letters of tasks, on the handler threads."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def deliver(self, lane: Lane, task: Task, outputs: Mapping[str, Sequence[Record]]) -> None:
        """Send outputs by topic, and return once all are acknowledged. Raises the errors of a `session`."""
        with self.session(lane, task) as send:
            for topic, records in outputs.items():
                for portion in self.portions(records):
                    send(topic, portion)

    def portions(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Split records into parts that fit the producer's budget."""
        return portions(records, self._producer.settings)

    @abstractmethod
    def session(self, lane: Lane, task: Task) -> AbstractContextManager[Send]:
        """Open a session to send all records of one task. ``send(topic, portion)`` returns once the portion is
        acknowledged.

        Raises `UndeliveredError` for records that can never be delivered (too large, invalid), `Abandoned` if the task
        will be read again, and errors that no retry can repair: a missing permission, a fenced or closed producer.
        """


class AcknowledgedPublisher(OutputPublisher):
    """Sends records repeatedly, with the same ids, until they are acknowledged; raises `Abandoned` once the lane is
    dropped."""

    def __init__(self, producer: KafkaProducer, clock: Clock, log_limit: LogLimit) -> None:
        super().__init__(producer)
        self._clock = clock
        self._log_limit = log_limit

    @contextmanager
    def session(self, lane: Lane, task: Task) -> Iterator[Send]:
        yield partial(self._deliver, lane)

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
                Signal().wait(self._clock, _RETRY_REST_SECONDS)
            report = self._producer.retry(report, timeout=_SLICE_SECONDS)


class TransactionalPublisher(OutputPublisher):
    """Sends the records of a task and commits its offsets in one transaction, one task at a time.

    After an abort, all messages in memory are void because they are read again, and handler threads get `Abandoned`
    until the polling thread has called `rewind`.
    """

    def __init__(
        self, producer: KafkaProducer, consumer: KafkaConsumer, lanes: Lanes, tracker: OffsetTracker, hooks: Hooks
    ) -> None:
        super().__init__(producer)
        self._consumer = consumer
        self._lanes = lanes
        self._tracker = tracker
        self._hooks = hooks
        self._one_at_a_time = threading.Lock()
        self._aborted = threading.Event()

    @property
    def aborted(self) -> bool:
        """Whether a transaction was aborted; messages polled so far are then read again, and must not be handled."""
        return self._aborted.is_set()

    def open(self) -> None:
        """End the transaction that an earlier process left open. Call this before the first poll, because the commit of
        that transaction could arrive late. Raises `RetriableError`, and errors that no retry can repair, such as
        `FatalError`."""
        self._producer.init_transactions(_INIT_SECONDS)

    @contextmanager
    def session(self, lane: Lane, task: Task) -> Iterator[Send]:
        part = task.part
        with self._one_at_a_time:
            if lane.dead or self.aborted:
                raise Abandoned
            try:
                with self._producer.transaction() as transaction:
                    yield self._publish
                    self._hooks.call("before_commit", {part.topic_partition: part.next_offset})
                    fail_point("processor.in_transaction")
                    transaction.commit_offsets(self._consumer, Batch((part,)), seek_back=False)
            except (TransactionError, RetriableError, UndeliveredError) as error:
                self._aborted.set()
                self._lanes.drop(self._lanes.partitions())
                self._hooks.call("after_commit", {part.topic_partition: error})
                LOG.warning("transaction aborted; its inputs are read again: %s", error)
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
        """Drop all messages in memory and resume from the committed offsets; call this on the polling thread. While
        these offsets are unknown, or a handler thread is in a transaction, `aborted` remains true, and this method
        must be called again."""
        Signal().wait(self._consumer.clock, _ABORT_REST_SECONDS)
        partitions = self._lanes.partitions() | self._consumer.assignment()
        # This does not wait, because the lock's holder can hang in a call, and the polling thread must continue to
        # poll.
        if not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._lanes.drop(partitions)
            self._tracker.forget(partitions)
            self._consumer.seek_to_committed()
        except RetriableError as unanswered:
            LOG.warning("the committed offsets to resume from after an abort are unknown; retrying: %s", unanswered)
        else:
            self._aborted.clear()
        finally:
            self._one_at_a_time.release()


def raise_if_pointless(report: DeliveryReport) -> None:
    """Raise an error that no retry of the report can resolve."""
    undelivered = report.failed + report.unknown
    for delivery in undelivered:
        cause = delivery.error.cause if isinstance(delivery.error, DeliveryRefused) else None
        if isinstance(cause, AuthorizationError | AuthenticationError | FencedError | FatalError):
            raise cause
    if any(delivery.error is not None and delivery.error.permanent for delivery in undelivered):
        raise UndeliveredError(report)
