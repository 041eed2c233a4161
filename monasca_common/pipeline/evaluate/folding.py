# SPDX-License-Identifier: Apache-2.0
"""Folds measurements into what sub-alarms know of them: a partial for each window, the readings of ``last``, and the
series that were seen. Merging is exact, so the result does not depend on where a batch or a task begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

from monasca_common.alarms.partial_text import readings_of, readings_text, sums_of, sums_text
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.models import json_text
from monasca_common.models.readings import Reading
from monasca_common.models.series import Series
from monasca_common.pipeline.evaluate.matching import ActiveSubExpression, MatchTarget

LAST_WINDOW = 0
"""``last`` has no windows: what it needs is kept under this one."""
_UNENDING_MS = 2**62
# At most this many readings of one window wait to be folded.
_MOST_PENDING = 256

# Building a named tuple from a tuple: a third cheaper than calling its class.
_reading: Callable[[tuple[float, int, int, float]], Reading] = partial(tuple.__new__, Reading)


class FoldedRow(NamedTuple):
    """A window with its partial, or a series: one of ``window_start`` and ``series_id`` is None.

    Of ``last`` only ``readings`` count. ``dimensions``: the series', as JSON. ``received``: when its first record came
    to Kafka.
    """

    sub_expression_id: str
    windows: int
    match_key: bytes
    match_values: str
    window_start: int | None
    record_count: int | None
    sums: str | None
    least: float | None
    greatest: float | None
    newest: float | None
    readings: str | None
    series_id: bytes | None
    dimensions: str | None
    received: int | None

    @property
    def key(self) -> tuple[str, bytes, int | None, bytes | None]:
        return self.sub_expression_id, self.match_key, self.window_start, self.series_id


class _FoldedWindow:
    """One window of one sub-expression and match. Readings wait in a list, because appending is cheap."""

    __slots__ = ("most_pending", "partial", "pending", "target")

    def __init__(self, target: MatchTarget) -> None:
        self.target = target
        self.most_pending = _MOST_PENDING
        self.pending: list[tuple[float, int, int, float]] = []
        self.partial: WindowPartial | None = None

    def settle(self) -> None:
        sub, readings = self.target.sub_expression.expression, list(map(_reading, self.pending))
        if sub.function == "last":
            self.pending = list(runs(sub, readings))
            self.most_pending = 2 * len(self.pending) + _MOST_PENDING  # else each reading would sort all of them
        elif readings:
            added = WindowPartial.of(sub, readings)
            self.partial = added if self.partial is None else self.partial.merge(added, sub)
            self.pending = []

    def row(self, window_start: int) -> FoldedRow:
        self.settle()
        active = self.target.sub_expression
        named = (active.id, active.windows, self.target.key, _values_text(self.target))
        if self.partial is None:
            return _last_row(named, map(_reading, self.pending))
        return _window_row(named, window_start, self.partial)


class FoldedSeries:
    """Where the readings of one series go by one sub-expression: looked up once, because a task has many of each.

    ``created_ms``: of the definition, whose alarms arise only from what was received afterwards.
    """

    __slots__ = ("_length_ms", "_target", "_windows", "created_ms", "received_ms", "series")

    def __init__(self, target: MatchTarget, series: Series, windows: dict[int, _FoldedWindow]) -> None:
        sub = target.sub_expression.expression
        self._target = target
        self._windows = windows
        self._length_ms = _UNENDING_MS if sub.function == "last" else sub.period * 1000
        self.created_ms = target.sub_expression.created_ms
        self.series = series
        self.received_ms = _UNENDING_MS

    def add(self, reading: tuple[float, int, int, float], received_ms: int) -> None:
        """``reading``: the fields of a `Reading`. ``received_ms``: when its record came to Kafka."""
        # As `window_start_ms`, without the call.
        window_start = int(reading[0] // self._length_ms) * self._length_ms
        window = self._windows.get(window_start)
        if window is None:
            window = self._windows[window_start] = _FoldedWindow(self._target)
        pending = window.pending
        pending.append(reading)
        if len(pending) >= window.most_pending:
            window.settle()
        if received_ms < self.received_ms:
            self.received_ms = received_ms

    def row(self) -> FoldedRow | None:
        """None without a reading."""
        is_empty = self.received_ms == _UNENDING_MS
        return None if is_empty else _series_row(self._target, self.series, self.received_ms)


class Folding:
    """Memory grows with the number of windows and of series. Not thread-safe."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, bytes], dict[int, _FoldedWindow]] = {}
        self._series: list[FoldedSeries] = []

    def series(self, target: MatchTarget, series: Series) -> FoldedSeries:
        """Called once for each target and series."""
        windows = self._windows.setdefault((target.sub_expression.id, target.key), {})
        folded = FoldedSeries(target, series, windows)
        self._series.append(folded)
        return folded

    def rows(self) -> Iterator[FoldedRow]:
        for windows in self._windows.values():
            for window_start, window in windows.items():
                yield window.row(window_start)
        for folded in self._series:
            row = folded.row()
            if row is not None:
                yield row


def merged_rows(rows: Iterable[FoldedRow], active: Mapping[str, ActiveSubExpression]) -> Iterator[FoldedRow]:
    """One row of each key."""
    found: dict[tuple[Any, ...], list[FoldedRow]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    for same in found.values():
        if same[0].series_id is not None:
            yield min(same, key=lambda row: row.received or 0)
        else:
            yield same[0] if len(same) == 1 else _merged(same, active)


def partial_of(row: FoldedRow) -> WindowPartial:
    """Of a row of a window. Its sums may be a concatenation, as the database has them."""
    count, least, greatest, newest = row.record_count, row.least, row.greatest, row.newest
    assert count is not None and least is not None and greatest is not None and newest is not None
    return WindowPartial(count, sums_of(row.sums), least, greatest, newest, readings_of(row.readings))


def _merged(rows: list[FoldedRow], active: Mapping[str, ActiveSubExpression]) -> FoldedRow:
    sub = active[rows[0].sub_expression_id].expression
    named = rows[0][:4]
    if sub.function == "last":
        return _last_row(named, runs(sub, (reading for row in rows for reading in readings_of(row.readings))))
    whole = reduce(lambda one, other: one.merge(other, sub), map(partial_of, rows))
    window_start = rows[0].window_start
    assert window_start is not None
    return _window_row(named, window_start, whole)


def _window_row(named: tuple[str, int, bytes, str], window_start: int, whole: WindowPartial) -> FoldedRow:
    sums, readings = sums_text(whole.sums), readings_text(whole.decisive)
    ends = (whole.least, whole.greatest, whole.newest_ms)
    return FoldedRow(*named, window_start, whole.count, sums, *ends, readings, None, None, None)


def _last_row(named: tuple[str, int, bytes, str], readings: Iterable[Reading]) -> FoldedRow:
    kept = tuple(readings)
    quantities = [reading.quantity for reading in kept]
    ends = (min(quantities), max(quantities), max(reading.timestamp_ms for reading in kept))
    return FoldedRow(*named, LAST_WINDOW, len(kept), "", *ends, readings_text(kept), None, None, None)


def _series_row(target: MatchTarget, series: Series, received_ms: int) -> FoldedRow:
    active = target.sub_expression
    nothing = (None, None, None, None, None, None, None)
    dimensions = json_text.write(dict(series.dimensions)).decode()
    named = (active.id, active.windows, target.key, _values_text(target))
    return FoldedRow(*named, *nothing, series.id, dimensions, received_ms)


def _values_text(target: MatchTarget) -> str:
    return json_text.write(list(target.values)).decode()
