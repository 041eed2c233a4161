# SPDX-License-Identifier: Apache-2.0
"""Caches the message ids of the offsets just before the stored offsets. The id at an offset never changes, so the cache
stays valid after failed batches and batches of other drivers. Missing ids (after a start, a batch of another driver or
a large batch) are read from the topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers
from monasca_common.pipeline.source.offset_store import OffsetRange

_DIGEST_BYTES = 16
_KEPT_BELOW = 1_000


@dataclass(slots=True)
class _PartitionIds:
    """``last``: the last offset of each id between the offsets ``start`` and ``end``. Only ids at or after ``first``
    count."""

    first: int
    start: int
    end: int
    last: dict[bytes, int] = field(default_factory=dict)


class RecentIds:
    """The ids of all partitions, as digests (see `id_digest`)."""

    def __init__(self) -> None:
        self._partitions: dict[int, _PartitionIds] = {}

    def move(self, known: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Limit the cache to the ids of ``known``, which ends at the stored offset of each partition. Return the ranges
        whose ids are not cached and must be added."""
        self._partitions = {each.partition: self._moved(each) for each in known}
        ends = {partition: ids.end for partition, ids in self._partitions.items()}
        return [
            OffsetRange(partition, ends[partition], end)
            for partition, end in ((each.partition, each.end) for each in known)
            if ends[partition] < end
        ]

    def add(self, added: OffsetRange, ids: Iterable[tuple[bytes, int]]) -> None:
        """Cache the ids of a range, each with its offset. A range that does not follow the cached offsets is
        ignored."""
        found = self._partitions.get(added.partition)
        if found is not None and found.end == added.start:
            found.last.update(ids)
            found.end = added.end

    def __contains__(self, digest: bytes) -> bool:
        return any(each.last.get(digest, -1) >= each.first for each in self._partitions.values())

    def _moved(self, known: OffsetRange) -> _PartitionIds:
        found = self._partitions.get(known.partition)
        if found is None or not found.start <= known.start <= found.end <= known.end:
            return _PartitionIds(known.start, known.start, known.start)
        found.first = known.start
        if known.start - found.start > max(_KEPT_BELOW, known.span):
            found.last = {digest: offset for digest, offset in found.last.items() if offset >= known.start}
            found.start = known.start
        return found


def id_digest(headers: Headers) -> bytes | None:
    """Return a digest of `Message.message_id`, or ``None`` if there is no id."""
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
    return None
