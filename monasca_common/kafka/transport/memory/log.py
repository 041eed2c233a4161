# SPDX-License-Identifier: Apache-2.0
"""Topics and their logs: append, read, look up by time, forget by retention. Nothing here locks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from monasca_common.kafka.transport.memory.record import MemoryMessage

KAFKA_MAX_MESSAGE_BYTES = 1_048_588  # the broker's default


class PartitionLog:
    """The records of one partition; ``low`` is the first offset it has, ``high`` the next it will write.

    ``None`` stands for an offset that no reader gets: of a control record, or of what compaction took.
    """

    def __init__(self) -> None:
        self.low = 0
        self.size_bytes = 0
        self._records: list[MemoryMessage | None] = []

    @property
    def high(self) -> int:
        return self.low + len(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def append(self, record: MemoryMessage) -> None:
        record.store(self.high)
        self._records.append(record)
        self.size_bytes += record.size()

    def skip(self, count: int) -> None:
        """Use up so many offsets without a record."""
        self._records += [None] * count

    def read(self, offset: int, limit: int) -> tuple[list[MemoryMessage], int]:
        """Up to ``limit`` records from an offset on, and the offset where reading goes on."""
        position = offset - self.low
        found: list[MemoryMessage] = []
        while position < len(self._records) and len(found) < limit:
            record = self._records[position]
            if record is not None:
                found.append(record)
            position += 1
        return found, self.low + position

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset whose record is not older than ``timestamp_ms``; the end when there is none."""
        for index, record in enumerate(self._records):
            if record is not None and record.timestamp()[1] >= timestamp_ms:
                return self.low + index
        return self.high

    def delete_before(self, offset: int) -> None:
        count = min(max(0, offset - self.low), len(self._records))
        self.size_bytes -= sum(record.size() for record in self._records[:count] if record is not None)
        del self._records[:count]
        self.low += count


@dataclass(slots=True)
class Topic:
    """A topic of the memory broker. ``None`` for a retention keeps everything."""

    name: str
    partitions: list[PartitionLog]
    max_message_bytes: int = KAFKA_MAX_MESSAGE_BYTES
    retention_records: int | None = None  # of each partition
    retention_bytes: int | None = None  # of each partition
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def append(self, record: MemoryMessage) -> None:
        log = self.partitions[record.partition()]
        log.append(record)
        if self.retention_records is not None:
            log.delete_before(log.high - self.retention_records)
        while self.retention_bytes is not None and log.size_bytes > self.retention_bytes and len(log) > 1:
            log.delete_before(log.low + 1)
