# SPDX-License-Identifier: Apache-2.0
"""The memory broker: topics, groups, and the changes that tests make to them.

One lock protects all state. Waits use ``changed``, until a deadline on the broker's clock. A process has one broker for
each value of ``bootstrap_servers`` (`broker_for`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaError

from monasca_common.kafka.clock import Clock, SystemClock, VirtualClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TOPIC_NAME_RULE, Message, TopicPartition, is_topic_name
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.memory.group import Group, MemoryMember
from monasca_common.kafka.transport.memory.injection import (
    Delay,
    Fail,
    Fault,
    FaultRule,
    Hang,
    LoseAnswer,
    RequestKind,
    raw_error,
)
from monasca_common.kafka.transport.memory.log import KAFKA_MAX_MESSAGE_BYTES, PartitionLog, Topic, batch_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a produce request: its arrival time, the message (as stored, or as sent if the broker refused
    it), the content of the response, and whether the connection broke first."""

    at: float
    message: Message
    error: KafkaError | None = None
    connection_lost: bool = False


class Changes(threading.Condition):
    """Counts notifications, so that a reader that found nothing fetches again only after a change."""

    count = 0

    def notify_all(self) -> None:
        self.count += 1
        super().notify_all()


class MemoryBroker:
    """A broker in memory. The first produce request or subscription for a topic creates it with one partition."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.reachable = True
        self.lock = threading.RLock()
        self.changed = Changes(self.lock)
        self._injected: list[FaultRule] = []
        self.hanging = 0  # requests that currently hang
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        if isinstance(self.clock, VirtualClock):
            self.clock.on_advance(self._wake)

    # For tests and fixtures

    def create_topic(self, name: str, partitions: int = 1, *, max_message_bytes: int = KAFKA_MAX_MESSAGE_BYTES) -> None:
        """Create a topic. Raises `ConfigurationError` if the topic exists or Kafka would refuse it."""
        with self.changed:
            self._check_new(name)
            if partitions < 1:
                raise ConfigurationError(f"topic {name!r} cannot have {partitions} partitions: use at least one")
            if max_message_bytes < 0:
                raise ConfigurationError(f"max_message_bytes of topic {name!r} is {max_message_bytes}: use 0 or more")
            self._topics[name] = Topic(name, [PartitionLog() for _ in range(partitions)], max_message_bytes)
            self._rebalance(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and every group's offsets in it.

        Live readers do not notice, because a client's metadata can be minutes old. A recreated topic has a new id.
        """
        with self.changed:
            del self._topics[self._existing(name).name]
            for group in self._groups.values():
                group.offsets = {tp: offset for tp, offset in group.offsets.items() if tp.topic != name}
            self.changed.notify_all()

    def add_partitions(self, name: str, count: int) -> None:
        """Add ``count`` partitions; the groups that read the topic rebalance."""
        with self.changed:
            if count < 1:
                raise ConfigurationError(f"add_partitions adds 1 or more, not {count}")
            self._existing(name).partitions.extend(PartitionLog() for _ in range(count))
            self._rebalance(name)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        with self.changed:
            self._existing(topic).partitions[partition].delete_before(before)
            self.changed.notify_all()

    def skip_offsets(self, topic: str, partition: int, count: int = 1) -> None:
        """Add offsets without messages to the end of the log, like control records and aborted or compacted
        messages."""
        with self.changed:
            self._existing(topic).partitions[partition].skip(count)
            self.changed.notify_all()

    def inject(
        self,
        kind: RequestKind,
        fault: Fault,
        *,
        nth: int = 1,
        count: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Apply a fault to ``count`` requests of a kind (all if ``None``), starting with the ``nth`` from now.

        Each produced record is a separate request. ``partition``: the partition of a produced record; other kinds have
        none.
        """
        if isinstance(fault, Fail | LoseAnswer) and fault.error is not None:
            raw_error(fault.error)  # refuses a name that is not a Kafka error
        last = math.inf if count is None else nth + count - 1
        with self.changed:
            self._injected.append(FaultRule(kind, topic, partition, fault, nth, last))
            self.changed.notify_all()

    def clear_faults(self) -> None:
        """Serve all requests again. Earlier responses, and responses that never arrive, are unchanged."""
        with self.changed:
            self._injected = []
            self.changed.notify_all()

    def disconnect(self) -> None:
        """Make the broker unreachable. Members remain in their groups until `expire_member` is called."""
        with self.changed:
            self.reachable = False
            self.changed.notify_all()

    def reconnect(self) -> None:
        with self.changed:
            self.reachable = True
            self.changed.notify_all()

    def expire_member(self, group: str, member_id: str) -> None:
        """End a member's session: other members get its partitions, its next poll reports the end, and it can
        rejoin."""
        self._remove_member(group, member_id, "UNKNOWN_MEMBER_ID")

    def kill_member(self, group: str, member_id: str) -> None:
        """Simulate the end of the member's process: end its session, and never run its consumer again."""
        self._remove_member(group, member_id, "_DESTROY")

    # Queries for tests

    def topics(self) -> tuple[str, ...]:
        with self.lock:
            return tuple(sorted(self._topics))

    def records(self, topic: str, partition: int | None = None) -> list[Message]:
        """Return the messages in the log, partition by partition, in order of offset."""
        with self.lock:
            logs = self._existing(topic).partitions
            chosen = logs if partition is None else [logs[partition]]
            return [record for log in chosen for record in log.read(log.low, log.high - log.low)[0]]

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the first offset in the log, and the next offset to be written."""
        with self.lock:
            log = self._existing(partition.topic).partitions[partition.partition]
            return log.low, log.high

    def members(self, group: str) -> list[str]:
        """Return the ids of the live members of a group, oldest first."""
        with self.lock:
            return list(self.group(group).members)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group: the next offset to read of each partition."""
        with self.lock:
            return dict(self.group(group).offsets)

    # Requests of the transports; the lock is held

    def topic(self, name: str) -> Topic:
        """Return the topic; create it if necessary. Raises `TransportError` for a name that Kafka does not accept."""
        if name not in self._topics:
            try:
                self.create_topic(name)
            except ConfigurationError as error:
                raise translate(raw_error("TOPIC_EXCEPTION", str(error))) from None
        return self._topics[name]

    def find_topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        topic = self._topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())

    def join(self, group: str, member: MemoryMember) -> None:
        self.group(group).join(member, self._counts())
        self.changed.notify_all()

    def remove(self, group: str, member: MemoryMember, reason: str) -> None:
        self.group(group).remove(member, reason, self._counts())
        self.changed.notify_all()

    def expire_overdue(self, group: str) -> None:
        for member in self.group(group).overdue(self.clock.monotonic()):
            self.remove(group, member, "_MAX_POLL_EXCEEDED")

    def append(self, message: Message) -> Answer:
        """Serve one produce request with a chosen partition."""
        topic = self.topic(message.topic)
        fault = self._meet("produce", topic.name, message.partition)
        now = self.clock.monotonic()
        if isinstance(fault, Fail):
            return Answer(now + fault.seconds, message, raw_error(fault.error, fatal=fault.fatal))
        if batch_bytes(message) > topic.max_message_bytes:
            return Answer(now, message, raw_error("MSG_SIZE_TOO_LARGE"))
        stored = topic.append(message)
        self.changed.notify_all()
        if isinstance(fault, LoseAnswer):
            error = None if fault.error is None else raw_error(fault.error)
            return Answer(now + fault.seconds, stored, error, connection_lost=True)
        return Answer(now if fault is None else now + fault.seconds, stored)

    @contextmanager
    def serve(self, kind: RequestKind, topic: str | None, timeout: float) -> Iterator[None]:
        """Run the body as one request, with delays and faults before and after it.

        Raises `TransportError` after ``timeout``, or because of a fault.
        """
        deadline = self.clock.monotonic() + timeout
        while not self.reachable:
            if not self.wait(deadline):
                raise translate(raw_error("_TIMED_OUT", f"{kind} request: no broker was reachable in {timeout} s"))
        fault = self._meet(kind, topic)
        if isinstance(fault, Fail | Delay):
            self._pass_time(kind, fault.seconds, deadline)
        if isinstance(fault, Fail):
            raise translate(raw_error(fault.error, fatal=fault.fatal))
        yield
        if isinstance(fault, LoseAnswer):
            self._pass_time(kind, fault.seconds, deadline)
            if fault.error is not None:
                raise translate(raw_error(fault.error))

    @property
    def has_faults(self) -> bool:
        """Whether faults are injected; they count requests."""
        return bool(self._injected)

    def fetch_fault(self, topic: str) -> KafkaError | None:
        """Return the injected `Fail` error for a poll of a topic, if any."""
        fault = self._meet("fetch", topic)
        return raw_error(fault.error, fatal=fault.fatal) if isinstance(fault, Fail) else None

    def wait(self, deadline: float) -> bool:
        """Release the lock until something changes; return ``False`` immediately if the deadline has passed."""
        remaining = deadline - self.clock.monotonic()
        if remaining <= 0:
            return False
        forever = math.isinf(remaining) or isinstance(self.clock, VirtualClock)
        self.changed.wait(None if forever else remaining)
        return True

    def _meet(
        self, kind: RequestKind, topic: str | None, partition: int | None = None
    ) -> Fail | Delay | LoseAnswer | None:
        """Return the fault of this request; a `Hang` ends before this returns."""
        injected = self._injected
        matching = [each.fault for each in injected if each.applies(kind, topic, partition)]  # each counts the request
        fault = matching[0] if matching else None
        if not isinstance(fault, Hang):
            return fault
        self.hanging += 1
        while self._injected is injected:
            self.changed.wait()
        self.hanging -= 1
        return None

    def _pass_time(self, kind: RequestKind, seconds: float, deadline: float) -> None:
        ready = self.clock.monotonic() + seconds
        while self.wait(min(ready, deadline)):
            pass
        if ready > deadline:
            raise translate(raw_error("_TIMED_OUT", f"{kind} request: no response in time"))

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _check_new(self, name: str) -> None:
        if name in self._topics:
            raise ConfigurationError(f"topic {name!r} already exists: call delete_topic() first, or use another name")
        if not is_topic_name(name):
            raise ConfigurationError(f"{name!r} is not the name of a topic: {TOPIC_NAME_RULE}")
        alike = [known for known in self._topics if known.replace(".", "_") == name.replace(".", "_")]
        if alike:
            raise ConfigurationError(
                f"topic {name!r} collides with {alike[0]!r}: Kafka does not distinguish dots and underscores in names"
            )

    def _existing(self, name: str) -> Topic:
        if name not in self._topics:
            raise ConfigurationError(f"no topic {name!r} on this memory broker: it has {sorted(self._topics)}")
        return self._topics[name]

    def _counts(self) -> Mapping[str, int]:
        return {name: len(topic.partitions) for name, topic in self._topics.items()}

    def _rebalance(self, topic: str) -> None:
        for group in self._groups.values():
            if any(topic in member.topics for member in group.members.values()):
                group.rebalance(self._counts())
        self.changed.notify_all()

    def _remove_member(self, group: str, member_id: str, reason: str) -> None:
        with self.changed:
            members = self.group(group).members
            if member_id not in members:
                raise ConfigurationError(f"group {group!r} has no member {member_id!r}: it has {sorted(members)}")
            self.remove(group, members[member_id], reason)


_brokers: dict[str, MemoryBroker] = {}


def broker_for(bootstrap_servers: str) -> MemoryBroker:
    """Return the memory broker at these servers; the first call creates it."""
    return _brokers.setdefault(bootstrap_servers, MemoryBroker())


def install_broker(bootstrap_servers: str, broker: MemoryBroker) -> None:
    """Use ``broker`` at these servers, for example one with a virtual clock."""
    _brokers[bootstrap_servers] = broker


def reset_brokers() -> None:
    """Forget every memory broker; open clients keep their broker."""
    _brokers.clear()
