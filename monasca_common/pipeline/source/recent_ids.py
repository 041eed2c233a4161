# SPDX-License-Identifier: Apache-2.0
"""Remembers the message ids of the offsets just below those that are accounted for.

It caches the log: which ids are at which offsets never changes, so what is remembered stays true across failed batches
and other drivers. What is not remembered (after a start, or after another driver or a large batch) is read again.
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
    """``last``: the last offset of each id, of the offsets from ``start`` to ``end``. Ids from ``first`` on count."""

    first: int
    start: int
    end: int
    last: dict[bytes, int] = field(default_factory=dict)


class RecentIds:
    """The ids of all partitions, as digests (see `id_digest`)."""

    def __init__(self) -> None:
        self._partitions: dict[int, _PartitionIds] = {}

    def move(self, known: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Let the ids of ``known`` count, and no others; ``known`` ends at the stored offset of each partition. Returns
        the ranges whose ids are not remembered and have to be added."""
        self._partitions = {each.partition: self._moved(each) for each in known}
        ends = {partition: ids.end for partition, ids in self._partitions.items()}
        return [
            OffsetRange(partition, ends[partition], end)
            for partition, end in ((each.partition, each.end) for each in known)
            if ends[partition] < end
        ]

    def add(self, added: OffsetRange, ids: Iterable[tuple[bytes, int]]) -> None:
        """Remember the ids of a range, each with its offset. A range that does not follow what is remembered is
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
    """A digest of the message id, as `Message.message_id` finds it; ``None`` without one."""
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
    return None
