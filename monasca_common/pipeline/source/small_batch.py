# SPDX-License-Identifier: Apache-2.0
"""Reads small batches in the driver, each record once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.kafka.message import PartitionBatch
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.recent_ids import RecentIds, id_digest
from monasca_common.pipeline.source.topic import SourceTopic

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 64 * 1024 * 1024
"""The maximum total size of the values of a batch. Spark reads larger batches without holding them in memory."""
MOST_IDS = 1_000_000
"""The maximum number of cached ids over all partitions; each id takes about 150 bytes. Spark computes batches with a
longer look-back."""


@dataclass(slots=True)
class DriverRecords:
    """The records of a batch as columns, ordered by partition and offset. ``duplicates``: the number of skipped
    records; ``ids``: by partition, the digest and offset of each message id, including duplicates."""

    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    kafka_ms: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    tenants: list[bytes | None] = field(default_factory=list)
    duplicates: int = 0
    ids: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in the format that executors receive."""
        import pyarrow as pa

        if self.values:
            columns = (
                ("partition", self.partitions, pa.int32()),
                ("offset", self.offsets, pa.int64()),
                ("kafka_ms", self.kafka_ms, pa.int64()),
                ("value", self.values, pa.binary()),
                ("tenant", self.tenants, pa.binary()),
            )
            yield pa.record_batch({name: pa.array(column, kind) for name, column, kind in columns})


class SmallBatches:
    """Reads batches of up to ``most_offsets``. ``leaves_out``: whether copies of a message are skipped.
    ``tenant_header``: the header whose value is needed with each record."""

    def __init__(
        self, topic: SourceTopic, most_offsets: int, *, leaves_out: bool, tenant_header: str | None = None
    ) -> None:
        self._topic = topic
        self._most_offsets = most_offsets
        self._leaves_out = leaves_out
        self._tenant_header = tenant_header
        self._recent = RecentIds()

    def read(
        self, ranges: Sequence[OffsetRange], known: Sequence[OffsetRange], starts: Mapping[int, int]
    ) -> DriverRecords | None:
        """Return the records of ``ranges`` without duplicates of earlier records, including those in ``known``, or
        ``None`` if the batch or ``known`` is too large. ``starts``: see `SourceTopic.read`.

        Raises `TransportError`.
        """
        if sum(each.span for each in ranges) > self._most_offsets or sum(each.span for each in known) > MOST_IDS:
            return None
        if self._leaves_out:
            self._remember(known, starts)
        parts, size = [], 0
        for part in self._topic.read(ranges, starts):
            parts.append(part)
            size += sum(len(value) for value in part.values if value)
            if size > MOST_BYTES:
                return None
        parts.sort(key=lambda each: (each.topic_partition.partition, each.offsets[0]))
        return self._taken(parts)

    def accounted(self, ranges: Sequence[OffsetRange], records: DriverRecords) -> None:
        """Cache the ids of a committed batch."""
        for each in ranges:
            self._recent.add(each, records.ids.get(each.partition, ()))

    def _remember(self, known: Sequence[OffsetRange], starts: Mapping[int, int]) -> None:
        """Read the ids of ``known`` that are not cached."""
        missing = self._recent.move([each for each in known if each.partition in starts])
        ids: dict[int, list[tuple[bytes, int]]] = {each.partition: [] for each in missing}
        for part in self._topic.read(missing, starts) if missing else ():
            ids[part.topic_partition.partition] += [
                (digest, offset)
                for digest, offset in zip(map(id_digest, part.headers), part.offsets, strict=True)
                if digest is not None
            ]
        for each in missing:
            self._recent.add(each, ids[each.partition])

    def _taken(self, parts: Sequence[PartitionBatch]) -> DriverRecords:
        records, seen, name = DriverRecords(), set[bytes](), self._tenant_header
        for part in parts:
            partition = part.topic_partition.partition
            digests = map(id_digest, part.headers) if self._leaves_out else itertools.repeat(None, len(part))
            tenants = itertools.repeat(None, len(part)) if name is None else (dict(h).get(name) for h in part.headers)
            ids = records.ids.setdefault(partition, [])
            columns = (part.offsets, part.timestamps, part.values, tenants)
            for digest, offset, time_ms, value, tenant in zip(digests, *columns, strict=True):
                if digest is not None:
                    ids.append((digest, offset))
                    if digest in seen or digest in self._recent:
                        records.duplicates += 1
                        continue
                    seen.add(digest)
                records.partitions.append(partition)
                records.offsets.append(offset)
                records.kafka_ms.append(-1 if time_ms is None else time_ms)
                records.values.append(value)
                records.tenants.append(tenant)
        return records
