# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group of notifications: how it handles messages, and whether it is ready."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, Hook, MessagingError, Output, Processor, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.notification.settings import StreamOf
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.health import LoopHealth, ServiceHealth, liveness, readiness
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


class _Commits(Hook):
    """``at``: when something was committed last, or when there was nothing to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = 0.0

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        if None in outcomes.values():
            self.at = self._clock.monotonic()


class NotificationMember(Member):
    """Calls ``handler`` with the messages of the stream's topic."""

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
        self.health = LoopHealth(self.name, clock, turn_seconds=lambda: self.turn_seconds, more=self._unready)
        self._threads = threads
        self._paused = PausedHandler(handler, clock, self.stopping)
        self._began = 0.0
        self._commits = _Commits(clock)

    def _unready(self) -> Iterator[str]:
        """Return why it does no work now, in addition to the failure that ended its loop."""
        consumer, now = self.consumer, self.clock.monotonic()
        if self.health.trouble:
            return
        if consumer is None:
            yield "it has not begun"
            return
        if self._paused.waits:
            yield "it waits for the database"
            return
        try:
            behind = consumer.lag(LAG_SECONDS)
        except MessagingError as error:
            yield f"it does not reach Kafka: {error}"
            return
        if not behind and now - self._began < _ASSIGNED_SECONDS:
            yield "it has no partitions yet"
        if not sum(behind.values()):
            self._commits.at = now
        stalled = now - self._commits.at
        if stalled > _STALL_SECONDS:
            yield f"STALL: nothing is done for {stalled:.0f} s"

    def failed(self, error: Exception) -> None:
        self.health.failed(error)

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
            hooks=[self._commits, *hooks],
        )
        self._began = self._commits.at = self.clock.monotonic()
        self.health.works()
        return processor

    def _handle(self, attempt: contextlib.ExitStack, message: Message) -> Iterable[Output]:
        """An error of the database that does not pass ends the loop, so that the operator sees it; nothing is lost."""
        try:
            return self._paused(message)
        except StorageError as error:
            self.fail(attempt, error)
            raise RetryLater from error


def service_health(loops: Sequence[LoopHealth]) -> ServiceHealth:
    """Return the health of a service with these loops."""

    def reasons() -> dict[str, list[str]]:
        return {loop.probes.service: loop.probes.ready()[1]["reasons"] for loop in loops}

    def look() -> tuple[bool, dict[str, Any]]:
        shown = {
            name: {"state": "waiting" if found else "running", "reason": "; ".join(found)}
            for name, found in reasons().items()
        }
        healthy = all(each["state"] == "running" for each in shown.values())
        return healthy, {"healthy": healthy, "members": shown}

    return ServiceHealth(
        "notification",
        look,
        liveness(
            lambda: {name: age for loop in loops for name, age in loop.probes.live()[1]["seconds_since_turn"].items()}
        ),
        readiness(lambda: (f"{name}: {reason}" for name, found in reasons().items() for reason in found)),
    )
