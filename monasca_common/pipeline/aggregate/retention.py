# SPDX-License-Identifier: Apache-2.0
"""Removes the stored partials of periods that are older than the retention."""

from __future__ import annotations

import sqlalchemy as sa

from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.sql.tables import aggregate_period, aggregate_usage

_EVERY_MS = 3_600_000
_DAY_MS = 86_400_000


class Retention:
    """Applies the retention of one job to its stored partials."""

    def __init__(self, offset_store: OffsetStore, job: str, retention_ms: int) -> None:
        self._offset_store = offset_store
        self._job = job
        # A day more, because a record within retention may belong to a day that began before it.
        self._kept_ms = retention_ms + _DAY_MS
        self._applied_ms = 0

    def apply(self, now_ms: int) -> int:
        """Remove what is too old, at most once an hour. Returns how many groups of windows were removed."""
        if now_ms - self._applied_ms < _EVERY_MS:
            return 0
        self._applied_ms = now_ms
        oldest_ms = now_ms - self._kept_ms
        period, usage = aggregate_period.c, aggregate_usage.c
        forgotten = 0
        with self._offset_store.writing() as connection:
            specifications = connection.scalars(
                sa.select(period.specification).where(period.job == self._job).distinct()
            )
            # One after the other, because the key begins with them.
            for specification in specifications.all():
                old_usage = (usage.job == self._job, usage.specification == specification)
                old_period = (period.job == self._job, period.specification == specification)
                windows = aggregate_usage.delete().where(*old_usage, usage.window_start < oldest_ms)
                forgotten += connection.execute(windows).rowcount
                connection.execute(aggregate_period.delete().where(*old_period, period.period_start < oldest_ms))
        return forgotten
