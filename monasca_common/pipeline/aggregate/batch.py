# SPDX-License-Identifier: Apache-2.0
"""Computes aggregates of periods from metrics, counting each record once.

A batch is a range of offsets of each partition, from the stored offset to the end of the log. Executors turn it into
partials and stage them. One transaction merges the partials, advances the offsets and marks the changed periods, which
are then published. There is no checkpoint: after any crash the next batch begins at the stored offsets.

One pass decodes each record and copies it to every specification that selects it. One shuffle by (specification,
window, group) brings the partials of a key together. Each task folds its records before the shuffle, so that the
shuffle moves groups, not records. The driver computes a small batch without Spark. Backfill shares this code.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.aggregate import periods, usage_table
from monasca_common.pipeline.aggregate.partials import Accumulator, Partial, PartialKey, group_text, merged
from monasca_common.pipeline.aggregate.periods import Closing, Period, PeriodPublisher
from monasca_common.pipeline.aggregate.records import Group, RecordReader
from monasca_common.pipeline.aggregate.usage_table import Retention
from monasca_common.pipeline.errors import MALFORMED, NotAggregated, Rejection
from monasca_common.pipeline.jobs.durations import StageSeconds
from monasca_common.pipeline.jobs.fenced_batch import FencedBatches
from monasca_common.pipeline.jobs.job import JobProgress
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.arrow import OnRejected, arrow_schema, report_rejected, row_batches
from monasca_common.pipeline.spark.counts import OnCounts, TaskCounts, greatest
from monasca_common.pipeline.spark.rejected import RejectedPublisher
from monasca_common.pipeline.spark.schemas import EnvelopePart, envelope_parts, readable
from monasca_common.pipeline.spark.staging import BatchStaging, StagedAttempts, StagingTable
from monasca_common.pipeline.specification.specification import Specifications
from monasca_common.pipeline.windows import TimeBounds
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql.tables import aggregate_staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_READING = (("timestamp", "double"), ("partition", "int"), ("offset", "long"), ("value", "double"))
_ENDS = tuple((f"{end}_{name}", kind) for end in ("oldest", "latest") for name, kind in _READING)
PARTIALS = (
    *(("specification", "string"), ("window_start", "long"), ("group_values", "string"), ("record_count", "long")),
    *(("sums", "array<double>"), ("least", "double"), ("greatest", "double")),
    *_ENDS,
)
_STAGED = (  # the columns of `usage_table.STAGED`
    *(("specification", "string"), ("window_start", "long"), ("group_id", "binary"), ("group_values", "string")),
    *(("record_count", "long"), ("sums", "string"), ("least", "double"), ("greatest", "double")),
    *_ENDS,
)
KEY = ("specification", "window_start", "group_values")


class Aggregation:
    """One driver of the job. Its caller repeats `step`, which after an error continues from the committed state."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AggregateSettings,
        topic: SourceTopic,
        offset_store: OffsetStore,
        publisher: PeriodPublisher,
        clock: Clock | None = None,
    ) -> None:
        self._publisher = publisher
        self._clock = clock or SystemClock()
        self._partials = StagedPartials(spark, settings, offset_store, self._clock)
        stream = settings.stream
        self._batches = FencedBatches(spark, "aggregate", stream, settings.limits, topic, offset_store, self._clock)
        self._rejected = RejectedPublisher.of(stream, NotAggregated)
        self._retention = Retention(offset_store, settings.publisher.job, settings.retention_days * DAY_MS)

    def step(self) -> JobProgress:
        """Compute the next batch, if any, and publish the periods that are due.

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
        # A turn without records does not count as a batch, because its duration would distort those of batches.
        seconds = timing.seconds if batch.done or published[periods.PERIODS] else {}
        return batch.plus(JobProgress(results=published, stage_seconds=seconds))

    def _stage(self, records: DataFrame | DriverRecords, batch: str, counts: TaskCounts) -> StagedAttempts:
        return self._partials.stage(records, batch, counts, self._rejected)

    def _merge(self, connection: sa.Connection, staged: StagedAttempts) -> int:
        groups = self._partials.merge(connection, staged)
        self._partials.clear(connection, staged.batch)
        return groups


class StagedPartials:
    """Computes, stages and merges the partials of one job."""

    def __init__(
        self, spark: SparkSession, settings: AggregateSettings, offset_store: OffsetStore, clock: Clock
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._staging = BatchStaging(spark, settings.stream, offset_store)
        self._closing = Closing(settings.specifications, settings.slack_seconds * 1000)

    def stage(
        self,
        records: DataFrame | DriverRecords,
        batch: str,
        counts: TaskCounts,
        on_rejected: OnRejected,
        windows: tuple[int, int] | None = None,
    ) -> StagedAttempts:
        """Compute and stage partials of ``records`` (rows of the connector, or records of the driver). ``windows``: a
        half-open range; if given, only the connector's records in these windows count.
        """
        settings = self._settings
        bounds = TimeBounds.around(self._clock.time_ms(), retention_ms=settings.retention_days * DAY_MS)
        condition = "true"
        if windows is not None:
            condition = f"window_start >= {windows[0]} AND window_start < {windows[1]}"
            # Records whose retention ends in the meantime still count, because the replaced windows contain them.
            bounds = replace(bounds, oldest_ms=min(bounds.oldest_ms, windows[0]))
        decoder = functools.partial(
            RecordDecoder, pickle.dumps(settings.specifications), bounds, on_rejected, counts.adder()
        )
        return self._staging.stage(records, batch, decoder, STAGING, condition=condition)

    def merge(self, connection: sa.Connection, staged: StagedAttempts) -> int:
        """Merge the staged partials into the stored ones, in the transaction that stores the offsets. Return the number
        of groups.

        Raises `StagingLost`.
        """
        windows = usage_table.staged_windows(connection, staged)
        rows = sum(windows.values())
        staged.check(rows)
        usage_table.merge(connection, self._settings.publisher.job, staged)
        self.touch(connection, periods.periods_of(self._settings.specifications, windows))
        return rows

    def touch(self, connection: sa.Connection, changed: Iterable[Period]) -> None:
        """Mark the periods as changed."""
        periods.touch(connection, self._settings.publisher.job, changed, self._closing, self._clock.time_ms())

    def clear(self, connection: sa.Connection, batch: str) -> None:
        """Remove the staged partials of a merged batch."""
        staging.clear(connection, aggregate_staging, batch, self._clock.time_ms())


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Computes partials of records on executors."""

    specifications: bytes
    bounds: TimeBounds
    on_rejected: OnRejected
    on_counts: OnCounts
    envelopes: EnvelopeReader = field(default_factory=EnvelopeReader)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader, accumulator = _reader(self.specifications), Accumulator()
        for batch in readable(batches, self.envelopes):
            for part in envelope_parts(batch, self.envelopes):
                self._add(part, reader, accumulator)
        yield from partial_batches(accumulator.partials())

    def _add(self, part: EnvelopePart, reader: RecordReader, accumulator: Accumulator) -> None:
        records = reader.read(part.values, self.bounds)
        records.rejected.update({index: Rejection(MALFORMED, str(error)) for index, error in part.errors.items()})
        partitions, offsets = part.numbers("partition"), part.numbers("offset")
        accumulator.add(records, partitions, offsets)
        rejected = report_rejected(self.on_rejected, partitions, offsets, records.rejected)
        newest_ms = greatest([partitions[index] for index in records.indices], records.timestamps_ms)
        self.on_counts(len(records.indices), rejected, newest_ms, records.non_finite)


def merged_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield one `usage_table.staged_row` per key."""
    for (specification, window_ms, (group,)), partial in merged(partials_of(batches)).items():
        yield usage_table.staged_row(specification, window_ms, group, partial)


#: The table in which partials are staged.
STAGING = StagingTable("aggregate_staging", PARTIALS, KEY, _STAGED, merged_rows)


@functools.lru_cache(maxsize=2)
def _reader(specifications: bytes) -> RecordReader:
    """Return the reader of this worker process. The next batch reuses its caches."""
    known: Specifications = pickle.loads(specifications)
    return RecordReader(known)


def partial_batches(partials: Iterable[tuple[PartialKey, Partial]]) -> Iterator[pa.RecordBatch]:
    rows = ((key.specification_id, key.window_ms, group_text(key.group), *one.as_row()) for key, one in partials)
    yield from row_batches(rows, arrow_schema(PARTIALS))


def partials_of(
    batches: Iterable[pa.RecordBatch], group_of: Callable[[str], Group] = lambda text: (text,)
) -> Iterator[tuple[PartialKey, Partial]]:
    """Yield the partials with their keys. ``group_of`` parses the text of a group; by default, the text is the only
    column."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for specification, window_ms, group, *row in zip(*columns, strict=True):
            yield PartialKey(specification, window_ms, group_of(group)), Partial.of_row(row)
