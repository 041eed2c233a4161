# SPDX-License-Identifier: Apache-2.0
"""The range of times of the rows that storage accepts."""

from __future__ import annotations

from collections.abc import Sequence

from monasca_common.models.times import Window, shown
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits

DAY_MS = 86_400_000


def window(limits: RowLimits, kind: Kind, now_ms: int) -> Window:
    """Return the range of times that a row can have."""
    return Window(now_ms - limits.retention_of(kind) * DAY_MS, now_ms + limits.future_tolerance_seconds * 1000)


def refused(times_ms: Sequence[int], allowed: Window) -> dict[int, str]:
    """Return the reason, by position, for each time outside the window."""
    if not times_ms or (min(times_ms) in allowed and max(times_ms) in allowed):
        return {}
    return {
        position: f"its time, {shown(time_ms)}, {fault}"
        for position, time_ms in enumerate(times_ms)
        if (fault := allowed.fault(time_ms))
    }
