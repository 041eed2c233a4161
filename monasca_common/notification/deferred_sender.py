# SPDX-License-Identifier: Apache-2.0
"""Publishes deferred notifications when they are due: after silences, of groups, digests, repeats and retries.

It sends nothing itself. A due notification is published as a first attempt to the retry topic, whose handler sends
it; a scheduled retry is published as it is. Its row stays until it is published, and the members of a group until they
are sent. So a crash loses nothing, and whichever process publishes again uses the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from monasca_common.alarms.address_keys import AddressUnreadable
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import DeliveryError, DeliveryReport, KafkaProducer, MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.notification.deferred import MOST_SCHEDULED, REPEAT, Deferred, DeferredRow
from monasca_common.notification.ledger import ENDED
from monasca_common.notification.notification import Notification, repeat_of
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.retries import FIRST, Retry
from monasca_common.notification.stages import HELD, LIMIT_KEY, next_repeat_ms
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.restarts import PublishingLoop
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_ROWS_A_PASS = 100
_PASS_SECONDS = 1.0  # after which retries are next
_REST_SECONDS = 0.5
_LEASE_MS = 30_000  # after which another process publishes what a dead one has claimed
_UNFINISHED_MS = 600_000
_CHANGING_MS = 1_000  # after which an alarm is read again that another transaction is changing
_PUBLISH_SECONDS = 10.0  # of retries
_NO_ACTION = "no action of the definition names the method any more"


class DeferredSender(PublishingLoop):
    """Publishes due notifications until `stop`. Several processes may."""

    expected = (MessagingError, StorageError)
    name = "deferred"
    longest_seconds = 5.0  # the most that a failure delays a retry

    def __init__(
        self,
        pipeline: Pipeline,
        methods: NotificationMethods,
        producer: ProducerSettings,
        clock: Clock,
        retry_topic: str,
    ) -> None:
        super().__init__("deferred notifications", producer, clock)
        self.health = LoopHealth(self.name, clock)
        self._pipeline = pipeline
        self._deferred = pipeline.deferred
        self._methods = methods
        self._retry_topic = retry_topic
        self._refusal = ""  # why Kafka did not acknowledge one of the last publishes

    def failed(self, error: Exception) -> None:
        self.health.failed(error)

    def publish_due(self, producer: KafkaProducer) -> float:
        self.health.turned()
        before, self._refusal = self._refusal, ""
        retries, rows = self.publish_retries(producer), self.release_due(producer)
        if not retries and not rows:  # what was refused is claimed, and due again later
            self._refusal = before
        self.health.turned(self._refusal)
        return 0.0 if retries == MOST_SCHEDULED or rows == _ROWS_A_PASS else _REST_SECONDS

    def publish_retries(self, producer: KafkaProducer) -> int:
        """Return how many were due; those that Kafka did not acknowledge are due again when their claim ends."""
        due = self._deferred.claim_scheduled(self.clock.time_ms(), self._later(_LEASE_MS))
        if due:
            report = producer.publish(self._retry_topic, [each.record for each in due], timeout=_PUBLISH_SECONDS)
            self._deferred.remove_scheduled([due[delivery.index] for delivery in report.delivered])
            if not report.ok:
                self._refused(report)
                LOG.warning("%d retries that are due were not published: %r", len(due), report)
        return len(due)

    def release_due(self, producer: KafkaProducer) -> int:
        """Decide on what is due now, and return the number of rows; those that the time of a pass does not reach stay
        due. Raises `StorageError`."""
        rows = self._deferred.due(self.clock.time_ms(), _ROWS_A_PASS)
        ends = self.clock.monotonic() + _PASS_SECONDS
        seen: set[str] = set()
        for row in rows:
            if self.stopping.is_set() or self.clock.monotonic() > ends:
                break
            together = row.message_id or (row.group_key if row.kind == HELD else "") or row.id
            if together not in seen:
                seen.add(together)
                self.health.turned()
                self._try(row, producer)
        return len(rows)

    def _try(self, row: DeferredRow, producer: KafkaProducer) -> None:
        """Release a row; one that fails blocks no other."""
        try:
            self._release(row, producer)
        except AddressUnreadable as error:
            LOG.error("deferred notification %s waits: %s", row.id, error)
            if row.kind == HELD and not row.message_id:
                self._deferred.postpone(row.group_key, self._later(_LEASE_MS))
            else:
                self._take(row)
        except (StorageError, MessagingError):
            raise
        except Exception:
            LOG.exception("deferred notification %s could not be released, and is tried again later", row.id)
            self._take(row)

    def _release(self, row: DeferredRow, producer: KafkaProducer) -> None:
        if row.message_id:
            self._publish_again(row, producer)
        elif row.kind == REPEAT:
            self._repeat(row, producer)
        elif row.kind == HELD:
            self._send_group(row, producer)
        else:
            self._end_suppression(row, producer)

    def _end_suppression(self, row: DeferredRow, producer: KafkaProducer) -> None:
        """Send what a silence or an inhibition withheld, if the alarm is still in its state."""
        taken = self._take(row)
        if taken is None:
            return
        method = self._method(row, taken.notification.change)
        is_sent = self._pipeline.end_suppression(taken, method)
        if is_sent is None:
            self._take(taken.row, _CHANGING_MS)
        if not is_sent or method is None:
            return
        if (deferral := self._pipeline.limit(method.id)) is not None:
            self._deferred.defer_again(row, deferral, self.clock.time_ms())
        else:
            self._send(taken, method, producer)

    def _send(self, taken: Deferred, method: NotificationMethod, producer: KafkaProducer) -> None:
        self._pipeline.begin_repeats(taken.notification, method)
        give_up = partial(self._deferred.give_up, taken.row, self.clock.time_ms())
        if self._published(taken.notification, method.id, producer, give_up):
            self._deferred.remove(taken.row)

    def _send_group(self, row: DeferredRow, producer: KafkaProducer) -> None:
        self._deferred.remove_sent(row.group_key)
        method, members = self._with_method(self._deferred.members(row.group_key))
        members = [member for member in members if not self._pipeline.suppresses(member)]
        if method is None or not members:
            return
        deferral = self._pipeline.limit(method.id, is_digest=row.group_key.startswith(LIMIT_KEY))
        if deferral is not None and deferral.due_ms is not None:
            self._deferred.postpone(row.group_key, deferral.due_ms)
        elif len(members) == 1:
            taken = self._take(members[0].row)
            if taken is not None:
                self._send(taken, method, producer)
        elif (message := self._deferred.fix(members, self._later(_LEASE_MS))) is not None:
            fail_point("notification.after_fix")
            for member in members:
                self._pipeline.begin_repeats(member.notification, method)
            self._publish_group(message, method.id, producer)

    def _with_method(self, members: Sequence[Deferred]) -> tuple[NotificationMethod | None, list[Deferred]]:
        """Return the method of a group, and the members that are still for it: they may be of several definitions."""
        found = [(member, self._method(member.row, member.notification.change)) for member in members]
        for member, method in found:
            if method is None:
                self._deferred.give_up(member.row, self.clock.time_ms(), _NO_ACTION)
        left = [(member, method) for member, method in found if method is not None]
        return (left[0][1] if left else None), [member for member, _ in left]

    def _publish_group(self, message: Notification, method_id: str, producer: KafkaProducer) -> None:
        give_up = partial(self._deferred.give_up_all, message.id, self.clock.time_ms())
        self._published(message, method_id, producer, give_up)

    def _publish_again(self, row: DeferredRow, producer: KafkaProducer) -> None:
        """Publish the message of a group unless the ledger has it: the process that fixed it may be dead."""
        state = self._deferred.state(row.message_id)
        if state in ENDED:
            self._deferred.finish(row.message_id, self.clock.time_ms())
            return
        for member in self._deferred.fixed(row.message_id):
            taken = self._take(member.row, _LEASE_MS if state is None else _UNFINISHED_MS)
            if taken is None:
                return
            method = self._method(member.row, taken.notification.change)
            if method is not None:
                self._pipeline.begin_repeats(taken.notification, method)
        message = self._deferred.message(row.message_id) if state is None else None
        if message is not None:
            self._publish_group(message, row.method_id, producer)

    def _repeat(self, row: DeferredRow, producer: KafkaProducer) -> None:
        taken = self._take(row)
        if taken is None:
            return
        change, now_ms = taken.notification.change, self.clock.time_ms()
        method, alarm = self._method(row, change), self._pipeline.current(change)
        if method is None or method.period == 0 or alarm is None or not alarm.is_result_of(change):
            self._deferred.remove(row)
            return
        if not self._pipeline.leaves_out(taken, alarm):
            repeat = repeat_of(taken.notification, row.number)
            give_up = partial(self._deferred.give_up, row, now_ms)
            if not self._published(repeat, method.id, producer, give_up, now_ms + method.period * 1000):
                return
        self._deferred.advance(row, next_repeat_ms(row.due, method.period, now_ms))

    def _method(self, row: DeferredRow, change: AlarmChange) -> NotificationMethod | None:
        """``None``: it is deleted, or no action names it any more. Raises `AddressUnreadable`."""
        methods = self._methods.notified(change.tenant, change.definition_id, change.new_state)
        found = next((method for method in methods if method.id == row.method_id), None)
        if found is not None and found.unreadable is not None:
            raise found.unreadable
        return found

    def _published(
        self,
        notification: Notification,
        method_id: str,
        producer: KafkaProducer,
        give_up: Callable[[str], None],
        expires_ms: int = 0,
    ) -> bool:
        """``give_up`` is called with the reason if the topic never accepts it, because it is too large."""
        retry = Retry(notification, method_id, FIRST, self.clock.time_ms(), "it was deferred", expires_ms=expires_ms)
        report = producer.publish(self._retry_topic, [retry.record()], timeout=self.longest_seconds - _PASS_SECONDS)
        refusals = [each.error for each in report.failed if isinstance(each.error, DeliveryError)]
        if any(error.permanent for error in refusals):
            LOG.error("notification %s is given up: %s", notification.id, refusals[0])
            give_up(str(refusals[0]))
        elif not report.ok:
            self._refused(report)
            LOG.warning("notification %s could not be published, and is tried again later", notification.id)
        fail_point("notification.after_release")
        return report.ok

    def _refused(self, report: DeliveryReport) -> None:
        self._refusal = f"{self._retry_topic} did not acknowledge: {(*report.failed, *report.unknown)[0].error}"

    def _take(self, row: DeferredRow, lease_ms: int | None = None) -> Deferred | None:
        return self._deferred.take(row, self._later(_LEASE_MS if lease_ms is None else lease_ms))

    def _later(self, ms: int) -> int:
        return self.clock.time_ms() + ms
