# SPDX-License-Identifier: Apache-2.0
"""The handler of alarm changes, which a `Processor` calls with single messages, and of due attempts.

When a change is handled, each of its notifications is sent, deferred, given up or stored as a retry. The message can
then be committed without losing a notification.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace

from sqlalchemy.exc import DataError

from monasca_common.alarms.errors import UnknownId
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import Message, Poison, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.notification.delivery import NotificationDelivery
from monasca_common.notification.ledger import GIVEN_UP, SUPERSEDED
from monasca_common.notification.notification import Notification, notification_of
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.retries import FIRST, Retry
from monasca_common.notification.stages import Facts
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.errors import DuplicateKey, QueryTimeout, StorageError, StorageUnavailable


class NotificationHandler:
    """Notifies the methods of a change concurrently, so that a slow receiver does not delay the others, and runs due
    attempts. Thread-safe.

    ``executor``: sends the notifications of a change.
    """

    def __init__(
        self,
        methods: NotificationMethods,
        pipeline: Pipeline,
        delivery: NotificationDelivery,
        clock: Clock,
        *,
        envelopes: EnvelopeReader,
        executor: Executor,
    ) -> None:
        self.delivery = delivery
        self._executor = executor
        self._methods = methods
        self._pipeline = pipeline
        self._envelopes = envelopes
        self._clock = clock

    def __call__(self, message: Message) -> None:
        """Handle a change. Raises `Poison`, `RetryLater`, and `StorageError` for errors that affect every message."""
        try:
            change = AlarmChange.read(self._envelopes.text(message.value))
        except InvalidEnvelope as error:
            raise Poison(str(error)) from error
        if not change.actions_enabled:
            return
        if self._clock.time_ms() - change.time_ms > self.delivery.ttl_ms:
            self.delivery.count("too old")
            return
        try:
            self._notify_all(change)
        except (StorageUnavailable, QueryTimeout, DuplicateKey) as error:
            # The database is unavailable, or another process wrote the same row.
            raise RetryLater from error
        except StorageError as error:
            if affects_one_row(error):
                raise Poison(str(error)) from error
            raise

    def _notify_all(self, change: AlarmChange) -> None:
        methods = self._methods.notified(change.tenant, change.definition_id, change.new_state)
        facts = self._pipeline.facts(change, [method.id for method in methods]) if methods else []
        sent = [self._executor.submit(self._notify, change, *each) for each in zip(methods, facts, strict=True)]
        failures = [failure for future in sent if (failure := future.exception()) is not None]
        # Errors after which the message is handled again take precedence, because a dead letter would lose
        # notifications.
        if failures:
            raise min(failures, key=affects_one_row)

    def _notify(self, change: AlarmChange, method: NotificationMethod, facts: Facts) -> None:
        notification = notification_of(change, method.id)
        if self._pipeline.defers(notification, method, facts):
            return
        first = Retry(notification, method.id, FIRST, self._clock.time_ms())
        following = self.delivery.attempt(first, method)
        if following is not None:
            self._pipeline.deferred.schedule(following, self._clock.time_ms())

    def attempt(self, retry: Retry) -> Retry | None:
        """Run a due attempt, and return the next attempt, if any. Raises `StorageError`.

        A change is not sent if a later change of its alarm is sent to the same method.
        """
        if retry.expires_ms and retry.attempt == FIRST and self._clock.time_ms() > retry.expires_ms:
            self.delivery.count("too late")
            return None
        message = self._pipeline.deferred.message(retry.notification.id) if retry.members > 1 else retry.notification
        notification = message and self._without_superseded(retry, message)
        if notification is None:
            return None
        try:
            method = self._methods.get_or_unreadable(notification.change.tenant, retry.method_id)
        except UnknownId:
            self.delivery.end(notification, retry.method_id, GIVEN_UP, "the method was deleted")
            return None
        return self.delivery.attempt(replace(retry, notification=notification), method, released=True)

    def _without_superseded(self, retry: Retry, notification: Notification) -> Notification | None:
        """Record superseded changes, and return the notification without them, or ``None`` if no change remains."""
        superseded = [each for each in notification.changes if self._is_superseded(each, retry)]
        left = [each for each in notification.changes if each not in superseded]
        if not left:
            self.delivery.end(notification, retry.method_id, SUPERSEDED, "the alarm has changed since")
            return None
        if superseded:
            ids = [notification_of(each, retry.method_id).id for each in superseded]
            self._pipeline.deferred.supersede(notification.id, ids, self._clock.time_ms())
        return Notification(notification.id, left[0], tuple(left[1:]))

    def _is_superseded(self, change: AlarmChange, retry: Retry) -> bool:
        """Return whether the alarm has left the state, and its current state or a later change that was sent also
        notifies the method. A repeat is superseded regardless of the current state."""
        alarm = self._pipeline.current(change)
        if alarm is not None and alarm.is_result_of(change):
            return False
        if retry.expires_ms or self._pipeline.has_sent_later(change, retry.method_id):  # a repeat expires
            return True
        if alarm is None or not alarm.actions_enabled:
            return False
        methods = self._methods.notified(change.tenant, change.definition_id, alarm.state)
        return any(method.id == retry.method_id for method in methods)


def affects_one_row(error: BaseException) -> bool:
    """Return whether the error is permanent and concerns the values of one row; other errors affect every row."""
    return not isinstance(error, StorageError) or isinstance(error.__cause__, DataError)
