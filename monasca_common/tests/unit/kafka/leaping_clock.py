# SPDX-License-Identifier: Apache-2.0
"""A clock for hanging calls: its time does not change until a call hangs, so that no other call is late on a busy
machine."""

import math

from monasca_common.kafka.transport.memory import VirtualClock

_SLICE_SECONDS = 0.01  # seconds of real time


class LeapingClock(VirtualClock):
    """While ``hung()`` is true, a wait that does not succeed immediately times out."""

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
