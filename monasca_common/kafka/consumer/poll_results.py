# SPDX-License-Identifier: Apache-2.0
"""Sorts the results of a poll that are not messages: errors, and the ends of logs."""

from __future__ import annotations

from collections.abc import Iterable

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.errors import FatalError, MessagingError, OffsetOutOfRange, RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import PartitionEvent

REPEAT_SECONDS = 1.0
_END = "_PARTITION_EOF"  # not an error: librdkafka reports that all messages in the log were fetched
_OUT_OF_RANGE = "_AUTO_OFFSET_RESET"  # librdkafka's name for an offset out of range, with auto.offset.reset=error


class PollErrors:
    """Collects errors for the next batch; repeats an equal error of a partition at most once a second."""

    def __init__(self, clock: Clock, assignment: Assignment) -> None:
        self._clock = clock
        self._assignment = assignment
        self._reported_at: dict[tuple[object, ...], float] = {}
        self.pending: tuple[Exception, ...] = ()  # for the next batch
        self.ends: dict[TopicPartition, int] = {}  # ends of logs in the last sorted result
        self.last_client_error: TransportError | None = None
        self.fatal: TransportError | None = None  # the client has failed and delivers no more messages

    def report_client_error(self, error: TransportError) -> None:
        """Store a client-wide error for `health`; an error that is not temporary is also added to the next batch."""
        self.last_client_error = error
        if not isinstance(error, RetriableError):
            self._report_once(error, error.name)

    def sort(self, events: Iterable[PartitionEvent]) -> None:
        """Store the errors in `pending`, and the ends of logs in `ends`."""
        self.ends = {}
        for error, topic, number, offset in events:
            if topic is not None and offset is not None and error.name == _END:
                self.ends[TopicPartition(topic, number)] = offset
            elif topic is not None and error.name == _OUT_OF_RANGE:
                self._out_of_range(TopicPartition(topic, number), offset, error)
            else:
                if error.fatal or isinstance(error, FatalError):
                    self.fatal = error
                self._report_once(error, error.name, topic, number)

    def report(self, error: MessagingError) -> None:
        """Add a rebalance error to the next batch."""
        self._report_once(error, str(error))

    def _out_of_range(self, partition: TopicPartition, offset: int | None, error: TransportError) -> None:
        if partition in self._assignment.out_of_range or self._assignment.epoch(partition) is None:
            return
        position = self._assignment.positions.get(partition)
        if offset is None and position == self._assignment.starts.get(partition):
            # This library never starts without an offset, but the client does if a signal interrupts `on_assign`. Then
            # the start is repeated.
            self._assignment.waiting.add(partition)
        elif position is not None and (offset is None or position <= offset):
            # Otherwise the event is from before the start or a seek. It has no offset if the log lost its end.
            self._assignment.out_of_range.add(partition)
            self.pending += (OffsetOutOfRange(partition, position if offset is None else offset, str(error)),)

    def _report_once(self, error: Exception, *key: object) -> None:
        now = self._clock.monotonic()
        self._reported_at = {known: at for known, at in self._reported_at.items() if now < at + REPEAT_SECONDS}
        if key not in self._reported_at:
            self._reported_at[key] = now
            self.pending += (error,)
