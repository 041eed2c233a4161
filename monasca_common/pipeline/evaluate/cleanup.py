# SPDX-License-Identifier: Apache-2.0
"""Deletes windows and series that no evaluation needs, in portions of a primary key. Each portion is one transaction,
so a change of a definition waits for one portion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from monasca_common.alarms import alarm_metrics
from monasca_common.alarms.database import Condition
from monasca_common.pipeline.evaluate import definitions, watermark
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql import tables

PORTION_ROWS = 5_000
_EVERY_MS = 300_000
_SUB, _WINDOW, _SERIES, _PART = (
    tables.alarm_sub_expression,
    tables.alarm_window,
    tables.alarm_series,
    tables.alarm_part,
)

#: A primary key; None: before the first row, or after the last one.
Place: TypeAlias = tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows of a table beyond the key ``after``, up to the key ``until``."""

    table: sa.Table
    after: Place
    until: Place

    @property
    def conditions(self) -> list[Condition]:
        bounds = [] if self.after is None else [_key(self.table) > _literal(self.table, self.after)]
        return bounds if self.until is None else [*bounds, _key(self.table) <= _literal(self.table, self.until)]


class Cleanup:
    """Deletes the windows that no evaluation needs, and series, so that an alarm has the series of the last day."""

    def __init__(self, offset_store: OffsetStore, job: str) -> None:
        self._offset_store = offset_store
        self._job = job
        self._ran_ms = 0

    def run(self, now_ms: int) -> None:
        """Delete unless the last run was less than five minutes ago. Raises `EvaluatorFenced`."""
        if now_ms < self._ran_ms + _EVERY_MS:
            return
        with self._offset_store.successive() as writing:
            for delete in (delete_series, delete_windows):
                place: Place = None
                is_left = True
                while is_left:
                    with writing() as connection:
                        # Deleting a definition or an alarm locks the same rows in another order.
                        definitions.lock_version(connection)
                        stored = watermark.load(connection, self._job)
                        if stored is None:
                            return
                        watermark.hold(connection, self._job, stored)
                        place = delete(connection, stored, now_ms, place)
                    is_left = place is not None
        self._ran_ms = now_ms


def delete_series(connection: sa.Connection, _stored: EvaluatorState, now_ms: int, after: Place) -> Place:
    """Delete the series of the next portion that were not seen for a day, unless an alarm has no others: those keep its
    values known. Returns the end of the portion; None after the last one."""
    portion = _portion(connection, _SERIES, after)
    old = (_SERIES.c.seen < now_ms - DAY_MS, *portion.conditions)
    # Two statements: joined by OR, the database would search for each row separately.
    connection.execute(_SERIES.delete().where(*old, ~_has_same_key(_PART, _SERIES)))
    # Selected once, not for each series: SQLite would scan all series of the alarm each time.
    seen = _SERIES.alias()
    lasting = sa.select(seen.c.sub_expression_id, seen.c.match_key).where(
        seen.c.seen >= now_ms - DAY_MS, *_within(seen.c.sub_expression_id, portion)
    )
    has_lasting = sa.tuple_(_SERIES.c.sub_expression_id, _SERIES.c.match_key).in_(lasting)
    names = ("sub_expression_id", "match_key", "series_id")
    deleted = connection.execute(
        _SERIES.delete().where(*old, has_lasting).returning(*(_SERIES.c[name] for name in names))
    )
    alarm_metrics.forget_metrics(connection, [row._asdict() for row in deleted])
    return portion.until


def delete_windows(connection: sa.Connection, stored: EvaluatorState, _now_ms: int, after: Place) -> Place:
    """Delete the windows of the next portion that no evaluation needs. Returns as `delete_series`, which runs
    before."""
    portion = _portion(connection, _WINDOW, after)
    is_used = sa.or_(_has_same_key(_PART, _WINDOW), _has_same_key(_SERIES, _WINDOW))
    from_ms = _needed_from(stored.delay_ms, stored.evaluated_to_ms)
    needed = sa.or_(sa.and_(_SUB.c.function == "last", is_used), _WINDOW.c.window_start >= from_ms)
    own = sa.and_(_SUB.c.id == _WINDOW.c.sub_expression_id, _SUB.c.windows == _WINDOW.c.windows)
    connection.execute(_WINDOW.delete().where(*portion.conditions, ~sa.exists().where(own, needed)))
    return portion.until


def _needed_from(delay_ms: int, evaluated_to_ms: int) -> sa.ColumnElement[int]:
    """Return `needed_from_ms` of a row of sub-expressions."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    return (sa.literal(evaluated_to_ms - delay_ms, sa.BigInteger()) // length_ms + 1 - _SUB.c.periods) * length_ms


def _portion(connection: sa.Connection, table: sa.Table, after: Place) -> Portion:
    key = table.primary_key.columns
    rest = sa.select(*key).where(*Portion(table, after, None).conditions)
    last = connection.execute(rest.order_by(*key).offset(PORTION_ROWS - 1).limit(1)).one_or_none()
    return Portion(table, after, None if last is None else tuple(last))


def _within(sub_expression_id: sa.ColumnElement[str], portion: Portion) -> list[Condition]:
    """Limit the sub-expressions to those of the portion: the first column of its key."""
    bounds = [] if portion.after is None else [sub_expression_id >= portion.after[0]]
    return bounds if portion.until is None else [*bounds, sub_expression_id <= portion.until[0]]


def _key(table: sa.Table) -> sa.Tuple:
    return sa.tuple_(*table.primary_key.columns)


def _literal(table: sa.Table, key: tuple[Any, ...]) -> sa.Tuple:
    columns = table.primary_key.columns
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(key, columns, strict=True)))


def _has_same_key(table: sa.FromClause, other: sa.Table) -> sa.ColumnElement[bool]:
    """Return whether ``table`` has a row of the sub-expression and match of a row of ``other``."""
    same = (table.c[name] == other.c[name] for name in ("sub_expression_id", "match_key"))
    return sa.select(table.c.sub_expression_id).where(*same).correlate(other).exists()
