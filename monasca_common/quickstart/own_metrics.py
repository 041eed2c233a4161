# SPDX-License-Identifier: Apache-2.0
"""This machine's metrics, with the names that monitoring agents use."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import psutil

_NOT_ALLOWED = re.compile(r'[<>={},"\\;&\x00\ud800-\udfff]')  # names that are not UTF-8 contain surrogates
_LONGEST = 255


class OwnMetrics:
    """Samples CPU, memory, disks, network and every process."""

    def __init__(self) -> None:
        self._host = {"hostname": _clean(socket.gethostname())}
        psutil.cpu_percent(percpu=True)  # the first result is always 0

    def sample(self, time_ms: int) -> list[dict[str, Any]]:
        """Return metrics in the format of the API, all with the timestamp ``time_ms``. Each series occurs once, even if
        a disk is mounted twice in the same folder."""
        found = {(name, *dimensions.items()): (name, dimensions, value) for name, dimensions, value in self._readings()}
        return [
            {"name": name, "dimensions": self._host | dimensions, "timestamp": time_ms, "value": float(value)}
            for name, dimensions, value in found.values()
        ]

    def _readings(self) -> Iterator[tuple[str, dict[str, str], float]]:
        yield from self._machine()
        for disk in psutil.disk_partitions():
            with contextlib.suppress(OSError):  # its folder belongs to another user
                usage = psutil.disk_usage(disk.mountpoint)
                where = {"mount_point": _clean(disk.mountpoint), "device": _clean(disk.device)}
                yield "disk.space_used_perc", where, usage.percent
                yield "disk.total_space_mb", where, usage.total / 2**20
        for interface, counters in psutil.net_io_counters(pernic=True).items():
            where = {"device": _clean(interface)}
            yield "net.in_bytes", where, counters.bytes_recv
            yield "net.out_bytes", where, counters.bytes_sent
            yield "net.in_errors", where, counters.errin
        for process in psutil.process_iter(["pid", "name", "cpu_times", "memory_info", "num_threads"]):
            yield from _process_readings(process.info)

    def _machine(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for number, percent in enumerate(psutil.cpu_percent(percpu=True)):
            yield "cpu.percent", {"cpu": str(number)}, percent
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        yield "mem.total_mb", {}, memory.total / 2**20
        yield "mem.usable_mb", {}, memory.available / 2**20
        yield "mem.used_perc", {}, memory.percent
        yield "mem.swap_used_mb", {}, swap.used / 2**20
        for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
            yield f"load.avg_{minutes}_min", {}, load


def _process_readings(info: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    dimensions = {"pid": str(info["pid"]), "process_name": _clean(info["name"] or "unknown")}
    # Values of other users' processes can be missing.
    if info["cpu_times"] is not None:
        yield "process.cpu_seconds", dimensions, info["cpu_times"].user + info["cpu_times"].system
    if info["memory_info"] is not None:
        yield "process.mem_rss_mb", dimensions, info["memory_info"].rss / 2**20
    if info["num_threads"] is not None:
        yield "process.thread_count", dimensions, info["num_threads"]


def _clean(text: str) -> str:
    return _NOT_ALLOWED.sub("_", text)[:_LONGEST] or "unknown"
