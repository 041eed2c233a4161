# SPDX-License-Identifier: Apache-2.0
"""Aggregates a period block by block, so that memory does not grow with the number of its groups.

A block has all partials that decide one output row, and no others: their groups agree in the columns that every stage
keeps. So each block is aggregated on its own, and the rows are those of the whole period.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from monasca_common.pipeline.aggregate.partials import Partial, PartialKey
from monasca_common.pipeline.aggregate.rollup import aggregate
from monasca_common.pipeline.aggregate.usages import Usage
from monasca_common.pipeline.specification.specification import CALCULATE_RATE, FETCH_QUANTITY_UTIL, Transform

# Others, of other packages, may look at all groups at once.
_USAGES = frozenset(("fetch_quantity", FETCH_QUANTITY_UTIL, CALCULATE_RATE))
_SETTERS = frozenset(("rollup_quantity", "set_aggregated_metric_name", "set_aggregated_period"))


def kept_columns(transform: Transform) -> tuple[int, ...]:
    """The positions, in ``group_by``, of the columns that are the same for all partials of an output row."""
    if transform.usage not in _USAGES or not _SETTERS.issuperset(transform.setters):
        return ()
    return tuple(position for position, column in enumerate(transform.group_by) if column in transform.distinguishes)


def rows(
    transform: Transform, partials: Iterable[tuple[PartialKey, Partial]], dropped: Counter[str]
) -> Iterator[Usage]:
    """The output rows of a period. ``partials``: ordered by `kept_columns`. ``dropped``: gains those of `Aggregate`."""
    kept = kept_columns(transform)
    for _, block in groupby(partials, lambda each: [each[0].group[position] for position in kept]):
        found = aggregate(transform, block)
        dropped.update(found.dropped)
        yield from found.usages
