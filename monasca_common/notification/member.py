# SPDX-License-Identifier: Apache-2.0
"""The member of the consumer group of notifications."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from functools import partial

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, MessagingError, Processor, RegistryUnavailable, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.notification.settings import NotificationSettings
from monasca_common.runtime.member import DATABASE_RETRY, Member
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus
from monasca_common.storage.errors import StorageError


class PausedHandler:
    """Calls ``handler``. If it raises `RetryLater` because the database is unavailable, all threads pause, so that the
    lanes of other keys do not also query the database. `RegistryUnavailable` does not pause them."""

    def __init__(
        self, handler: Callable[[Message], None], clock: Clock, stopping: threading.Event, health: MemberHealth
    ) -> None:
        self._handler = handler
        self._health = health
        self._clock = clock
        self._stopping = stopping
        self._failures = 0
        self._until = 0.0

    def __call__(self, message: Message) -> None:
        left = self._until - self._clock.monotonic()
        if left > 0:
            self._stopping.wait(left)
        try:
            self._handler(message)
        except RegistryUnavailable:  # on `RegistryUnavailable`, only messages with an unknown schema wait
            raise
        except RetryLater as later:
            partition = TopicPartition(message.topic, message.partition)
            self._health.waits(MemberState.WAITING_FOR_DATABASE, str(later.__cause__ or later), partition)
            now = self._clock.monotonic()
            if now >= self._until:  # otherwise, the failure of another thread began the pause
                self._failures += 1
                self._until = now + DATABASE_RETRY.delay(self._failures, random.random())
            raise
        self._failures = 0
        self._health.waits(MemberState.WAITING_FOR_DATABASE, "")


class NotificationMember(Member):
    """Calls ``handler`` with changes of alarms."""

    expected = (MessagingError, StorageError)
    counts_unfinished = False  # a receiver may take longer than the limit for a stall

    def __init__(
        self, settings: NotificationSettings, handler: Callable[[Message], None], clock: Clock, status: MemberStatus
    ) -> None:
        tap = audit_tap(settings.audit, "notification", settings.consumer.group_id)
        super().__init__(status.name, settings.consumer, settings.producer, tap=tap, clock=clock, status=status)
        self._threads = settings.processing.number
        self._paused = PausedHandler(handler, clock, self.stopping, self.health)

    def open(self, stack: contextlib.ExitStack) -> Processor:
        consumer, producer, hooks = self.open_clients(stack)
        return Processor(
            consumer,
            partial(self._handle, stack),
            per_message=True,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=DeadLetters(),
            order="key",
            threads=self._threads,
            hooks=hooks,
        )

    def _handle(self, attempt: contextlib.ExitStack, message: Message) -> None:
        """Handle a message. A permanent error of the database ends the attempt, so that an operator sees it."""
        try:
            self._paused(message)
        except StorageError as error:
            self.fail(attempt, error)
            raise RetryLater from error
