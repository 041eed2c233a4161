# SPDX-License-Identifier: Apache-2.0
"""Time as an argument, so that tests do not sleep: `Clock` provides waits and timestamps, and `Signal` ends a wait.
Tests advance a `VirtualClock`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from monasca_common.kafka.errors import WrongType

_LONGEST_SECONDS = 1e6  # eleven days, because librdkafka counts milliseconds in 32 bits
_SLICE_SECONDS = 0.002


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds since a fixed time."""
        ...

    def time_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        ...

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire ``lock`` within ``timeout`` seconds (no limit if ``None``); return whether it was acquired."""
        ...


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        return lock.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))


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


class Signal:
    """Wakes the one thread that waits for it.

    If it is set before a wait, the next wait returns immediately; two `set` calls before a wait wake the thread once.
    `set` never blocks, so a signal handler can call it on the waiting thread.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # another thread set it at the same time
                return

    def wait(self, clock: Clock, timeout: float | None) -> bool:
        """Return whether the signal was set since the last wait, or within ``timeout`` s (``None`` for no limit)."""
        return clock.wait(self._lock, timeout)


def check_seconds(timeout: float) -> float:
    """Return the time-out, limited to the range from 0 to eleven days. Raise `WrongType` if it is not a number."""
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        raise WrongType(f"timeout: a time-out is a number of seconds, not {timeout!r}")
    return min(max(0.0, timeout), _LONGEST_SECONDS)
