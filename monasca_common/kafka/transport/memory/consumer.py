# SPDX-License-Identifier: Apache-2.0
"""Consuming from the memory broker, as a member of a group or from chosen partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from monasca_common.kafka.errors import ClosedError, TransportError
from monasca_common.kafka.message import Columns, LazyColumns, Message, TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.base import (
    ConsumerTransport,
    Fetched,
    PartitionEvent,
    RebalanceCallbacks,
    no_transactions,
)
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.memory.broker import broker_for
from monasca_common.kafka.transport.memory.group import Step
from monasca_common.kafka.transport.memory.injection import raw_error
from monasca_common.kafka.transport.memory.log import PartitionLog
from monasca_common.kafka.transport.memory.membership import Membership

_FIELDS: Mapping[str, Callable[[Message], Any]] = {
    "offsets": attrgetter("offset"),
    "keys": attrgetter("key"),
    "values": attrgetter("value"),
    "timestamps": attrgetter("timestamp_ms"),
    "headers": attrgetter("headers"),
}

# The longest observed delay of a commit by a real coordinator.
_COMMIT_SECONDS = 45.0
_OUT_OF_RANGE = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range"


@dataclass(slots=True)
class _ReadPosition:
    """The position in one assigned partition."""

    next_offset: int
    topic_id: str | None  # the topic's id when it was assigned
    reported_end: int | None = None  # the last reported end of the log
    dead: bool = False


class MemoryConsumer(ConsumerTransport):
    """A consumer of the broker behind ``settings.connection.bootstrap_servers``."""

    driver = "memory"

    def __init__(self, settings: ConsumerSettings) -> None:
        self._broker = broker_for(settings.connection.bootstrap_servers)
        self.clock = self._broker.clock
        self._group_id = settings.group_id
        self._membership = Membership(self._broker, settings)
        self._cursors: dict[TopicPartition, _ReadPosition] = {}
        self._paused: set[TopicPartition] = set()  # kept after assignments, as in librdkafka
        self._turn = 0
        self._nothing_at: int | None = None  # the broker's count of changes at the last empty fetch
        self._closed = False

    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None:
        with self._use():
            self._membership.subscribe(topics, callbacks)

    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        with self._use():
            member = self._membership.member
            owned = self._cursors.keys() if member is None else member.owned
            for partition in positions:
                if partition not in owned:
                    raise _wrong_state(partition, "it is not owned")
            self._start(positions)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        with self._use():
            self._cursors.clear()
            self._start(positions)

    def assignment(self) -> set[TopicPartition]:
        with self._use():
            return set(self._cursors)

    def poll(self, max_messages: int, timeout: float) -> Fetched:
        deadline = self.clock.monotonic() + timeout
        while True:
            with self._use():
                news = self._membership.come_back()
                if news is not None:
                    return Fetched(events=[PartitionEvent(translate(news), None, -1, None)])
                step, found = self._await_work(max_messages, deadline)
                self._membership.go_away()
            if step is None:
                return found
            self._take(step)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self._use():
            self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._use():
            self._paused.difference_update(partitions)
            self._broker.changed.notify_all()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        with self._use():
            cursor = self._cursors.get(partition)
            if cursor is None or cursor.dead:
                raise _wrong_state(partition, "nothing is fetched from it")
            self._start({partition: offset})

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        with self._use(), self._broker.serve("commit", None, _COMMIT_SECONDS):
            self._broker.expire_overdue(self._group_id)
            group = self._broker.group(self._group_id)
            if not group.may_commit(self._membership.member):
                raise translate(raw_error("UNKNOWN_MEMBER_ID"))
            unknown = {partition for partition in offsets if self._broker.find_log(partition) is None}
            group.offsets.update({tp: offset for tp, offset in offsets.items() if tp not in unknown})
        refusal = translate(raw_error("UNKNOWN_TOPIC_OR_PART"))
        if unknown and len(unknown) == len(offsets):
            raise refusal  # as confluent-kafka does if no partition succeeded
        return {tp: refusal if tp in unknown else None for tp in offsets}

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        with self._use(), self._broker.serve("committed", None, timeout):
            offsets = self._broker.group(self._group_id).offsets
            return {partition: offsets.get(partition) for partition in partitions}

    def fetched_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        with suppress(TransportError):  # during an outage, nothing was fetched
            return self.end_offsets(partitions, 0)
        return {}

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        with self._use(), self._broker.serve("metadata", None, timeout):
            return {partition: self._log(partition).offset_at(at) for partition, at in times_ms.items()}

    def partition_count(self, topic: str, timeout: float) -> int:
        with self._use(), self._broker.serve("metadata", topic, timeout):
            found = self._broker.find_topic(topic)
            if found is None:
                raise translate(raw_error("UNKNOWN_TOPIC_OR_PART"))
            return len(found.partitions)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        with self._use(), self._broker.serve("metadata", None, timeout):
            found = [self._broker.find_topic(name) for name in topics]
            return {topic.name: topic.topic_id for topic in found if topic is not None}

    def group_metadata(self) -> Any:
        raise no_transactions("memory")

    def close(self) -> None:
        if self._closed:
            return
        try:
            self._membership.leave()
        finally:
            with self._broker.changed:
                self._closed = True
                self._cursors.clear()
                self._broker.changed.notify_all()

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Hold the broker's lock. Raise an error if the consumer was closed or killed."""
        with self._broker.changed:
            self._require_life()
            yield

    def _require_life(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed: open another")
        if self._membership.killed:
            raise TransportError("this consumer was killed by MemoryBroker.kill_member: its process has ended")

    def _await_work(self, max_messages: int, deadline: float) -> tuple[Step | None, Fetched]:
        """Wait until the deadline for messages or a rebalance step, which takes precedence; return either."""
        while True:
            self._require_life()
            step = self._membership.next_step()
            found = Fetched() if step is not None else self._collect(max_messages)
            if step is not None or found or self.clock.monotonic() >= deadline:
                return step, found
            self._membership.wait(deadline)

    def _take(self, step: Step) -> None:
        try:
            self._membership.take(step)
        finally:
            if step.kind != "assign":
                with self._broker.changed:
                    for partition in step.partitions:
                        self._cursors.pop(partition, None)

    def _start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets."""
        for partition, offset in positions.items():
            topic = self._broker.find_topic(partition.topic)
            self._cursors[partition] = _ReadPosition(offset, None if topic is None else topic.topic_id)
        self._broker.changed.notify_all()

    def _collect(self, max_messages: int) -> Fetched:
        """Return up to this number of records and errors, with a different partition first each time."""
        changes = self._broker.changed.count
        if not self._broker.reachable or (changes == self._nothing_at and not self._broker.has_faults):
            return Fetched()
        partitions = [partition for partition in self._cursors if partition not in self._paused]
        if partitions:
            self._turn = (self._turn + 1) % len(partitions)
            partitions = partitions[self._turn :] + partitions[: self._turn]
        parts: list[tuple[TopicPartition, Columns]] = []
        events: list[PartitionEvent] = []
        left = max_messages
        for partition in partitions:
            if left <= 0:
                break
            found = self._fetch(partition, self._cursors[partition], left)
            if isinstance(found, PartitionEvent):
                events.append(found)
                left -= 1
            elif found:
                parts.append((partition, _columns(found)))
                left -= len(found)
        self._nothing_at = None if parts or events else changes
        return Fetched(parts, events)

    def _fetch(self, partition: TopicPartition, cursor: _ReadPosition, limit: int) -> list[Message] | PartitionEvent:
        topic, log = self._broker.find_topic(partition.topic), self._broker.find_log(partition)
        if cursor.dead or topic is None:
            return []
        error = self._broker.fetch_fault(partition.topic)
        if error is not None:
            return PartitionEvent(translate(error), *partition, None)
        if log is None:
            cursor.dead = True
            return PartitionEvent(translate(raw_error("_UNKNOWN_PARTITION")), *partition, None)
        # A reader of a topic that was deleted and recreated waits silently until the new log reaches its offset, as a
        # real client does; topic ids are compared for this reason.
        beyond = cursor.next_offset > log.high and cursor.topic_id == topic.topic_id
        if cursor.next_offset < log.low or beyond:
            cursor.dead = True
            error = raw_error("_AUTO_OFFSET_RESET", _OUT_OF_RANGE)
            return PartitionEvent(translate(error), *partition, cursor.next_offset)
        if cursor.next_offset > log.high:
            return []
        records, cursor.next_offset = log.read(cursor.next_offset, limit)
        if not records and cursor.next_offset == log.high and cursor.reported_end != log.high:
            # A real client reports the error after the records, in a separate fetch.
            cursor.reported_end = log.high
            return PartitionEvent(translate(raw_error("_PARTITION_EOF")), *partition, log.high)
        return records

    def _log(self, partition: TopicPartition) -> PartitionLog:
        log = self._broker.find_log(partition)
        if log is None:
            raise translate(raw_error("UNKNOWN_TOPIC_OR_PART"))
        return log


def _columns(messages: Sequence[Message]) -> Columns:
    return LazyColumns(len(messages), lambda name: list(map(_FIELDS[name], messages)))


def _wrong_state(partition: TopicPartition, why: str) -> TransportError:
    text = f"the position of {partition.topic}/{partition.partition} cannot be set: {why}"
    return translate(raw_error("_STATE", text))
