# SPDX-License-Identifier: Apache-2.0
"""Runs batches of a job that keeps its state in the database: plan, stage on executors, merge, advance offsets.

A batch is a range of offsets of each partition, from the stored offset to the end of the log. One transaction merges
the staged rows and advances the offsets. There is no checkpoint: after any crash the next batch begins at the stored
offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.jobs.activity import LastBatch, note_batch
from monasca_common.pipeline.jobs.durations import EventTimeLags, StageSeconds
from monasca_common.pipeline.jobs.job import JobProgress
from monasca_common.pipeline.settings import BatchLimits, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.pipeline.source.ranges import RangePlan, below, plan
from monasca_common.pipeline.source.small_batch import DriverRecords, SmallBatches
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.counts import TaskCounts
from monasca_common.pipeline.spark.source_records import SourceRecords
from monasca_common.pipeline.spark.staging import StagedAttempts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Computes and stages the results of a batch. The arguments are its records, its name and its counts.
Stage: TypeAlias = "Callable[[DataFrame | DriverRecords, str, TaskCounts], StagedAttempts]"
#: Merges the staged rows, removes them from staging, and returns the number of groups.
Merge: TypeAlias = Callable[[sa.Connection, StagedAttempts], int]


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch to run. ``scan_ms``: a time just before the end offsets of the partitions were read."""

    source: Source
    scan_ms: int
    range_plan: RangePlan


class FencedBatches:
    """Plans and runs the batches of the job ``name``."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        stream: StreamSettings,
        limits: BatchLimits,
        topic: SourceTopic,
        offset_store: OffsetStore,
        clock: Clock,
    ) -> None:
        self._spark = spark
        self._name = name
        self._stream = stream
        self._lookback = limits.duplicates_lookback
        self._topic = topic
        self._offset_store = offset_store
        self._clock = clock
        self._records = SourceRecords(spark, stream, leaves_out=self._lookback > 0)
        self._small = SmallBatches(
            topic, limits.one_task_offsets, leaves_out=self._lookback > 0, tenant_header=stream.tenant_header
        )
        self._lags = EventTimeLags(stream.topic)

    def plan(self) -> PlannedBatch:
        """Plan the next batch. Raises `RecordsLost`, and the errors of Kafka and storage."""
        stream = self._stream
        source = Source(stream.group, stream.topic, self._topic.topic_id())
        scan_ms = self._clock.time_ms()
        most = stream.max_offsets_per_trigger
        return PlannedBatch(source, scan_ms, plan(self._topic, self._offset_store, source, most))

    def run(self, planned: PlannedBatch, timing: StageSeconds, stage: Stage, merge: Merge) -> JobProgress:
        """Compute the batch, if it has offsets. The results count ``records``, ``rejected`` records (dead letters),
        ``groups``, and skipped ``nan_or_infinite`` values and ``duplicates``. A batch that fails changes only staged
        rows.

        Raises `Fenced`, and the errors of Kafka, storage and Spark.
        """
        source, ranges, left = planned.source, planned.range_plan.ranges, planned.range_plan.behind
        if not ranges:
            results = dict.fromkeys(("records", "rejected", "nan_or_infinite", "groups", "duplicates"), 0)
            return JobProgress(0, left, results=results, lags=self._lags.after((), {}, self._clock.time_ms()))
        began = self._clock.monotonic()
        batch, known = uuid.uuid4().hex, self._below(source)
        offsets = sum(each.span for each in ranges)
        fail_point("pipeline.before_staging")
        with timing.stage("stage"):
            small = self._small.read(ranges, known, planned.range_plan.starts)
            if small is not None:
                counts, duplicates = TaskCounts(None), small.duplicates
                staged = stage(small, batch, counts)
            else:
                self._spark.sparkContext.setJobGroup(batch, f"{self._name}: {source.topic}, {offsets} offsets")
                with self._records.topic(ranges, known) as taken:
                    counts, duplicates = TaskCounts(self._spark), taken.duplicates
                    staged = stage(taken.records, batch, counts)
        fail_point("pipeline.after_staging")
        advance = self._offset_store.advance(source, _fenced(ranges, known), are_all=bool(known))
        with timing.stage("merge"), advance as connection:
            groups = merge(connection, staged)
            seconds = self._clock.monotonic() - began
            note_batch(connection, source, LastBatch(self._clock.time_ms(), seconds, offsets, counts.records.value))
            fail_point("pipeline.inside_transaction")
        fail_point("pipeline.after_commit")
        if small is not None:
            self._small.accounted(ranges, small)
        self._topic.commit({each.partition: each.end for each in ranges})
        lags = self._lags.after(ranges, counts.newest_ms.value, self._clock.time_ms())
        results = {
            "records": counts.records.value,
            "rejected": counts.rejected.value,
            "nan_or_infinite": counts.non_finite.value,
            "groups": groups,
            "duplicates": duplicates,
        }
        return JobProgress(offsets, left, results=results, lags=lags)

    def _below(self, source: Source) -> list[OffsetRange]:
        """Return the ranges below the stored offsets in which to search for earlier copies of messages."""
        if not self._lookback:
            return []
        firsts = {partition: extent.first for partition, extent in self._topic.extents().items()}
        return below(self._offset_store.next_offsets(source), firsts, self._lookback)


def _fenced(ranges: Sequence[OffsetRange], known: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return ``ranges``, and an empty range for every other partition that the batch searched. The offset of such a
    partition must not have advanced, because then another process may have counted a later copy. ``are_all`` covers new
    partitions."""
    moved = {each.partition for each in ranges}
    return [
        *ranges,
        *(OffsetRange(each.partition, each.end, each.end) for each in known if each.partition not in moved),
    ]
