# SPDX-License-Identifier: Apache-2.0
"""A clock that tests advance."""

from __future__ import annotations

import threading
from collections.abc import Callable

_SLICE_SECONDS = 0.002


class VirtualClock:
    """A `Clock` whose time changes only by `advance`; ``start_ms`` is the first wall-clock time."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now = 0.0
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self._now

    def time_ms(self) -> int:
        return self._start_ms + round(self._now * 1000)

    def advance(self, seconds: float) -> None:
        """Advance the time, and wake the waits on this clock that are due."""
        with self._lock:
            self._now += seconds
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` after every `advance`, on its thread."""
        with self._lock:
            self._listeners.append(listener)

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire ``lock`` within ``timeout`` virtual seconds, independent of real time."""
        deadline = None if timeout is None else self._now + timeout
        # An acquire cannot be interrupted, so virtual time is checked between short real waits.
        while not lock.acquire(timeout=_SLICE_SECONDS):
            if deadline is not None and self._now >= deadline:
                return lock.acquire(blocking=False)
        return True
