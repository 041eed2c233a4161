# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a process and its children, such as Spark's JVM and its Python workers."""

from __future__ import annotations

import contextlib

import psutil


def cpu_seconds(pid: int) -> float:
    seconds = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:2])
    return seconds
