# SPDX-License-Identifier: Apache-2.0
"""Time for calls that hang: it stands still until one does, so that a busy machine makes nothing late."""

from __future__ import annotations

import math

from monasca_common.kafka.transport.memory import VirtualClock

_SLICE_SECONDS = 0.01  # of real time


class LeapingClock(VirtualClock):
    """While ``hung()``, a wait that does not succeed immediately finds that its time is over."""

    def __init__(self):
        super().__init__()
        self.hung = lambda: False

    def wait(self, lock, timeout):
        deadline = math.inf if timeout is None else self.monotonic() + timeout
        while not lock.acquire(timeout=_SLICE_SECONDS):
            if self.hung() and not math.isinf(deadline):
                self.advance(max(0.0, deadline - self.monotonic()))
            if self.monotonic() >= deadline:
                return lock.acquire(blocking=False)
        return True
