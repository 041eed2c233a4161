# SPDX-License-Identifier: Apache-2.0
"""What keeps notifications few: rules about one change of an alarm. Pure: time and what is stored are arguments."""

from __future__ import annotations

from collections.abc import Iterable

from monasca_common.alarms.silences import Silence
from monasca_common.alarms.transitions import AlarmChange


def silencing(silences: Iterable[Silence], change: AlarmChange, now_ms: int) -> Silence | None:
    """The silence that covers the change now; of several the one that ends last."""
    dimensions = [each.dimensions for each in change.metrics]
    covering = [
        each for each in silences if each.tenant == change.tenant and each.lasts(now_ms) and each.covers(dimensions)
    ]
    return max(covering, key=lambda each: (each.until_ms, each.id), default=None)
