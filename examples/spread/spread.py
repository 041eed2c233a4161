# SPDX-License-Identifier: Apache-2.0
"""An operation, a usage and a setter that another package adds to the pipeline of monasca-common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monasca_common.pipeline import (
    Aggregate,
    OperationComponent,
    Partial,
    SetterComponent,
    Transform,
    Usage,
    UsageComponent,
)


def spread(partial: Partial) -> float:
    """Return the difference between the largest and the smallest quantity."""
    return partial.greatest - partial.least


SPREAD = OperationComponent(spread)


def counted(transform: Transform, partials: Mapping[tuple[str, ...], Partial]) -> Aggregate:
    """Return the number of records of each group."""
    rows = [
        Usage(
            tuple(zip(transform.group_by, group, strict=True)),
            "NA",
            float(partial.count),
            partial.count,
            partial.first_ms,
            partial.last_ms,
        )
        for group, partial in sorted(partials.items())
    ]
    return Aggregate(tuple(rows))


COUNT_RECORDS = UsageComponent(counted, operations=())


def scaled(transform: Transform, rows: Sequence[Usage]) -> list[Usage]:
    factor = float(transform.parameters["scale_by"])
    return [replace(row, quantity=row.quantity * factor) for row in rows]


SCALE_QUANTITY = SetterComponent(scaled, parameters=("scale_by",))
