# SPDX-License-Identifier: Apache-2.0
"""How old and how new a row may be."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from monasca_common.storage.base import Kind
from monasca_common.storage.settings import StorageSettings

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Window:
    """The times that rows may have, both ends included; ms since the epoch."""

    earliest_ms: int
    latest_ms: int


def window(settings: StorageSettings, kind: Kind, now_ms: int) -> Window:
    return Window(
        now_ms - settings.retention_of(kind) * DAY_MS,
        now_ms + settings.future_tolerance_seconds * 1000,
    )


def refused(times_ms: Sequence[int], allowed: Window) -> dict[int, str]:
    """Why, by position, for the times outside of the window."""
    if not times_ms or (min(times_ms) >= allowed.earliest_ms and max(times_ms) <= allowed.latest_ms):
        return {}
    reasons = {}
    for position, time_ms in enumerate(times_ms):
        if time_ms < allowed.earliest_ms:
            reasons[position] = f"its time, {_text(time_ms)}, is older than rows are kept: {_text(allowed.earliest_ms)}"
        elif time_ms > allowed.latest_ms:
            reasons[position] = f"its time, {_text(time_ms)}, is in the future: beyond {_text(allowed.latest_ms)}"
    return reasons


def _text(time_ms: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
