# SPDX-License-Identifier: Apache-2.0
"""What travels: the record that is sent, the message that is read, and the batch that a poll returns."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import methodcaller
from typing import Any, NamedTuple

LOG = logging.getLogger(__name__)

Headers = tuple[tuple[str, bytes | None], ...]

# Raises, as `raw.headers()` written out does not always, when the client sets an error and returns a result as well.
_HEADERS_OF = methodcaller("headers")

MESSAGE_ID_HEADER = "message-id"


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is sent. Bare ``bytes`` stand for ``Record(value)``.

    ``message_id`` is the caller's own id; without one the producer makes it before the first attempt.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    message_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """What is read. ``offset`` is this message's own; ``timestamp_ms`` is ``None`` where the log has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def message_id(self) -> bytes:
        """The producer's id, or ``topic/partition/offset`` for a message without one."""
        for name, value in self.headers:
            if name == MESSAGE_ID_HEADER and value:
                return value
        return f"{self.topic}/{self.partition}/{self.offset}".encode()


class PartitionBatch:
    """The messages of one partition in one poll, as columns of equal length, in order of offset.

    The columns are read from the client's messages when they are first asked for, so that a hot loop
    pays for what it uses and for no object per message.
    """

    __slots__ = ("__dict__", "_raw", "epoch", "next_offset", "start_offset", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        epoch: int,
        raw: Sequence[Any],
        start_offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.epoch = epoch  # of the assignment it was read under; a commit under a later one is stale
        self._raw = raw
        #: From here to `next_offset` all is accounted for: what is not in this batch was never in the log (control
        #: records, compaction) or is a dead letter. A database that stores ranges can tell by it what is missing.
        self.start_offset: int = int(raw[0].offset()) if start_offset is None else start_offset
        #: One past the last message: what a commit of all of it says.
        self.next_offset: int = int(raw[-1].offset()) + 1 if next_offset is None else next_offset

    def __len__(self) -> int:
        return len(self._raw)

    @cached_property
    def offsets(self) -> list[int]:
        return [raw.offset() for raw in self._raw]

    @cached_property
    def keys(self) -> list[bytes | None]:
        return [raw.key() for raw in self._raw]

    @cached_property
    def values(self) -> list[bytes | None]:
        return [raw.value() for raw in self._raw]

    @cached_property
    def timestamps(self) -> list[int | None]:
        """Milliseconds since the epoch."""
        stamps = (raw.timestamp() for raw in self._raw)
        return [None if kind == 0 else at for kind, at in stamps]

    @cached_property
    def headers(self) -> list[Headers]:
        return [_headers(raw) for raw in self._raw]

    def message(self, index: int) -> Message:
        raw = self._raw[index]
        kind, at = raw.timestamp()
        return Message(
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            offset=raw.offset(),
            timestamp_ms=None if kind == 0 else at,
            key=raw.key(),
            value=raw.value(),
            headers=_headers(raw),
        )

    def slice(self, start: int, stop: int) -> PartitionBatch:
        """The same partition and epoch, messages ``start`` to ``stop``; a range between its neighbours' ranges."""
        first = int(self._raw[start - 1].offset()) + 1 if start else self.start_offset
        following = None if stop < len(self._raw) else self.next_offset
        return PartitionBatch(self.topic_partition, self.epoch, self._raw[start:stop], first, following)

    def select(self, indices: Sequence[int]) -> PartitionBatch:
        """The same partition and epoch, the messages at these ascending positions."""
        return PartitionBatch(self.topic_partition, self.epoch, [self._raw[index] for index in indices])

    def without(self, indices: Container[int]) -> PartitionBatch:
        """The same range, without the messages at these positions: they are accounted for."""
        left = [raw for index, raw in enumerate(self._raw) if index not in indices]
        return PartitionBatch(self.topic_partition, self.epoch, left, self.start_offset, self.next_offset)

    @classmethod
    def joined(cls, parts: Sequence[PartitionBatch]) -> PartitionBatch:
        """Neighbours of one partition and epoch, in order, as one batch; at least one."""
        first = parts[0]
        raw = [message for part in parts for message in part._raw]
        return cls(first.topic_partition, first.epoch, raw, first.start_offset)

    def __iter__(self) -> Iterator[Message]:
        return map(self.message, range(len(self._raw)))


def _headers(raw: Any) -> Headers:
    """Those of a message of the client. None where a name is no UTF-8: the client's own list then has a hole, and
    whoever looks into that crashes."""
    try:
        return tuple(_HEADERS_OF(raw) or ())
    except (SystemError, UnicodeDecodeError):
        raw.set_headers([])
        LOG.warning(
            "the headers of %s/%d/%d are left out: the name of one is not UTF-8",
            raw.topic(),
            raw.partition(),
            raw.offset(),
        )
        return ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll returned: iterates `Message`, partition by partition; ``errors`` is never to be ignored."""

    partitions: tuple[PartitionBatch, ...] = ()
    errors: tuple[Exception, ...] = field(default=())

    def __len__(self) -> int:
        return sum(map(len, self.partitions))

    def __iter__(self) -> Iterator[Message]:
        for part in self.partitions:
            yield from part
