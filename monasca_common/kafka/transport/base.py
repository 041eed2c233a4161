# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport, between this library and a client of Kafka.

Three implementations: librdkafka from C and through confluent-kafka, and memory. A transport moves bytes and reports;
it decides nothing. Errors leave it only as `TransportError`. Seconds for waits, milliseconds for timestamps.
A time-out is given to the client as it is; whether the client keeps it is the concern of `bounded`, not of a driver.
Offsets mean *next to read* everywhere, except those of messages, which are their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Columns, DeliveryCounts, TopicPartition
from monasca_common.kafka.transport.reservation import Reservation

BEGINNING = -2
END = -1
ANY_PARTITION = -1


def no_transactions(driver: str) -> ConfigurationError:
    return ConfigurationError(
        f"driver={driver} has no transactions: use driver=kafka, or write the offsets with the results instead"
    )


def message_id(id_prefix: bytes, sequence: int) -> bytes:
    """The id of a message of this sequence, from a producer with this prefix."""
    return b"%b%012x" % (id_prefix, sequence)


@dataclass(slots=True)
class UndeliveredMessage:
    """A message that the client gave back, or did not take."""

    sequence: int
    error: TransportError
    value: bytes | None
    key: bytes | None
    taken: bool | None = True  # by the client; None: perhaps, because the call was interrupted


@dataclass(slots=True)
class Outcomes:
    """The outcomes that one call of the client brought, in columns.

    ``sequences``, ``partitions`` and ``offsets`` are of the delivered messages, in ascending order of their sequences.
    An offset is below 0 where the broker acknowledged a message that it had already. ``bytes``: values and keys of the
    delivered messages, each with those before it. ``counts``: the delivered messages by topic and bucket, after
    `ProducerTransport.count`.
    """

    sequences: Sequence[int] = ()
    partitions: Sequence[int] = ()
    offsets: Sequence[int] = ()
    bytes: Sequence[int] = ()
    undelivered: Sequence[UndeliveredMessage] = ()
    counts: DeliveryCounts = field(default_factory=dict)


class ProducerTransport(ABC):
    """One producing client. A message is identified by its *sequence*, a number that its producer gives it.

    ``on_error`` (given to the constructor) receives every client-wide error. `send`, `produce` and `produce_record`
    never wait and never run callbacks. The last two raise one of ``refusals``, for `fault`; then the client took no
    message. One thread at a time calls `poll` and `flush`.
    """

    driver: str  # the name that selects it
    refusals: tuple[type[Exception], ...]
    clock: Clock
    send_is_atomic = False  # whether `send` is one step for signal handlers
    abort_is_due = False  # the abort of its last transaction has no answer yet
    new_reservation: Callable[[int, int, int, int, int, bytes | None], Reservation] = Reservation

    @abstractmethod
    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        """Queue one message of bytes under the next sequence of a reservation from `new_reservation`. Positional
        arguments only, for speed.

        Returns its id (`message_id`), which is its only header, and is empty where ids are off. Returns ``None`` for a
        message that it did not take, and for which nothing of the reservation was used.
        """

    def produce(self, topic: str, values: list[bytes], key: bytes | None, first: int, id_prefix: bytes | None) -> int:
        """Queue messages of bytes under the sequences from ``first``; how many the client took. One that it did not
        take is passed to `produce_record` next, which raises what is wrong.

        Their ids have this prefix; ``None``: they get none.
        """
        accepted = 0
        try:
            for accepted, value in enumerate(values):
                sequence = first + accepted
                headers = () if id_prefix is None else ((MESSAGE_ID_HEADER, message_id(id_prefix, sequence)),)
                self.produce_record(topic, value, key, ANY_PARTITION, 0, headers, sequence)
        except self.refusals:
            return accepted
        return len(values)

    @abstractmethod
    def produce_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
        sequence: int,
    ) -> None:
        """Queue one message with all that it may have. ``timestamp_ms`` 0 means now; ``headers`` include its id."""

    @abstractmethod
    def fault(self, error: Any) -> TransportError:
        """The `TransportError` for an error that `produce` or `produce_record` raised."""

    @abstractmethod
    def poll(self, timeout: float) -> Outcomes:
        """Collect the outcomes that have arrived; waits up to ``timeout`` seconds for the first."""

    @abstractmethod
    def flush(self, timeout: float) -> Outcomes:
        """Send without lingering, and collect outcomes for up to ``timeout`` seconds, or until nothing is queued."""

    @abstractmethod
    def queued(self) -> int:
        """How many messages have no outcome that `poll` or `flush` has returned."""

    @abstractmethod
    def count(self, bucket_seconds: int) -> None:
        """From now on count delivered messages by topic and by buckets of their timestamps; see `Outcomes.counts`."""

    @abstractmethod
    def purge(self) -> None:
        """Give up everything queued or in flight, without waiting; the next polls report each as purged."""

    @abstractmethod
    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        """Each topic's ``max.message.bytes``, asked for in one request, or the error (unknown topic, not
        permitted). Raises `TransportError` when there is no answer at all. Called by several threads."""

    @abstractmethod
    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """The identity of each existing topic: it changes when a topic is deleted and recreated."""

    # A driver without transactions refuses all five.

    def init_transactions(self, timeout: float) -> None:
        raise no_transactions(self.driver)

    def begin_transaction(self) -> None:
        raise no_transactions(self.driver)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_metadata: Any, timeout: float) -> None:
        raise no_transactions(self.driver)

    def commit_transaction(self, timeout: float) -> None:
        raise no_transactions(self.driver)

    def abort_transaction(self, timeout: float) -> None:
        raise no_transactions(self.driver)

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Release the client, however long that takes: the caller waits ``timeout`` seconds on another thread. What is
        still queued was purged before."""


class PartitionEvent(NamedTuple):
    """An error about a partition, or about no partition in particular (``topic`` is ``None`` then).

    The error ``_PARTITION_EOF`` is none: all of the partition was returned, and ``offset`` is its end, which is what is
    written next, or for a reader of committed messages the last stable offset.
    """

    error: TransportError
    topic: str | None
    partition: int
    offset: int | None


@dataclass(slots=True)
class Fetched:
    """What one poll brought: messages by partition, and events."""

    parts: Sequence[tuple[TopicPartition, Columns]] = ()
    events: Sequence[PartitionEvent] = ()

    def __bool__(self) -> bool:
        return bool(self.parts or self.events)


class RebalanceCallbacks(Protocol):
    """Called from within `ConsumerTransport.poll` (or `close`), on its thread."""

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions newly given (incremental protocols: only the new ones). It must end by calling
        `ConsumerTransport.assign_owned` with a position for each."""

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions about to be taken; a commit still works. The transport gives them up when this returns."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions that somebody else may already own; nothing may be committed."""


class ConsumerTransport(ABC):
    """One consuming client, either member of a group or reading chosen partitions."""

    driver: str  # the name that selects it
    clock: Clock
    on_error: Callable[[TransportError], None] | None = None  # hears of every client-wide error, from within `poll`

    @abstractmethod
    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None: ...

    @abstractmethod
    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Within ``on_assign``: start the given partitions at these offsets (incrementally if the protocol
        is incremental). Outside of it: give partitions that are already owned new positions (revives a dead one)."""

    @abstractmethod
    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, without a group's assignment."""

    @abstractmethod
    def assignment(self) -> set[TopicPartition]: ...

    @abstractmethod
    def poll(self, max_messages: int, timeout: float) -> Fetched:
        """Return up to ``max_messages`` messages and events, as soon as there is one."""

    @abstractmethod
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        """Commit and wait for the broker's answer, as long as that takes (45 s have been seen); thread-safe."""

    @abstractmethod
    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]: ...

    @abstractmethod
    def watermarks(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """(low, high): the first offset in the log, and the next that will be written."""

    def first_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The first existing offset in each log."""
        return {partition: self.watermarks(partition, timeout)[0] for partition in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offset that will be written next in each log."""
        return {partition: self.watermarks(partition, timeout)[1] for partition in partitions}

    @abstractmethod
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        """The first offset at or after each time; the end if there is none."""

    @abstractmethod
    def partition_count(self, topic: str, timeout: float) -> int: ...

    @abstractmethod
    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """The identity of each existing topic: it changes when a topic is deleted and recreated."""

    @abstractmethod
    def group_metadata(self) -> Any:
        """The metadata for `ProducerTransport.send_offsets`, fresh at each call."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and release the client; runs ``on_revoke`` for what is owned."""

    def abandon(self) -> None:
        """Release a client that was given up, without a request to the brokers. It replaces `close`."""
        return
