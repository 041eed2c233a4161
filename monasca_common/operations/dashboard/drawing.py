# SPDX-License-Identifier: Apache-2.0
"""Computes lines, bands and labels of an SVG chart with pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from monasca_common.operations.dashboard.metric_charts import ChartSeries, MetricChart, StateBand

WIDTH, HEIGHT = 1000, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 10, 28
_TICKS = 5
_MOST_POINTS = 1000
_LEAST, _MOST = 1e-300, 1e300  # the range of differences and values that an axis can show
_DOTS = 60  # lines with up to this many points have dots
_BAND_HEIGHT = 14
_LISTED = 200
_STEPS_SECONDS = (60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """``style``: 1 to 8, a color and a pattern. ``points``: of the polyline. ``dots``: for lines with few points."""

    label: str
    style: int
    points: str
    dots: tuple[tuple[float, float], ...]
    last: str


@dataclass(frozen=True, slots=True)
class DrawnBand:
    x: float
    y: float
    width: float
    state: str
    label: str


@dataclass(frozen=True, slots=True)
class ListedPoint:
    """A row of the table after a chart."""

    time: str
    series: str
    value: str


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """``height`` and ``width``: of the picture. ``floor``: the y position of the time axis."""

    lines: tuple[DrawnLine, ...]
    bands: tuple[DrawnBand, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    listed: tuple[ListedPoint, ...]
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    floor: int = HEIGHT - _BOTTOM


class _Scale:
    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self._low, self._first = low, first
        self._factor = (last - first) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self._first + (value - self._low) * self._factor, 1)


def drawn(chart: MetricChart) -> DrawnChart:
    """Return the chart as a template needs it."""
    everything = (*chart.series, *chart.beside)
    alarms = list(dict.fromkeys(band.alarm for band in chart.bands))
    values = [value for series in everything for _, value in series.points if _can_be_drawn(value)]
    ticks = nice_ticks(min(values, default=0.0), max(values, default=1.0))
    floor = HEIGHT - _BOTTOM
    across = _Scale(chart.start_ms, chart.end_ms, _LEFT, WIDTH - _RIGHT)
    up = _Scale(ticks[0], ticks[-1], floor, _TOP + _BAND_HEIGHT * len(alarms))
    lines = tuple(_line(series, number, across, up) for number, series in enumerate(everything))
    return DrawnChart(
        lines,
        tuple(_band(band, alarms.index(band.alarm), across) for band in chart.bands),
        tuple(Tick(up(value), number_text(value)) for value in ticks),
        tuple(Tick(across(moment), _moment(moment, chart)) for moment in _moments(chart)),
        tuple(_listed(everything)),
        _summary(everything, values),
    )


def _line(series: ChartSeries, number: int, across: _Scale, up: _Scale) -> DrawnLine:
    kept = [(across(moment), up(value)) for moment, value in thinned(series.points)]
    return DrawnLine(
        label_of(series),
        number % 8 + 1,
        " ".join(f"{x},{y}" for x, y in kept),
        tuple(kept) if len(kept) <= _DOTS else (),
        number_text(series.points[-1][1]) if series.points else "none",
    )


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep the minimum and maximum of neighbors, so that no peak is lost if points outnumber pixels."""
    found = [point for point in points if _can_be_drawn(point[1])]
    if len(found) <= _MOST_POINTS:
        return found
    size = -(-len(found) * 2 // _MOST_POINTS)
    kept: list[tuple[int, float]] = []
    for first in range(0, len(found), size):
        part = found[first : first + size]
        kept += sorted({min(part, key=lambda each: each[1]), max(part, key=lambda each: each[1])})
    return kept


def _can_be_drawn(value: float) -> bool:
    """Return whether the value, and its difference to others, are finite numbers."""
    return abs(value) <= _MOST


def _band(band: StateBand, row: int, across: _Scale) -> DrawnBand:
    start, end = across(band.start_ms), across(band.end_ms)
    label = f"{band.alarm}: {band.state} from {_clock(band.start_ms)} to {_clock(band.end_ms)}"
    return DrawnBand(start, _TOP + row * _BAND_HEIGHT, round(end - start, 1), band.state, label)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` or less to ``high`` or more."""
    if high - low <= _LEAST:
        room = max(1.0, 1000 * math.ulp(low))  # so that the ends of the axis differ, also for large values
        low, high = (low - room, high + room) if abs(low) > _LEAST else (0.0, 1.0)
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def _moments(chart: MetricChart) -> range:
    length = (chart.end_ms - chart.start_ms) / 1000
    step = next((each for each in _STEPS_SECONDS if length / each <= 8), _STEPS_SECONDS[-1]) * 1000
    return range(-(-chart.start_ms // step) * step, chart.end_ms + 1, step)


def _moment(time_ms: int, chart: MetricChart) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%d %b" if chart.question.minutes > 2880 else "%H:%M")


def label_of(series: ChartSeries) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in sorted(series.dimensions.items()))
    return f"{series.name} ({shown})" if shown else series.name


def number_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def _listed(everything: Iterable[ChartSeries]) -> Iterable[ListedPoint]:
    """Return the newest points of all series, the newest first."""
    points = [(moment, label_of(series), value) for series in everything for moment, value in series.points]
    for moment, label, value in sorted(points, reverse=True)[:_LISTED]:
        yield ListedPoint(_clock(moment), label, number_text(value))


def _summary(everything: Sequence[ChartSeries], values: Sequence[float]) -> str:
    if not values:
        return "No measurements in this time."
    lines = "One series" if len(everything) == 1 else f"{len(everything)} series"
    return f"{lines} with {len(values):,} points, from {number_text(min(values))} to {number_text(max(values))}."


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
