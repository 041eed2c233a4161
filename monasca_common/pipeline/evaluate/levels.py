# SPDX-License-Identifier: Apache-2.0
"""How the evaluation of alarms stands, from the database: for ``pipeline status``, and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms import outbox
from monasca_common.alarms.definitions import STATES
from monasca_common.pipeline.evaluate import progress
from monasca_common.storage.sql.tables import alarm


@dataclass(frozen=True, slots=True)
class EvaluationLevels:
    """``evaluated_to_ms``: up to when alarms are evaluated; ``horizons_ms``: up to when the measurements of each
    partition are known. ``alarms``: how many are in each state. ``unpublished``: transitions in the outbox."""

    evaluated_to_ms: int
    horizons_ms: Mapping[int, int]
    alarms: Mapping[str, int]
    unpublished: int


def read(connection: sa.Connection, job: str) -> EvaluationLevels | None:
    """None before the first batch."""
    stored = progress.load(connection, job)
    if stored is None:
        return None
    counted = sa.select(alarm.c.state, sa.func.count()).group_by(alarm.c.state)
    alarms = dict.fromkeys(STATES, 0) | {row.state: row[1] for row in connection.execute(counted).all()}
    return EvaluationLevels(
        stored.evaluated_to_ms, stored.horizons_ms, alarms, outbox.count(connection, outbox.TRANSITION)
    )
