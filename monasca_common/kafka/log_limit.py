# SPDX-License-Identifier: Apache-2.0
"""What goes on for long is logged now and then, not at each turn."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock

REPEAT_SECONDS = 30.0
_FORGET_SECONDS = 600.0


@dataclass(slots=True)
class _Logged:
    """When this kind was logged last, and how often it came since."""

    at: float
    kept_back: int = 0


class LogLimit:
    """Lets one event of each kind through in `REPEAT_SECONDS`, and counts the others. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[Hashable, _Logged] = {}

    def admit(self, *kind: Hashable) -> str | None:
        """``None``: do not log it. Else what to add to the line: how many of its kind were kept back, or nothing."""
        now = self._clock.monotonic()
        with self._lock:
            logged = self._logged.get(kind)
            if logged is not None and now < logged.at + REPEAT_SECONDS:
                logged.kept_back += 1
                return None
            self._logged = {known: last for known, last in self._logged.items() if now < last.at + _FORGET_SECONDS}
            self._logged[kind] = _Logged(now)
        return f" (and {logged.kept_back} times since this was logged last)" if logged and logged.kept_back else ""
