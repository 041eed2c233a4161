# SPDX-License-Identifier: Apache-2.0
"""The health of consumer group members: state, lag, and the reason why a member does not work."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from monasca_common.kafka import Batch, Hook, KafkaConsumer, Message, MessagingError, PartitionBatch, TopicPartition
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import RegistryUnavailable, RetriableError
from monasca_common.runtime.health import STALL_SECONDS, ServiceHealth

LOG = logging.getLogger(__name__)

#: The time-out of a request for a member's lag. If it expires, the lag is unknown.
LAG_SECONDS = 1.0
# A member that has had no partitions for this time is not expected to get any, because other members own all
# partitions.
_ASSIGNED_SECONDS = 60
MAX_REASON = 500  # characters


class MemberState(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_DATABASE = "waiting for the database"
    WAITING_FOR_KAFKA = "waiting for Kafka"
    WAITING_FOR_REGISTRY = "waiting for the schema registry"
    FAILED = "failed"
    STOPPED = "stopped"


_WAITING = (MemberState.WAITING_FOR_DATABASE, MemberState.WAITING_FOR_KAFKA, MemberState.WAITING_FOR_REGISTRY)


class MemberStatus(msgspec.Struct):
    """The status of one member. Times are in ms since the epoch, durations in seconds.

    ``reason``: the reason why it is not running. ``moved_ms``: the time of its last commit, or the last time without
    lag. ``turned_ms``: the time of the last turn of its loop, or 0 without a loop. ``lag``: the number of unfinished
    (or, if handlers can take long, unread) messages of each ``topic/partition``.
    """

    name: str
    pid: int = 0
    state: MemberState = MemberState.STARTING
    reason: str = ""
    since_ms: int = 0
    reported_ms: int = 0
    turned_ms: int = 0
    moved_ms: int = 0
    partitions: int = 0
    lag: dict[str, int] = {}
    restarts: int = 0
    dead_letters: int = 0
    database_unavailable_seconds: float = 0.0


class MemberHealth(Hook):
    """The status of one member, whose threads update it. It is also a hook of the processor. Thread-safe.

    ``counts_unfinished``: whether the lag includes messages that are read but not committed.
    """

    def __init__(self, status: MemberStatus, clock: Clock, *, counts_unfinished: bool = True) -> None:
        self._clock = clock
        self._counts_unfinished = counts_unfinished
        self._lock = threading.RLock()
        self._status = status
        # The reason for each wait, by partition, latest last; the partition is `None` if it is unknown.
        self._waits: dict[MemberState, dict[TopicPartition | None, str]] = {}
        self._waited_at = clock.monotonic()  # the wait for the database is counted up to this time
        self._moved_at = self._waited_at
        self._done: dict[TopicPartition, int] = {}  # next offsets
        self._committing: Mapping[TopicPartition, int] = {}
        self._has_moved = True

    def begin(self) -> None:
        """Begin an attempt."""
        with self._lock:
            self._done.clear()
            self._count_wait()
            self._waits.clear()
            self.enter(MemberState.RUNNING)
            self._has_moved = True

    def enter(self, state: MemberState, reason: str = "") -> None:
        with self._lock:
            if state is not self._status.state:
                self._status.since_ms = self._clock.time_ms()
            self._status.state, self._status.reason = state, reason[:MAX_REASON]

    def waits(self, state: MemberState, reason: str, partition: TopicPartition | None = None) -> None:
        """Record a wait for the database or for Kafka, or the end of a wait if ``reason`` is empty. ``partition``: the
        partition of the waiting message. The wait is ignored if the partition was revoked, and ends when all waiting
        partitions are revoked, because no further message would end it.
        """
        if not reason and state not in self._waits:
            return
        with self._lock:
            if reason and partition is not None and partition not in self._done:
                return
            waiting = self._waits.get(state, {})
            changes = bool(reason) != bool(waiting)
            waiting.pop(partition, None)
            self._wait(state, {**waiting, partition: reason} if reason else {})
        if changes and state is MemberState.WAITING_FOR_DATABASE:
            if reason:
                LOG.warning("%s waits for the database and keeps its partitions: %s", self._status.name, reason)
            else:
                LOG.info("%s continues: the database is available again", self._status.name)

    def starts_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record start offsets that are known before the first poll."""
        with self._lock:
            self._done |= offsets
            self._has_moved = True

    def after_poll(self, batch: Batch) -> None:
        for part in batch.partitions:
            self._done.setdefault(part.topic_partition, part.start_offset)
        if not self._status.partitions and any(not isinstance(each, RetriableError) for each in batch.errors):
            self._status.since_ms = self._clock.time_ms()  # the brokers do not let it join, so it has to wait longer

    def after_handle(self, part: PartitionBatch, attempt: int, error: BaseException | None) -> None:
        if isinstance(error, RegistryUnavailable):
            self.waits(MemberState.WAITING_FOR_REGISTRY, str(error), part.topic_partition)
        elif MemberState.WAITING_FOR_REGISTRY in self._waits:
            with self._lock:
                self._end_waits(MemberState.WAITING_FOR_REGISTRY, [part.topic_partition])

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._committing = offsets

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        committed = [partition for partition, error in outcomes.items() if error is None]
        with self._lock:
            self._done |= {each: self._committing[each] for each in committed if each in self._committing}
            self._has_moved |= bool(committed)

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        with self._lock:
            self._status.dead_letters += 1

    def after_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self.after_lost(partitions)

    def after_lost(self, partitions: Sequence[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                self._done.pop(partition, None)
            self._end_waits(MemberState.WAITING_FOR_REGISTRY, partitions)
            self._end_waits(MemberState.WAITING_FOR_DATABASE, partitions if self._done else [*partitions, None])

    def report(self, consumer: KafkaConsumer | None) -> MemberStatus:
        """Return the current status. ``consumer``: the consumer of the attempt, if any."""
        partitions, lag, turn_seconds = 0, dict[str, int](), None
        if consumer is not None:
            turn_seconds = consumer.health().seconds_since_poll
            with contextlib.suppress(MessagingError):  # the consumer is closed, or cannot reach Kafka
                partitions = len(consumer.assignment())
                for partition, behind in consumer.lag(LAG_SECONDS).items():
                    position = consumer.position(partition)
                    if position is not None:
                        done = self._done.get(partition, position) if self._counts_unfinished else position
                        lag[f"{partition.topic}/{partition.partition}"] = max(0, position + behind - done)
        with self._lock:
            self._count_wait()
            now_ms = self._clock.time_ms()
            if self._has_moved or not any(lag.values()):
                self._moved_at = self._waited_at
            self._status.moved_ms = now_ms - round((self._waited_at - self._moved_at) * 1000)  # the clock can be set
            self._has_moved = False
            self._status.reported_ms, self._status.partitions, self._status.lag = now_ms, partitions, lag
            self._status.turned_ms = 0 if turn_seconds is None else now_ms - round(turn_seconds * 1000)
            return structs.replace(self._status)

    def _end_waits(self, state: MemberState, partitions: Collection[TopicPartition | None]) -> None:
        waiting = self._waits.get(state, {})
        self._wait(state, {each: reason for each, reason in waiting.items() if each not in partitions})

    def _wait(self, state: MemberState, reasons: dict[TopicPartition | None, str]) -> None:
        self._count_wait()
        if reasons:
            self._waits[state] = reasons
        else:
            self._waits.pop(state, None)
        if self._status.state is MemberState.RUNNING or self._status.state in _WAITING:
            state = next((each for each in _WAITING if each in self._waits), MemberState.RUNNING)
            self.enter(state, next(reversed(self._waits.get(state, {}).values()), ""))

    def _count_wait(self) -> None:
        now = self._clock.monotonic()
        if MemberState.WAITING_FOR_DATABASE in self._waits:
            self._status.database_unavailable_seconds += now - self._waited_at
        self._waited_at = now


def members_health(
    service: str, statuses: Callable[[], Sequence[MemberStatus]], *, clock: Clock | None = None
) -> ServiceHealth:
    """Return the health of a service with members, which is healthy if it is ready. ``/healthcheck`` also shows the
    state of each member."""
    now_ms = (clock or SystemClock()).time_ms
    return ServiceHealth(
        service,
        lambda: _turn_ages(statuses(), now_ms()),
        lambda: unready_reasons(statuses(), now_ms()),
        lambda: {"members": {each.name: _shown(each) for each in statuses()}},
    )


def _shown(status: MemberStatus) -> dict[str, Any]:
    """Return the state, and the lag of the partitions whose lag is known."""
    return {
        "state": status.state,
        "reason": status.reason,
        "seconds_in_state": max(0, status.reported_ms - status.since_ms) / 1000 if status.since_ms else None,
        "lag": sum(status.lag.values()),
        "partitions": len(status.lag),
        "pid": status.pid,
        "restarts": status.restarts,
    }


def _turn_ages(statuses: Iterable[MemberStatus], now_ms: int) -> dict[str, float | None]:
    """Return the seconds since the last turn of each loop. The value is the age of the report for a member without a
    loop (which waits for its next start), and ``None`` for a process that ended and will be replaced."""
    return {
        status.name: max(0, now_ms - (status.turned_ms or status.reported_ms)) / 1000 if status.pid else None
        for status in statuses
    }


def unready_reasons(statuses: Iterable[MemberStatus], now_ms: int) -> Iterator[str]:
    """Yield the reasons why members do not work: a member does not run, waits for partitions, or makes no progress."""
    for status in statuses:
        waiting, stalled_ms = sum(status.lag.values()), now_ms - status.moved_ms
        if status.state is not MemberState.RUNNING:
            yield f"{status.name}: {status.state}{': ' if status.reason else ''}{status.reason}"
        elif not status.partitions and 0 <= now_ms - status.since_ms < _ASSIGNED_SECONDS * 1000:
            yield f"{status.name}: no partitions are assigned yet"
        elif waiting and stalled_ms > STALL_SECONDS * 1000:
            yield f"{status.name}: STALL: {waiting} messages wait, and none was processed for {stalled_ms // 1000} s"
