# SPDX-License-Identifier: Apache-2.0
"""A notice: what one method is told of one change of an alarm, and its id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from monasca_common.alarms.transitions import AlarmChange

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Notice:
    """``id``: hexadecimal digits; receivers recognize a repeat by it."""

    id: str
    change: AlarmChange


def notice_of(change: AlarmChange, method_id: str) -> Notice:
    """Its id is the same whoever makes it, and however often."""
    text = f"{change.alarm_id}/{change.time_ms}/{change.new_state}/{method_id}"
    return Notice(hashlib.blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest(), change)
