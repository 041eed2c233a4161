# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group of notifications: how it handles messages, and whether it is ready."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, Hook, MessagingError, Output, Processor, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.notification.settings import StreamOf
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.member import DATABASE_RETRY, Member
from monasca_common.runtime.polling import LAG_SECONDS
from monasca_common.storage.errors import StorageError

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
                self._until = now + DATABASE_RETRY.delay(self._failures, random.random())


class _MemberProgress(Hook):
    """``at``: when something was committed last, or when there was nothing to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = 0.0

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        if None in outcomes.values():
            self.at = self._clock.monotonic()


class NotificationMember(Member):
    """Calls ``handler`` with what is in the stream's topic."""

    expected = (MessagingError, StorageError)

    def __init__(
        self, stream: StreamOf, handler: Callable[[Message], Iterable[Output]], threads: int, clock: Clock
    ) -> None:
        super().__init__(
            ", ".join(stream.consumer.topics),
            stream.consumer,
            stream.producer,
            tap=audit_tap(stream.audit, "notification", stream.consumer.group_id),
            clock=clock,
        )
        self._threads = threads
        self._paused = PausedHandler(handler, clock, self.stopping)
        self._trouble = "it has not begun"
        self._began = 0.0
        self._progress = _MemberProgress(clock)

    @property
    def trouble(self) -> str:
        """Why it does not work now; empty: it does."""
        return self._trouble or ("it waits for the database" if self._paused.waits else "")

    def unready(self) -> str:
        """Why it does not do its work now; empty: it does."""
        consumer, now = self.consumer, self.clock.monotonic()
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

    def failed(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__

    def open(self, stack: contextlib.ExitStack) -> Processor:
        consumer, producer, hooks = self.open_clients(stack)
        processor = Processor(
            consumer,
            partial(self._handle, stack),
            per_message=True,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=DeadLetters(),
            order="key",
            threads=self._threads,
            hooks=[self._progress, *hooks],
        )
        self._began = self._progress.at = self.clock.monotonic()
        self._trouble = ""
        return processor

    def _handle(self, attempt: contextlib.ExitStack, message: Message) -> Iterable[Output]:
        """An error of the database that does not pass ends the loop, so that the operator sees it; nothing is lost."""
        try:
            return self._paused(message)
        except StorageError as error:
            self.fail(attempt, error)
            raise RetryLater from error
