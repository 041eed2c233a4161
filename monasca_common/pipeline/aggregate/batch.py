# SPDX-License-Identifier: Apache-2.0
"""Computes aggregates of periods from metrics, and counts each record once.

A batch is a range of offsets of each partition, from the stored offset to the end of the log. Executors turn it into
partials and stage them. One transaction merges the partials, advances the offsets and notes the periods that changed;
then these periods are published. There is no checkpoint: after any crash the next batch begins at the stored offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.aggregate import frames, periods, usage_table
from monasca_common.pipeline.aggregate.missing_columns import MissingColumns
from monasca_common.pipeline.aggregate.periods import Closing, Period, PeriodPublisher, Published
from monasca_common.pipeline.aggregate.retention import Retention
from monasca_common.pipeline.errors import NotAggregated, StagingLost
from monasca_common.pipeline.jobs.fenced_batch import BatchLimits, FencedBatches
from monasca_common.pipeline.jobs.timing import PartitionLag, StageSeconds
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.arrow import OnRejected
from monasca_common.pipeline.spark.counts import TaskCounts
from monasca_common.pipeline.spark.rejected import RejectedPublisher
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.pipeline.windows import TimeBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class AggregateReport:
    """The result of one batch. ``offsets``: how many the batch accounted for. ``behind``: how many are left.
    ``rejected``: dead letters. ``duplicates``: records that the batch left out. ``stage_seconds``, ``lags``: see
    `JobProgress`."""

    offsets: int = 0
    behind: int = 0
    records: int = 0
    rejected: int = 0
    groups: int = 0
    duplicates: int = 0
    published: Published = field(default_factory=Published)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    lags: tuple[PartitionLag, ...] = ()

    def results(self) -> dict[str, int]:
        return {
            "records": self.records,
            "rejected": self.rejected,
            "groups": self.groups,
            "duplicates": self.duplicates,
            "published_periods": self.published.periods,
            "published_messages": self.published.messages,
            "undelivered_messages": self.published.undelivered,
            **self.published.dropped,
        }


class Aggregation:
    """One driver of the job. Its caller repeats `step`. A `step` that raises changes nothing."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AggregateSettings,
        topic: SourceTopic,
        offset_store: OffsetStore,
        publisher: PeriodPublisher,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._topic = topic
        self._offset_store = offset_store
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._computing = Computing(spark, settings, offset_store, self._clock)
        self._batches = FencedBatches(
            spark,
            "aggregate",
            settings.stream,
            BatchLimits(settings.duplicates_lookback, settings.one_task_offsets),
            topic,
            offset_store,
            self._clock,
        )
        self._rejected = RejectedPublisher.of(settings.stream, NotAggregated)
        self._retention = Retention(offset_store, settings.publisher.job, settings.retention_days * DAY_MS)

    def step(self) -> AggregateReport:
        """Compute one batch, if there is one, and publish what is due.

        Raises `Fenced`, `RecordsLost`, and the errors of Kafka, storage and Spark.
        """
        timing = StageSeconds(self._clock)
        with timing.stage("plan"):
            planned = self._batches.plan()
        batch = self._batches.run(planned, timing, self._stage, self._merge)
        fail_point("pipeline.before_publishing")
        now_ms = self._clock.time_ms()
        with timing.stage("publish"):
            published = self._publisher.publish(now_ms)
        self._retention.apply(now_ms)
        # An idle turn is no batch, and its seconds would hide those of batches.
        seconds = timing.seconds if batch.offsets or published.periods else {}
        return AggregateReport(
            batch.offsets,
            planned.behind,
            batch.records,
            batch.rejected,
            batch.groups,
            batch.duplicates,
            published,
            seconds,
            batch.lags,
        )

    def _stage(self, records: DataFrame | DriverRecords, batch: str, counts: TaskCounts) -> StagedAttempts:
        return self._computing.stage(records, batch, counts, self._rejected)

    def _merge(self, connection: sa.Connection, batch: str, staged: StagedAttempts) -> int:
        groups = self._computing.merge(connection, batch, staged)
        self._computing.clear(connection, batch)
        return groups


class Computing:
    """Computes, stages and merges partials by the specifications of one job."""

    def __init__(
        self, spark: SparkSession, settings: AggregateSettings, offset_store: OffsetStore, clock: Clock
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._offset_store = offset_store
        self._clock = clock
        self._closing = Closing(settings.specifications, settings.slack_seconds * 1000)
        self._missing = MissingColumns(settings.specifications)
        self._tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)

    def stage(
        self,
        records: DataFrame | DriverRecords,
        batch: str,
        counts: TaskCounts,
        on_rejected: OnRejected,
        windows: tuple[int, int] | None = None,
    ) -> StagedAttempts:
        """Compute partials of ``records`` (rows of the connector, or records of the driver) and stage them.

        ``windows``: a half-open range; other windows of rows of the connector are left out.
        """
        settings = self._settings
        bounds = TimeBounds.around(self._clock.time_ms(), retention_ms=settings.retention_days * DAY_MS)
        if windows is not None:
            # Records that retention passes meanwhile still count: the windows that are replaced contain them.
            bounds = replace(bounds, oldest_ms=min(bounds.oldest_ms, windows[0]))
        decoding = frames.decoding(settings.specifications, bounds, on_rejected, counts.adder())
        if isinstance(records, DriverRecords):
            rows = frames.merged_rows(decoding(records.batches()))
            return staging.stage_rows(rows, frames.STAGING, self._offset_store, batch)
        partials = frames.partials(records, decoding)
        if windows is not None:
            start = partials["window_start"]
            partials = partials.where((start >= windows[0]) & (start < windows[1]))
        to_partials = frames.together(partials, self._tasks)
        return staging.stage(to_partials, frames.STAGING, self._offset_store, settings.stream.connection, batch)

    def merge(self, connection: sa.Connection, batch: str, staged: StagedAttempts) -> int:
        """Add the staged partials to the stored ones, in the transaction that accounts for them; return the number of
        groups.

        Raises `StagingLost`.
        """
        windows = usage_table.staged_windows(connection, batch, staged.attempts)
        rows = sum(windows.values())
        if rows != staged.rows:
            raise StagingLost(f"{staged.rows} rows were staged for a batch, and {rows} are there")
        self._missing.check(connection, batch, staged.attempts, (specification for specification, _ in windows))
        usage_table.merge(connection, self._settings.publisher.job, batch, staged.attempts)
        self.touch(connection, periods.periods_of(self._settings.specifications, windows))
        return rows

    def touch(self, connection: sa.Connection, changed: Iterable[Period]) -> None:
        """Note that these periods changed."""
        periods.touch(connection, self._settings.publisher.job, changed, self._closing, self._clock.time_ms())

    def clear(self, connection: sa.Connection, batch: str) -> None:
        """Remove the staged partials of a batch that is merged."""
        usage_table.clear(connection, batch, self._clock.time_ms())
