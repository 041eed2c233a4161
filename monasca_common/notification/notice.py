# SPDX-License-Identifier: Apache-2.0
"""A notice: what one method is told of one change of an alarm, and its id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from monasca_common.alarms.transitions import SEVERITIES, AlarmChange

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Notice:
    """``id``: hexadecimal digits; receivers recognize a repeat by it. ``others``: of a group, the further changes.
    ``method_id``: of the method by which it is being sent; empty before that, and for an address without a method."""

    id: str
    change: AlarmChange
    others: tuple[AlarmChange, ...] = ()
    method_id: str = ""

    @property
    def changes(self) -> tuple[AlarmChange, ...]:
        return (self.change, *self.others)


def notice_of(change: AlarmChange, method_id: str) -> Notice:
    """Its id is the same whoever makes it, and however often."""
    return Notice(_id(f"{change.alarm_id}/{change.time_ms}/{change.new_state}/{method_id}"), change)


def repeat_of(first: Notice, number: int) -> Notice:
    """The repeat of this number."""
    return Notice(_id(f"{first.id}/repeat/{number}"), first.change)


def group_of(members: Sequence[Notice]) -> Notice:
    """One notice for several. What is worst in it comes first, and of that the newest."""
    changes = sorted((each.change for each in members), key=_weight, reverse=True)
    return Notice(_id("/".join(sorted(each.id for each in members))), changes[0], tuple(changes[1:]))


def _weight(change: AlarmChange) -> tuple[bool, bool, int, int, str]:
    severity = SEVERITIES.index(change.severity) if change.severity in SEVERITIES else -1
    return change.new_state == "ALARM", change.new_state != "OK", severity, change.time_ms, change.alarm_id


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest()
