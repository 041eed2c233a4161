# SPDX-License-Identifier: Apache-2.0
"""Publishes what must be acknowledged before its input is committed: outputs and dead letters.

`AcknowledgedPublisher` retries until they are acknowledged. `TransactionalPublisher` commits them and the offsets of
their input in one transaction; after an abort everything in memory is read again.
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
    Delivery,
    DeliveryRefused,
    FatalError,
    FencedError,
    MessagingError,
    RetriableError,
    TransactionError,
    UndeliveredError,
)
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import Batch, OffsetAndEpoch, Record
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.queues import Lane, Lanes, Task
from monasca_common.kafka.producer.outgoing import portions
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport

LOG = logging.getLogger(__name__)

_SLICE_SECONDS = 1.0  # of one wait for acknowledgements, after which the partition may have been revoked
_RETRY_REST_SECONDS = 0.1
_ACKNOWLEDGE_SECONDS = 30.0  # in a transaction, which aborts after it
_ABORT_REST_SECONDS = 0.2  # after an abort, so that a persistent cause does not make the loop spin
_INIT_SECONDS = 2.0  # the time-out of one attempt, because a stop waits for it

Send = Callable[[str, Sequence[Record]], None]


class Abandoned(Exception):
    """The partition was revoked while its outputs were in flight."""


class OutputPublisher(ABC):
    """Sends the outputs and the dead letters of tasks. The handler threads use it."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def deliver(self, lane: Lane, task: Task, outputs: Mapping[str, Sequence[Record]]) -> None:
        """Send outputs, by topic, and return once all are acknowledged. Raises what a `session` raises."""
        with self.session(lane, task) as send:
            for topic, records in outputs.items():
                for portion in self.portions(records):
                    send(topic, portion)

    def portions(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Split records into parts that fit into the producer's budget."""
        return portions(records, self._producer.settings)

    @abstractmethod
    def session(self, lane: Lane, task: Task) -> AbstractContextManager[Send]:
        """Everything that is sent for one task. ``send(topic, portion)`` returns once the portion is acknowledged.

        Raises `UndeliveredError` for records that are refused for what they are (too large, invalid), `Abandoned` if
        the task has to be read again, and whatever makes further attempts pointless: a missing permission, a fenced or
        closed producer.
        """


class AcknowledgedPublisher(OutputPublisher):
    """Delivers records until they are acknowledged, always under the same ids; `Abandoned` once the lane is dead."""

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
    """Sends what belongs to a task and commits its offsets in one transaction, one task at a time.

    After an abort everything in memory is void, because it is read again: handler threads get `Abandoned`
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
                Signal().wait(self._consumer.clock, _ABORT_REST_SECONDS)

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
        Signal().wait(self._consumer.clock, _ABORT_REST_SECONDS)
        partitions = self._lanes.partitions() | self._consumer.assignment()
        # Without a wait: the holder may be in a call that hangs, and the polling thread must continue to poll.
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
