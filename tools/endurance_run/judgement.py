# SPDX-License-Identifier: Apache-2.0
"""The judgement: what is lost, duplicated, wrong, leaking or unexplained. Its pure functions return violations."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from endurance_run.faults import MINUTE_SECONDS, InjectedFault
from endurance_run.samples import ErrorLine, Sample
from monasca_common.alarms.expression import parse
from monasca_common.tests.unit.alarms import reference

_HOUR_SECONDS = 3600.0
_RECOVERY_SECONDS = 30.0  # an error can be logged this long after a fault
_LEAST_POINTS = 6
_CERTAINTY = 3.0  # standard errors of a slope through many points
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Tier:
    """The rows of a tier: each posted key once. ``wrong``: rows with a different value or key."""

    name: str
    expected: int
    found: int
    duplicates: int
    wrong: int

    @property
    def lost(self) -> int:
        return self.expected - self.found


@dataclass(frozen=True, slots=True)
class Limit:
    """The permitted growth: ``per_hour``: the limit in runs of an hour or more. ``short``: the total in shorter runs,
    in which caches still fill. ``is_relative``: both limits are fractions of the first value."""

    quantity: str
    per_hour: float
    short: float
    is_relative: bool = False

    def growth(self, hours: float) -> float:
        return self.per_hour * hours if hours >= 1 else self.short


LIMITS = (
    Limit("memory_mib", 1.0, 24.0),
    Limit("descriptors", 1.0, 8.0),
    Limit("threads", 1.0, 8.0),
    Limit("cpu_per_minute", 0.05, 1.0, is_relative=True),
    Limit("bytes_per_row", 0.05, 0.5, is_relative=True),
    Limit("post_p99_ms", 0.05, 2.0, is_relative=True),
)


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of a quantity over the judged time. ``error``: its uncertainty, three standard errors, or more for few
    points."""

    name: str
    first: float
    growth: float
    error: float
    allowed: float
    hours: float

    @property
    def is_violated(self) -> bool:
        return self.growth - self.error > self.allowed


def tier_violations(tiers: Iterable[Tier]) -> list[str]:
    return [
        f"{tier.name}: {tier.lost} of {tier.expected} lost, {tier.duplicates} duplicated, {tier.wrong} wrong"
        for tier in tiers
        if tier.lost or tier.duplicates or tier.wrong
    ]


def compare(name: str, expected: Mapping[Any, float], rows: Iterable[tuple[Any, float]]) -> Tier:
    """Compare rows, as (key, value), with the expected value of each key."""
    seen: set[Any] = set()
    found = duplicates = wrong = 0
    for key, value in rows:
        if key in seen:
            duplicates += 1
            continue
        seen.add(key)
        if expected.get(key) == value:
            found += 1
        else:
            wrong += 1
    return Tier(name, len(expected), found, duplicates, wrong)


def audit_violations(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Judge rows of ``audit show``. Duplicates in the log are accepted, because readers remove them; the surplus of a
    reader is a violation, and so are missing rows."""
    found = list(rows)
    if not found:
        return ["audit: `audit show` printed no rows"]
    return [
        f"audit: topic {row['topic']}, bucket {row['bucket']}, tier {row['tier']} {row['application']}: "
        f"{row['verdict']}, {row['lost']} lost, {row['surplus']} surplus"
        for row in found
        if row["verdict"] != "OK" or row["lost"] or (row["surplus"] and row["tier"] != "broker")
    ]


def expected_changes(expression: str, values: Iterable[tuple[int, float]]) -> list[tuple[str, str, int]]:
    """Return the transitions of the reference evaluator, as (old, new, time in ms), for (time in ms, value)."""
    measurements = [reference.Measurement(time_ms, value, 0) for time_ms, value in values]
    if not measurements:
        return []
    batches = [(measurements, measurements[-1].time_ms)]
    changes = reference.changes(parse(expression), batches, 0)  # type: ignore[no-untyped-call]
    return [(each.old, each.new, each.timestamp_ms) for each in changes]


def alarm_violations(
    expected: Mapping[str, Sequence[tuple[str, str, int]]], found: Mapping[str, Sequence[tuple[str, str, int]]]
) -> list[str]:
    violations = []
    for series in sorted(expected.keys() | found.keys()):
        wanted, had = set(expected.get(series, ())), list(found.get(series, ()))
        missing, surplus = len(wanted - set(had)), len(set(had) - wanted) + len(had) - len(set(had))
        if missing or surplus:
            violations.append(
                f"alarm of series {series}: {missing} of {len(wanted)} transitions missing, {surplus} surplus"
            )
    return violations


def notification_violations(transitions: int, accepted: int, superseded: int) -> list[str]:
    """Judge the number of different notifications that the webhook accepted, or that the next transition superseded
    before a retry."""
    if transitions == accepted + superseded:
        return []
    return [f"notifications: {accepted} accepted, {superseded} superseded, and {transitions} transitions"]


def error_violations(errors: Iterable[ErrorLine], faults: Sequence[InjectedFault]) -> list[str]:
    """Return the errors without a fault in the same minute, with the time that a recovery takes."""
    unexplained = [
        error
        for error in errors
        if not any(fault.began <= error.seconds <= fault.ended + _RECOVERY_SECONDS for fault in faults)
    ]
    violations = [f"{error.seconds:.0f} s: {error.instance}: {error.text}" for error in unexplained[:_MOST_SHOWN]]
    if len(unexplained) > _MOST_SHOWN:
        violations.append(f"… and {len(unexplained) - _MOST_SHOWN} more errors without a fault")
    return violations


def longest_piece(samples: Iterable[Sample], *, warm_up_seconds: float) -> list[Sample]:
    """Return the samples of the longest piece of a run, without its warm-up."""
    pieces: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        pieces[sample.piece].append(sample)
    longest = max(pieces.values(), key=lambda piece: piece[-1].seconds - piece[0].seconds, default=[])
    return [sample for sample in longest if sample.seconds >= longest[0].seconds + warm_up_seconds]


def by_minute(samples: Iterable[Sample]) -> dict[str, list[tuple[float, float]]]:
    """Return (minute, median) of each quantity. CPU seconds become CPU seconds per minute."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for name, value in sample.values.items():
            values[name][int(sample.seconds // MINUTE_SECONDS)].append(value)
    medians = {
        name: [(float(minute), statistics.median(found)) for minute, found in sorted(minutes.items())]
        for name, minutes in values.items()
    }
    for name in [name for name in medians if name.endswith(" cpu_seconds")]:
        points = medians.pop(name)
        # After a resume, the counters of the new processes start at 0.
        medians[name.replace("cpu_seconds", "cpu_per_minute")] = [
            (minute, (value - before) / (minute - earlier))
            for (earlier, before), (minute, value) in itertools.pairwise(points)
            if value >= before
        ]
    return medians


def slopes(samples: Iterable[Sample], *, warm_up_seconds: float) -> list[Slope]:
    """Return the growth of each limited quantity after the warm-up, by least squares over the medians of minutes."""
    found = []
    for name, points in sorted(by_minute(longest_piece(samples, warm_up_seconds=warm_up_seconds)).items()):
        limit = next((each for each in LIMITS if name.endswith(" " + each.quantity)), None)
        if limit is None or len(points) < _LEAST_POINTS:
            continue
        minutes, values = zip(*points, strict=True)
        fit = statistics.linear_regression(minutes, values)
        span = minutes[-1] - minutes[0]
        residuals = [value - fit.intercept - fit.slope * minute for minute, value in points]
        spread = sum((minute - statistics.fmean(minutes)) ** 2 for minute in minutes)
        error = (sum(each * each for each in residuals) / (len(points) - 2) / spread) ** 0.5
        error *= _standard_errors(len(points))
        first = fit.intercept + fit.slope * minutes[0]
        hours = span * MINUTE_SECONDS / _HOUR_SECONDS
        scale = abs(first) if limit.is_relative else 1.0
        found.append(Slope(name, first, fit.slope * span, error * span, limit.growth(hours) * scale, hours))
    return found


def _standard_errors(points: int) -> float:
    """Return the quantile of Student's t that is as certain as `_CERTAINTY`, from a series expansion."""
    z, degrees = _CERTAINTY, points - 2
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def slope_violations(found: Iterable[Slope]) -> list[str]:
    return [
        f"{slope.name} grew by {slope.growth:.2f} (± {slope.error:.2f}) in {slope.hours * 60:.0f} minutes "
        f"from {slope.first:.2f}; {slope.allowed:.2f} is allowed"
        for slope in found
        if slope.is_violated
    ]
