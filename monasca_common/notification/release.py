# SPDX-License-Identifier: Apache-2.0
"""Looks at what is held when it is due: ends of silences, groups, digests and repeats become messages of Kafka.

It sends nothing itself. What is due is published as a first attempt to the retry topic, or to that of repeats, whose
handlers send it; it stays in the database until it is published, and the members of a group until they are sent. So a
crash at any place loses nothing, and whoever publishes again does so under the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from monasca_common.alarms.address_keys import AddressUnreadable
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import DeliveryError, KafkaProducer, MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.notification import calm
from monasca_common.notification.calm import HELD, LIMIT_KEY, RepeatStep
from monasca_common.notification.held import REPEAT, HeldNotice, HeldRow
from monasca_common.notification.ledger import ENDED
from monasca_common.notification.notice import Notice, repeat_of
from monasca_common.notification.planning import NoticePlanner
from monasca_common.notification.retries import Retry
from monasca_common.runtime.restarts import PublishingLoop
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_FIRST = 1
_ROWS_A_PASS = 100
_REST_SECONDS = 0.5
# When a process that died between taking a row and publishing it is missed.
_LEASE_MS = 30_000
_UNFINISHED_MS = 600_000
_CHANGING_MS = 1_000
"""When the alarm is looked at again that another transaction is changing."""
_PUBLISH_SECONDS = 10.0
_NO_ACTION = "no action of the definition names the method any more"


class HeldRelease(PublishingLoop):
    """Releases what is due until `stop`. Several processes may. ``periodic_topic``: where repeats go."""

    expected = (MessagingError, StorageError)

    def __init__(
        self,
        planner: NoticePlanner,
        methods: NotificationMethods,
        producer: ProducerSettings,
        clock: Clock,
        *,
        retry_topic: str,
        periodic_topic: str,
    ) -> None:
        super().__init__("held notifications", producer, clock)
        self._planner = planner
        self._held = planner.held
        self._methods = methods
        self._retry_topic = retry_topic
        self._periodic_topic = periodic_topic

    def publish_due(self, producer: KafkaProducer) -> float:
        return 0.0 if self.release_due(producer) == _ROWS_A_PASS else _REST_SECONDS

    def release_due(self, producer: KafkaProducer) -> int:
        """Look at what is due now, and return how many rows that were. Raises `StorageError`."""
        rows = self._held.due(self.clock.time_ms(), _ROWS_A_PASS)
        seen: set[str] = set()
        for row in rows:
            together = row.sealed or (row.group_key if row.kind == HELD else "") or row.id
            if together not in seen and not self.stopping.is_set():
                seen.add(together)
                self._try(row, producer)
        return len(rows)

    def _try(self, row: HeldRow, producer: KafkaProducer) -> None:
        """A flaw that one row meets blocks no other."""
        try:
            self._release(row, producer)
        except AddressUnreadable as error:
            # Others are readable, so only what is for this method waits for its key.
            LOG.error("what is held as %s waits: %s", row.id, error)
            self._put_off(row)
        except (StorageError, MessagingError):
            raise
        except Exception:
            LOG.exception("what is held as %s could not be released, and is tried again later", row.id)
            self._held.take(row, self._later(_LEASE_MS))

    def _put_off(self, row: HeldRow) -> None:
        if row.kind == HELD and not row.sealed:
            self._held.postpone(row.group_key, self._later(_LEASE_MS))
        else:
            self._held.take(row, self._later(_LEASE_MS))

    def _release(self, row: HeldRow, producer: KafkaProducer) -> None:
        if row.sealed:
            self._publish_again(row, producer)
        elif row.kind == REPEAT:
            self._repeat(row, producer)
        elif row.kind == HELD:
            self._send_group(row, producer)
        else:
            self._end_suppression(row, producer)

    def _end_suppression(self, row: HeldRow, producer: KafkaProducer) -> None:
        """Send what a silence or an inhibition has withheld, if the alarm is still in its state."""
        taken = self._held.take(row, self._later(_LEASE_MS))
        if taken is None:
            return
        method = self._method(row, taken.notice.change)
        is_sent = self._planner.end_suppression(taken, method)
        if is_sent is None:
            self._held.take(taken.row, self._later(_CHANGING_MS))
        if not is_sent or method is None:
            return
        if (hold := self._planner.limit(method.id)) is not None:
            self._held.hold(row, hold, self.clock.time_ms())
        else:
            self._send(taken, method, producer)

    def _send(self, taken: HeldNotice, method: NotificationMethod, producer: KafkaProducer) -> None:
        self._planner.begin_repeats(taken.notice, method)
        give_up = partial(self._held.give_up, taken.row, self.clock.time_ms())
        if self._published(self._retry_topic, taken.notice, method.id, producer, give_up):
            self._held.remove(taken.row)

    def _send_group(self, row: HeldRow, producer: KafkaProducer) -> None:
        self._held.forget_sent(row.group_key)
        members = self._held.members(row.group_key)
        if not members:
            return
        method, members = self._told(members)
        if method is None:
            return
        members = [each for each in members if not self._suppressed(each)]
        hold = self._planner.limit(method.id, is_digest=row.group_key.startswith(LIMIT_KEY)) if members else None
        if hold is not None and hold.due_ms is not None:
            self._held.postpone(row.group_key, hold.due_ms)
        elif len(members) == 1:
            taken = self._held.take(members[0].row, self._later(_LEASE_MS))
            if taken is not None:
                self._send(taken, method, producer)
        elif members:
            self._seal(members, method, producer)

    def _told(self, members: Sequence[HeldNotice]) -> tuple[NotificationMethod | None, list[HeldNotice]]:
        """The method of a group, and the members that are still for it: they may be of several definitions."""
        known = [(each, self._method(each.row, each.notice.change)) for each in members]
        for each, method in known:
            if method is None:
                self._held.give_up(each.row, self.clock.time_ms(), _NO_ACTION)
        left = [(each, method) for each, method in known if method is not None]
        return (left[0][1] if left else None), [each for each, _ in left]

    def _seal(self, members: Sequence[HeldNotice], method: NotificationMethod, producer: KafkaProducer) -> None:
        message = self._held.seal(members, self._later(_LEASE_MS))
        if message is None:
            return
        fail_point("notification.after_seal")
        for each in members:
            self._planner.begin_repeats(each.notice, method)
        self._publish_group(message, method.id, producer)

    def _publish_group(self, message: Notice, method_id: str, producer: KafkaProducer) -> None:
        give_up = partial(self._held.give_up_all, message.id, self.clock.time_ms())
        self._published(self._retry_topic, message, method_id, producer, give_up)

    def _publish_again(self, row: HeldRow, producer: KafkaProducer) -> None:
        """Of a group: unless the ledger has it, whoever sealed it may have died before it was published."""
        state = self._held.state(row.sealed)
        if state in ENDED:
            self._held.finish(row.sealed, self.clock.time_ms())
            return
        for each in self._held.sealed(row.sealed):
            taken = self._held.take(each.row, self._later(_LEASE_MS if state is None else _UNFINISHED_MS))
            if taken is None:
                return
            method = self._method(each.row, taken.notice.change)
            if method is not None:
                self._planner.begin_repeats(taken.notice, method)
        message = self._held.message(row.sealed) if state is None else None
        if message is not None:
            self._publish_group(message, row.method_id, producer)

    def _suppressed(self, member: HeldNotice) -> bool:
        """By what became known while it waited: a silence, or the host that is down."""
        [facts] = self._planner.facts(member.notice.change, [member.row.method_id])
        now_ms = self.clock.time_ms()
        hold = calm.suppression(self._planner.rules, facts, member.notice.change, now_ms)
        if hold is None:
            return False
        self._held.hold(member.row, hold, now_ms)
        return True

    def _repeat(self, row: HeldRow, producer: KafkaProducer) -> None:
        taken = self._held.take(row, self._later(_LEASE_MS))
        if taken is None:
            return
        change, now_ms = taken.notice.change, self.clock.time_ms()
        [facts] = self._planner.facts(change, [row.method_id])
        method, current = self._method(row, change), self._planner.current(change)
        step = calm.repeat_step(self._planner.rules, facts, current, change, now_ms)
        if method is None or method.period == 0 or step is RepeatStep.END:
            self._held.remove(row)
            return
        if step is RepeatStep.SEND and self._planner.limit(method.id) is None:
            notice = repeat_of(taken.notice, row.number)
            give_up = partial(self._held.give_up, row, now_ms)
            if not self._published(self._periodic_topic, notice, method.id, producer, give_up):
                return
        self._held.advance(row, calm.next_repeat_ms(row.due, method.period, now_ms))

    def _method(self, row: HeldRow, change: AlarmChange) -> NotificationMethod | None:
        """``None``: it is deleted, or no action names it any more. Raises `AddressUnreadable`."""
        methods = self._methods.notified(change.tenant, change.definition_id, change.new_state)
        found = next((each for each in methods if each.id == row.method_id), None)
        if found is not None and found.unreadable is not None:
            raise found.unreadable
        return found

    def _published(
        self, topic: str, notice: Notice, method_id: str, producer: KafkaProducer, give_up: Callable[[str], None]
    ) -> bool:
        """``give_up`` is called with the reason if the topic never takes it, because it is too large."""
        retry = Retry(notice, method_id, _FIRST, self.clock.time_ms(), "it was held")
        report = producer.publish(topic, [retry.record()], timeout=_PUBLISH_SECONDS)
        refusals = [each.error for each in report.failed if isinstance(each.error, DeliveryError)]
        if any(each.permanent for each in refusals):
            LOG.error("notification %s is given up: %s", notice.id, refusals[0])
            give_up(str(refusals[0]))
        elif not report.ok:
            LOG.warning("what is held could not be published to %s, and is again later", topic)
        fail_point("notification.after_release")
        return report.ok

    def _later(self, ms: int) -> int:
        return self.clock.time_ms() + ms
