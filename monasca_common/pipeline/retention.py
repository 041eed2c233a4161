# SPDX-License-Identifier: Apache-2.0
"""What is known of periods that are long over is forgotten, now and then."""

from __future__ import annotations

import sqlalchemy as sa

from monasca_common.pipeline.ledger import Ledger
from monasca_common.storage.tables import aggregate_period, aggregate_usage

_EVERY_MS = 3_600_000
_DAY_MS = 86_400_000


class Retention:
    """Of one job."""

    def __init__(self, ledger: Ledger, job: str, retention_ms: int) -> None:
        self._ledger = ledger
        self._job = job
        # A day more: a record within retention may be of a day that began before it.
        self._kept_ms = retention_ms + _DAY_MS
        self._applied_ms = 0

    def apply(self, now_ms: int) -> int:
        """Once an hour; how many groups of windows were forgotten."""
        if now_ms - self._applied_ms < _EVERY_MS:
            return 0
        self._applied_ms = now_ms
        oldest_ms = now_ms - self._kept_ms
        period, usage = aggregate_period.c, aggregate_usage.c
        forgotten = 0
        with self._ledger.writing() as connection:
            specifications = connection.scalars(
                sa.select(period.specification).where(period.job == self._job).distinct()
            )
            # One after the other, for the key begins with them.
            for specification in specifications.all():
                old_usage = (usage.job == self._job, usage.specification == specification)
                old_period = (period.job == self._job, period.specification == specification)
                windows = aggregate_usage.delete().where(*old_usage, usage.window_start < oldest_ms)
                forgotten += connection.execute(windows).rowcount
                connection.execute(aggregate_period.delete().where(*old_period, period.period_start < oldest_ms))
        return forgotten
