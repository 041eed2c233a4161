# SPDX-License-Identifier: Apache-2.0
"""Computes the output rows of a period from its partials: usages, rolled up in one or two stages.

One stage: the partials of all windows of the period are merged and then converted to usages. Two stages: the partials
of each ten-minute window become separate rolled-up rows, which are then combined into the rows of the period. With avg,
this is an average of averages: a window with few records has the same weight as a window with many.

These differences from monasca-transform are deliberate. Windows use event time, not arrival time. A rate uses the
latest quantity, not the average. A rate is computed for each group, not only for the first. The count of a rate is the
number of its records, not twice that number. A rate whose oldest quantity is zero is dropped and counted instead of
stopping the job. The specification always determines name and period. Sums do not depend on the order of their parts.

A period is aggregated block by block, so that memory does not grow with the number of its groups. A block consists of
all partials of one output row, which agree in the columns that every stage keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from monasca_common.pipeline import components
from monasca_common.pipeline.aggregate.partials import Partial, PartialKey, by_window, merged
from monasca_common.pipeline.aggregate.records import Group
from monasca_common.pipeline.aggregate.usages import Aggregate, Ends, Usage, fetched
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import CALCULATE_RATE, FETCH_QUANTITY_UTIL, RATE, Transform
from monasca_common.pipeline.windows import period_start_ms

ZERO_OLDEST, NOT_FINITE = "zero_oldest", "not_finite"
"""The reasons for dropping a row: a rate whose oldest quantity is zero, and a quantity beyond the range of a float."""
# Other components may require all groups together, so only these are applied block by block.
_USAGES = frozenset(("fetch_quantity", FETCH_QUANTITY_UTIL, CALCULATE_RATE))
_SETTERS = frozenset(("rollup_quantity", "set_aggregated_metric_name", "set_aggregated_period"))


def aggregate(transform: Transform, partials: Iterable[tuple[PartialKey, Partial]]) -> Aggregate:
    """Aggregate the partials of one transform and one period. Partials with the same key are merged.

    Raises `ValueError` for partials of another transform or period.
    """
    whole = merged(partials)
    if len({(key.specification_id, period_start_ms(transform.period, key.window_ms)) for key in whole}) > 1:
        raise ValueError(
            "partials of several specifications or periods: aggregate each specification and period separately"
        )
    windows = by_window(whole)
    if transform.second_operation is None:
        return first_stage(transform, merged(pair for groups in windows.values() for pair in groups.items()))
    dropped: Counter[str] = Counter()
    stages = []
    for groups in windows.values():
        stage = first_stage(transform, groups)
        dropped += stage.dropped
        stages.append(stage.usages)
    second = second_stage(transform, stages)
    return Aggregate(second.usages, dropped + second.dropped)


def first_stage(transform: Transform, groups: Mapping[Group, Partial]) -> Aggregate:
    """Apply usages and setters to the partials of one window or of one whole period."""
    found = components.usage(transform.usage).rows(transform, groups)
    rows = found.usages
    for name in transform.setters:
        rows = components.setter(name).rows(transform, rows)
    return _finite(rows, found.dropped)


def second_stage(transform: Transform, windows: Sequence[Iterable[Usage]]) -> Aggregate:
    """Combine the rows of the period's windows, in order of time. Windows can be missing or empty."""
    assert transform.second_operation is not None
    rows = [usage for window in windows for usage in window]
    if transform.second_operation != RATE:
        return _finite(roll_up(rows, transform.second_by, transform.second_operation), Counter())
    combined = []
    for group, members in _grouped(rows, transform.second_by).items():
        ends = [member.ends for member in members if member.ends is not None]
        combined.append((group, members, Ends(ends[0].oldest, ends[-1].latest)))
    rates, dropped = _as_rates(combined)
    return _finite(rates, dropped)


def roll_up(rows: Iterable[Usage], by: Sequence[str], operation: str) -> list[Usage]:
    """Return one row per group: other columns become ``all``, counts are added, and the earliest and latest times are
    kept."""
    combine = components.operation(operation).combine
    assert combine is not None  # the reader refuses other operations
    return [
        _combined(group, members, combine([member.quantity for member in members]))
        for group, members in _grouped(rows, by).items()
    ]


def _grouped(rows: Iterable[Usage], by: Sequence[str]) -> dict[tuple[tuple[str, str], ...], list[Usage]]:
    groups: dict[tuple[tuple[str, str], ...], list[Usage]] = {}
    for row in rows:
        groups.setdefault(tuple((column, row.column(column)) for column in by), []).append(row)
    return dict(sorted(groups.items()))


def _combined(group: tuple[tuple[str, str], ...], members: Sequence[Usage], quantity: float) -> Usage:
    return Usage(
        group,
        columns.ALL,
        quantity,
        sum(member.count for member in members),
        min(member.first_ms for member in members),
        max(member.last_ms for member in members),
    )


def _rolled_up(transform: Transform, rows: Sequence[Usage]) -> list[Usage]:
    assert transform.rollup_operation is not None
    return roll_up(rows, transform.rollup_by, transform.rollup_operation)


def _rates(transform: Transform, groups: Mapping[Group, Partial]) -> Aggregate:
    """Compute rates from the sums of the oldest and of the latest quantities."""
    oldest = roll_up(fetched(transform, groups, "oldest"), transform.rollup_by, "sum")
    latest = roll_up(fetched(transform, groups, "latest"), transform.rollup_by, "sum")
    rates, dropped = _as_rates(
        (first.group, [first], Ends(first.quantity, last.quantity)) for first, last in zip(oldest, latest, strict=True)
    )
    return Aggregate(tuple(rates), dropped)


def _as_rates(
    combined: Iterable[tuple[tuple[tuple[str, str], ...], Sequence[Usage], Ends]],
) -> tuple[list[Usage], Counter[str]]:
    rates: list[Usage] = []
    dropped: Counter[str] = Counter()
    for group, members, ends in combined:
        if ends.oldest == 0:
            dropped[ZERO_OLDEST] += 1
            continue
        rate = 100.0 * (ends.oldest - ends.latest) / ends.oldest
        rates.append(replace(_combined(group, members, rate), ends=ends))
    return rates, dropped


def _finite(rows: Iterable[Usage], dropped: Counter[str]) -> Aggregate:
    every = list(rows)
    kept = tuple(usage for usage in every if usage.is_finite)
    lost = len(every) - len(kept)
    return Aggregate(kept, dropped + Counter({NOT_FINITE: lost}) if lost else dropped)


# An entry point of ``monasca_common.pipeline.usages``.
RATES = components.UsageComponent(_rates, operations=(), rolls_up=True)

# Entry points of ``monasca_common.pipeline.setters``. The specification always determines name and period.
ROLLUP = components.SetterComponent(_rolled_up)
NAMING = components.SetterComponent(lambda _, rows: rows)


def kept_columns(transform: Transform) -> tuple[int, ...]:
    """Return the positions, in ``group_by``, of the columns that are equal in all partials of an output row."""
    if transform.usage not in _USAGES or not _SETTERS.issuperset(transform.setters):
        return ()
    return tuple(position for position, column in enumerate(transform.group_by) if column in transform.distinguishes)


def rows(
    transform: Transform, partials: Iterable[tuple[PartialKey, Partial]], dropped: Counter[str]
) -> Iterator[Usage]:
    """Yield the output rows of a period. ``partials``: ordered by `kept_columns`. ``dropped``: receives the counts of
    `Aggregate.dropped`."""
    kept = kept_columns(transform)
    for _, block in groupby(partials, lambda each: [each[0].group[position] for position in kept]):
        found = aggregate(transform, block)
        dropped.update(found.dropped)
        yield from found.usages
