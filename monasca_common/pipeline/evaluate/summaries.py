# SPDX-License-Identifier: Apache-2.0
"""The stored summaries of sub-alarms with many periods: see `monasca_common.alarms.evaluation.WindowSummary`.

A summary holds until a measurement comes for a window that it replaces, or the sub-alarm gets the windows of further
series. The next evaluation then reads these windows once more.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from monasca_common.alarms.evaluation import MOST_VALUES, WindowSummary
from monasca_common.alarms.expression import SubExpression
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.pipeline.evaluate.window_table import of_batch
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql import tables

_STAGING, _PART, _SUB, _SUB_ALARM = (
    tables.alarm_staging,
    tables.alarm_part,
    tables.alarm_sub_expression,
    tables.sub_alarm,
)


def text_of(sub: SubExpression, summary: WindowSummary) -> str:
    """With what the windows were compared with, which a definition may change."""
    times = (summary.until_ms, summary.run_ms, summary.failed_ms, summary.measured_ms)
    return f"{sub.operator} {sub.threshold!r} {' '.join(map(str, times))}"


def summary_of(sub: SubExpression, text: str | None) -> WindowSummary | None:
    """``None`` if there is none, or one by another comparison."""
    operator, threshold, *times = (text or "none 0").split()
    if (operator, threshold) != (sub.operator, repr(sub.threshold)):
        return None
    return WindowSummary(*map(int, times))


def forget_late(connection: sa.Connection, batch: str, staged: StagedAttempts, stored: StoredProgress) -> None:
    """Remove the summaries of windows for which the batch has staged measurements."""
    same = sa.and_(*(_PART.c[name] == _STAGING.c[name] for name in ("sub_expression_id", "match_key")))
    # No summary reaches farther: see `summary_end_ms`.
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    summarised_ms = stored.evaluated_to_ms - stored.delay_ms - length_ms * MOST_VALUES
    late = (_SUB.c.periods > MOST_VALUES, _STAGING.c.window_start < summarised_ms)
    joined = _STAGING.join(_SUB, _SUB.c.id == _STAGING.c.sub_expression_id).join(_PART, same)
    columns = (_PART.c.alarm_id, _PART.c.sub_expression_id)
    query = sa.select(*columns).select_from(joined).where(*of_batch(batch, staged), *late)
    forget(connection, {(alarm_id, sub_id) for alarm_id, sub_id in connection.execute(query)})


def forget(connection: sa.Connection, sub_alarms: Iterable[tuple[str, str]]) -> None:
    """Remove the summaries of these: ids of alarms and of sub-expressions."""
    rows = [{"of_alarm": alarm_id, "of_sub": sub_id} for alarm_id, sub_id in sub_alarms]
    if rows:
        own = (
            _SUB_ALARM.c.alarm_id == sa.bindparam("of_alarm"),
            _SUB_ALARM.c.sub_expression_id == sa.bindparam("of_sub"),
        )
        connection.execute(_SUB_ALARM.update().where(*own).values(summary=None), rows)
