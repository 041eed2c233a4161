# SPDX-License-Identifier: Apache-2.0
"""Folds measurements into partials of alarm windows, and merges staged partials into the stored windows. A window has a
partial, or readings if the function is ``last``. Merging is exact, so the result does not depend on how records are
split into batches and tasks. Merging is one statement, the same on PostgreSQL and SQLite: counts are added, sums and
readings are concatenated, and long sums and readings are rewritten exactly in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import sqlalchemy as sa

from monasca_common.alarms.partials import WindowPartial, readings_of, readings_text, runs
from monasca_common.models import json_text
from monasca_common.models.readings import Reading, sums_text
from monasca_common.models.series import Series
from monasca_common.pipeline.evaluate.definitions import IndexedSubExpression, MatchTarget
from monasca_common.pipeline.spark.staging import StagedAttempts, spaces
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.tables import (
    alarm_changed,
    alarm_part,
    alarm_staging,
    alarm_sub_expression,
    alarm_window,
)

LAST_WINDOW = 0
"""``last`` has no windows: its readings are stored with this window start."""
_UNENDING_MS = 2**62
# The maximum number of readings of one window that are buffered before they are folded.
_MOST_PENDING = 256

# Creating a named tuple from a tuple takes a third less time than calling its class.
_reading: Callable[[tuple[float, int, int, float]], Reading] = partial(tuple.__new__, Reading)


class FoldedRow(NamedTuple):
    """A window with its partial, or a series: either ``window_start`` or ``series_id`` is ``None``. For ``last``, only
    ``readings`` is used. ``dimensions``: the dimensions of the series, as JSON. ``received``: the arrival time of its
    first record in Kafka.
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
    """One window of one sub-expression and match. Readings are buffered in a list, because appending is cheap."""

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
            # otherwise, each further reading would sort all readings
            self.most_pending = 2 * len(self.pending) + _MOST_PENDING
        elif readings:
            added = WindowPartial.of(sub, readings)
            self.partial = added if self.partial is None else self.partial.merge(added, sub)
            self.pending = []

    def row(self, window_start: int) -> FoldedRow:
        self.settle()
        named = _names(self.target)
        if self.partial is None:
            return _last_row(named, map(_reading, self.pending))
        return _window_row(named, window_start, self.partial)


class FoldedSeries:
    """The windows of one sub-expression that receive the readings of one series. ``created_ms``: the creation time of
    the definition. Records that arrived earlier are ignored.
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
        """Add the fields of a `Reading`. ``received_ms``: the time at which its record arrived in Kafka."""
        # Computed in place to avoid a call.
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
        """Return the row of the series, or ``None`` if it has no reading."""
        if self.received_ms == _UNENDING_MS:
            return None
        nothing = (None, None, None, None, None, None, None)
        dimensions = json_text.write(dict(self.series.dimensions)).decode()
        return FoldedRow(*_names(self._target), *nothing, self.series.id, dimensions, self.received_ms)


class WindowFold:
    """The windows and series of one task. Memory grows with their number. Not thread-safe."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, bytes], dict[int, _FoldedWindow]] = {}
        self._series: list[FoldedSeries] = []

    def series(self, target: MatchTarget, series: Series) -> FoldedSeries:
        """Return the windows of a series. Call it once for each target and series."""
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


def merged_rows(rows: Iterable[FoldedRow], sub_expressions: Mapping[str, IndexedSubExpression]) -> Iterator[FoldedRow]:
    """Yield one row for each key."""
    found: dict[tuple[Any, ...], list[FoldedRow]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    for same in found.values():
        if same[0].series_id is not None:
            yield min(same, key=lambda row: row.received or 0)
        else:
            yield same[0] if len(same) == 1 else _merged(same, sub_expressions)


def _merged(rows: list[FoldedRow], sub_expressions: Mapping[str, IndexedSubExpression]) -> FoldedRow:
    sub = sub_expressions[rows[0].sub_expression_id].expression
    named = rows[0][:4]
    if sub.function == "last":
        return _last_row(named, runs(sub, (reading for row in rows for reading in readings_of(row.readings))))
    partials = (WindowPartial.of_row(row[5:11]) for row in rows)
    whole = reduce(lambda one, other: one.merge(other, sub), partials)
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


def _names(target: MatchTarget) -> tuple[str, int, bytes, str]:
    """Return the values of the first columns of a row."""
    stored = target.sub_expression
    return stored.id, stored.windows, target.key, json_text.write(list(target.values)).decode()


#: Sums and readings with more entries than these are rewritten.
MOST_FLOATS, MOST_READINGS = 32, 128
_KEY = ("sub_expression_id", "match_key", "window_start")
_PARTIAL = ("record_count", "sums", "least", "greatest", "newest", "readings")
_ROWS_AT_ONCE = 1_000


def check_staged(connection: sa.Connection, staged: StagedAttempts) -> None:
    """Raise `StagingLost` unless every staged row exists."""
    count = sa.select(sa.func.count()).select_from(alarm_staging).where(*staged.within(alarm_staging))
    staged.check(connection.execute(count).scalar_one())


def drop_changed(connection: sa.Connection, staged: StagedAttempts) -> None:
    """Remove staged rows whose sub-expression no longer exists, and windows that are not of the current generation."""
    sub, row = alarm_sub_expression.c, alarm_staging.c
    fits = sa.or_(row.series_id.is_not(None), row.windows == sub.windows)
    known = sa.select(sub.id).where(sub.id == row.sub_expression_id, fits).exists()
    connection.execute(alarm_staging.delete().where(*staged.within(alarm_staging), ~known))


def merge_staged(
    connection: sa.Connection, staged: StagedAttempts, sub_expressions: Mapping[str, IndexedSubExpression]
) -> None:
    """Add the staged windows to the stored ones, and replace windows of an older generation."""
    names = (*_KEY, "windows", *_PARTIAL)
    is_window = alarm_staging.c.window_start.is_not(None)
    source = sa.select(*(alarm_staging.c[name] for name in names)).where(*staged.within(alarm_staging), is_window)
    adding = schema.insert(connection, alarm_window).from_select(list(names), source)
    known, added = alarm_window.c, adding.excluded
    connection.execute(adding.on_conflict_do_update(index_elements=list(_KEY), set_=_sum_of(known, added)))
    _shorten(connection, staged, sub_expressions)


def _sum_of(known: Any, added: Any) -> dict[str, Any]:
    """Return the new value of each column of an existing window."""
    merged = {
        "record_count": known.record_count + added.record_count,
        "sums": known.sums + " " + added.sums,
        "readings": known.readings + " " + added.readings,
        "least": sa.case((added.least < known.least, added.least), else_=known.least),
        "greatest": sa.case((added.greatest > known.greatest, added.greatest), else_=known.greatest),
        "newest": sa.case((added.newest > known.newest, added.newest), else_=known.newest),
    }
    is_newer = added.windows != known.windows
    return {"windows": added.windows} | {
        name: sa.case((is_newer, added[name]), else_=value) for name, value in merged.items()
    }


def _shorten(
    connection: sa.Connection, staged: StagedAttempts, sub_expressions: Mapping[str, IndexedSubExpression]
) -> None:
    """Rewrite long sums and readings of the merged windows."""
    window = alarm_window.c
    same = [window[name] == alarm_staging.c[name] for name in _KEY]
    is_long = sa.or_(spaces(window.sums) >= MOST_FLOATS, spaces(window.readings) >= MOST_READINGS)
    of_part = (alarm_part.c[name] == window[name] for name in ("sub_expression_id", "match_key"))
    is_waiting = sa.exists().where(alarm_part.c.alarm_id == alarm_changed.c.alarm_id, *of_part)
    columns = [window[name] for name in (*_KEY, *_PARTIAL)]
    long = (
        sa.select(*columns, alarm_staging.c.readings, is_waiting)
        .join(alarm_staging, sa.and_(*same))
        .where(*staged.within(alarm_staging), is_long)
    )
    rows = connection.execute(long).all()
    where = (window[name] == sa.bindparam(f"of_{name}") for name in _KEY)
    statement = alarm_window.update().where(*where)
    written = statement.values(sums=sa.bindparam("exact_sums"), readings=sa.bindparam("fewer_readings"))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        connection.execute(written, [_shortened(row, sub_expressions) for row in some if row[0] in sub_expressions])


def _shortened(row: Sequence[Any], sub_expressions: Mapping[str, IndexedSubExpression]) -> dict[str, Any]:
    key = {f"of_{name}": value for name, value in zip(_KEY, row, strict=False)}
    *whole, added, is_waiting = row[len(_KEY) :]
    sub = sub_expressions[row[0]].expression
    if sub.function == "last":
        found = readings_of(whole[-1])
        if not is_waiting:
            found = _unevaluated(found, readings_of(added))
        return key | {"exact_sums": "", "fewer_readings": readings_text(runs(sub, found))}
    exact = WindowPartial.of_row(whole).normalised(sub)
    return key | {"exact_sums": sums_text(exact.sums), "fewer_readings": readings_text(exact.decisive)}


def _unevaluated(found: Sequence[Reading], added: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return the new readings and the newest earlier reading, with which a new alarm begins."""
    return (*sorted(set(found).difference(added))[-1:], *added)
