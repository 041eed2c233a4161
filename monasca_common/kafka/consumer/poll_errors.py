# SPDX-License-Identifier: Apache-2.0
"""The errors among the results of a poll: each is reported, none more than once a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.errors import FatalError, MessagingError, OffsetOutOfRange, RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport

REPEAT_SECONDS = 1.0
_END = "_PARTITION_EOF"  # not an error: librdkafka reports that everything in the log was fetched
_OUT_OF_RANGE = "_AUTO_OFFSET_RESET"  # what librdkafka calls it with auto.offset.reset=error


class PollErrors:
    """Collects errors for the next batch; an equal error of one partition at most once a second."""

    def __init__(self, transport: ConsumerTransport, assignment: Assignment) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._assignment = assignment
        self._told: dict[tuple[object, ...], float] = {}
        self.pending: tuple[Exception, ...] = ()  # for the next batch
        self.ends: dict[TopicPartition, int] = {}  # where logs ended in what was sorted last
        self.last_client_error: TransportError | None = None
        self.fatal: TransportError | None = None  # the client has failed and delivers nothing any more

    def heard(self, error: TransportError) -> None:
        """Note a client-wide error. A passing one shows in `health`; one that needs an operator is in the next
        batch."""
        self.last_client_error = error
        if not isinstance(error, RetriableError):
            self._tell(error, error.name)

    def sort(self, raws: Iterable[Any]) -> list[Any]:
        """The messages among ``raws``, in order; the errors are kept in `pending`, the ends of logs in `ends`."""
        messages = []
        self.ends = {}
        for raw in raws:
            error = raw.error()
            if error is None:
                messages.append(raw)
            else:
                self._sort_error(raw, self._transport.fault(error))
        return messages

    def add(self, errors: Iterable[MessagingError]) -> None:
        for error in errors:
            self._tell(error, str(error))

    def _sort_error(self, raw: Any, error: TransportError) -> None:
        topic, number = raw.topic(), raw.partition()
        if error.name == _END:
            self.ends[TopicPartition(topic, number)] = raw.offset()
            return
        if error.name != _OUT_OF_RANGE:
            if error.fatal or isinstance(error, FatalError):
                self.fatal = error
            self._tell(error, error.name, topic, number)
            return
        partition, offset = TopicPartition(topic, number), raw.offset()
        if partition in self._assignment.out_of_range or self._assignment.epoch(partition) is None:
            return
        if offset is None:
            # We never start without an offset, but the client does when a signal strikes `on_assign`: start anew.
            self._assignment.waiting.add(partition)
            return
        self._assignment.out_of_range.add(partition)
        self.pending += (OffsetOutOfRange(partition, offset, str(error)),)

    def _tell(self, error: Exception, *key: object) -> None:
        now = self._clock.monotonic()
        self._told = {known: at for known, at in self._told.items() if now < at + REPEAT_SECONDS}
        if key not in self._told:
            self._told[key] = now
            self.pending += (error,)
