# SPDX-License-Identifier: Apache-2.0
"""Shared memory of the persister's processes: each writes its own statuses, and one process serves all of them."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence

import msgspec
from msgspec import structs

from monasca_common.persister.status import Status

_SLOT_BYTES = 32 * 1024
_HEAD_BYTES = 8  # length and checksum
_TRIES = 5


class StatusBoard:
    """One slot per status, created before the fork. It has no files, so a crash leaves nothing behind.

    A slot has one writer at a time; the checksum lets a reader detect an unfinished write.
    """

    def __init__(self, statuses: Sequence[Status]) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * max(1, len(statuses)))
        self._last = list(statuses)
        self._slots = {status.worker: slot for slot, status in enumerate(statuses)}
        for status in statuses:
            self.write(status)

    def write(self, status: Status) -> None:
        data = msgspec.json.encode(status)
        if len(data) > _SLOT_BYTES - _HEAD_BYTES:  # a status with thousands of partitions
            data = msgspec.json.encode(structs.replace(status, lag={"all": sum(status.lag.values())}))
        head = len(data).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big")
        at = self._slots[status.worker] * _SLOT_BYTES
        self._memory[at : at + _HEAD_BYTES + len(data)] = head + data

    def read(self, worker: str) -> Status:
        """The last complete status of a worker."""
        slot = self._slots[worker]
        for _ in range(_TRIES):
            at = slot * _SLOT_BYTES
            head = self._memory[at : at + _HEAD_BYTES]
            data = self._memory[at + _HEAD_BYTES : at + _HEAD_BYTES + int.from_bytes(head[:4], "big")]
            if zlib.crc32(data) == int.from_bytes(head[4:], "big"):
                self._last[slot] = msgspec.json.decode(data, type=Status)
                break
        return self._last[slot]

    def statuses(self) -> list[Status]:
        return [self.read(worker) for worker in self._slots]
