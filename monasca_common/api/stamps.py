# SPDX-License-Identifier: Apache-2.0
"""When a request was made first, for the creation_time of its messages.

creation_time is the version of a row: were the repeat of a request stamped anew, it would put an old value back over a
correction that came in between. So the time of the first attempt is remembered for each Idempotency-Key, by all workers
that were forked from one process: the table is memory that they share. It is bounded, and what it has forgotten, or
what another host remembers, is stamped anew. A key that tells its own time (a UUID of version 7) needs no table: that
time is the stamp, at every host.
"""

from __future__ import annotations

import math
import mmap
import struct
import zlib

_SLOTS = 262_144  # 8 MB, of which only what is used takes memory
_BUCKET = 4  # slots that a key may have
_SLOT = struct.Struct("<16sQI4x")  # the key's digest, the time, a checksum of both
_KEPT_MS = 86_400_000
_AHEAD_MS = 60_000  # a client's clock may differ by so much


class Stamps:
    """Times by digest. Safe to share among threads and, across a fork, among processes: no lock, because what two write
    at once fails its checksum and counts as forgotten."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._memory = mmap.mmap(-1, slots * _SLOT.size)
        self._buckets = slots // _BUCKET

    def first_ms(self, digest: bytes, now_ms: int, key_time_ms: int | None = None) -> int:
        """When this digest was seen first, within the last day; ``now_ms`` where it was not. ``key_time_ms``: when the
        client made the key; it counts if it lies within the last day."""
        if key_time_ms is not None and now_ms - _KEPT_MS < key_time_ms <= now_ms + _AHEAD_MS:
            return key_time_ms
        start = int.from_bytes(digest[:8], "big") % self._buckets * _BUCKET * _SLOT.size
        oldest_ms, place = math.inf, start
        for slot in range(start, start + _BUCKET * _SLOT.size, _SLOT.size):
            known, time_ms, checksum = _SLOT.unpack_from(self._memory, slot)
            if checksum != _checksum(known, time_ms) or time_ms <= now_ms - _KEPT_MS:
                time_ms = 0
            elif known == digest:
                first_ms: int = time_ms
                return first_ms
            if time_ms < oldest_ms:
                oldest_ms, place = time_ms, slot
        _SLOT.pack_into(self._memory, place, digest, now_ms, _checksum(digest, now_ms))
        return now_ms


def _checksum(digest: bytes, time_ms: int) -> int:
    return zlib.crc32(digest + time_ms.to_bytes(8, "big"))


#: Made when this module is imported: workers that are forked later share it.
SHARED = Stamps()
