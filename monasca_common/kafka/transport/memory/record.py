# SPDX-License-Identifier: Apache-2.0
"""A record of the memory broker, with the names that confluent-kafka gives to a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monasca_common.kafka.message import Message, TopicPartition

CREATE_TIME = 1
NO_TIMESTAMP = 0

_BATCH_BYTES = 61  # the header of the batch that a record makes by itself
_RECORD_BYTES = 3  # its attributes, and what it differs by from the batch's time and offset, which is nothing


class MemoryMessage:
    """A `RawMessage`: a stored record, an acknowledged one, or an error about a partition."""

    __slots__ = ("_error", "_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset: int | None = None
        self._value = value
        self._key = key
        self._headers = list(headers) if headers else None
        self._timestamp = (NO_TIMESTAMP, 0) if timestamp_ms is None else (CREATE_TIME, timestamp_ms)
        self._error: Any = None

    @classmethod
    def about(cls, partition: TopicPartition, error: Any, offset: int | None = None) -> MemoryMessage:
        """An element of a poll that carries no record but an error."""
        message = cls(partition.topic, partition.partition)
        message._error = error
        message._offset = offset
        return message

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def __len__(self) -> int:
        return len(self._value or b"")

    def __bool__(self) -> bool:
        """A message without a value is a message all the same."""
        return True

    def size(self) -> int:
        """Bytes that the record takes in a batch of its own, uncompressed: what Kafka compares with a topic's limit."""
        headers = self._headers or ()
        size = _RECORD_BYTES + _field_bytes(self._key) + _field_bytes(self._value) + _varint_bytes(len(headers))
        size += sum([_field_bytes(name.encode()) + _field_bytes(value) for name, value in headers])
        return _BATCH_BYTES + _varint_bytes(size) + size

    def route(self, partition: int) -> None:
        """Settle the partition, once the producer knows how many there are."""
        self._partition = partition

    def store(self, offset: int) -> None:
        """Settle the offset, when the log takes the record."""
        self._offset = offset

    def refused(self, error: Any) -> MemoryMessage:
        """What the delivery callback gets when this record is reported as not delivered."""
        report = MemoryMessage(self._topic, self._partition, self._value, self._key, self._headers)
        report._timestamp = self._timestamp
        report._error = error
        return report

    def as_message(self) -> Message:
        """The same record as this library's users see it."""
        kind, at = self._timestamp
        return Message(
            topic=self._topic,
            partition=self._partition,
            offset=-1 if self._offset is None else self._offset,
            timestamp_ms=None if kind == NO_TIMESTAMP else at,
            key=self._key,
            value=self._value,
            headers=tuple(self._headers or ()),
        )


def _field_bytes(value: bytes | None) -> int:
    """A field and its length, which is -1 for none."""
    return 1 if value is None else _varint_bytes(len(value)) + len(value)


def _varint_bytes(number: int) -> int:
    """The size of a number of 0 or more: seven bits per byte, one bit of which is the sign."""
    return max(1, (number.bit_length() + 7) // 7)
