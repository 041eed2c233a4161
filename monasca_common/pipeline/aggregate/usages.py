# SPDX-License-Identifier: Apache-2.0
"""Computes usages (one row per group from the partials of one window or period), and defines operations on quantities.

Each is an entry point of ``monasca_common.pipeline.usages`` or ``monasca_common.pipeline.operations``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

from monasca_common.pipeline import components
from monasca_common.pipeline.aggregate.partials import Partial
from monasca_common.pipeline.aggregate.records import Group
from monasca_common.pipeline.components import OperationComponent
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import IDLE_EVENT_TYPE, QUANTITY_EVENT_TYPE, Transform


@dataclass(frozen=True, slots=True)
class Ends:
    """The first and the last quantity of a rate."""

    oldest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Usage:
    """A row from which output is created. ``group``: columns and their values; every other column has the value
    ``otherwise``.

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


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The rows of one transform and window or period, in the order of their groups.

    ``dropped`` counts the omitted rows, by reason, such as `NOT_FINITE` and `ZERO_OLDEST`.
    """

    usages: tuple[Usage, ...]
    dropped: Counter[str] = field(default_factory=Counter)


def fetched(transform: Transform, partials: Mapping[Group, Partial], operation: str) -> list[Usage]:
    """Return one usage per group, in the order of the groups."""
    fetch = components.operation(operation).fetch
    assert fetch is not None  # the reader refuses other operations
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


def _fetched(transform: Transform, partials: Mapping[Group, Partial]) -> Aggregate:
    assert transform.operation is not None
    return Aggregate(tuple(fetched(transform, partials, transform.operation)))


def _utilised(transform: Transform, partials: Mapping[Group, Partial]) -> Aggregate:
    """Return ``(100 - idle) * total / 100``, or the total if idle is missing or zero. Count and times are those of the
    total."""
    found = _fetched(transform, partials).usages
    idle = {
        _joined(transform, usage): usage.quantity
        for usage in found
        if usage.column("event_type") == transform.parameters[IDLE_EVENT_TYPE]
    }
    totals = [usage for usage in found if usage.column("event_type") == transform.parameters[QUANTITY_EVENT_TYPE]]
    result = []
    for usage in totals:
        group = _joined(transform, usage)
        idle_percent = idle.get(group, 0.0)
        quantity = (100.0 - idle_percent) * usage.quantity / 100.0 if idle_percent else usage.quantity
        result.append(replace(usage, group=group, quantity=quantity))
    return Aggregate(tuple(result))


def _joined(transform: Transform, usage: Usage) -> tuple[tuple[str, str], ...]:
    """Return the columns on which the two usages of a utilisation are joined."""
    return tuple((column, usage.column(column)) for column in transform.group_by if column != "event_type")


# The usages of this package except `rollup.RATES`; each is an entry point of ``monasca_common.pipeline.usages``.
QUANTITIES = components.UsageComponent(_fetched)
UTILISATIONS = components.UsageComponent(
    _utilised,
    operations=("avg", "latest", "oldest"),
    parameters=(QUANTITY_EVENT_TYPE, IDLE_EVENT_TYPE),
    group_by=("event_type",),
)


def total(quantities: Sequence[float]) -> float:
    try:
        return fsum(quantities)
    except (OverflowError, ValueError):  # ValueError: positive and negative infinities
        return inf


SUM = OperationComponent(lambda partial: partial.sum, total)
MAX = OperationComponent(lambda partial: partial.greatest, max)
MIN = OperationComponent(lambda partial: partial.least, min)
AVG = OperationComponent(lambda partial: partial.average, lambda quantities: total(quantities) / len(quantities))
LATEST = OperationComponent(lambda partial: partial.latest.quantity)
OLDEST = OperationComponent(lambda partial: partial.oldest.quantity)
