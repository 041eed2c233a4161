# SPDX-License-Identifier: Apache-2.0
"""An attempt to send a notification by its method (slot, ledger, notifier, ledger), and the retry after a failure."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import replace

from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.notification.errors import NotificationError, SendFailed, SendRefused
from monasca_common.notification.ledger import FAILED, GIVEN_UP, SENT, Ledger, NextStep
from monasca_common.notification.metrics import NotificationMetrics
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import Notifier
from monasca_common.notification.retries import Retry
from monasca_common.notification.settings import ProcessorSettings
from monasca_common.notification.slots import HANG_SECONDS, Slot, Slots

LOG = logging.getLogger(__name__)

_LEAST_TURN_SECONDS, _MOST_TURN_SECONDS = 1.0, 600.0  # the wait before the next try if no slot is free
_MAX_AT_ONE_METHOD = 8
_MAX_AT_ONE_DESTINATION = 16
_KEY_SECONDS = 60.0  # the pause between two attempts to decrypt an address


class NotificationDelivery:
    """Sends notifications, and records outcomes. Thread-safe. ``ttl_ms``: the time that a notification may wait without
    an attempt."""

    def __init__(
        self,
        ledger: Ledger,
        notifiers: Mapping[str, Notifier],
        policy: RetryPolicy,
        processing: ProcessorSettings,
        clock: Clock,
        metrics: NotificationMetrics,
    ) -> None:
        self._ledger = ledger
        self._notifiers = notifiers
        self._policy = policy
        self._clock = clock
        self.ttl_ms = processing.ttl * 1000
        self._slots = Slots(_MAX_AT_ONE_METHOD, _MAX_AT_ONE_DESTINATION, processing.number)
        self._metrics = metrics
        self.count = metrics.count
        # Notifications that were sent while the ledger was unavailable and must not be sent again.
        self._unrecorded: set[str] = set()

    def attempt(self, retry: Retry, method: NotificationMethod, *, released: bool = False) -> Retry | None:
        """Run an attempt, and return the next attempt, if any. ``released``: see `Ledger.begin`.

        If this raises `StorageError`, the attempt must be repeated.
        """
        if method.unreadable is not None:
            LOG.error("notification %s is postponed: %s", retry.notification.id, method.unreadable)
            return self.wait(retry, _KEY_SECONDS, str(method.unreadable))
        notification = retry.notification
        # Send one notification of an alarm at a time, because a slow attempt could end after the attempt of a newer
        # change.
        subject = notification.id if notification.others else f"{notification.change.alarm_id}/{method.id}"
        destination, tenant = self._destination(method), notification.change.tenant
        with self._slots.slot(method.id, destination, subject, tenant) as slot:
            if slot is None:
                return self.wait(retry, self._turn_seconds(retry), "the receiver is busy with other notifications")
            if notification.id in self._unrecorded:
                self._record_sent(notification, method, None)
                return None
            return self._attempt(retry, method, slot, released)

    def _turn_seconds(self, retry: Retry) -> float:
        """Return the wait before the next try: at most as long as the notification has waited, so that the tries of
        many notifications are spread over the time that their receiver needs."""
        waited_seconds = (self._clock.time_ms() - retry.waits_since_ms) / 1000 if retry.waits_since_ms else 0.0
        return min(max(waited_seconds, _LEAST_TURN_SECONDS), _MOST_TURN_SECONDS) * random.uniform(0.5, 1.0)

    def wait(self, retry: Retry, seconds: float, reason: str) -> Retry | None:
        """Return the attempt that replaces this one in ``seconds``, or ``None`` if it has waited for the whole ttl and
        is given up. Raises `StorageError`."""
        now_ms = self._clock.time_ms()
        since_ms = retry.waits_since_ms or now_ms
        if now_ms - since_ms > self.ttl_ms:
            self.end(retry.notification, retry.method_id, GIVEN_UP, reason)
            return None
        return replace(retry, due_ms=now_ms + round(seconds * 1000), waits_since_ms=since_ms)

    def end(self, notification: Notification, method_id: str, state: str, reason: str) -> None:
        """Record that no further attempt follows, unless the notification has ended. Raises `StorageError`."""
        if self._ledger.end(notification, method_id, state, self._clock.time_ms(), reason):
            self.count(state)
            if state == GIVEN_UP:
                LOG.error("notification %s is given up: %s", notification.id, reason)

    def _attempt(self, retry: Retry, method: NotificationMethod, slot: Slot, released: bool) -> Retry | None:
        notification, now_ms = retry.notification, self._clock.time_ms()
        step = self._ledger.begin(notification, method.id, retry.attempt, now_ms, released=released)
        if step is NextStep.NOTHING:
            return None
        if step is NextStep.RETRY:
            return self._following(retry, None)
        if step is NextStep.REPEAT:
            self.count("repeated", method.type)
            LOG.warning("notification %s is sent again because a crash hid the outcome of an attempt", notification.id)
        fail_point("notification.before_send")
        began = self._clock.monotonic()  # the duration excludes the time spent in the ledger
        try:
            answer = self._send(notification, method)
        except NotificationError as error:
            slot.hangs = self._clock.monotonic() - began >= HANG_SECONDS
            return self._failed(retry, method, error)
        fail_point("notification.after_send")
        slot.hangs = False
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
            # Other packages add notifiers; a defect in a notifier counts as a failed attempt, and does not immediately
            # cause a dead letter.
            LOG.exception("the notifier of %s failed", method.type)
            raise SendFailed(f"the notifier failed: {type(error).__name__}") from error

    def _record_sent(self, notification: Notification, method: NotificationMethod, answer: str | None) -> None:
        self._unrecorded.add(notification.id)
        self._ledger.finish(notification, SENT, self._clock.time_ms(), answer)
        self._unrecorded.discard(notification.id)
        self.count("sent", method.type)
        self._metrics.took(method.type, (self._clock.time_ms() - notification.change.time_ms) / 1000)

    def _failed(self, retry: Retry, method: NotificationMethod, error: NotificationError) -> Retry | None:
        notification = retry.notification
        ends = isinstance(error, SendRefused) or self._policy.exhausted(retry.attempt)
        self._ledger.finish(notification, GIVEN_UP if ends else FAILED, self._clock.time_ms(), str(error))
        self.count("failed attempts", method.type)
        operators = error.for_operators
        LOG.warning(
            "notification %s, attempt %d by method %s: %s", notification.id, retry.attempt, method.id, operators
        )
        if ends:
            self.count(GIVEN_UP)
            LOG.error("notification %s is given up", notification.id)
            return None
        return self._following(retry, error.after_seconds if isinstance(error, SendFailed) else None)

    def _following(self, retry: Retry, least_seconds: float | None) -> Retry:
        """Return the attempt after a failure."""
        seconds = max(self._policy.delay(retry.attempt, random.random()), least_seconds or 0.0)
        due_ms = self._clock.time_ms() + round(seconds * 1000)
        return replace(retry, attempt=retry.attempt + 1, due_ms=due_ms, waits_since_ms=0)
