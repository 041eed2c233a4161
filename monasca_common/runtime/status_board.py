# SPDX-License-Identifier: Apache-2.0
"""Shared memory in which each process of a service writes its status and metrics. One process serves all of them.

The multiprocess mode of prometheus_client serves neither health nor metrics that a collector computes.
"""

from __future__ import annotations

import logging
import mmap
import threading
import zlib
from collections.abc import Iterator, Sequence

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from monasca_common.runtime.member import WorkerPart
from monasca_common.runtime.member_health import MemberStatus

LOG = logging.getLogger(__name__)

_SLOT_BYTES = 1024 * 1024  # for thousands of partitions; memory is used only where it is written
_HEAD_BYTES = 8  # length and checksum
_TRIES = 5
_REPORT_SECONDS = 1.0


class ProcessStatus(msgspec.Struct):
    """The members of one process, and its metrics in the text format of Prometheus."""

    members: list[MemberStatus]
    metrics: str = ""


class StatusBoard:
    """One slot for each process, created before the fork. It uses no files, so a crash leaves nothing behind.

    A slot has one writer at a time; the checksum lets a reader detect an unfinished write.
    """

    def __init__(self, processes: Sequence[ProcessStatus]) -> None:
        self._memory = mmap.mmap(-1, _SLOT_BYTES * max(1, len(processes)))
        self._last = list(processes)
        for slot, status in enumerate(processes):
            self.write(slot, status)

    def write(self, slot: int, status: ProcessStatus) -> None:
        """Replace the status in ``slot``. Raises `ValueError`, without a change, if the status is too large."""
        data = msgspec.json.encode(status)
        if len(data) > _SLOT_BYTES - _HEAD_BYTES:
            raise ValueError(f"the status of a process has {len(data)} bytes, but a slot has {_SLOT_BYTES}")
        head = len(data).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big")
        at = slot * _SLOT_BYTES
        self._memory[at : at + _HEAD_BYTES + len(data)] = head + data

    def read(self, slot: int) -> ProcessStatus:
        """Return the last complete status of a process."""
        at = slot * _SLOT_BYTES
        for _ in range(_TRIES):
            head = self._memory[at : at + _HEAD_BYTES]
            data = self._memory[at + _HEAD_BYTES : at + _HEAD_BYTES + int.from_bytes(head[:4], "big")]
            if zlib.crc32(data) == int.from_bytes(head[4:], "big"):
                self._last[slot] = msgspec.json.decode(data, type=ProcessStatus)
                break
        return self._last[slot]

    def members(self) -> list[MemberStatus]:
        return [member for slot in range(len(self._last)) for member in self.read(slot).members]

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of all processes, without the creation times of series; for `ComputedMetrics`."""
        merged: dict[str, Metric] = {}
        for slot in range(len(self._last)):
            for family in text_string_to_metric_families(self.read(slot).metrics):
                if family.name in merged:
                    merged[family.name].samples += family.samples
                elif not family.name.endswith("_created"):
                    merged[family.name] = family
        yield from merged.values()


class StatusReporter(threading.Thread):
    """A thread that writes the status and the metrics of its process to a slot: every second, and at the end."""

    def __init__(self, board: StatusBoard, slot: int, parts: Sequence[WorkerPart], registry: CollectorRegistry) -> None:
        super().__init__(name="status", daemon=True)
        self._board = board
        self._slot = slot
        self._parts = parts
        self._registry = registry
        self._ended = threading.Event()

    def stop(self) -> None:
        """Write the last report, and wait a limited time for its completion."""
        self._ended.set()
        if self.ident is not None:
            self.join(_REPORT_SECONDS)

    def run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.is_set()
            try:
                members = [part.status() for part in self._parts]
                self._board.write(self._slot, ProcessStatus(members, generate_latest(self._registry).decode()))
            except Exception:
                LOG.exception("writing the status failed; the next attempt is in %g s", _REPORT_SECONDS)
            self._ended.wait(_REPORT_SECONDS)
