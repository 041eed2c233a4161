# SPDX-License-Identifier: Apache-2.0
"""A notice board in memory that the persister's processes share: each writes its own notices, one process shows all."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from monasca_common.persister.account import Status

_SLOT_BYTES = 32 * 1024
_HEAD_BYTES = 8  # length and checksum
_TRIES = 5


class Board:
    """One slot per status, made before the processes part. No files, so nothing is left behind by a crash.

    A slot has one writer at a time; a reader that comes in the middle of a write sees it by the checksum.
    """

    def __init__(self, statuses: Sequence[Status]) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * max(1, len(statuses)))
        self._last = list(statuses)
        self._slots = {status.worker: slot for slot, status in enumerate(statuses)}
        for status in statuses:
            self.write(status)

    def write(self, status: Status) -> None:
        data = msgspec.json.encode(status)
        if len(data) > _SLOT_BYTES - _HEAD_BYTES:  # of thousands of partitions
            data = msgspec.json.encode(replace(status, lag={"all": sum(status.lag.values())}))
        head = len(data).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big")
        at = self._slots[status.worker] * _SLOT_BYTES
        self._memory[at : at + _HEAD_BYTES + len(data)] = head + data

    def read(self, worker: str) -> Status:
        """The last notice that was whole."""
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
