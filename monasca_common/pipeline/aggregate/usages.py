# SPDX-License-Identifier: Apache-2.0
"""Usages: the rows computed from the partials of one window (or of one whole period), one per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from monasca_common.pipeline.aggregate.partials import Partial
from monasca_common.pipeline.aggregate.records import Group
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import FETCH_QUANTITY_UTIL, Transform


@dataclass(frozen=True, slots=True)
class Ends:
    """The first and the last quantity of a rate."""

    oldest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Usage:
    """A row before it becomes output. ``group``: columns and their values; every other column is ``otherwise``.

    ``first_ms`` and ``last_ms`` are the event times of its first and last record. Only a rate has ``ends``.
    """

    group: tuple[tuple[str, str], ...]
    otherwise: str
    quantity: float
    count: int
    first_ms: float
    last_ms: float
    ends: Ends | None = None

    def column(self, column: str) -> str:
        return next((value for name, value in self.group if name == column), self.otherwise)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.quantity)


FETCH: Mapping[str, Callable[[Partial], float]] = {
    "sum": lambda partial: partial.sum,
    "max": lambda partial: partial.greatest,
    "min": lambda partial: partial.least,
    "avg": lambda partial: partial.average,
    "latest": lambda partial: partial.latest.quantity,
    "oldest": lambda partial: partial.oldest.quantity,
}


def fetched(transform: Transform, partials: Mapping[Group, Partial], operation: str) -> list[Usage]:
    """One usage per group, in the groups' order."""
    fetch = FETCH[operation]
    return [
        Usage(
            tuple(zip(transform.group_by, group, strict=True)),
            columns.NA,
            fetch(partial),
            partial.count,
            partial.first_ms,
            partial.last_ms,
        )
        for group, partial in sorted(partials.items())
    ]


def usages(transform: Transform, partials: Mapping[Group, Partial]) -> list[Usage]:
    """The usages of a transform that fetches quantities. Rates are computed in `rollup`, after their roll-up."""
    assert transform.operation is not None  # all but rates have one
    found = fetched(transform, partials, transform.operation)
    return _utilised(transform, found) if transform.usage == FETCH_QUANTITY_UTIL else found


def _utilised(transform: Transform, found: list[Usage]) -> list[Usage]:
    """``(100 - idle) * total / 100``; the total if idle is missing or zero. Count and times are those of the
    quantity."""
    idle = {
        _joined(transform, usage): usage.quantity
        for usage in found
        if usage.column("event_type") == transform.idle_event_type
    }
    totals = [usage for usage in found if usage.column("event_type") == transform.quantity_event_type]
    result = []
    for usage in totals:
        group = _joined(transform, usage)
        idle_percent = idle.get(group, 0.0)
        quantity = (100.0 - idle_percent) * usage.quantity / 100.0 if idle_percent else usage.quantity
        result.append(replace(usage, group=group, quantity=quantity))
    return result


def _joined(transform: Transform, usage: Usage) -> tuple[tuple[str, str], ...]:
    return tuple((column, usage.column(column)) for column in transform.join_by)
