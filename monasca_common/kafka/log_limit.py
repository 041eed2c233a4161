# SPDX-License-Identifier: Apache-2.0
"""Limits how often repeated events are logged."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock

REPEAT_SECONDS = 30.0
_FORGET_SECONDS = 600.0


@dataclass(slots=True)
class _Logged:
    """The time of the last log line of a kind, and the number of events since then."""

    at: float
    kept_back: int = 0


class LogLimit:
    """Admits one event of each kind per `REPEAT_SECONDS`, and counts the suppressed events. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[Hashable, _Logged] = {}

    def admit(self, *kind: Hashable) -> str | None:
        """Return ``None`` if the event is suppressed, otherwise a suffix for its log line with the number of suppressed
        events."""
        now = self._clock.monotonic()
        with self._lock:
            logged = self._logged.get(kind)
            if logged is not None and now < logged.at + REPEAT_SECONDS:
                logged.kept_back += 1
                return None
            self._logged = {known: last for known, last in self._logged.items() if now < last.at + _FORGET_SECONDS}
            self._logged[kind] = _Logged(now)
        return f" (and {logged.kept_back} times since this was last logged)" if logged and logged.kept_back else ""
