# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: everything that waits or stamps asks a `Clock`, so that tests need not sleep."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def time_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire ``lock`` within ``timeout`` seconds (``None``: for ever); tell whether it was acquired."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        return lock.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
