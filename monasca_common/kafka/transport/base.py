# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport, which connects this library to a Kafka client. It has three implementations: librdkafka
from C, librdkafka through confluent-kafka, and memory. A transport moves bytes and reports outcomes; it makes no
decisions. All its errors are `TransportError`. Waits are in seconds, timestamps in milliseconds. A time-out is passed
to the client unchanged; `bounded`, not a driver, enforces it. Except in messages, an offset is the *next to read*.
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
    """Return the id of the message with this sequence, from a producer with this prefix."""
    return b"%b%012x" % (id_prefix, sequence)


@dataclass(slots=True)
class UndeliveredMessage:
    """A message that the client returned, or did not accept."""

    sequence: int
    error: TransportError
    value: bytes | None
    key: bytes | None
    taken: bool | None = True  # whether the client accepted it; None: unknown, because the call was interrupted


@dataclass(slots=True)
class Outcomes:
    """The outcomes of one call of the client, in columns.

    ``sequences``, ``partitions`` and ``offsets`` describe the delivered messages, in ascending order of their
    sequences. A negative offset means that the broker acknowledged a message that it already had. ``bytes``: the
    cumulative sizes of values and keys of the delivered messages. ``counts``: the number of delivered messages by topic
    and bucket, after a call of `ProducerTransport.count`.
    """

    sequences: Sequence[int] = ()
    partitions: Sequence[int] = ()
    offsets: Sequence[int] = ()
    bytes: Sequence[int] = ()
    undelivered: Sequence[UndeliveredMessage] = ()
    counts: DeliveryCounts = field(default_factory=dict)


class ProducerTransport(ABC):
    """One producing client. A message is identified by its *sequence*, a number from its producer.

    ``on_error`` (an argument of the constructor) receives every client-wide error. `send`, `produce` and
    `produce_record` never wait and never call callbacks. If the client does not accept a message, the last two raise
    one of ``refusals``, which `fault` converts. One thread at a time calls `poll` and `flush`.
    """

    driver: str  # its name in the option ``driver``
    refusals: tuple[type[Exception], ...]
    clock: Clock
    send_is_atomic = False  # whether no signal handler interrupts `send`
    abort_is_due = False  # the abort of its last transaction has no response yet
    new_reservation: Callable[[int, int, int, int, int, bytes | None], Reservation] = Reservation

    @abstractmethod
    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        """Queue one message of bytes under the next sequence of a reservation from `new_reservation`. Positional
        arguments only, for speed.

        Return the id of the message (`message_id`), or an empty id if ids are off; the id is the only header. Return
        ``None`` if the client did not accept the message; then the reservation is unchanged.
        """

    def produce(
        self, topic: str, values: list[bytes], key: bytes | None, first: int, ids: bytes | list[bytes] | None
    ) -> int:
        """Queue messages of bytes under the sequences from ``first``; return how many the client accepted. The caller
        passes the first message that the client did not accept to `produce_record`, which raises the error.

        ``ids``: the prefix of their ids (`message_id`), a list with the id of each, or ``None`` for no ids.
        """
        accepted = 0
        try:
            for accepted, value in enumerate(values):
                sequence = first + accepted
                own_id = ids[accepted] if isinstance(ids, list) else ids and message_id(ids, sequence)
                headers = () if own_id is None else ((MESSAGE_ID_HEADER, own_id),)
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
        """Queue one message with all its fields. ``timestamp_ms`` 0 means now; ``headers`` include its id."""

    @abstractmethod
    def fault(self, error: Any) -> TransportError:
        """Return the `TransportError` for an error that `produce` or `produce_record` raised."""

    @abstractmethod
    def poll(self, timeout: float) -> Outcomes:
        """Collect the outcomes that have arrived; wait up to ``timeout`` seconds for the first."""

    @abstractmethod
    def flush(self, timeout: float) -> Outcomes:
        """Send without lingering, and collect outcomes for up to ``timeout`` seconds, or until nothing is queued; a
        client may return earlier, after 0.1 s."""

    @abstractmethod
    def queued(self) -> int:
        """Return the number of messages without an outcome from `poll` or `flush`."""

    @abstractmethod
    def count(self, bucket_seconds: int) -> None:
        """Start to count delivered messages by topic and by buckets of their timestamps; see `Outcomes.counts`."""

    @abstractmethod
    def purge(self) -> None:
        """Drop all messages that are queued or in flight, without waiting; the next polls report them as purged."""

    @abstractmethod
    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        """Return each topic's ``max.message.bytes`` or its error (unknown topic, no permission), with one request.
        Raises `TransportError` if there is no response. Several threads may call this."""

    @abstractmethod
    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """Return the id of each existing topic, which changes when the topic is deleted and recreated."""

    # A driver without transactions refuses all five methods.

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
        """Close the client after a purge, without a time limit; the caller waits at most ``timeout``."""


class PartitionEvent(NamedTuple):
    """An error of a partition, or of the whole client if ``topic`` is ``None``.

    ``_PARTITION_EOF`` is not an error: all messages of the partition were returned, and ``offset`` is its end, the next
    offset to be written, or for a reader of committed messages the last stable offset.
    """

    error: TransportError
    topic: str | None
    partition: int
    offset: int | None


@dataclass(slots=True)
class Fetched:
    """The result of one poll: messages by partition, and events."""

    parts: Sequence[tuple[TopicPartition, Columns]] = ()
    events: Sequence[PartitionEvent] = ()

    def __bool__(self) -> bool:
        return bool(self.parts or self.events)


class RebalanceCallbacks(Protocol):
    """Callbacks that `ConsumerTransport.poll` (or `close`) calls on its thread."""

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were assigned (if the protocol is incremental, only the new ones). The callback must end with a
        call of `ConsumerTransport.assign_owned`, with a position for each partition."""

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions will be revoked when this method returns; until then commits work."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were lost, and another member may already own them; commits are not allowed."""


class ConsumerTransport(ABC):
    """One consuming client, either a member of a group or a reader of chosen partitions."""

    driver: str  # its name in the option ``driver``
    clock: Clock
    on_error: Callable[[TransportError], None] | None = None  # receives client-wide errors, within `poll`

    @abstractmethod
    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None: ...

    @abstractmethod
    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Within ``on_assign``: start the given partitions at these offsets (incrementally if the protocol is
        incremental). Otherwise: set new positions of owned partitions, which also resumes those out of range."""

    @abstractmethod
    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, without a group's assignment."""

    @abstractmethod
    def assignment(self) -> set[TopicPartition]: ...

    @abstractmethod
    def poll(self, max_messages: int, timeout: float) -> Fetched:
        """Return up to ``max_messages`` messages and events, once one is available."""

    @abstractmethod
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        """Commit and wait for the broker's response without a limit (45 s have been observed); thread-safe."""

    @abstractmethod
    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]: ...

    @abstractmethod
    def fetched_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of logs as of their last fetches, without a request; logs not fetched yet are omitted."""

    def first_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """Return the first existing offset in each log."""
        return self.offsets_for_times(dict.fromkeys(partitions, BEGINNING), timeout)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """Return the offset that will be written next in each log."""
        return self.offsets_for_times(dict.fromkeys(partitions, END), timeout)

    @abstractmethod
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        """Return the first offset at or after each time, or the end if there is no such record. `BEGINNING` and `END`
        stand for the ends of the log."""

    @abstractmethod
    def partition_count(self, topic: str, timeout: float) -> int: ...

    @abstractmethod
    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """Return the id of each existing topic, which changes when the topic is deleted and recreated."""

    @abstractmethod
    def group_metadata(self) -> Any:
        """Return the current metadata of the group for `ProducerTransport.send_offsets`."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and close the client; call ``on_revoke`` for owned partitions."""

    def abandon(self) -> None:
        """Close a poisoned client without a request to the brokers, instead of `close`."""
        return
