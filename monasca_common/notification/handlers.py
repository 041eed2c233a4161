# SPDX-License-Identifier: Apache-2.0
"""The handlers of the two topics: changes of alarms, and retries. A `Processor` calls them with single messages.

What a handler returns is acknowledged before its message counts as done, and a notification is sent or its retry
published before that. So a message is committed only when nothing of it can be lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import DataError

from monasca_common.alarms.errors import UnknownId
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import Message, Output, Poison, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.notification import calm
from monasca_common.notification.calm import ChangeFacts
from monasca_common.notification.delivery import NoticeDelivery
from monasca_common.notification.notice import Notice, notice_of
from monasca_common.notification.planning import NoticePlanner
from monasca_common.notification.retries import Retry
from monasca_common.notification.shared_slots import SharedSlots
from monasca_common.notification.waiting import WaitingRetries
from monasca_common.storage.errors import DuplicateKey, QueryTimeout, StorageError, StorageUnavailable

T = TypeVar("T")

_FIRST = 1
_SOON_SECONDS = 2.0  # what is due so soon waits in memory
_MOST_AT_ONCE = 16  # methods of one change


class ChangesHandler:
    """Tells the methods of the definition and the new state, at once, so that none waits for a slower one.

    ``threads``: how many call it, and how many further ones it starts at most.
    """

    def __init__(
        self,
        methods: NotificationMethods,
        planner: NoticePlanner,
        delivery: NoticeDelivery,
        clock: Clock,
        *,
        retry_topic: str,
        ttl_seconds: float,
        threads: int,
    ) -> None:
        self._threads = SharedSlots(threads)
        self._helpers = threading.BoundedSemaphore(threads)
        self._methods = methods
        self._planner = planner
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
            facts = self._planner.facts(change, [each.id for each in methods]) if methods else []
            works = [partial(self._tell, change, *each) for each in zip(methods, facts, strict=True)]
            retries = _at_once(works, self._helpers)
            return [Output(self._retry_topic, retry.record()) for retry in retries if retry is not None]

    def _tell(self, change: AlarmChange, method: NotificationMethod, facts: ChangeFacts) -> Retry | None:
        notice = notice_of(change, method.id)
        if self._planner.withholds(notice, method, facts):
            return None
        return self._delivery.attempt(notice, method, _FIRST, self._threads)


class RetriesHandler:
    """Makes each attempt when it is due; after the last one the notification is a dead letter.

    A change is not sent if a later one of its alarm goes to the same method, unless ``keeps_superseded``.

    ``ttl_seconds``: how long after a change an address may wait for its key. ``max_late_seconds``: a first attempt that
    comes later than that is left out, as there is a newer one.
    """

    def __init__(
        self,
        methods: NotificationMethods,
        waiting: WaitingRetries,
        planner: NoticePlanner,
        delivery: NoticeDelivery,
        clock: Clock,
        *,
        retry_topic: str,
        max_attempts: int,
        ttl_seconds: float,
        threads: int,
        max_late_seconds: float | None = None,
        keeps_superseded: bool = False,
    ) -> None:
        self._threads = SharedSlots(threads)
        self._methods = methods
        self._waiting = waiting
        self._planner = planner
        self._held = planner.held
        self._delivery = delivery
        self._clock = clock
        self._retry_topic = retry_topic
        self._max_attempts = max_attempts
        self._ttl_ms = ttl_seconds * 1000
        self._max_late_seconds = max_late_seconds
        self._keeps_superseded = keeps_superseded

    def __call__(self, message: Message) -> list[Output]:
        retry = _read(Retry.read, message)
        left_seconds = (retry.not_before_ms - self._clock.time_ms()) / 1000
        if 0 < left_seconds <= _SOON_SECONDS:
            raise RetryLater(after=left_seconds)
        if self._max_late_seconds is not None and retry.attempt == _FIRST and -left_seconds > self._max_late_seconds:
            self._delivery.skip("too late")
            return []
        with _translated():
            if left_seconds > 0:
                self._waiting.park(retry, message.value or b"")
                return []
            following = self._attempt(retry)
        return [] if following is None else [Output(self._retry_topic, following.record())]

    def _attempt(self, retry: Retry) -> Retry | None:
        """The attempt after this one. Raises `StorageError`, `Poison`."""
        notice: Notice | None = retry.notice if retry.members == 1 else self._held.message(retry.notice.id)
        if notice is None:
            return None  # a group that was finished before a crash
        notice = self._standing(retry, notice)
        if notice is None:
            return None
        if retry.attempt > self._max_attempts:
            self._give_up(retry, notice, retry.reason)
            raise Poison(retry.reason)
        try:
            method = self._methods.told(notice.change.tenant, retry.method_id)
        except UnknownId:
            self._give_up(retry, notice, "the method was deleted")
            return None
        standing = partial(self._standing, retry)
        following = self._delivery.attempt(
            notice, method, retry.attempt, self._threads, released=True, standing=standing
        )
        if following is None:
            self._finish(retry)
            return None
        following = replace(following, members=retry.members)
        if not following.waits_since_ms:
            return following
        since_ms = retry.waits_since_ms or following.waits_since_ms
        if self._clock.time_ms() - since_ms > self._ttl_ms:
            self._give_up(retry, notice, following.reason)
            raise Poison(following.reason)
        return replace(following, waits_since_ms=since_ms)

    def _standing(self, retry: Retry, notice: Notice) -> Notice | None:
        """The notice without its superseded changes, which are recorded; ``None``: none is left."""
        if self._keeps_superseded:
            return notice
        superseded = [each for each in notice.changes if self._is_superseded(each, retry.method_id)]
        standing = [each for each in notice.changes if each not in superseded]
        if not standing:
            self._delivery.supersede(notice, retry.method_id)
            self._finish(retry)
            return None
        if superseded:
            ids = [notice_of(each, retry.method_id).id for each in superseded]
            self._held.supersede(notice.id, ids, self._clock.time_ms())
        return Notice(notice.id, standing[0], tuple(standing[1:]))

    def _is_superseded(self, change: AlarmChange, method_id: str) -> bool:
        """Whether the alarm is in another state since, which the method is notified of."""
        current = self._planner.current(change)
        if current is None or not current.actions_enabled or calm.stands(current, change):
            return False
        methods = self._methods.notified(change.tenant, change.definition_id, current.state)
        return any(each.id == method_id for each in methods)

    def _finish(self, retry: Retry) -> None:
        if retry.members > 1:
            self._held.finish(retry.notice.id, self._clock.time_ms())

    def _give_up(self, retry: Retry, notice: Notice, reason: str) -> None:
        self._delivery.give_up(notice, retry.method_id, reason)
        if retry.members > 1:
            self._held.give_up_all(notice.id, self._clock.time_ms(), f"in the message {notice.id}: {reason}")


def _at_once(works: Sequence[Callable[[], T]], helpers: threading.Semaphore) -> list[T]:
    """The results, in order. Raises what one of them raised, once all are over.

    ``helpers``: one for each further thread; where there are none left, this one does all of it.
    """
    results: dict[int, T] = {}
    errors: list[Exception] = []
    numbers = iter(range(len(works)))  # each thread takes the next one

    def run() -> None:
        for number in numbers:
            try:
                results[number] = works[number]()
            except Exception as error:
                errors.append(error)

    def help_out() -> None:
        try:
            run()
        finally:
            helpers.release()

    threads = []
    for _ in range(min(len(works), _MOST_AT_ONCE) - 1):
        if not helpers.acquire(blocking=False):
            break
        threads.append(threading.Thread(target=help_out, daemon=True))
        threads[-1].start()
    run()
    for thread in threads:
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
    """While the database is unavailable, messages wait; so they do after another process wrote the same row. What it
    refuses is a dead letter. Other errors of it stop the member: they concern every message, and do not pass."""
    try:
        yield
    except (StorageUnavailable, QueryTimeout, DuplicateKey) as error:
        raise RetryLater from error
    except StorageError as error:
        if isinstance(error.__cause__, DataError):
            raise Poison(str(error)) from error
        raise
