# SPDX-License-Identifier: Apache-2.0
"""One attempt to send a notification by its method: slot, ledger, notifier, ledger; and the retry after a failure."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.notification.errors import NotificationError, SendFailed, SendPostponed, SendRefused
from monasca_common.notification.ledger import FAILED, GIVEN_UP, SENT, SUPERSEDED, Ledger, NextStep
from monasca_common.notification.metrics import NotificationMetrics
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import Notifier
from monasca_common.notification.retries import Retry
from monasca_common.notification.slots import Slot, Slots, TenantSlots

LOG = logging.getLogger(__name__)

_LONGEST_TURN_SECONDS = 60.0  # with shorter turns, retries would return before the receiver has a free slot
_MAX_AT_ONE_METHOD = 8
_MAX_AT_ONE_DESTINATION = 16
_KEY_SECONDS = 60.0  # between two attempts to decrypt an address


class NotificationDelivery:
    """Sends notifications, and records outcomes. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        notifiers: Mapping[str, Notifier],
        policy: RetryPolicy,
        clock: Clock,
        *,
        metrics: NotificationMetrics | None = None,
    ) -> None:
        self._ledger = ledger
        self._notifiers = notifiers
        self._policy = policy
        self._clock = clock
        longest_turn = max(policy.max_backoff_seconds, _LONGEST_TURN_SECONDS)
        self._slots = Slots(_MAX_AT_ONE_METHOD, _MAX_AT_ONE_DESTINATION, longest_turn, clock)
        self._metrics = metrics or NotificationMetrics()
        self.count = self._metrics.count
        # Notifications that were sent while the ledger was unavailable and must not be sent again.
        self._unrecorded: set[str] = set()

    def attempt(
        self,
        notification: Notification,
        method: NotificationMethod,
        attempt: int,
        threads: TenantSlots,
        *,
        released: bool = False,
        before: Callable[[Notification], Notification | None] = lambda notification: notification,
    ) -> Retry | None:
        """Return the retry to schedule, if the attempt failed.

        ``threads``: the caller's threads, which tenants share. ``released``: see `Ledger.begin`. ``before``: called
        after a slot is free; it returns the part of the notification that is still to send.

        Raises `StorageError`: then the message must be handled again.
        """
        if method.unreadable is not None:
            LOG.error("notification %s waits: %s", notification.id, method.unreadable)
            return self._wait(notification, method.id, attempt, _KEY_SECONDS, str(method.unreadable))
        # One notification of an alarm at a time, because a slow attempt could end after that of a newer change.
        subject = notification.id if notification.others else f"{notification.change.alarm_id}/{method.id}"
        destination, tenant = self._destination(method), notification.change.tenant
        with self._slots.slot(method.id, destination, subject, tenant, threads) as slot:
            if slot.turn_seconds is not None:
                reason = "the receiver is busy with other notifications"
                return self._wait(notification, method.id, attempt, slot.turn_seconds, reason)
            if notification.id in self._unrecorded:
                self._record_sent(notification, method, None)
                return None
            left = before(notification)
            return None if left is None else self._attempt(left, method, attempt, slot, released=released)

    def give_up(self, notification: Notification, method_id: str, reason: str) -> None:
        """Record that no further attempt follows, unless the notification has ended. Raises `StorageError`."""
        if self._end(notification, method_id, GIVEN_UP, reason):
            LOG.error("notification %s is given up: %s", notification.id, reason)

    def supersede(self, notification: Notification, method_id: str) -> None:
        """Record that the alarm has changed, unless the notification has ended. Raises `StorageError`."""
        self._end(notification, method_id, SUPERSEDED, "the alarm has changed since")

    def _end(self, notification: Notification, method_id: str, state: str, reason: str) -> bool:
        is_new = self._ledger.end(notification, method_id, state, self._clock.time_ms(), reason)
        if is_new:
            self.count(state)
        return is_new

    def _attempt(
        self, notification: Notification, method: NotificationMethod, attempt: int, slot: Slot, *, released: bool
    ) -> Retry | None:
        step = self._ledger.begin(notification, method.id, attempt, self._clock.time_ms(), released=released)
        if step is NextStep.NOTHING:
            return None
        if step is NextStep.RETRY:
            reason = "a crash after a failed attempt"
            return self._retry(notification, method.id, attempt + 1, self._delay(attempt), reason)
        if step is NextStep.REPEAT:
            self.count("repeated", method.type)
            LOG.warning("notification %s is sent again because a crash hid the outcome of an attempt", notification.id)
        fail_point("notification.before_send")
        slot.sent_since = self._clock.monotonic()  # excludes the time of the ledger
        try:
            answer = self._send(notification, method)
        except NotificationError as error:
            slot.failed = not isinstance(error, SendPostponed)
            return self._failed(notification, method, attempt, error)
        fail_point("notification.after_send")
        self._slots.leave(slot)
        self._record_sent(notification, method, answer)
        return None

    def _destination(self, method: NotificationMethod) -> str:
        notifier = self._notifiers.get(method.type)
        try:
            return "" if notifier is None else notifier.destination(method.address)
        except Exception:
            LOG.exception("the notifier of %s failed to return the destination of a method", method.type)
            return ""

    def _send(self, notification: Notification, method: NotificationMethod) -> str | None:
        notifier = self._notifiers.get(method.type)
        if notifier is None:
            raise SendRefused(f"no notifier is installed for the type {method.type}")
        try:
            return notifier.send(replace(notification, method_id=method.id), method.address)
        except NotificationError:
            raise
        except Exception as error:
            # Other packages add notifiers: their defects are failed attempts, and not immediately dead letters.
            LOG.exception("the notifier of %s failed", method.type)
            raise SendFailed(f"the notifier failed: {type(error).__name__}") from error

    def _record_sent(self, notification: Notification, method: NotificationMethod, answer: str | None) -> None:
        self._unrecorded.add(notification.id)
        self._finish(notification, SENT, answer)
        self._unrecorded.discard(notification.id)
        self.count("sent", method.type)
        self._metrics.took(method.type, (self._clock.time_ms() - notification.change.time_ms) / 1000)

    def _failed(
        self, notification: Notification, method: NotificationMethod, attempt: int, error: NotificationError
    ) -> Retry:
        if isinstance(error, SendPostponed):
            self._ledger.restore(notification.id, FAILED)
            return self._wait(notification, method.id, attempt, error.after_seconds, str(error))
        self._finish(notification, FAILED, str(error))
        self.count("failed attempts", method.type)
        operators = error.for_operators
        LOG.warning("notification %s, attempt %d by method %s: %s", notification.id, attempt, method.id, operators)
        if isinstance(error, SendRefused):
            return self._retry(notification, method.id, max(attempt, self._policy.attempts) + 1, 0.0, str(error))
        seconds = self._delay(attempt)
        if isinstance(error, SendFailed) and error.after_seconds is not None and not self._policy.exhausted(attempt):
            seconds = max(seconds, error.after_seconds)
        return self._retry(notification, method.id, attempt + 1, seconds, str(error))

    def _finish(self, notification: Notification, state: str, reason: str | None) -> None:
        self._ledger.finish(notification, state, self._clock.time_ms(), reason)

    def _delay(self, attempt: int) -> float:
        return 0.0 if self._policy.exhausted(attempt) else self._policy.delay(attempt, random.random())

    def _wait(self, notification: Notification, method_id: str, attempt: int, seconds: float, reason: str) -> Retry:
        """Return the retry of a notification that was not attempted."""
        retry = self._retry(notification, method_id, attempt, seconds, reason)
        return replace(retry, waits_since_ms=self._clock.time_ms())

    def _retry(self, notification: Notification, method_id: str, attempt: int, seconds: float, reason: str) -> Retry:
        return Retry(notification, method_id, attempt, self._clock.time_ms() + round(seconds * 1000), reason)
