# SPDX-License-Identifier: Apache-2.0
"""Windows and periods of event time, in UTC. Every time is in milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_MS = 600_000
"""The length of a window: a partial covers ten minutes of event time, and every period consists of whole windows."""
PERIODS_MS = {"hourly": 3_600_000, "daily": 86_400_000}
FUTURE_MS = 600_000
"""The maximum time by which an event can be in the future. It allows for clock differences; without a limit, the window
of an event from next year would be kept for a year."""


def period_start_ms(period: str, time_ms: int) -> int:
    length_ms = PERIODS_MS[period]
    return time_ms // length_ms * length_ms


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The accepted event times, with inclusive bounds."""

    oldest_ms: int
    latest_ms: int

    @classmethod
    def around(cls, now_ms: int, *, retention_ms: int) -> TimeBounds:
        return cls(max(0, now_ms - retention_ms), now_ms + FUTURE_MS)
