# SPDX-License-Identifier: Apache-2.0
"""Calls at a steady pace, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.job import Figures, Stopwatch, percentile
from benchmarks.payload import VALUES, values

_PER_SECOND = 100
_WARM_UP = 20


def measure(call: Callable[[bytes], None], count: int, versions: dict[str, str]) -> Figures:
    for value in VALUES[:_WARM_UP]:
        call(value)
    taken_ms = []
    with Stopwatch() as watch:
        due = time.perf_counter()
        for value in values(count):
            began = time.perf_counter()
            call(value)
            now = time.perf_counter()
            taken_ms.append((now - began) * 1e3)
            due += 1 / _PER_SECOND
            time.sleep(max(0.0, due - now))
    return Figures(
        messages=count,
        seconds=watch.seconds,
        cpu_seconds=watch.cpu_seconds,
        written=count + _WARM_UP,
        p50_ms=percentile(taken_ms, 0.5),
        p99_ms=percentile(taken_ms, 0.99),
        versions=versions,
    )
