# SPDX-License-Identifier: Apache-2.0
"""Topics and their logs: append, read, look up by time, forget by retention. Nothing here locks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from monasca_common.kafka.message import Message

KAFKA_MAX_MESSAGE_BYTES = 1_048_588  # the broker's default

_BATCH_BYTES = 61  # the header of the batch that a record makes by itself
_RECORD_BYTES = 3  # its attributes, and what it differs by from the batch's time and offset, which is nothing


class PartitionLog:
    """The records of one partition; ``low`` is the first offset it has, ``high`` the next it will write.

    ``None`` stands for an offset that no reader gets: of a control record, or of what compaction took.
    """

    def __init__(self) -> None:
        self.low = 0
        self._records: list[Message | None] = []

    @property
    def high(self) -> int:
        return self.low + len(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def append(self, message: Message) -> Message:
        """Return the message as it is stored, with its offset."""
        stored = replace(message, offset=self.high)
        self._records.append(stored)
        return stored

    def skip(self, count: int) -> None:
        """Use up so many offsets without a record."""
        self._records += [None] * count

    def read(self, offset: int, limit: int) -> tuple[list[Message], int]:
        """Up to ``limit`` records from an offset on, and the offset where reading goes on."""
        position = offset - self.low
        found: list[Message] = []
        while position < len(self._records) and len(found) < limit:
            record = self._records[position]
            if record is not None:
                found.append(record)
            position += 1
        return found, self.low + position

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset whose record is not older than ``timestamp_ms``; the end when there is none."""
        for index, record in enumerate(self._records):
            if record is not None and (record.timestamp_ms or 0) >= timestamp_ms:
                return self.low + index
        return self.high

    def delete_before(self, offset: int) -> None:
        count = min(max(0, offset - self.low), len(self._records))
        del self._records[:count]
        self.low += count


@dataclass(slots=True)
class Topic:
    """A topic of the memory broker, whose records stay until `MemoryBroker.delete_records`."""

    name: str
    partitions: list[PartitionLog]
    max_message_bytes: int = KAFKA_MAX_MESSAGE_BYTES
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def append(self, message: Message) -> Message:
        return self.partitions[message.partition].append(message)


def batch_bytes(message: Message) -> int:
    """Bytes that the message takes in a batch of its own, uncompressed: what Kafka compares with a topic's limit."""
    size = _RECORD_BYTES + _field_bytes(message.key) + _field_bytes(message.value) + _varint_bytes(len(message.headers))
    size += sum([_field_bytes(name.encode()) + _field_bytes(value) for name, value in message.headers])
    return _BATCH_BYTES + _varint_bytes(size) + size


def _field_bytes(value: bytes | None) -> int:
    """A field and its length, which is -1 for none."""
    return 1 if value is None else _varint_bytes(len(value)) + len(value)


def _varint_bytes(number: int) -> int:
    """The size of a number of 0 or more: seven bits per byte, one bit of which is the sign."""
    return max(1, (number.bit_length() + 7) // 7)
