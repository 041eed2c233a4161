# SPDX-License-Identifier: Apache-2.0
"""Topics and their logs: append, read, search by time, and delete by retention. This module has no locks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from monasca_common.kafka.message import Message
from monasca_common.kafka.transport.base import BEGINNING, END

KAFKA_MAX_MESSAGE_BYTES = 1_048_588  # the broker's default

_BATCH_BYTES = 61  # the header of a batch


class PartitionLog:
    """The records of one partition; ``low`` is its first offset, and ``high`` the next offset to be written.

    The record ``None`` has an offset that no reader gets, such as that of a control record or a compacted record.
    """

    def __init__(self) -> None:
        self.low = 0
        self._records: list[Message | None] = []

    @property
    def high(self) -> int:
        return self.low + len(self._records)

    def append(self, message: Message) -> Message:
        """Store the message; return it with its offset."""
        stored = replace(message, offset=self.high)
        self._records.append(stored)
        return stored

    def skip(self, count: int) -> None:
        """Append this number of offsets that have no record."""
        self._records += [None] * count

    def read(self, offset: int, limit: int) -> tuple[list[Message], int]:
        """Return up to ``limit`` records from an offset, and the offset to resume from."""
        position = offset - self.low
        found: list[Message] = []
        while position < len(self._records) and len(found) < limit:
            record = self._records[position]
            if record is not None:
                found.append(record)
            position += 1
        return found, self.low + position

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset whose record is not older than ``timestamp_ms``, or the end of the log if there is
        none. `BEGINNING` and `END` stand for the ends of the log."""
        if timestamp_ms in (BEGINNING, END):
            return self.low if timestamp_ms == BEGINNING else self.high
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
    """A topic of the memory broker, whose records remain until `MemoryBroker.delete_records` removes them."""

    name: str
    partitions: list[PartitionLog]
    max_message_bytes: int = KAFKA_MAX_MESSAGE_BYTES
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def append(self, message: Message) -> Message:
        return self.partitions[message.partition].append(message)


def batch_bytes(message: Message) -> int:
    """Return the size of an uncompressed batch with only this message, without the few bytes that store the lengths of
    fields."""
    fields = [message.key, message.value, *(part for name, value in message.headers for part in (name.encode(), value))]
    return _BATCH_BYTES + sum([len(field or b"") for field in fields])
