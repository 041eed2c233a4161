# SPDX-License-Identifier: Apache-2.0
"""The member of the notification service's consumer group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, MessagingError, Processor, RegistryUnavailable, RetryLater
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.notification.settings import NotificationSettings
from monasca_common.runtime.member import Attempt, Member
from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.storage.batch_member import DATABASE_RETRY
from monasca_common.storage.errors import StorageError


class NotificationMember(Member):
    """Calls ``handler`` with alarm changes."""

    expected = (MessagingError, StorageError)
    counts_unfinished = False  # a receiver may take longer than the limit for a stall

    def __init__(
        self, settings: NotificationSettings, handler: Callable[[Message], None], clock: Clock, status: MemberStatus
    ) -> None:
        tap = audit_tap(settings.audit, "notification", settings.consumer.group_id)
        super().__init__(status, settings.consumer, settings.producer, tap=tap, clock=clock)
        self._threads = settings.processing.number
        self._handler = handler

    def open(self, attempt: Attempt) -> Processor:
        consumer, producer, hooks = self.open_clients(attempt)
        return Processor(
            consumer,
            partial(self._handle, attempt),
            per_message=True,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=DeadLetters(),
            order="key",
            threads=self._threads,
            hooks=hooks,
        )

    def _handle(self, attempt: Attempt, message: Message) -> None:
        """Handle a message. While the database is unavailable, the health reports it. A permanent database error ends
        the attempt, so that an operator sees it."""
        try:
            self._handler(message)
        except RegistryUnavailable:
            raise
        except RetryLater as later:
            partition = TopicPartition(message.topic, message.partition)
            self.health.waits(MemberState.WAITING_FOR_DATABASE, str(later.__cause__ or later), partition)
            raise
        except StorageError as error:
            attempt.fail(error)
            raise RetryLater from error
        self.health.waits(MemberState.WAITING_FOR_DATABASE, "")
