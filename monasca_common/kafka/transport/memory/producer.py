# SPDX-License-Identifier: Apache-2.0
"""Producing into the memory broker, with the outcomes that librdkafka reports."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Message
from monasca_common.kafka.partitioners import partition_for
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ANY_PARTITION, Outcomes, ProducerTransport
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.memory.broker import broker_for
from monasca_common.kafka.transport.memory.injection import raw_error
from monasca_common.kafka.transport.report_columns import ReportColumns
from monasca_common.kafka.transport.reservation import Reservation

OnError = Callable[[TransportError], None]


class _Flight(NamedTuple):
    """A message that the broker received, ordered by the arrival time of the response."""

    at: float
    number: int
    message: Message
    error: Any
    sequence: int


class _NotTaken(KafkaException):
    """The client did not accept a message; a separate class, because signal handlers raise other errors."""


class MemoryProducer(ProducerTransport):
    """A producer of the broker behind ``settings.connection.bootstrap_servers``.

    It sends immediately, within `produce`, one record per request (so that ``batch_bytes`` has no effect); while the
    broker is unreachable, it queues messages. Records without a key go to the partitions in turn, not at random as in
    librdkafka, so that tests are repeatable.
    """

    driver = "memory"
    refusals = (_NotTaken,)

    def __init__(self, settings: ProducerSettings, batch_bytes: int, on_error: OnError) -> None:
        self._broker = broker_for(settings.connection.bootstrap_servers)
        self.clock = self._broker.clock
        self._on_error = on_error
        self._reports = ReportColumns()
        self._queue: deque[tuple[Message, int]] = deque()
        self._flights: list[_Flight] = []
        # calls of callbacks with reports and errors, for the polling thread to run
        self._ready: deque[Callable[[], None]] = deque()
        self._undelivered = 0
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._fatal: TransportError | None = None
        self._knows_outage = False
        self._closed = False

    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        return self._reports.send(self, topic, value, key, reservation)

    def produce_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
        sequence: int,
    ) -> None:
        at_ms = timestamp_ms or self.clock.time_ms()
        message = Message(topic, partition, -1, at_ms, key, value, tuple(headers))
        with self._broker.changed:
            if self._closed:
                raise _NotTaken(raw_error("_STATE", "the producer is closed"))
            if self._fatal is not None:
                raise _NotTaken(raw_error("_FATAL", str(self._fatal)))
            self._queue.append((message, sequence))
            self._undelivered += 1
            self._send()
            self._broker.changed.notify_all()

    def fault(self, error: Any) -> TransportError:
        return translate(error)

    def poll(self, timeout: float) -> Outcomes:
        deadline = self.clock.monotonic() + timeout
        with self._broker.changed:
            self._send()
            self._land()
            while not self._ready and self.clock.monotonic() < deadline:
                due = self._flights[0].at if self._flights else math.inf
                self._broker.wait(min(deadline, due))
                self._send()
                self._land()
        while self._ready:  # without the lock; if a callback raises, the remaining ones run in the next poll
            self._ready.popleft()()
        return self._reports.take()

    def flush(self, timeout: float) -> Outcomes:
        return self.poll(timeout if self._undelivered else 0)

    def queued(self) -> int:
        return self._undelivered

    def count(self, bucket_seconds: int) -> None:
        self._reports.bucket_ms = bucket_seconds * 1000

    def purge(self) -> None:
        with self._broker.changed:
            for message, sequence in self._queue:
                self._report(message, raw_error("_PURGE_QUEUE"), sequence)
            for flight in sorted(self._flights):
                self._report(flight.message, raw_error("_PURGE_INFLIGHT"), flight.sequence)
            self._queue.clear()
            self._flights.clear()
            self._broker.changed.notify_all()

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return {topic: self._limit_of(topic, timeout) for topic in topics}

    def _limit_of(self, topic: str, timeout: float) -> int | TransportError:
        try:
            with self._broker.changed, self._broker.serve("metadata", topic, timeout):
                found = self._broker.find_topic(topic)
                return found.max_message_bytes if found else translate(raw_error("UNKNOWN_TOPIC_OR_PART"))
        except TransportError as error:
            return error

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """Return topic ids; injected faults do not apply, because tests cannot predict a producer's topic requests."""
        with self._broker.lock:
            found = [self._broker.find_topic(name) for name in topics]
            return {topic.name: topic.topic_id for topic in found if topic is not None}

    def close(self, timeout: float) -> None:
        with self._broker.changed:
            self._closed = True
            self._broker.changed.notify_all()

    def _send(self) -> None:
        """Send queued messages in order while the broker is reachable."""
        if self._queue and not self._broker.reachable and not self._knows_outage:
            self._knows_outage = True
            self._report_error(raw_error("_ALL_BROKERS_DOWN"))
        while self._queue and self._broker.reachable and self._fatal is None:
            self._knows_outage = False
            message, sequence = self._queue.popleft()
            self._send_one(message, sequence)

    def _send_one(self, message: Message, sequence: int) -> None:
        try:
            count = len(self._broker.topic(message.topic).partitions)
        except TransportError as error:
            self._report(message, raw_error(error.name, str(error)), sequence)
            return
        message = replace(message, partition=self._choose(message, count))
        if message.partition >= count:
            self._report(message, raw_error("_UNKNOWN_PARTITION"), sequence)
            return
        answer = self._broker.append(message)
        if answer.connection_lost:
            self._report_error(raw_error("_TRANSPORT"))
        at = answer.at
        if answer.error is not None and answer.error.fatal():
            # librdkafka then calls the error callback, and does not report its messages.
            self._fatal = translate(answer.error)
            self._report_error(answer.error)
            at = math.inf
        heapq.heappush(self._flights, _Flight(at, next(self._numbers), answer.message, answer.error, sequence))

    def _choose(self, message: Message, count: int) -> int:
        if message.partition != ANY_PARTITION:
            return message.partition
        return next(self._turns) % count if message.key is None else partition_for(message.key, count)

    def _land(self) -> None:
        """Create reports for the responses that have arrived by now."""
        now = self.clock.monotonic()
        while self._flights and self._flights[0].at <= now:
            flight = heapq.heappop(self._flights)
            self._report(flight.message, flight.error, flight.sequence)

    def _report(self, message: Message, error: Any, sequence: int) -> None:
        def run() -> None:
            with self._broker.lock:
                self._undelivered -= 1
            if error is None:
                self._reports.deliver(sequence, message)
            else:
                self._reports.give_back(sequence, error, message.value, message.key)

        self._ready.append(run)

    def _report_error(self, error: Any) -> None:
        self._ready.append(lambda: self._on_error(translate(error)))
