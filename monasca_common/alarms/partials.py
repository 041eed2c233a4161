# SPDX-License-Identifier: Apache-2.0
"""Holds the measurements of a sub-alarm: a partial for each window, or the readings that ``last`` needs.

Merging is exact, so the same measurements result in equal partials, however they are split into batches. A window is
``period`` seconds of event time, aligned to the period, and identified by its start in ms.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from monasca_common.alarms.expression import SubExpression
from monasca_common.models.numbers import GREATEST
from monasca_common.models.readings import Reading, exact_sum, sums_of

OK, ALARM, UNDETERMINED = "OK", "ALARM", "UNDETERMINED"

MOST_DECISIVE = 100
"""The maximum number of decisive readings that are kept for a window. If a change needs more readings, it has the time
of the newest measurement."""
MOST_READINGS = 10_000
"""The maximum number of readings that are kept for ``last`` until their evaluation."""

# Values are scaled by a power of two (which is exact) before they are added, so that a sum of the greatest floats does
# not overflow.
_SCALE = 2.0**-64

_COMPARISONS: MappingProxyType[str, Callable[[float, float], bool]] = MappingProxyType(
    {"LT": operator.lt, "LTE": operator.le, "GT": operator.gt, "GTE": operator.ge}
)


@dataclass(frozen=True, slots=True)
class WindowPartial:
    """The partial aggregate of one or more measurements of a window. ``sums``: the `exact_sum` of scaled values.
    ``decisive``: the earliest readings that lead to `immediate_state`, in order of time."""

    count: int
    sums: tuple[float, ...]
    least: float
    greatest: float
    newest_ms: float
    decisive: tuple[Reading, ...] = ()

    @classmethod
    def of(cls, sub: SubExpression, readings: Sequence[Reading]) -> WindowPartial:
        quantities = [reading.quantity for reading in readings]
        return cls(
            len(readings),
            exact_sum(quantity * _SCALE for quantity in quantities),
            min(quantities),
            max(quantities),
            max(reading.timestamp_ms for reading in readings),
            _earliest(sub, (reading for reading in readings if _is_decisive(sub, reading))),
        )

    @classmethod
    def of_row(cls, row: Iterable[Any]) -> WindowPartial:
        """Return the partial of a row's columns from ``record_count`` to ``readings``. Its sums and readings may be
        concatenations."""
        count, sums, least, greatest, newest_ms, readings = row
        return cls(count, sums_of(sums), least, greatest, newest_ms, readings_of(readings))

    def merge(self, other: WindowPartial, sub: SubExpression) -> WindowPartial:
        """Return the combined partial. ``other`` has different measurements of the same window."""
        return WindowPartial(
            self.count + other.count,
            exact_sum(self.sums + other.sums),
            min(self.least, other.least),
            max(self.greatest, other.greatest),
            max(self.newest_ms, other.newest_ms),
            _earliest(sub, self.decisive + other.decisive),
        )

    def normalised(self, sub: SubExpression) -> WindowPartial:
        """Return the partial in normal form. Its sums and decisive readings may be concatenations of those of several
        partials."""
        return replace(self, sums=exact_sum(self.sums), decisive=_earliest(sub, self.decisive))

    def value(self, function: str) -> float:
        match function:
            case "min":
                return self.least
            case "max":
                return self.greatest
            case "count":
                return float(self.count)
        scaled = (self.sums[0] if self.sums else 0.0) / (1 if function == "sum" else self.count)
        # Clamp values to the range of floats, both for display and for comparison.
        return max(-GREATEST, min(scaled / _SCALE, GREATEST))


@dataclass(frozen=True, slots=True)
class Crossing:
    """The time at which a window reached `immediate_state`, and its value at that time."""

    time_ms: float
    value: float


def meets(sub: SubExpression, value: float) -> bool:
    return _COMPARISONS[sub.operator](value, sub.threshold)


def immediate_state(sub: SubExpression) -> str | None:
    """Return the state that later data cannot undo, because a maximum and a count only increase and a minimum only
    decreases."""
    if sub.function not in ("max", "count", "min"):
        return None
    grows = sub.function != "min"
    return ALARM if grows == sub.operator.startswith("G") else OK


def crossing(sub: SubExpression, partial: WindowPartial) -> Crossing | None:
    """Return the crossing, or ``None`` if the window has not reached `immediate_state`."""
    value = partial.value(sub.function)
    if not _reaches_state(sub, value):
        return None
    if sub.function == "count":
        number = _deciding_count(sub)
        if number <= len(partial.decisive):
            return Crossing(partial.decisive[int(number) - 1].timestamp_ms, number)
    else:
        for reading in partial.decisive:
            if _reaches_state(sub, reading.quantity):
                return Crossing(reading.timestamp_ms, reading.quantity)
    # More readings were needed than are kept, or the threshold has changed since they were stored.
    return Crossing(partial.newest_ms, value)


def runs(sub: SubExpression, readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Return the readings that ``last`` needs, in order of time. If there are too many, only the first and last
    readings of each run of equal outcomes are kept, and of these, at most the newest `MOST_READINGS`."""
    ordered = sorted(set(readings))
    if len(ordered) <= MOST_READINGS:
        return tuple(ordered)
    outcomes = [meets(sub, reading.quantity) for reading in ordered]
    last = len(ordered) - 1
    kept = [
        reading
        for index, reading in enumerate(ordered)
        if index in (0, last) or not outcomes[index - 1] == outcomes[index] == outcomes[index + 1]
    ]
    return tuple(kept[-MOST_READINGS:])


def _reaches_state(sub: SubExpression, value: float) -> bool:
    return meets(sub, value) == (immediate_state(sub) == ALARM)


def _is_decisive(sub: SubExpression, reading: Reading) -> bool:
    return sub.function == "count" or _reaches_state(sub, reading.quantity)


def _earliest(sub: SubExpression, readings: Iterable[Reading]) -> tuple[Reading, ...]:
    if immediate_state(sub) is None:
        return ()
    most = min(_deciding_count(sub), MOST_DECISIVE) if sub.function == "count" else 1
    return tuple(sorted(readings)[: int(most)])


def _deciding_count(sub: SubExpression) -> float:
    """Return the number of measurements at which a window reaches `immediate_state`."""
    threshold = sub.threshold
    above = sub.operator in ("GT", "LTE")  # with the other operators, a value equal to the threshold decides
    return max(1.0, math.floor(threshold) + 1.0 if above else float(math.ceil(threshold)))


# Readings are stored as text. A database merges two texts by joining them with a space.


def readings_text(readings: Iterable[Reading]) -> str:
    return " ".join(",".join(map(repr, reading)) for reading in readings)


def readings_of(text: str | None) -> tuple[Reading, ...]:
    """Parse the readings in the order of the text."""
    return tuple(_reading(*each.split(",")) for each in text.split()) if text else ()


def _reading(timestamp: str, partition: str, offset: str, quantity: str) -> Reading:
    return Reading(float(timestamp), int(partition), int(offset), float(quantity))
