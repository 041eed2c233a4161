# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport, between this library and a client of Kafka.

Two implementations: librdkafka through confluent-kafka, and memory. A transport moves bytes and reports;
it decides nothing. Errors leave it only as `TransportError`. Seconds for waits, milliseconds for timestamps.
A time-out is given to the client as it is; whether the client keeps it is the concern of `bounded`, not of a driver.
Offsets mean *next to read* everywhere, except `RawMessage.offset`, the message's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import TopicPartition

BEGINNING = -2
END = -1
ANY_PARTITION = -1


class RawMessage(Protocol):
    """A message as the client gives it (confluent-kafka's names), both when read and when acknowledged."""

    def error(self) -> Any: ...
    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int | None:
        """``None`` for a message that the broker had already: it acknowledges such a message without its offset."""
        ...

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]:
        """(kind, milliseconds); kind 0 means that there is none."""
        ...

    def __len__(self) -> int:
        """Of the value in bytes."""
        ...


# The raw error (None: delivered) and the message it is about; called from within `poll` and `flush`.
DeliveryCallback = Callable[[Any, RawMessage], None]


class ProducerTransport(ABC):
    """One producing client. ``on_error`` (given to the constructor) hears of every client-wide error."""

    clock: Clock
    abort_is_due = False  # the abort of its last transaction has no answer yet

    @abstractmethod
    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: DeliveryCallback,
        on_delivery: DeliveryCallback,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]] | None,
    ) -> None:
        """Queue one message; positional arguments only, for speed. ``timestamp_ms`` 0 means now.

        ``callback`` and ``on_delivery`` are two names of one argument in confluent-kafka: give the same to both.
        May raise whatever the client raises: hand it to `fault`. Then the message was not queued.
        """

    @abstractmethod
    def fault(self, error: Any) -> TransportError:
        """The `TransportError` for a raw error, as given to a delivery callback or raised by `produce`."""

    @abstractmethod
    def poll(self, timeout: float) -> int:
        """Run delivery and error callbacks for up to ``timeout`` seconds, returning at once after some ran."""

    @abstractmethod
    def flush(self, timeout: float) -> int:
        """Send without lingering and run callbacks until nothing is queued; how many messages still are."""

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

    @abstractmethod
    def init_transactions(self, timeout: float) -> None: ...

    @abstractmethod
    def begin_transaction(self) -> None: ...

    @abstractmethod
    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_metadata: Any, timeout: float) -> None: ...

    @abstractmethod
    def commit_transaction(self, timeout: float) -> None: ...

    @abstractmethod
    def abort_transaction(self, timeout: float) -> None: ...

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Release the client, however long that takes: the caller waits ``timeout`` seconds on another thread. What is
        still queued was purged before."""


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

    clock: Clock
    message_type: type[Any]  # the class of what `poll` returns, for reading columns without a call per message
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
    def poll(self, max_messages: int, timeout: float) -> Sequence[Any]:
        """Return up to ``max_messages`` `RawMessage`, as soon as there is one; elements may carry an ``error()``.

        Once all of a partition was returned, an element with the error ``_PARTITION_EOF`` has its end as offset: what
        is written next, or for a reader of committed messages the last stable offset.
        """

    @abstractmethod
    def fault(self, error: Any) -> TransportError: ...

    @abstractmethod
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    @abstractmethod
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def position(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]: ...

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
