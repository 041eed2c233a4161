# SPDX-License-Identifier: Apache-2.0
"""A notification of one or several alarm changes to one method, and its id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from monasca_common.alarms.transitions import SEVERITY_RANKS, AlarmChange

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Notification:
    """``id``: hexadecimal digits, by which receivers recognize a repeated attempt. ``others``: the other changes of a
    group. ``method_id``: the id of the method that sends it; empty until the method is known, and for an address
    without a method."""

    id: str
    change: AlarmChange
    others: tuple[AlarmChange, ...] = ()
    method_id: str = ""

    @property
    def changes(self) -> tuple[AlarmChange, ...]:
        return (self.change, *self.others)


def notification_of(change: AlarmChange, method_id: str) -> Notification:
    """Return the notification of the change. Each call returns the same id."""
    return Notification(_id(f"{change.alarm_id}/{change.time_ms}/{change.new_state}/{method_id}"), change)


def repeat_of(first: Notification, number: int) -> Notification:
    """Return the repeat with this number."""
    return Notification(_id(f"{first.id}/repeat/{number}"), first.change)


def group_of(members: Sequence[Notification]) -> Notification:
    """Combine several notifications into one: the worst change is first; of equally severe changes, the newest."""
    changes = sorted((each.change for each in members), key=_weight, reverse=True)
    return Notification(_id("/".join(sorted(each.id for each in members))), changes[0], tuple(changes[1:]))


def _weight(change: AlarmChange) -> tuple[bool, bool, int, int, str]:
    severity = SEVERITY_RANKS.get(change.severity, -1)
    return change.new_state == "ALARM", change.new_state != "OK", severity, change.time_ms, change.alarm_id


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest()
