# SPDX-License-Identifier: Apache-2.0
"""Deletes windows and series that no evaluation needs, in portions. Each portion is one transaction, so a change of a
definition waits for at most one portion.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from monasca_common.alarms import alarm_metrics
from monasca_common.alarms.database import Condition
from monasca_common.pipeline.evaluate import definitions, watermark
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql import tables

PORTION = 100
"""The maximum number of sub-expressions whose rows are deleted in one transaction."""
MOST_ROWS = 20_000
"""The maximum number of rows that a statement deletes. If there are more, another transaction follows."""
_EVERY_MS = 300_000
_SUB, _WINDOW, _SERIES, _PART = (
    tables.alarm_sub_expression,
    tables.alarm_window,
    tables.alarm_series,
    tables.alarm_part,
)


class Cleanup:
    """Deletes windows that no evaluation needs, and series without a measurement in the last day."""

    def __init__(self, offset_store: OffsetStore, job: str) -> None:
        self._offset_store = offset_store
        self._job = job
        self._ran_ms = 0

    def run(self, now_ms: int) -> None:
        """Delete such rows, unless the last run was less than five minutes ago. Raises `EvaluatorFenced`."""
        if abs(now_ms - self._ran_ms) < _EVERY_MS:
            return
        with self._offset_store.reading() as connection:
            ids = connection.scalars(sa.select(_SUB.c.id).order_by(_SUB.c.id)).all()
        with self._offset_store.successive() as writing:
            for start in range(0, len(ids), PORTION):
                some, is_left = ids[start : start + PORTION], True
                while is_left:
                    with writing() as connection:
                        # Avoid a deadlock: deletions of definitions and alarms lock the rows in a different order.
                        definitions.lock_version(connection)
                        stored = watermark.load(connection, self._job)
                        if stored is None:
                            return
                        watermark.hold(connection, self._job, stored)
                        is_left = delete_series(connection, some, now_ms) or delete_windows(connection, some, stored)
        self._ran_ms = now_ms


def delete_series(connection: sa.Connection, sub_expression_ids: Sequence[str], now_ms: int) -> bool:
    """Delete the series that were not seen for a day. Keep the last series of an alarm, so that the alarm's values
    remain known. Return whether more such series may remain."""
    old = (_SERIES.c.sub_expression_id.in_(sub_expression_ids), _SERIES.c.seen < now_ms - DAY_MS)
    # Two statements are used, because with OR the database would search for each row separately.
    count = connection.execute(_delete(_SERIES, *old, ~_has_same_key(_PART, _SERIES))).rowcount
    # The alarms are selected once, because SQLite would otherwise scan all series of the alarm for each series.
    seen = _SERIES.alias()
    lasting = sa.select(seen.c.sub_expression_id, seen.c.match_key).where(
        seen.c.sub_expression_id.in_(sub_expression_ids), seen.c.seen >= now_ms - DAY_MS
    )
    has_lasting = sa.tuple_(_SERIES.c.sub_expression_id, _SERIES.c.match_key).in_(lasting)
    names = ("sub_expression_id", "match_key", "series_id")
    statement = _delete(_SERIES, *old, has_lasting).returning(*(_SERIES.c[name] for name in names))
    deleted = connection.execute(statement).all()
    alarm_metrics.forget_metrics(connection, [row._asdict() for row in deleted])
    return max(count, len(deleted)) == MOST_ROWS


def delete_windows(connection: sa.Connection, sub_expression_ids: Sequence[str], stored: EvaluatorState) -> bool:
    """Delete the windows that no evaluation needs. Call `delete_series` first. Return whether more such windows may
    remain."""
    is_used = sa.or_(_has_same_key(_PART, _WINDOW), _has_same_key(_SERIES, _WINDOW))
    from_ms = _needed_from(stored.delay_ms, stored.evaluated_to_ms)
    needed = sa.or_(sa.and_(_SUB.c.function == "last", is_used), _WINDOW.c.window_start >= from_ms)
    own = sa.and_(_SUB.c.id == _WINDOW.c.sub_expression_id, _SUB.c.windows == _WINDOW.c.windows)
    is_own = _WINDOW.c.sub_expression_id.in_(sub_expression_ids)
    return connection.execute(_delete(_WINDOW, is_own, ~sa.exists().where(own, needed))).rowcount == MOST_ROWS


def _delete(table: sa.Table, *conditions: Condition) -> sa.Delete:
    """Delete at most `MOST_ROWS` of the rows that meet the conditions."""
    key = table.primary_key.columns
    some = sa.select(*key).where(*conditions).limit(MOST_ROWS)
    return table.delete().where(sa.tuple_(*key).in_(some))


def _needed_from(delay_ms: int, evaluated_to_ms: int) -> sa.ColumnElement[int]:
    """Return `needed_from_ms` of a row of sub-expressions."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    return (sa.literal(evaluated_to_ms - delay_ms, sa.BigInteger()) // length_ms + 1 - _SUB.c.periods) * length_ms


def _has_same_key(table: sa.FromClause, other: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that ``table`` has a row with the same sub-expression and match as a row of ``other``."""
    same = (table.c[name] == other.c[name] for name in ("sub_expression_id", "match_key"))
    return sa.select(table.c.sub_expression_id).where(*same).correlate(other).exists()
