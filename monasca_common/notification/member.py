# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group of notifications: its consumer, its loop, and its restart after a failure."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping

from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reporter import AuditReporter, audited
from monasca_common.kafka import (
    DeadLetters,
    Hook,
    KafkaConsumer,
    MessagingError,
    Output,
    Processor,
    RetryLater,
    RetryPolicy,
    open_consumer,
    open_producer,
)
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.notification.settings import StreamOf
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.polling import LAG_SECONDS
from monasca_common.runtime.restarts import run_with_restarts
from monasca_common.runtime.shutdown import CLOSE_SECONDS
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

# Back-off for an unavailable database: rare enough not to be a load, frequent enough to resume within seconds.
_RETRY = RetryPolicy(backoff_seconds=0.1, max_backoff_seconds=3.0)
# After so long without partitions, a member is one of more than there are partitions.
_ASSIGNED_SECONDS = 60.0
_STALL_SECONDS = LagWindow().seconds


class PausedHandler:
    """Calls ``handler``, and pauses every thread for a while after a `RetryLater` without a time.

    The database is unavailable then. Each key has a lane of its own, so without the pause each would find that out.
    """

    def __init__(self, handler: Callable[[Message], Iterable[Output]], clock: Clock, stopping: threading.Event) -> None:
        self._handler = handler
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def waits(self) -> bool:
        """Whether the last call found the database unavailable."""
        return self._failures > 0

    def __call__(self, message: Message) -> Iterable[Output]:
        left = self._until - self._clock.monotonic()
        if left > 0:
            self._stopping.wait(left)
        try:
            outputs = self._handler(message)
        except RetryLater as later:
            if later.after is None:
                self._failed()
            raise
        self._failures = 0
        return outputs

    def _failed(self) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._until:  # the others that fail now learned the same
                self._failures += 1
                self._until = now + _RETRY.delay(self._failures, random.random())


class _MemberProgress(Hook):
    """``at``: when something was committed last, or when there was nothing to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = 0.0

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        if None in outcomes.values():
            self.at = self._clock.monotonic()


class NotificationMember:
    """Calls ``handler`` with what is in the stream's topic until `stop`. Create it after the fork."""

    def __init__(
        self, stream: StreamOf, handler: Callable[[Message], Iterable[Output]], threads: int, clock: Clock
    ) -> None:
        self._stream = stream
        self._threads = threads
        self._clock = clock
        self._stopping = threading.Event()
        self._processor: Processor | None = None
        self._paused = PausedHandler(handler, clock, self._stopping)
        self._refused: StorageError | None = None
        self._failure = "it has not begun"
        self._consumer: KafkaConsumer | None = None
        self._began = 0.0
        self._progress = _MemberProgress(clock)
        self.name = ", ".join(stream.consumer.topics)

    @property
    def trouble(self) -> str:
        """Why it does not work now; empty: it does."""
        return self._failure or ("it waits for the database" if self._paused.waits else "")

    @property
    def turn_seconds(self) -> float | None:
        """How long ago its loop has turned; ``None``: it has none, and waits for its next start."""
        consumer = self._consumer
        return None if consumer is None else consumer.health().seconds_since_poll

    def unready(self) -> str:
        """Why it does not do its work now; empty: it does."""
        consumer, now = self._consumer, self._clock.monotonic()
        if self.trouble or consumer is None:
            return self.trouble or "it has not begun"
        try:
            behind = consumer.lag(LAG_SECONDS)
        except MessagingError as error:
            return f"it does not reach Kafka: {error}"
        if not behind and now - self._began < _ASSIGNED_SECONDS:
            return "it has no partitions yet"
        if not sum(behind.values()):
            self._progress.at = now
        stalled = now - self._progress.at
        return f"STALL: nothing is done for {stalled:.0f} s" if stalled > _STALL_SECONDS else ""

    def run(self) -> None:
        """After a failure it restarts with a back-off. Raises nothing."""
        run_with_restarts(
            self._serve,
            self.name,
            self._stopping,
            self._clock,
            expected=(MessagingError, StorageError),
            failed=self._failed,
        )

    def _failed(self, error: Exception) -> None:
        self._failure = str(error) or type(error).__name__

    def _forget(self) -> None:
        self._consumer = None

    def stop(self) -> None:
        """Finish what is being sent, commit, and leave the group; returns when that is done, in bounded time."""
        self._stopping.set()
        if self._processor is not None:
            self._processor.stop()

    def _serve(self) -> None:
        """One consumer, from its first poll to its close."""
        with contextlib.ExitStack() as stack:
            reporter = _reporter(self._stream, stack)
            audit = [] if reporter is None else [ReaderAudit(reporter)]
            producer = open_producer(audited(self._stream.producer, reporter))
            stack.callback(producer.close, CLOSE_SECONDS)
            consumer = open_consumer(self._stream.consumer)
            stack.callback(consumer.close, CLOSE_SECONDS)
            processor = Processor(
                consumer,
                self._handle,
                per_message=True,
                producer=producer,
                retry=_RETRY,
                dead_letters=DeadLetters(),
                order="key",
                threads=self._threads,
                hooks=[self._progress, *audit],
            )
            self._processor, self._consumer = processor, consumer
            stack.callback(self._forget)
            self._began = self._progress.at = self._clock.monotonic()
            if not self._stopping.is_set():
                self._failure = ""
                processor.run()
                if (refused := self._refused) is not None:
                    self._refused = None
                    raise refused

    def _handle(self, message: Message) -> Iterable[Output]:
        """An error of the database that does not pass ends the loop, so that the operator sees it; nothing is lost."""
        try:
            return self._paused(message)
        except StorageError as error:
            self._refused = error
            if self._processor is not None:
                self._processor.stop()
            raise RetryLater from error


def _reporter(stream: StreamOf, stack: contextlib.ExitStack) -> AuditReporter | None:
    """It outlives the producer, which is opened later."""
    if stream.audit is None:
        return None
    return stack.enter_context(AuditReporter(stream.audit, stream.producer, "notification", stream.consumer.group_id))
