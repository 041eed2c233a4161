# SPDX-License-Identifier: Apache-2.0
"""Limits how often repeated events are logged."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from monasca_common.kafka.clock import Clock

REPEAT_SECONDS = 30.0
_FORGET_SECONDS = 600.0


class LogLimit:
    """Admits one event of each kind per `REPEAT_SECONDS`, and counts the suppressed events. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # the time of the last log line of each kind, and the number of events since then
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def admit(self, *kind: Hashable) -> str | None:
        """Return ``None`` if the event is suppressed; otherwise, return a suffix for its log line with the number of
        suppressed events."""
        now = self._clock.monotonic()
        with self._lock:
            at, suppressed = self._logged.get(kind, (float("-inf"), 0))
            if now < at + REPEAT_SECONDS:
                self._logged[kind] = at, suppressed + 1
                return None
            self._logged = {known: last for known, last in self._logged.items() if now < last[0] + _FORGET_SECONDS}
            self._logged[kind] = now, 0
        return f" (and {suppressed} times since this was last logged)" if suppressed else ""
