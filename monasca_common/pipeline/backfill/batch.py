# SPDX-License-Identifier: Apache-2.0
"""Recomputes the windows of a past time range, and replaces their stored partials.

The stream (the job ``aggregate``) may run at the same time. A replaced window must contain every record up to the
stream's offsets, but no later record, because the stream adds later records itself. So backfill computes all records up
to the stream's offsets, locks these offsets, and replaces the stored windows. If the stream has advanced in the
meantime, backfill also computes the new records and retries the replacement.
"""

from __future__ import annotations

import functools
import logging
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.aggregate import periods, usage_table
from monasca_common.pipeline.aggregate.batch import StagedPartials
from monasca_common.pipeline.backfill.history import History
from monasca_common.pipeline.errors import BackfillStopped, Fenced, RecordsLost, Rejection
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.pipeline.source.ranges import below, share
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.counts import TaskCounts
from monasca_common.pipeline.spark.source_records import Distinct, SourceRecords
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.pipeline.windows import WINDOW_MS
from monasca_common.storage.retention import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Staging:
    """The rows that one run has staged. ``windows``: a half-open range of window starts. ``firsts``: the offset in each
    partition at which the search for copies begins."""

    windows: tuple[int, int]
    counts: TaskCounts
    batch: str = field(default_factory=lambda: uuid.uuid4().hex)
    staged: list[StagedAttempts] = field(default_factory=list)
    duplicates: int = 0
    firsts: Mapping[int, int] = field(default_factory=dict)


class Backfill:
    """Recomputes a past time range. ``margin_ms``: the maximum time by which Kafka's timestamp can precede the event
    time, if only Kafka is read. ``history``: the archive, which is read before Kafka."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AggregateSettings,
        topic: SourceTopic,
        offset_store: OffsetStore,
        margin_ms: int,
        history: History | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._topic = topic
        self._offset_store = offset_store
        self._margin_ms = margin_ms
        self._history = history
        self._clock = clock or SystemClock()
        self._most = settings.stream.max_offsets_per_trigger
        self._records = SourceRecords(spark, settings.stream, leaves_out=settings.limits.duplicates_lookback > 0)
        self._partials = StagedPartials(spark, settings, offset_store, self._clock)

    def run(self, from_ms: int, to_ms: int, watcher: JobWatcher | None = None) -> JobProgress:
        """Compute and replace all windows that overlap [from_ms, to_ms). ``periods`` counts the periods to publish
        again. Raises `RecordsLost` if the range begins before the log or the retention, and `BackfillStopped`.
        """
        watcher = watcher or JobWatcher()
        windows = (from_ms // WINDOW_MS * WINDOW_MS, -(-to_ms // WINDOW_MS) * WINDOW_MS)
        stream = self._settings.stream
        source = Source(stream.group, stream.topic, self._topic.topic_id())
        self._check_range(source, windows[0])
        staging = _Staging(windows, TaskCounts(self._spark))
        read = self._archived(source, staging) or self._starts(source, staging)
        offsets = 0
        while True:
            stored = self._offset_store.next_offsets(source)
            # The stream itself will count the records after its offsets.
            read = {partition: min(read.get(partition, 0), end) for partition, end in stored.items()}
            shares = share({partition: end - read[partition] for partition, end in stored.items()}, self._most)
            ranges = [OffsetRange(each, read[each], read[each] + count) for each, count in sorted(shares.items())]
            if ranges:
                began = self._clock.monotonic()
                self._stage(ranges, read, staging)
                offsets += sum(shares.values())
                read |= {each.partition: each.end for each in ranges}
                watcher.tell(
                    JobProgress(offsets, sum(stored.values()) - sum(read.values()), self._clock.monotonic() - began)
                )
                if watcher.stop.is_set():
                    raise BackfillStopped("stopped before all records were read: no window was replaced")
                continue
            fail_point("backfill.after_staging")
            try:
                groups, periods = self._replace(source, read, staging)
            except Fenced:
                LOG.info("the stream has advanced; computing the records that it has read since")
                continue
            results = {
                "records": staging.counts.records.value,
                "groups": groups,
                "duplicates": staging.duplicates,
                "periods": periods,
            }
            return JobProgress(offsets, results=results)

    def _check_range(self, source: Source, from_ms: int) -> None:
        days = self._settings.retention_days
        if from_ms < self._clock.time_ms() - days * DAY_MS:
            raise RecordsLost(f"the range begins before the {days} days of retention_days: choose a later range")
        if not self._offset_store.next_offsets(source):
            raise RecordsLost(f"{source.group} has not read {source.topic} yet: run the job aggregate first")

    def _archived(self, source: Source, staging: _Staging) -> dict[int, int] | None:
        """Stage the archived records that the stream has counted. Return the offsets from which to read Kafka."""
        if self._history is None:
            return None
        stored = self._offset_store.next_offsets(source)
        records, next_offsets = self._history.records(*staging.windows, self._clock.time_ms())
        if records is not None:
            counted = [
                (records["partition"] == partition) & (records["offset"] < end) for partition, end in stored.items()
            ]
            self._spark.sparkContext.setJobGroup(staging.batch, f"backfill: {source.topic} from the archive")
            with self._records.archive(records.where(functools.reduce(operator.or_, counted))) as taken:
                self._compute(taken, staging)
        extents = self._topic.extents()
        for partition, extent in extents.items():
            if extent.first > next_offsets.get(partition, 0):
                raise RecordsLost(
                    f"{self._topic.name}/{partition}: the archive ends at offset {next_offsets.get(partition, 0)}, and "
                    f"the log begins at {extent.first}: the records in between are lost"
                )
        staging.firsts = {partition: extent.first for partition, extent in extents.items()}
        # Archived records after the stream's offsets are not staged: if the stream reads them in the meantime, they are
        # read from Kafka.
        return {partition: min(next_offsets.get(partition, 0), end) for partition, end in stored.items()}

    def _starts(self, source: Source, staging: _Staging) -> dict[int, int]:
        """Return the offset at which to start in each partition."""
        starts = self._topic.at_time(max(0, staging.windows[0] - self._margin_ms))
        for partition, extent in self._topic.extents().items():
            if 0 < extent.first >= starts[partition]:
                raise RecordsLost(
                    f"{source.topic}/{partition}: the log begins at offset {extent.first}, and earlier records may "
                    "belong to these windows: choose a later range, or backfill from the archive"
                )
        staging.firsts = starts
        return starts

    def _stage(self, ranges: Sequence[OffsetRange], read: Mapping[int, int], staging: _Staging) -> None:
        known = below(read, staging.firsts, self._settings.limits.duplicates_lookback)
        text = f"backfill: {self._topic.name}, {sum(each.span for each in ranges)} offsets"
        self._spark.sparkContext.setJobGroup(staging.batch, text)
        with self._records.topic(ranges, known) as taken:
            self._compute(taken, staging)

    def _compute(self, taken: Distinct, staging: _Staging) -> None:
        staged = self._partials.stage(taken.records, staging.batch, staging.counts, _passed_over, staging.windows)
        staging.staged.append(staged)
        staging.duplicates += taken.duplicates

    def _replace(self, source: Source, read: Mapping[int, int], staging: _Staging) -> tuple[int, int]:
        """Replace the windows. Raises `Fenced` unless all records up to the stream's offsets were read."""
        here = [OffsetRange(partition, offset, offset) for partition, offset in read.items()]
        specifications = self._settings.specifications
        ids = [transform.id for transform in specifications.transforms.values()]
        windows, batch = staging.windows, staging.batch
        job = self._settings.publisher.job
        with self._offset_store.advance(source, here, are_all=True) as connection:
            known = usage_table.known_windows(connection, job, ids, *windows)
            usage_table.remove(connection, job, ids, *windows)
            groups = sum(self._partials.merge(connection, each) for each in staging.staged)
            changed = periods.periods_of(specifications, known)
            self._partials.touch(connection, changed)
            self._partials.clear(connection, batch)
            fail_point("backfill.inside_transaction")
            changed |= periods.periods_of(specifications, usage_table.known_windows(connection, job, ids, *windows))
        return groups, len(changed)


def _passed_over(_partition: int, _rejected: Mapping[int, Rejection]) -> None:
    """Ignore rejected messages, which the stream has already published as dead letters."""
