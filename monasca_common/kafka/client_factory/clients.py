# SPDX-License-Identifier: Apache-2.0
"""The producer and consumer of `client_factory`: they have the methods that services call, and do not lose messages
that they report as queued."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import (
    CommitUnknown,
    DeliveryTimeout,
    RetriableError,
    TransportError,
    UndeliveredError,
    UndeliveredReport,
)
from monasca_common.kafka.message import Message, OffsetAndEpoch, TopicPartition
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport

LOG = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_MISSING_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_NO_TIMESTAMP, _TIMESTAMP = 0, 1  # confluent-kafka's values


class ServiceProducer:
    """A producer with the ``publish`` that services call. Shared by threads; a context manager."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._promised: list[DeliveryReport] = []  # reported as still queued, and not yet delivered

    def publish(
        self,
        topic: str,
        messages: str | bytes | Sequence[str | bytes],
        key: str | bytes | None = None,
        timeout: float | None = 2,
    ) -> int:
        """Send one message or a list of them and wait up to ``timeout`` seconds for the outcome.

        Return the number of messages *of this call* that are not yet confirmed: they are still queued, will be
        delivered, and must **not be sent again**. Raises `UndeliveredError` if some will not be delivered; its report
        lists them, and `retry` accepts ``error.report``. A ``str`` is sent as UTF-8.
        """
        self._keep_promises()
        records = [messages] if isinstance(messages, str | bytes) else messages
        report = self._producer.publish(
            topic, [_bytes(record) for record in records], key=None if key is None else _bytes(key), timeout=timeout
        )
        return self._settle(report)

    def retry(self, report: UndeliveredReport, timeout: float | None = 2) -> int:
        """Retry the undelivered messages of an `UndeliveredError` with the same ids. Return the same as `publish`."""
        return self._settle(self._producer.retry(report, timeout=timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds for messages in flight; messages that remain in flight are logged, and may be
        lost."""
        seconds = self._producer.settings.publish_timeout_seconds if timeout is None else timeout
        deadline = self._clock.monotonic() + seconds
        # Run twice: the first pass waits for messages in flight, the second pass resends failed messages.
        for _ in range(2):
            self._keep_promises(deadline)
        left = sum(len(report.failed) + len(report.unknown) for report in self._promised)
        if left:
            LOG.error("%d messages were not confirmed when the producer was closed", left)
        self._promised = []
        self._producer.close(max(0.0, deadline - self._clock.monotonic()))

    def __enter__(self) -> ServiceProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self, report: DeliveryReport) -> int:
        if report.ok:
            return 0
        if report.failed or not all(isinstance(each.error, DeliveryTimeout) for each in report.unknown):
            raise UndeliveredError(report)
        with self._lock:
            self._promised.append(report)
        return len(report.unknown)

    def _keep_promises(self, deadline: float = 0.0) -> None:
        """Resend failed messages that `publish` reported as queued, with the same ids; wait until ``deadline``."""
        with self._lock:
            promised, self._promised = self._promised, []
        for position, earlier in enumerate(promised):
            try:
                report = self._producer.retry(earlier, timeout=max(0.0, deadline - self._clock.monotonic()))
            except BaseException:  # after Ctrl-C, close still has to deliver or report these messages
                with self._lock:
                    self._promised += promised[position:]
                raise
            hopeless = [delivery for delivery in report.failed if delivery.error and delivery.error.permanent]
            if hopeless:
                LOG.error("%d queued messages were refused and are not delivered: %s", len(hopeless), hopeless[0].error)
            if len(hopeless) < len(report.failed) + len(report.unknown):
                with self._lock:
                    self._promised.append(report)


class ServiceMessage:
    """A message from a `ServiceConsumer`, with the methods of confluent-kafka's messages."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def key(self) -> bytes | None:
        return self._message.key

    def value(self) -> bytes | None:
        return self._message.value

    def offset(self) -> int:
        return self._message.offset

    def partition(self) -> int:
        return self._message.partition

    def topic(self) -> str:
        return self._message.topic

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, or None if the message has none."""
        return list(self._message.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp (0: none, 1: set by the producer or the broker) and its milliseconds."""
        timestamp_ms = self._message.timestamp_ms
        return (_NO_TIMESTAMP, 0) if timestamp_ms is None else (_TIMESTAMP, timestamp_ms)

    def error(self) -> None:
        """Return None: a `ServiceConsumer` raises errors instead of returning them as messages."""

    def __len__(self) -> int:
        """Return the size of the value in bytes."""
        return len(self._message.value or b"")


class ServiceConsumer(RebalanceListener):
    """An endless iterator of `ServiceMessage` and a context manager, for use by one thread.

    Each message is polled separately, so the handler of one message may take nearly ``max_poll_interval_seconds``.
    Offsets are committed only by `commit`, which services call once they have stored the returned messages.
    """

    def __init__(
        self,
        open_consumer: Callable[[RebalanceListener], KafkaConsumer],
        *,
        repartition_callback: Callable[[Any, Sequence[TopicPartition]], object] | None,
        commit_callback: Callable[[], object] | None,
        max_commit_interval: float,
        clock: Clock | None = None,
    ) -> None:
        self._consumer = open_consumer(self)
        self._repartition_callback = repartition_callback
        self._commit_callback = commit_callback
        self._max_commit_interval = max_commit_interval
        self._clock = clock or SystemClock()
        self._committed_at = self._clock.monotonic()
        self._polled: deque[tuple[int, Message]] = deque()
        self._given: dict[TopicPartition, OffsetAndEpoch] = {}

    def __iter__(self) -> ServiceConsumer:
        return self

    def __next__(self) -> ServiceMessage:
        """Wait indefinitely for the next message and return it. Raises final errors, such as `AuthorizationError`."""
        while True:
            self._commit_if_due()
            if self._polled:
                epoch, message = self._polled.popleft()
                partition = TopicPartition(message.topic, message.partition)
                self._given[partition] = OffsetAndEpoch(epoch, message.offset + 1)
                return ServiceMessage(message)
            self._poll()

    def commit(self) -> None:
        """Commit all returned messages. Raises if a broker refuses or does not respond.

        Messages of revoked partitions are omitted: the new owners read them again.
        """
        self._committed_at = self._clock.monotonic()
        results = self._consumer.commit(self._given)
        failures = []
        for partition, result in results.items():
            if result.committed or result.stale:
                self._given.pop(partition, None)
            elif result.error is not None:
                failures.append(result.error)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Leave the group. The next owner reads uncommitted messages again."""
        self._consumer.close()

    def __enter__(self) -> ServiceConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Rebalance listener methods, called during a poll

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        try:
            self._notify(partitions)
        finally:
            self._forget(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)
        self._notify(partitions)

    def _notify(self, partitions: Sequence[TopicPartition]) -> None:
        if self._repartition_callback is not None:
            self._repartition_callback(self, list(partitions))

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._given.pop(partition, None)

    def _poll(self) -> None:
        batch = self._consumer.poll(1, _POLL_SECONDS)
        # This line precedes any exception, because a caller that continues to iterate must not miss the message of this
        # poll.
        self._polled = deque((part.epoch, message) for part in batch.partitions for message in part)
        for error in batch.errors:
            if isinstance(error, TransportError) and error.name == _MISSING_TOPIC:
                # A service runs a process per topic, and stops when the first process stops.
                LOG.error("%s. It will be read once it exists: create it, or correct its name", error)
            elif not isinstance(error, RetriableError | CommitUnknown):
                raise error
            else:
                LOG.warning("reading continues after: %s", error)

    def _commit_if_due(self) -> None:
        if self._commit_callback and self._clock.monotonic() - self._committed_at > self._max_commit_interval:
            # Set before the call, so that a callback that commits nothing is called again only after another interval.
            self._committed_at = self._clock.monotonic()
            self._commit_callback()


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
