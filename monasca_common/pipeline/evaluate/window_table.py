# SPDX-License-Identifier: Apache-2.0
"""Partials of windows in the database: staged, checked against the definitions, and merged into the stored windows.

Merging is one statement, the same on PostgreSQL and SQLite: counts are added, sums and readings are concatenated, and
what becomes long is rewritten exactly in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from monasca_common.alarms.partial_text import readings_of, readings_text, sums_of, sums_text
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.models.readings import Reading
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.evaluate.folding import FoldedRow
from monasca_common.pipeline.evaluate.matching import ActiveSubExpression
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql.tables import (
    alarm_changed,
    alarm_part,
    alarm_staging,
    alarm_sub_expression,
    alarm_window,
)

#: A staged row that is older than this was left by a crash.
ABANDONED_MS = 86_400_000
#: Sums and readings of more entries than these are rewritten.
MOST_FLOATS, MOST_READINGS = 32, 128
_KEY = ("sub_expression_id", "match_key", "window_start")
_PARTIAL = ("record_count", "sums", "least", "greatest", "newest", "readings")
_ROWS_AT_ONCE = 1_000


def insert(connection: sa.Connection, batch: str, attempt: int, now_ms: int, rows: Iterable[tuple[Any, ...]]) -> None:
    """Stage rows, as `FoldedRow` has them, in a database that executors do not reach."""
    fixed = {"batch": batch, "attempt": attempt, "staged": now_ms}
    names = FoldedRow._fields
    connection.execute(alarm_staging.insert(), [fixed | dict(zip(names, row, strict=True)) for row in rows])


def of_batch(batch: str, staged: StagedAttempts) -> tuple[sa.ColumnElement[bool], ...]:
    """The condition of the staged rows that count."""
    return alarm_staging.c.batch == batch, alarm_staging.c.attempt.in_(staged.attempts)


def check(connection: sa.Connection, batch: str, staged: StagedAttempts) -> None:
    """Raises `StagingLost`."""
    rows = connection.execute(
        sa.select(sa.func.count()).select_from(alarm_staging).where(*of_batch(batch, staged))
    ).scalar_one()
    if rows != staged.rows:
        raise StagingLost(f"{staged.rows} rows were staged for a batch, and {rows} are there")


def sub_expression_ids(connection: sa.Connection, batch: str, staged: StagedAttempts) -> list[str]:
    """Whose rows are staged, in order."""
    id_ = alarm_staging.c.sub_expression_id
    return list(connection.execute(sa.select(id_).where(*of_batch(batch, staged)).distinct().order_by(id_)).scalars())


def leave_out_changed(connection: sa.Connection, batch: str, staged: StagedAttempts) -> None:
    """Remove staged rows whose sub-expression is gone, and windows of another generation than its present one."""
    sub, row = alarm_sub_expression.c, alarm_staging.c
    fits = sa.or_(row.series_id.is_not(None), row.windows == sub.windows)
    known = sa.select(sub.id).where(sub.id == row.sub_expression_id, fits).exists()
    connection.execute(alarm_staging.delete().where(*of_batch(batch, staged), ~known))


def merge(
    connection: sa.Connection, batch: str, staged: StagedAttempts, active: Mapping[str, ActiveSubExpression]
) -> None:
    """Add the staged windows to the stored ones. Those of an older generation are replaced."""
    names = (*_KEY, "windows", *_PARTIAL)
    is_window = alarm_staging.c.window_start.is_not(None)
    source = sa.select(*(alarm_staging.c[name] for name in names)).where(*of_batch(batch, staged), is_window)
    adding = conflict_insert(connection, alarm_window).from_select(list(names), source)
    known, added = alarm_window.c, adding.excluded
    connection.execute(adding.on_conflict_do_update(index_elements=list(_KEY), set_=_sum_of(known, added)))
    _shorten(connection, batch, staged, active)


def conflict_insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An insert that may say what becomes of a row that is there."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def clear(connection: sa.Connection, batch: str, now_ms: int) -> None:
    """Remove what is staged for ``batch``, and what crashes left more than a day ago."""
    table = alarm_staging.c
    connection.execute(alarm_staging.delete().where(sa.or_(table.batch == batch, table.staged < now_ms - ABANDONED_MS)))


def _sum_of(known: Any, added: Any) -> dict[str, Any]:
    """The new value of each column where the window is stored already."""
    merged = {
        "record_count": known.record_count + added.record_count,
        "sums": known.sums + " " + added.sums,
        "readings": known.readings + " " + added.readings,
        "least": sa.case((added.least < known.least, added.least), else_=known.least),
        "greatest": sa.case((added.greatest > known.greatest, added.greatest), else_=known.greatest),
        "newest": sa.case((added.newest > known.newest, added.newest), else_=known.newest),
    }
    is_anew = added.windows != known.windows
    return {"windows": added.windows} | {
        name: sa.case((is_anew, added[name]), else_=value) for name, value in merged.items()
    }


def _shorten(
    connection: sa.Connection, batch: str, staged: StagedAttempts, active: Mapping[str, ActiveSubExpression]
) -> None:
    """Rewrite long sums and readings of the windows that were just merged."""
    window = alarm_window.c
    same = [window[name] == alarm_staging.c[name] for name in _KEY]
    is_long = sa.or_(_spaces(window.sums) >= MOST_FLOATS, _spaces(window.readings) >= MOST_READINGS)
    of_part = (alarm_part.c[name] == window[name] for name in ("sub_expression_id", "match_key"))
    is_waiting = sa.exists().where(alarm_part.c.alarm_id == alarm_changed.c.alarm_id, *of_part)
    columns = [window[name] for name in (*_KEY, *_PARTIAL)]
    long = (
        sa.select(*columns, alarm_staging.c.readings, is_waiting)
        .join(alarm_staging, sa.and_(*same))
        .where(*of_batch(batch, staged), is_long)
    )
    rows = connection.execute(long).all()
    where = (window[name] == sa.bindparam(f"of_{name}") for name in _KEY)
    statement = alarm_window.update().where(*where)
    written = statement.values(sums=sa.bindparam("exact_sums"), readings=sa.bindparam("fewer_readings"))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        connection.execute(written, [_shortened(row, active) for row in some if row[0] in active])


def _shortened(row: Sequence[Any], active: Mapping[str, ActiveSubExpression]) -> dict[str, Any]:
    key = {f"of_{name}": value for name, value in zip(_KEY, row, strict=False)}
    count, sums, least, greatest, newest, readings, added, is_waiting = row[len(_KEY) :]
    sub, found = active[row[0]].expression, readings_of(readings)
    if sub.function == "last":
        if not is_waiting:
            found = _unevaluated(found, readings_of(added))
        return key | {"exact_sums": "", "fewer_readings": readings_text(runs(sub, found))}
    exact = WindowPartial(count, sums_of(sums), least, greatest, newest, found).normalised(sub)
    return key | {"exact_sums": sums_text(exact.sums), "fewer_readings": readings_text(exact.decisive)}


def _unevaluated(found: Sequence[Reading], added: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return what was added, and the newest of the others: a new alarm begins with it."""
    return (*sorted(set(found).difference(added))[-1:], *added)


def _spaces(column: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
    return sa.func.length(column) - sa.func.length(sa.func.replace(column, " ", ""))
