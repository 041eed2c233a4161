# SPDX-License-Identifier: Apache-2.0
"""What this process and all that it has started take: Spark's JVM and its Python workers included."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import psutil

_EVERY_SECONDS = 0.2


class PeakMemory:
    """``peak_mb``: the most that was resident at once while the block ran; ``cpu_seconds``: what it has used."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self.cpu_seconds = 0.0
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = self._cpu()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_seconds = self._cpu() - self._before

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            self.peak_mb = max(self.peak_mb, sum(self._each(lambda process: process.memory_info().rss)) / 2**20)

    def _cpu(self) -> float:
        return sum(self._each(lambda process: sum(process.cpu_times()[:2])))

    def _each(self, ask: Callable[[psutil.Process], float]) -> Iterator[float]:
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                yield ask(process)
