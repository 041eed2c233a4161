# SPDX-License-Identifier: Apache-2.0
"""The handlers of the two topics: changes of alarms, and retries. A `Processor` calls them with single messages.

What a handler returns is acknowledged before its message counts as done, and a notification is sent or its retry
published before that. So a message is committed only when nothing of it can be lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from monasca_common.alarms.errors import UnknownId
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.silences import Silence, Silences
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import Message, Output, Poison, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.notification.calm import silencing
from monasca_common.notification.delivery import NoticeDelivery
from monasca_common.notification.ledger import SILENCED
from monasca_common.notification.notice import notice_of
from monasca_common.notification.retries import Retry
from monasca_common.notification.waiting import WaitingRetries
from monasca_common.storage.errors import StorageError

T = TypeVar("T")

_FIRST = 1
_SOON_SECONDS = 2.0  # what is due so soon waits in memory
_MOST_AT_ONCE = 16  # methods of one change


class ChangesHandler:
    """Tells the methods of the definition and the new state, at once, so that none waits for a slower one."""

    def __init__(
        self,
        methods: NotificationMethods,
        silences: Silences,
        delivery: NoticeDelivery,
        clock: Clock,
        *,
        retry_topic: str,
        ttl_seconds: float,
    ) -> None:
        self._methods = methods
        self._silences = silences
        self._delivery = delivery
        self._clock = clock
        self._retry_topic = retry_topic
        self._ttl_ms = ttl_seconds * 1000

    def __call__(self, message: Message) -> list[Output]:
        change = _read(AlarmChange.read, message)
        if not change.actions_enabled:
            return []
        if self._clock.time_ms() - change.time_ms > self._ttl_ms:
            self._delivery.skip("too old")
            return []
        with _translated():
            methods = self._methods.notified(change.tenant, change.definition_id, change.new_state)
            silence = self._silence_of(change) if methods else None
            retries = _at_once([partial(self._tell, change, each, silence) for each in methods])
            return [Output(self._retry_topic, retry.record()) for retry in retries if retry is not None]

    def _silence_of(self, change: AlarmChange) -> Silence | None:
        now_ms = self._clock.time_ms()
        return silencing(self._silences.lasting(change.tenant, now_ms), change, now_ms)

    def _tell(self, change: AlarmChange, method: NotificationMethod, silence: Silence | None) -> Retry | None:
        notice = notice_of(change, method.id)
        if silence is not None and self._delivery.withhold(notice, method, SILENCED, silence.shown):
            return None
        return self._delivery.attempt(notice, method, _FIRST)


class RetriesHandler:
    """Makes each attempt when it is due; after the last one the notification is a dead letter."""

    def __init__(
        self,
        methods: NotificationMethods,
        waiting: WaitingRetries,
        delivery: NoticeDelivery,
        clock: Clock,
        *,
        retry_topic: str,
        max_attempts: int,
    ) -> None:
        self._methods = methods
        self._waiting = waiting
        self._delivery = delivery
        self._clock = clock
        self._retry_topic = retry_topic
        self._max_attempts = max_attempts

    def __call__(self, message: Message) -> list[Output]:
        retry = _read(Retry.read, message)
        left_seconds = (retry.not_before_ms - self._clock.time_ms()) / 1000
        if 0 < left_seconds <= _SOON_SECONDS:
            raise RetryLater(after=left_seconds)
        with _translated():
            if left_seconds > 0:
                self._waiting.park(retry, message.value or b"")
                return []
            if retry.attempt > self._max_attempts:
                self._delivery.give_up(retry.notice, retry.reason)
                raise Poison(retry.reason)
            try:
                method = self._methods.get(retry.notice.change.tenant, retry.method_id)
            except UnknownId:
                self._delivery.give_up(retry.notice, "the method was deleted")
                return []
            following = self._delivery.attempt(retry.notice, method, retry.attempt)
        return [] if following is None else [Output(self._retry_topic, following.record())]


def _at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """The results, in order. Raises what one of them raised, once all are over."""
    results: dict[int, T] = {}
    errors: list[Exception] = []
    numbers = iter(range(len(works)))  # each thread takes the next one

    def run() -> None:
        for number in numbers:
            try:
                results[number] = works[number]()
            except Exception as error:
                errors.append(error)

    helpers = [threading.Thread(target=run, daemon=True) for _ in range(min(len(works), _MOST_AT_ONCE) - 1)]
    for thread in helpers:
        thread.start()
    run()
    for thread in helpers:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]


def _read(reader: Callable[[bytes | None], T], message: Message) -> T:
    try:
        return reader(message.value)
    except InvalidEnvelope as error:
        raise Poison(str(error)) from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The database is a dependency: while it is unavailable, messages wait."""
    try:
        yield
    except StorageError as error:
        raise RetryLater from error
