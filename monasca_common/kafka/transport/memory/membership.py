# SPDX-License-Identifier: Apache-2.0
"""The membership of a memory consumer in its group: joining, the steps of a rebalance, and leaving."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from confluent_kafka import KafkaError

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.base import RebalanceCallbacks
from monasca_common.kafka.transport.memory.broker import MemoryBroker
from monasca_common.kafka.transport.memory.group import MemoryMember, Step
from monasca_common.kafka.transport.memory.injection import raw_error

_numbers = itertools.count(1)


class Membership:
    """Callers of all methods except `take` and `leave` hold the broker's lock."""

    def __init__(self, broker: MemoryBroker, settings: ConsumerSettings) -> None:
        self.member: MemoryMember | None = None
        self._broker = broker
        self._settings = settings
        self._topics: tuple[str, ...] = ()
        self._callbacks: RebalanceCallbacks | None = None

    @property
    def killed(self) -> bool:
        return self.member is not None and self.member.ended == "_DESTROY"

    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None:
        for name in topics:
            self._broker.topic(name)
        self._topics = tuple(topics)
        self._callbacks = callbacks

    def come_back(self) -> KafkaError | None:
        """Begin a poll. Return the error to report first if a membership has ended."""
        self._broker.expire_overdue(self._settings.group_id)
        member = self.member
        if member is not None and member.ended is None:
            member.expires_at = math.inf
        elif member is not None and member.ended == "_MAX_POLL_EXCEEDED":
            # Reported once, by this poll; the next poll calls `on_lost`.
            member.ended = "UNKNOWN_MEMBER_ID"
            return raw_error("_MAX_POLL_EXCEEDED")
        return None

    def go_away(self) -> None:
        """End a poll, or begin a callback; this starts the time limit of the poll interval."""
        if self.member is not None:
            self.member.expires_at = self._broker.clock.monotonic() + self.member.max_poll_seconds

    def next_step(self) -> Step | None:
        if self._callbacks is None or not self._broker.reachable:
            return None
        if self.member is not None and self.member.ended is not None:
            if self.member.owned:
                return Step("lost", tuple(sorted(self.member.owned)))
            self.member = None
        if self.member is None:
            self.member = self._join()
        return self._broker.group(self._settings.group_id).next_step(self.member)

    def wait(self, deadline: float) -> None:
        """Wait for a change, or until a member exceeds its poll interval."""
        group = self._broker.group(self._settings.group_id)
        self._broker.wait(min(deadline, group.next_expiry()))
        self._broker.expire_overdue(self._settings.group_id)

    def take(self, step: Step) -> None:
        """Call the callback of a step, without the lock.

        Assigned partitions are owned before the callback starts; revoked partitions are owned until it returns.
        """
        member, callbacks = self.member, self._callbacks
        if member is None or callbacks is None:
            return
        if step.kind == "assign":
            with self._broker.changed:
                member.owned.update(step.partitions)
            callbacks.on_assign(step.partitions)
            return
        try:
            if step.kind == "revoke":
                callbacks.on_revoke(step.partitions)
            else:
                callbacks.on_lost(step.partitions)
        finally:
            with self._broker.changed:
                member.owned.difference_update(step.partitions)
                self._broker.changed.notify_all()

    def leave(self) -> None:
        """Release all partitions and leave the group."""
        member = self.member
        if member is None or self.killed:
            return
        with self._broker.changed:
            self._broker.expire_overdue(self._settings.group_id)
            kind = "revoke" if member.ended is None else "lost"
            owned: tuple[TopicPartition, ...] = tuple(sorted(member.owned))
        try:
            if owned:
                self.take(Step(kind, owned))
        finally:
            with self._broker.changed:
                self._broker.remove(self._settings.group_id, member, "UNKNOWN_MEMBER_ID")

    def _join(self) -> MemoryMember:
        settings = self._settings
        member_id = f"{settings.connection.client_id}-{next(_numbers)}"
        member = MemoryMember(member_id, self._topics, settings.max_poll_interval_seconds)
        self._broker.join(settings.group_id, member)
        return member
