# SPDX-License-Identifier: Apache-2.0
"""How far an evaluator is: one row, which every transaction of it holds. So its merges and its rounds are in one order,
and a second evaluator, or one that was frozen, is `EvaluatorFenced`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.evaluation import Standstill
from monasca_common.pipeline.errors import EvaluatorFenced
from monasca_common.storage.sql.tables import alarm_evaluator


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """Times are in ms. ``delay_ms``: windows that ended so long before ``evaluated_to_ms`` are decided.
    ``round_to_ms``: of the round that is under way; ``cursor``: the last alarm of it that is done. ``seen_ms``: the
    greatest horizon. ``horizons_ms``: by partition of the topic ``topic_id``."""

    evaluated_to_ms: int
    delay_ms: int
    round_to_ms: int | None = None
    cursor: str = ""
    seen_ms: int = 0
    horizons_ms: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    standstills: tuple[Standstill, ...] = ()
    topic_id: str | None = None

    def delayed(self, delay_ms: int) -> StoredProgress:
        """With another delay: the same windows are decided."""
        return replace(self, evaluated_to_ms=self.evaluated_to_ms - self.delay_ms + delay_ms, delay_ms=delay_ms)


def load(connection: sa.Connection, job: str) -> StoredProgress | None:
    """None before the first batch."""
    row = connection.execute(sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job)).one_or_none()
    return None if row is None else _progress(row)


def hold(connection: sa.Connection, job: str, stored: StoredProgress | None) -> None:
    """Lock the row until the transaction ends. Raises `EvaluatorFenced` unless it is as ``stored``."""
    statement = sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job).with_for_update()
    row = connection.execute(statement).one_or_none()
    # All of it: a merge moves horizons and standstills alone.
    if (None if row is None else _progress(row)) != stored:
        raise EvaluatorFenced(job)


def save(connection: sa.Connection, job: str, new: StoredProgress) -> None:
    """Within the transaction that holds the row."""
    row = _row(new)
    updated = connection.execute(alarm_evaluator.update().where(alarm_evaluator.c.job == job).values(row))
    if not updated.rowcount:
        connection.execute(alarm_evaluator.insert().values(row | {"job": job}))


def adopt_delay(connection: sa.Connection, job: str, delay_ms: int) -> None:
    """Of a row that an older program wrote, the delay is that of the configuration."""
    own = (alarm_evaluator.c.job == job, alarm_evaluator.c.delay.is_(None))
    if connection.execute(sa.select(alarm_evaluator.c.job).where(*own)).one_or_none() is not None:
        connection.execute(alarm_evaluator.update().where(*own).values(delay=delay_ms))


def _progress(row: sa.Row[Any]) -> StoredProgress:
    return StoredProgress(
        row.evaluated_to,
        row.delay or 0,  # empty until `adopt_delay`
        row.round_to,
        row.cursor,
        row.seen,
        {int(partition): horizon_ms for partition, horizon_ms in row.horizons.items()},
        tuple(Standstill(*each) for each in row.standstills),
        row.topic_id,
    )


def _row(progress: StoredProgress) -> dict[str, Any]:
    return {
        "evaluated_to": progress.evaluated_to_ms,
        "delay": progress.delay_ms,
        "round_to": progress.round_to_ms,
        "cursor": progress.cursor,
        "seen": progress.seen_ms,
        "horizons": {str(partition): horizon_ms for partition, horizon_ms in progress.horizons_ms.items()},
        "standstills": [[each.start_ms, each.end_ms, each.known_from_ms] for each in progress.standstills],
        "topic_id": progress.topic_id,
    }
