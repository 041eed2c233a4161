# SPDX-License-Identifier: Apache-2.0
"""Data types: records to send, messages that were read, batches that a poll returns, and delivery counts."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, overload

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The type of a value: bytes or None as read from Kafka, otherwise the type of the serializer.
    T = TypeVar("T", default=bytes | None)
    T_co = TypeVar("T_co", default=bytes | None, covariant=True)
    S = TypeVar("S", default=Any)  # the type of a serializer's values
else:
    from typing import TypeVar  # type parameters have no defaults before Python 3.13

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    S = TypeVar("S")

LOG = logging.getLogger(__name__)

Headers = tuple[tuple[str, bytes | None], ...]

MESSAGE_ID_HEADER = "message-id"
#: Size of the ids that producers create: 11 random characters per producer and 12 hexadecimal digits per message. A
#: caller's id may have any size.
MADE_ID_BYTES = 23

# Kafka's rule, checked here so that no broker receives an invalid name.
TOPIC_NAME_RULE = "a topic has 1 to 249 letters, digits, dots, dashes and underscores, and is neither '.' nor '..'"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send. Bare ``bytes`` are equivalent to ``Record(value)``. Value, key and headers are bytes, not text:
    ``"hall".encode()``, or the result of a serializer's ``dumps``. A header's name is text.

    ``timestamp_ms``: milliseconds since 1970, above 0; ``None`` means now. ``message_id`` is the caller's id; if it is
    missing or empty, the producer creates one before the first attempt.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    message_id: bytes | None = None

    def __post_init__(self) -> None:
        headers: Any = self.headers
        if not isinstance(headers, tuple):
            remedy = ": write tuple(headers.items())" if isinstance(headers, dict) else ""
            raise TypeError(f"headers is a tuple of pairs (name, value), not {type(headers).__name__}{remedy}")


class IdentifiedRecords(Sequence[Record]):
    """Records that consist of a value and the caller's id, for `KafkaProducer.publish`: equivalent to
    ``[Record(value, message_id=own_id), ...]``, but published in a third of the time."""

    def __init__(self, values: Iterable[bytes], message_ids: Iterable[bytes]) -> None:
        self.values = list(values)
        self.message_ids = list(message_ids)
        if len(self.values) != len(self.message_ids):
            text = f"message_ids has {len(self.message_ids)} ids for {len(self.values)} values: pass one id per value"
            raise ValueError(text)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> IdentifiedRecords: ...
    def __getitem__(self, place: int | slice) -> Record | IdentifiedRecords:
        if isinstance(place, slice):
            return IdentifiedRecords(self.values[place], self.message_ids[place])
        return Record(self.values[place], message_id=self.message_ids[place])


@dataclass(frozen=True, slots=True)
class Message(Generic[T_co]):
    """A message that was read, with its offset. ``timestamp_ms`` is ``None`` if the log has none.

    ``value``: bytes, or ``None`` for a deletion (tombstone). In a handler of a `Processor` with a ``serializer`` it is
    decoded, as ``Message[Reading]``. The value of a deletion remains ``None``: for a topic with deletions, annotate
    ``Message[Reading | None]``. ``key`` and header values remain bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: T_co
    headers: Headers

    @property
    def message_id(self) -> bytes:
        """The producer's id, or ``topic/partition/offset`` if the message has none."""
        for name, value in self.headers:
            if name == MESSAGE_ID_HEADER and value:
                return value
        return f"{self.topic}/{self.partition}/{self.offset}".encode()


COLUMNS = ("offsets", "keys", "values", "timestamps", "headers")

# This raises if the client sets an error but also returns a result; a direct call of `raw.headers()` does not always
# raise.
_HEADERS_OF = methodcaller("headers")


class Columns(ABC):
    """Messages of one partition, in order of offset. Timestamps may be ``None``; headers are pairs (name, value)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """Return the column ``name``, one of `COLUMNS`."""

    def header(self, name: str) -> list[bytes | None]:
        """Return, for each message, the value of its last header with this name, or ``None`` if it has none."""
        return [dict(headers).get(name) for headers in self.column("headers")]

    def pick(self, indices: Sequence[int]) -> Columns:
        """Return the messages at these ascending positions, without a reference to the other messages."""
        columns = {name: self.column(name) for name in COLUMNS}
        picked = {name: [column[index] for index in indices] for name, column in columns.items()}
        return LazyColumns(len(indices), picked.__getitem__)


class LazyColumns(Columns):
    """Columns that ``read`` returns by name, on request."""

    def __init__(self, length: int, read: Callable[[str], list[Any]]) -> None:
        self._length = length
        self._read = read

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> list[Any]:
        return self._read(name)


class MessageColumns(Columns):
    """Columns read from objects that have the methods of confluent-kafka's messages."""

    def __init__(self, raw: Sequence[Any]) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    def column(self, name: str) -> list[Any]:
        return _READERS[name](self._raw)

    def pick(self, indices: Sequence[int]) -> Columns:
        return MessageColumns([self._raw[index] for index in indices])


def _timestamp(raw: Any) -> int | None:
    kind, at_ms = raw.timestamp()
    return None if kind == 0 else at_ms


def _headers(raw: Any) -> Headers:
    """Return the headers of a client's message. Drop all headers if a name is not UTF-8, because reading the client's
    incomplete list crashes."""
    try:
        return tuple(_HEADERS_OF(raw) or ())
    except (SystemError, UnicodeDecodeError):
        raw.set_headers([])
        LOG.warning(
            "the headers of %s/%d/%d are omitted, because the name of a header is not UTF-8",
            raw.topic(),
            raw.partition(),
            raw.offset(),
        )
        return ()


_READERS: Mapping[str, Callable[[Sequence[Any]], list[Any]]] = {
    "offsets": lambda raws: [raw.offset() for raw in raws],
    "keys": lambda raws: [raw.key() for raw in raws],
    "values": lambda raws: [raw.value() for raw in raws],
    "timestamps": lambda raws: list(map(_timestamp, raws)),
    "headers": lambda raws: list(map(_headers, raws)),
}


class PartitionBatch(Generic[T_co]):
    """The messages of one partition in one poll, as columns of equal length, in order of offset.

    ``values`` are bytes or ``None``, or decoded by a serializer, as in `Message`.

    Each column is read from the client's messages on first use, so that a hot loop reads only the columns that it uses
    and creates no object per message.
    """

    __slots__ = ("__dict__", "_columns", "epoch", "next_offset", "start_offset", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        epoch: int,
        messages: Columns | Sequence[Any],
        start_offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        # epoch of the assignment under which the batch was read; a commit under a later epoch is stale
        self.epoch = epoch
        self._columns = messages if isinstance(messages, Columns) else MessageColumns(messages)
        #: All offsets from here to `next_offset` are accounted for: offsets that are not in this batch were never
        #: messages (control records, compaction) or are dead letters. A database that stores ranges can detect gaps
        #: with it.
        self.start_offset: int = self.offsets[0] if start_offset is None else start_offset
        #: One past the last message: the offset to commit for the whole batch.
        self.next_offset: int = self.offsets[-1] + 1 if next_offset is None else next_offset

    def __len__(self) -> int:
        return len(self._columns)

    @cached_property
    def offsets(self) -> list[int]:
        return self._columns.column("offsets")

    @cached_property
    def keys(self) -> list[bytes | None]:
        return self._columns.column("keys")

    @cached_property
    def values(self) -> list[T_co]:
        return self._columns.column("values")

    @cached_property
    def timestamps(self) -> list[int | None]:
        """Milliseconds since the epoch."""
        return self._columns.column("timestamps")

    @cached_property
    def headers(self) -> list[Headers]:
        return self._columns.column("headers")

    def header(self, name: str) -> list[bytes | None]:
        """Return, for each message, the value of its last header with this name, or ``None`` if it has none. This is
        cheaper than `headers` for messages of the native client."""
        return self._columns.header(name)

    def message(self, index: int) -> Message[T_co]:
        return Message(
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            offset=self.offsets[index],
            timestamp_ms=self.timestamps[index],
            key=self.keys[index],
            value=self.values[index],
            headers=self.headers[index],
        )

    def slice(self, start: int, stop: int) -> PartitionBatch[T_co]:
        """Return messages ``start`` to ``stop``. Their offset range begins after the preceding message of the batch."""
        first = self.offsets[start - 1] + 1 if start else self.start_offset
        following = None if stop < len(self) else self.next_offset
        return self._picked(range(len(self))[start:stop], first, following)

    def select(self, indices: Sequence[int]) -> PartitionBatch[T_co]:
        """Return the messages at these ascending positions."""
        return self._picked(indices, None, None)

    def without(self, indices: Container[int]) -> PartitionBatch[T_co]:
        """Return the batch with the same range of offsets, without the messages at these positions, which count as
        handled."""
        left = [index for index in range(len(self)) if index not in indices]
        return self._picked(left, self.start_offset, self.next_offset)

    def _picked(self, indices: Sequence[int], start: int | None, following: int | None) -> PartitionBatch[T_co]:
        columns = self._columns if len(indices) == len(self) else self._columns.pick(indices)
        return PartitionBatch(self.topic_partition, self.epoch, columns, start, following)

    @classmethod
    def joined(cls, parts: Sequence[PartitionBatch[T]]) -> PartitionBatch[T]:
        """Join one or more adjacent batches of one partition and epoch, in order."""
        first, columns = parts[0], [part._columns for part in parts]
        joined = LazyColumns(
            sum(map(len, columns)), lambda name: [item for each in columns for item in each.column(name)]
        )
        return PartitionBatch(first.topic_partition, first.epoch, joined, first.start_offset)

    def __iter__(self) -> Iterator[Message[T_co]]:
        return map(self.message, range(len(self)))


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one poll. Iterating yields each `Message`, partition by partition. Never ignore ``errors``."""

    partitions: tuple[PartitionBatch, ...] = ()
    errors: tuple[Exception, ...] = field(default=())

    def __len__(self) -> int:
        return sum(map(len, self.partitions))

    def __iter__(self) -> Iterator[Message]:
        for part in self.partitions:
            yield from part


class OffsetAndEpoch(NamedTuple):
    """The position up to which a partition was handled under one assignment; ``next_offset`` is read next."""

    epoch: int
    next_offset: int


#: Counts of delivered messages, by topic and start of the time bucket in milliseconds since 1970.
DeliveryCounts = dict[tuple[str, int], int]


class DeliveryTap(Protocol):
    """Receives the counts of the deliveries of one producer, by topic and bucket of the messages' timestamps.

    A message that `KafkaProducer.retry` sends again counts once, when it is delivered.
    """

    bucket_seconds: int

    def add(self, counts: DeliveryCounts) -> None:
        """Add the counts of one batch of outcomes; called before the callers that wait for these outcomes wake."""
        ...

    def begin(self) -> None:
        """Begin a transaction; deliveries until its end count only if it is committed."""
        ...

    def end(self, *, committed: bool) -> None: ...
