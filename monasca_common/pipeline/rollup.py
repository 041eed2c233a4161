# SPDX-License-Identifier: Apache-2.0
"""From the partials of a period to its output rows: usages, rolled up, and in two stages where that is specified.

One stage: the partials of all windows of the period are merged, then become usages. Two stages: the partials of each
ten-minute window become rolled-up rows of their own, and these are combined to the period (an average of averages,
where avg is specified: a window with few records weighs as much as one with many).

What differs from monasca-transform on purpose: windows are of event time, not of arrival; the latest quantity of a
rate is the latest, not the average; a rate is made per group, not of the first group found; its count is that of its
records, not twice that; a rate whose oldest quantity is zero gives no row (and is counted) instead of stopping the
whole; name and period are always the specification's; sums do not depend on the order of their parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

from monasca_common.pipeline import columns
from monasca_common.pipeline.partials import Group, Partial, PartialKey, by_window, merged
from monasca_common.pipeline.specification import CALCULATE_RATE, RATE, Transform
from monasca_common.pipeline.usages import Ends, Usage, fetched, usages
from monasca_common.pipeline.windows import period_start_ms

ZERO_OLDEST, NOT_FINITE = "zero_oldest", "not_finite"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The output rows of one transform and period, in the order of their groups.

    ``dropped`` counts rows that there are none of: rates of which the oldest quantity is zero (`ZERO_OLDEST`), and
    quantities beyond a float (`NOT_FINITE`), which no envelope can hold.
    """

    usages: tuple[Usage, ...]
    dropped: Counter[str] = field(default_factory=Counter)


def aggregate(transform: Transform, partials: Iterable[tuple[PartialKey, Partial]]) -> Aggregate:
    """All partials of one transform and one period; several of one key are merged. Raises `ValueError` for others."""
    whole = merged(partials)
    if len({(key.specification_id, period_start_ms(transform.period, key.window_ms)) for key in whole}) > 1:
        raise ValueError("partials of several specifications or periods: aggregate those of each on their own")
    windows = by_window(whole)
    if transform.second_operation is None:
        return first_stage(transform, _whole_period(windows.values()))
    dropped: Counter[str] = Counter()
    stages = []
    for groups in windows.values():
        stage = first_stage(transform, groups)
        dropped += stage.dropped
        stages.append(stage.usages)
    second = second_stage(transform, stages)
    return Aggregate(second.usages, dropped + second.dropped)


def _whole_period(windows: Iterable[Mapping[Group, Partial]]) -> dict[Group, Partial]:
    groups: dict[Group, Partial] = {}
    for window in windows:
        for group, partial in window.items():
            known = groups.get(group)
            groups[group] = partial if known is None else known.merge(partial)
    return groups


def first_stage(transform: Transform, groups: Mapping[Group, Partial]) -> Aggregate:
    """Usages and setters, of the partials of one window or of one whole period."""
    if transform.usage == CALCULATE_RATE:
        rows, dropped = _rates(transform, groups)
    else:
        rows, dropped = usages(transform, groups), Counter()
    if transform.rollup_operation is not None:
        rows = roll_up(rows, transform.rollup_by, transform.rollup_operation)
    return _finite(rows, dropped)


def second_stage(transform: Transform, windows: Sequence[Iterable[Usage]]) -> Aggregate:
    """The rows of the period's windows, in order of time, combined; a window may be missing, or have no rows."""
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
    """One row a group; its other columns become ``all``, its count is the sum, its times the first and the last."""
    combine = _COMBINE[operation]
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


def _total(quantities: Sequence[float]) -> float:
    try:
        return fsum(quantities)
    except OverflowError:
        return inf


_COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": _total,
    "max": max,
    "min": min,
    "avg": lambda quantities: _total(quantities) / len(quantities),
}


def _rates(transform: Transform, groups: Mapping[Group, Partial]) -> tuple[list[Usage], Counter[str]]:
    """Oldest and latest quantities are rolled up by sum, each; then compared."""
    oldest = roll_up(fetched(transform, groups, "oldest"), transform.rollup_by, "sum")
    latest = roll_up(fetched(transform, groups, "latest"), transform.rollup_by, "sum")
    return _as_rates(
        (first.group, [first], Ends(first.quantity, last.quantity)) for first, last in zip(oldest, latest, strict=True)
    )


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
