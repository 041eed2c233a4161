# SPDX-License-Identifier: Apache-2.0
"""One attempt to tell one method of one change: ledger, notifier, ledger; and when the next attempt is due."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.alarms.outbox import Unpublished
from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.notification.errors import NotificationError, SendFailed, SendPostponed, SendRefused
from monasca_common.notification.ledger import FAILED, GIVEN_UP, SENT, SUPERSEDED, NextStep, NoticeLedger
from monasca_common.notification.notice import Notice
from monasca_common.notification.notifiers.base import Notifier
from monasca_common.notification.places import SendingPlace, SendingPlaces
from monasca_common.notification.retries import Retry
from monasca_common.notification.shared_slots import SharedSlots
from monasca_common.notification.status import NotificationMetrics

LOG = logging.getLogger(__name__)

_LONGEST_TURN_SECONDS = 60.0  # shorter turns would come back before the receiver has room
# Sent at once; one to a method that failed last, and a quarter where an attempt hung last.
_MAX_AT_ONE_METHOD = 8
_MAX_AT_ONE_DESTINATION = 16
_KEY_SECONDS = 60.0  # so often an address is looked at that waits for its key


class NoticeDelivery:
    """Several threads call it at once. ``counts``: what became of notifications, for reports."""

    def __init__(
        self,
        ledger: NoticeLedger,
        notifiers: Mapping[str, Notifier],
        policy: RetryPolicy,
        clock: Clock,
        *,
        announce: Callable[[Unpublished], None] = lambda _: None,
        metrics: NotificationMetrics | None = None,
    ) -> None:
        self._ledger = ledger
        self._notifiers = notifiers
        self._policy = policy
        self._clock = clock
        longest_turn = max(policy.max_backoff_seconds, _LONGEST_TURN_SECONDS)
        self._places = SendingPlaces(_MAX_AT_ONE_METHOD, _MAX_AT_ONE_DESTINATION, longest_turn, clock)
        self._announce = announce
        self._metrics = metrics or NotificationMetrics()
        self._lock = threading.Lock()
        # Sent, while the ledger could not be told: what comes again for one of these must not send it again.
        self._unrecorded: set[str] = set()
        self.counts: Counter[str] = Counter()

    def attempt(
        self,
        notice: Notice,
        method: NotificationMethod,
        attempt: int,
        threads: SharedSlots,
        *,
        released: bool = False,
        standing: Callable[[Notice], Notice | None] = lambda notice: notice,
    ) -> Retry | None:
        """The retry that is to be published, if the attempt failed. ``threads``: those of the caller, which tenants
        share. ``released``: see `NoticeLedger.begin`. ``standing``: what is left of the notice when its turn has come.

        Raises `StorageError`: then it comes again.
        """
        if method.unreadable is not None:
            LOG.error("notification %s waits: %s", notice.id, method.unreadable)
            return self._wait(notice, method.id, attempt, _KEY_SECONDS, str(method.unreadable))
        # Of one alarm, because a slow attempt could end after that of a newer change.
        subject = notice.id if notice.others else f"{notice.change.alarm_id}/{method.id}"
        destination, tenant = self._destination(method), notice.change.tenant
        with self._places.place(method.id, destination, subject, tenant, threads) as place:
            if place.turn_seconds is not None:
                reason = "others are being sent there"
                return self._wait(notice, method.id, attempt, place.turn_seconds, reason)
            if notice.id in self._unrecorded:
                self._record_sent(notice, method, None)
                return None
            left = standing(notice)
            return None if left is None else self._attempt(left, method, attempt, place, released=released)

    def give_up(self, notice: Notice, method_id: str, reason: str) -> None:
        """Record that there will be no further attempt, unless it has ended. Raises `StorageError`."""
        if self._end(notice, method_id, GIVEN_UP, reason):
            LOG.error("notification %s is given up: %s", notice.id, reason)

    def supersede(self, notice: Notice, method_id: str) -> None:
        """Record that the alarm has changed, unless the notification has ended. Raises `StorageError`."""
        self._end(notice, method_id, SUPERSEDED, "the alarm has changed since")

    def _end(self, notice: Notice, method_id: str, state: str, reason: str) -> bool:
        unpublished = self._ledger.end(notice, method_id, state, self._clock.time_ms(), reason)
        if unpublished is None:
            return False
        self._announce(unpublished)
        self._count(state)
        return True

    def skip(self, why: str) -> None:
        self._count(why)

    def _attempt(
        self, notice: Notice, method: NotificationMethod, attempt: int, place: SendingPlace, *, released: bool
    ) -> Retry | None:
        step = self._ledger.begin(notice, method.id, attempt, self._clock.time_ms(), released=released)
        if step is NextStep.NOTHING:
            return None
        if step is NextStep.RETRY:
            return self._retry(notice, method.id, attempt + 1, self._delay(attempt), "a crash followed a failure")
        if step is NextStep.REPEAT:
            self._count("repeated", method.type)
            LOG.warning("notification %s is sent again: a crash hid whether its receiver has it", notice.id)
        fail_point("notification.before_send")
        # What the ledger took is not the receiver's time.
        place.sent_since = self._clock.monotonic()
        try:
            answer = self._send(notice, method)
        except NotificationError as error:
            place.failed = not isinstance(error, SendPostponed)
            return self._failed(notice, method, attempt, error)
        fail_point("notification.after_send")
        self._places.leave(place)
        self._record_sent(notice, method, answer)
        return None

    def _destination(self, method: NotificationMethod) -> str:
        notifier = self._notifiers.get(method.type)
        try:
            return "" if notifier is None else notifier.destination(method.address)
        except Exception:
            LOG.exception("the notifier of %s does not know the destination of a method", method.type)
            return ""

    def _send(self, notice: Notice, method: NotificationMethod) -> str | None:
        notifier = self._notifiers.get(method.type)
        if notifier is None:
            raise SendRefused(f"no notifier is installed for the type {method.type}")
        try:
            return notifier.send(replace(notice, method_id=method.id), method.address)
        except NotificationError:
            raise
        except Exception as error:
            # Notifiers come from other packages too: a flaw of theirs is a failed attempt, and no dead letter at once.
            LOG.exception("the notifier of %s failed", method.type)
            raise SendFailed(f"the notifier failed: {type(error).__name__}") from error

    def _record_sent(self, notice: Notice, method: NotificationMethod, answer: str | None) -> None:
        self._unrecorded.add(notice.id)
        self._finish(notice, SENT, answer)
        self._unrecorded.discard(notice.id)
        self._count("sent", method.type)
        self._metrics.took(method.type, (self._clock.time_ms() - notice.change.time_ms) / 1000)

    def _failed(self, notice: Notice, method: NotificationMethod, attempt: int, error: NotificationError) -> Retry:
        if isinstance(error, SendPostponed):
            self._ledger.restore(notice.id, FAILED)
            return self._wait(notice, method.id, attempt, error.after_seconds, str(error))
        self._finish(notice, FAILED, str(error))
        self._count("failed attempts", method.type)
        LOG.warning("notification %s, attempt %d at method %s: %s", notice.id, attempt, method.id, error.for_operators)
        if isinstance(error, SendRefused):
            return self._retry(notice, method.id, max(attempt, self._policy.attempts) + 1, 0.0, str(error))
        seconds = self._delay(attempt)
        if isinstance(error, SendFailed) and error.after_seconds is not None and not self._policy.exhausted(attempt):
            seconds = max(seconds, error.after_seconds)
        return self._retry(notice, method.id, attempt + 1, seconds, str(error))

    def _finish(self, notice: Notice, state: str, reason: str | None) -> None:
        unpublished = self._ledger.finish(notice, state, self._clock.time_ms(), reason)
        if unpublished is not None:
            self._announce(unpublished)

    def _delay(self, attempt: int) -> float:
        return 0.0 if self._policy.exhausted(attempt) else self._policy.delay(attempt, random.random())

    def _wait(self, notice: Notice, method_id: str, attempt: int, seconds: float, reason: str) -> Retry:
        """The retry of a notification that was not attempted."""
        retry = self._retry(notice, method_id, attempt, seconds, reason)
        return replace(retry, waits_since_ms=self._clock.time_ms())

    def _retry(self, notice: Notice, method_id: str, attempt: int, seconds: float, reason: str) -> Retry:
        return Retry(notice, method_id, attempt, self._clock.time_ms() + round(seconds * 1000), reason)

    def _count(self, what: str, type: str = "") -> None:  # noqa: A002 - what a method calls it
        self._metrics.count(what, type)
        with self._lock:
            self.counts[what] += 1
