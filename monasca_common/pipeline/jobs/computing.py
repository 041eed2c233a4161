# SPDX-License-Identifier: Apache-2.0
"""What a stream's batch and a backfill have in common: records to staged partials, and these to what is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock
from monasca_common.pipeline import outbox, usage_table
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.outbox import Closing, Period
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.spark import partial_frames, staging
from monasca_common.pipeline.spark.counts import Counts
from monasca_common.pipeline.spark.partial_frames import OnRejected
from monasca_common.pipeline.spark.staging import Staged
from monasca_common.pipeline.windows import TimeBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000


class Computing:
    """Of one job's specifications."""

    def __init__(self, spark: SparkSession, settings: AggregateSettings, ledger: Ledger, clock: Clock) -> None:
        self._spark = spark
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._closing = Closing(settings.specifications, settings.slack_seconds * 1000)
        self._tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)

    def stage(
        self,
        records: DataFrame,
        batch: str,
        counts: Counts,
        on_rejected: OnRejected,
        windows: tuple[int, int] | None = None,
    ) -> Staged:
        """``records``: rows of the connector. ``windows``: only those that start in this half-open range."""
        settings = self._settings
        bounds = TimeBounds.around(self._clock.time_ms(), retention_ms=settings.retention_days * DAY_MS)
        if windows is not None:
            # What retention passes meanwhile is wanted all the same: it stands in what these windows replace.
            bounds = replace(bounds, oldest_ms=min(bounds.oldest_ms, windows[0]))
        partials = partial_frames.partials(records, settings.specifications, bounds, on_rejected, counts.adder())
        if windows is not None:
            start = partials["window_start"]
            partials = partials.where((start >= windows[0]) & (start < windows[1]))
        together = partial_frames.together(partials, self._tasks)
        return staging.stage(together, self._ledger, settings.stream.connection, batch)

    def merge(self, connection: sa.Connection, batch: str, staged: Staged) -> int:
        """Add what is staged to what is known, within the transaction that accounts for it; how many groups.

        Raises `StagingLost`.
        """
        windows = usage_table.staged_windows(connection, batch, staged.attempts)
        rows = sum(windows.values())
        if rows != staged.rows:
            raise StagingLost(f"{staged.rows} rows were staged for a batch, and {rows} are there")
        usage_table.merge(connection, self._settings.publisher.job, batch, staged.attempts)
        self.touch(connection, outbox.periods_of(self._settings.specifications, windows))
        return rows

    def touch(self, connection: sa.Connection, periods: Iterable[Period]) -> None:
        """These have changed."""
        outbox.touch(connection, self._settings.publisher.job, periods, self._closing, self._clock.time_ms())

    def clear(self, connection: sa.Connection, batch: str) -> None:
        """What was staged is merged."""
        usage_table.clear(connection, batch, self._clock.time_ms())
