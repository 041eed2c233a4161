# SPDX-License-Identifier: Apache-2.0
"""Removes windows and series that nobody asks for any more, in portions of a primary key: each is one transaction, so
whoever changes a definition meanwhile waits for one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from monasca_common.alarms import alarm_metrics
from monasca_common.alarms.database import Condition
from monasca_common.pipeline.evaluate.watermark import StoredProgress
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql import tables

PORTION_ROWS = 5_000
_SUB, _WINDOW, _SERIES, _PART = (
    tables.alarm_sub_expression,
    tables.alarm_window,
    tables.alarm_series,
    tables.alarm_part,
)

#: A primary key; None: before the first, or after the last.
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


def forget_series(connection: sa.Connection, _stored: StoredProgress, now_ms: int, after: Place) -> Place:
    """Those of the next portion that were not seen for a day, unless they are all that an alarm has: they keep its
    values known. Returns up to where it came; None: it was the last one."""
    portion = _portion(connection, _SERIES, after)
    old = (_SERIES.c.seen < now_ms - DAY_MS, *portion.conditions)
    # Two statements: joined by OR, the database would look for each row alone.
    connection.execute(_SERIES.delete().where(*old, ~_has_same_key(_PART, _SERIES)))
    # Asked once, and not for each series: SQLite would look through all series of the alarm each time.
    seen = _SERIES.alias()
    lasting = sa.select(seen.c.sub_expression_id, seen.c.match_key).where(
        seen.c.seen >= now_ms - DAY_MS, *_within(seen.c.sub_expression_id, portion)
    )
    is_over = sa.tuple_(_SERIES.c.sub_expression_id, _SERIES.c.match_key).in_(lasting)
    names = ("sub_expression_id", "match_key", "series_id")
    forgotten = connection.execute(
        _SERIES.delete().where(*old, is_over).returning(*(_SERIES.c[name] for name in names))
    )
    alarm_metrics.forget_metrics(connection, [row._asdict() for row in forgotten])
    return portion.until


def forget_windows(connection: sa.Connection, stored: StoredProgress, _now_ms: int, after: Place) -> Place:
    """Those of the next portion that no evaluation asks for. Returns as `forget_series` does, after which it comes."""
    portion = _portion(connection, _WINDOW, after)
    is_used = sa.or_(_has_same_key(_PART, _WINDOW), _has_same_key(_SERIES, _WINDOW))
    from_ms = _needed_from(stored.delay_ms, stored.evaluated_to_ms)
    needed = sa.or_(sa.and_(_SUB.c.function == "last", is_used), _WINDOW.c.window_start >= from_ms)
    own = sa.and_(_SUB.c.id == _WINDOW.c.sub_expression_id, _SUB.c.windows == _WINDOW.c.windows)
    connection.execute(_WINDOW.delete().where(*portion.conditions, ~sa.exists().where(own, needed)))
    return portion.until


def _needed_from(delay_ms: int, evaluated_to_ms: int) -> sa.ColumnElement[int]:
    """`needed_from_ms` of a row of sub-expressions."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    return (sa.literal(evaluated_to_ms - delay_ms, sa.BigInteger()) // length_ms + 1 - _SUB.c.periods) * length_ms


def _portion(connection: sa.Connection, table: sa.Table, after: Place) -> Portion:
    key = table.primary_key.columns
    rest = sa.select(*key).where(*Portion(table, after, None).conditions)
    last = connection.execute(rest.order_by(*key).offset(PORTION_ROWS - 1).limit(1)).one_or_none()
    return Portion(table, after, None if last is None else tuple(last))


def _within(sub_expression_id: sa.ColumnElement[str], portion: Portion) -> list[Condition]:
    """The sub-expressions of the portion: the first column of its key."""
    bounds = [] if portion.after is None else [sub_expression_id >= portion.after[0]]
    return bounds if portion.until is None else [*bounds, sub_expression_id <= portion.until[0]]


def _key(table: sa.Table) -> sa.Tuple:
    return sa.tuple_(*table.primary_key.columns)


def _literal(table: sa.Table, key: tuple[Any, ...]) -> sa.Tuple:
    columns = table.primary_key.columns
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(key, columns, strict=True)))


def _has_same_key(table: sa.FromClause, other: sa.Table) -> sa.ColumnElement[bool]:
    """Whether ``table`` has a row of the sub-expression and match of a row of ``other``."""
    same = (table.c[name] == other.c[name] for name in ("sub_expression_id", "match_key"))
    return sa.select(table.c.sub_expression_id).where(*same).correlate(other).exists()
