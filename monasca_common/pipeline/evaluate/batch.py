# SPDX-License-Identifier: Apache-2.0
"""Evaluates alarms, batch by batch: measurements are merged into windows, then due windows are evaluated.

Every transaction locks the evaluator's row, so merges and evaluation passes are serialized: an alarm created by a merge
is evaluated in the next pass, and a pass includes all measurements that were read before it.

Executors decode each record once, regardless of the number of definitions. Each task folds its records before the
shuffle, so that the shuffle moves windows and series, not records. The driver computes a small batch without Spark.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.numbers import GREATEST
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series
from monasca_common.pipeline.errors import MALFORMED, TOO_NEW, EvaluatorFenced, NotEvaluated, Rejection
from monasca_common.pipeline.evaluate import alarms, definitions, watermark, windows
from monasca_common.pipeline.evaluate.cleanup import Cleanup
from monasca_common.pipeline.evaluate.definitions import (
    DefinitionsSnapshot,
    IndexedSubExpression,
    MatchTarget,
    SubExpressionIndex,
)
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.evaluate.watermark import BUCKET_MS, Arrivals, EvaluatorState, Scan, SteadyTime
from monasca_common.pipeline.evaluate.windows import FoldedRow, FoldedSeries, WindowFold, merged_rows
from monasca_common.pipeline.jobs.durations import StageSeconds
from monasca_common.pipeline.jobs.fenced_batch import FencedBatches, PlannedBatch
from monasca_common.pipeline.jobs.job import UNDELIVERED, JobProgress
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.arrow import OnRejected, arrow_schema, numbers, report_rejected, row_batches
from monasca_common.pipeline.spark.counts import OnCounts, TaskCounts
from monasca_common.pipeline.spark.rejected import RejectedPublisher
from monasca_common.pipeline.spark.schemas import EnvelopePart, envelope_parts, readable
from monasca_common.pipeline.spark.staging import BatchStaging, StagedAttempts, StagingTable
from monasca_common.pipeline.windows import FUTURE_MS
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.sql.tables import alarm_staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: The columns of `FoldedRow`.
FOLDED = (
    *(("sub_expression_id", "string"), ("windows", "long"), ("match_key", "binary"), ("match_values", "string")),
    *(("window_start", "long"), ("record_count", "long"), ("sums", "string"), ("least", "double")),
    *(("greatest", "double"), ("newest", "double"), ("readings", "string")),
    *(("series_id", "binary"), ("dimensions", "string"), ("received", "long")),
)
KEY = ("sub_expression_id", "match_key", "window_start", "series_id")
_PLACE = ("partition", "offset", "unix_millis(timestamp) AS kafka_ms")
_MOST_REMEMBERED = 200_000
_RECENT = 100  # number of records whose times in Kafka show how far a partition was read
_TOO_NEW = Rejection(TOO_NEW, "metric.timestamp is too far in the future: is it in milliseconds?")

#: Called with the last offset in each partition and the time up to which it was read, and with the starts of the
#: buckets (`BUCKET_MS`) in which a record arrived.
OnArrivals = Callable[[Mapping[int, tuple[int, int]], Set[int]], None]


class Evaluation:
    """One driver of the job. Its caller repeats `step`. After an exception, the next `step` continues from the
    committed state."""

    def __init__(
        self,
        spark: SparkSession,
        settings: EvaluateSettings,
        topic: SourceTopic,
        offset_store: OffsetStore,
        publisher: TransitionPublisher,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._steady = SteadyTime(self._clock)
        stream = settings.stream
        self._batches = FencedBatches(spark, "evaluate", stream, settings.limits, topic, offset_store, self._clock)
        grace_ms = settings.outage_grace_seconds * 1000
        delay_ms = settings.delay_seconds * 1000
        self._fold = FoldStage(spark, settings, offset_store)
        self._passes = PassRunner(offset_store, stream.name, delay_ms, grace_ms, self._clock)
        self._merge = StagedMerge(stream.name, delay_ms, grace_ms, self._passes, self._clock)
        self._cleanup = Cleanup(offset_store, stream.name)
        self._publisher = publisher

    def step(self) -> JobProgress:
        """Merge one batch, if any, evaluate due alarms, and publish their transitions.

        Raises `Fenced`, `RecordsLost`, and the errors of Kafka, storage and Spark.
        """
        timing = StageSeconds(self._clock)
        with timing.stage("evaluate"):
            finished = self._passes.finish()
        with timing.stage("plan"):
            planned = self._batches.plan()
        scan, batch = self._batch(planned, self._steady.time_ms(planned.scan_ms), timing)
        self._steady.compare(scan.last_kafka_ms.values())
        with timing.stage("evaluate"):
            done = self._passes.run(scan).plus(finished)
        with timing.stage("publish"):
            published, undelivered = self._publisher.publish()
        self._cleanup.run(self._clock.time_ms())
        results = {
            **batch.results,
            "evaluated_alarms": done.alarms,
            "transitions": done.transitions,
            "published_transitions": published,
            UNDELIVERED: undelivered,
        }
        results["new_alarms"] = results.pop("groups")
        return replace(batch, results=results, stage_seconds=timing.seconds if batch.done or done.alarms else {})

    def _batch(self, planned: PlannedBatch, steady_ms: int, timing: StageSeconds) -> tuple[Scan, JobProgress]:
        # A forward step of the clock may be correct, for example after a suspended machine resumes; measurements since
        # the step are then not too new.
        latest_ms = max(planned.scan_ms, steady_ms) + FUTURE_MS
        ended, partitions = planned.range_plan.ended, frozenset(planned.range_plan.starts)
        scan = Scan(steady_ms, ended, partitions=partitions, topic_id=planned.source.topic_id)
        known: DefinitionsSnapshot

        def stage(records: DataFrame | DriverRecords, batch: str, counts: TaskCounts) -> StagedAttempts:
            nonlocal known, scan
            known, staged, arrivals = self._fold.stage(records, batch, counts, latest_ms)
            scan = replace(scan, last_kafka_ms=arrivals.last_ms, arrivals=arrivals.buckets)
            return staged

        def merge(connection: sa.Connection, staged: StagedAttempts) -> int:
            return self._merge.merge(connection, staged, known, scan)

        result = self._batches.run(planned, timing, stage, merge)
        return scan, result


class FoldStage:
    """Folds the records of a batch on executors, and stages the result."""

    def __init__(self, spark: SparkSession, settings: EvaluateSettings, offset_store: OffsetStore) -> None:
        self._spark = spark
        self._offset_store = offset_store
        self._staging = BatchStaging(spark, settings.stream, offset_store)
        self._rejected = RejectedPublisher.of(settings.stream, NotEvaluated)
        self._max_dimensions = settings.stream.max_dimensions
        self._known: DefinitionsSnapshot | None = None

    def stage(
        self,
        records: DataFrame | DriverRecords,
        batch: str,
        counts: TaskCounts,
        latest_ms: int,
    ) -> tuple[DefinitionsSnapshot, StagedAttempts, Arrivals]:
        """Return the definitions, the staged attempts, and the arrivals. ``latest_ms``: see `RecordFold`."""
        with self._offset_store.reading() as connection:
            known = self._known = definitions.load_snapshot(connection, self._known)
        portable = portable_definitions(known.sub_expressions, self._max_dimensions)
        arrivals = Arrivals(None if isinstance(records, DriverRecords) else self._spark)
        fold = partial(RecordFold, portable, latest_ms, self._rejected, counts.adder(), arrivals.adder())
        table = StagingTable("alarm_staging", FOLDED, KEY, FOLDED, partial(_merge_tasks, portable))
        return known, self._staging.stage(records, batch, fold, table, place=_PLACE), arrivals


class _Matcher:
    """The decoder and the index of a worker process, with a cache of the targets of series."""

    def __init__(self, sub_expressions: Sequence[IndexedSubExpression], max_dimensions: int) -> None:
        self.sub_expressions = {each.id: each for each in sub_expressions}
        self.decode = MetricDecoder(_MOST_REMEMBERED, max_dimensions=max_dimensions).decode_all
        self._index = SubExpressionIndex(sub_expressions)
        self._seen: Seen[bytes, tuple[MatchTarget, ...]] = Seen(_MOST_REMEMBERED)

    def targets(self, series: Series) -> tuple[MatchTarget, ...]:
        found = self._seen.find(series.id)
        if found is None:
            found = tuple(self._index.targets(series))
            self._seen.keep(series.id, found, 0)
        return found


@dataclass(frozen=True, slots=True)
class RecordFold:
    """Folds records on executors. ``definitions``: see `portable_definitions`. ``latest_ms``: the latest event time
    that is accepted."""

    definitions: bytes = field(repr=False)
    latest_ms: int
    on_rejected: OnRejected
    on_counts: OnCounts
    on_arrivals: OnArrivals
    envelopes: EnvelopeReader = field(default_factory=EnvelopeReader)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = _matcher(self.definitions)
        task = _TaskFold(matcher)
        for batch in readable(batches, self.envelopes):
            for part in envelope_parts(batch, self.envelopes):
                self._fold(task, part)
            self._report_arrivals(batch)
        yield from row_batches(task.windows.rows(), arrow_schema(FOLDED))

    def _fold(self, task: _TaskFold, part: EnvelopePart) -> None:
        partitions, offsets, kafka_ms = (part.numbers(name) for name in ("partition", "offset", "kafka_ms"))
        decoded = task.decode(part.values)
        errors = {**decoded.errors, **part.errors}
        rejected = {index: Rejection(MALFORMED, str(error)) for index, error in errors.items()}
        taken, non_finite, newest_ms = 0, 0, dict[int, float]()
        find, latest_ms = task.known.get, self.latest_ms
        for index, (series, at_ms, value, _, _) in zip(decoded.indices, decoded.rows, strict=True):
            folded = find(series.id)
            if folded is None:
                folded = task.folded(series)
            if not folded:
                continue
            time_ms, partition, received_ms = float(at_ms), partitions[index], kafka_ms[index]
            if time_ms > latest_ms:
                rejected[index] = _TOO_NEW
                continue
            if time_ms > newest_ms.get(partition, -1.0):
                newest_ms[partition] = time_ms
            if not -GREATEST <= value <= GREATEST:
                if value != value:  # NaN is not a measurement
                    non_finite += 1
                    continue
                value = math.copysign(GREATEST, value)
            reading = (time_ms, partition, offsets[index], value)
            for each in folded:
                if received_ms >= each.created_ms:
                    each.add(reading, received_ms)
                    taken += 1
        reported = report_rejected(self.on_rejected, partitions, offsets, rejected)
        self.on_counts(taken, reported, newest_ms, non_finite)

    def _report_arrivals(self, batch: pa.RecordBatch) -> None:
        partitions, offsets, kafka_ms = (numbers(batch, name) for name in ("partition", "offset", "kafka_ms"))
        arrived: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for partition, place in zip(partitions, zip(offsets, kafka_ms, strict=True), strict=True):
            arrived[partition].append(place)
        last = {partition: _last(sorted(places[-_RECENT:])) for partition, places in arrived.items()}
        self.on_arrivals(last, {each // BUCKET_MS * BUCKET_MS for each in kafka_ms})


def _last(places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the last offset, and the time up to which the partition was read: the time of the last record or, if a
    producer's clock is ahead of others, the median."""
    times_ms = [time_ms for _, time_ms in places]
    is_ahead = any(one - following > watermark.LONGEST_STEP_MS for one, following in pairwise(times_ms))
    return places[-1][0], median_low(times_ms) if is_ahead else times_ms[-1]


class _TaskFold:
    """The rows of one task. ``known``: the windows of series by id. Series without a definition are not kept, because
    there can be far more of them."""

    def __init__(self, matcher: _Matcher) -> None:
        self.decode = matcher.decode
        self.windows = WindowFold()
        self.known: dict[bytes, tuple[FoldedSeries, ...]] = {}
        self._targets = matcher.targets

    def folded(self, series: Series) -> tuple[FoldedSeries, ...]:
        """Return the windows of a series that is not ``known``."""
        found = tuple(self.windows.series(target, series) for target in self._targets(series))
        if found:
            self.known[series.id] = found
        return found


def portable_definitions(sub_expressions: Sequence[IndexedSubExpression], max_dimensions: int) -> bytes:
    """Pickle the arguments of `_Matcher`. Equal sub-expressions result in equal bytes, so a worker's cache remains
    valid for the next batch."""
    return pickle.dumps((sorted(sub_expressions, key=lambda each: each.id), max_dimensions))


def _merge_tasks(definitions: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[FoldedRow]:
    """Merge the folded rows of several tasks into one row for each key, on an executor."""
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    rows = (FoldedRow._make(row) for of_batch in columns for row in zip(*of_batch, strict=True))
    return merged_rows(rows, _matcher(definitions).sub_expressions)


@functools.lru_cache(maxsize=2)
def _matcher(definitions: bytes) -> _Matcher:
    """Return the matcher of this worker process. The next batch reuses its cache."""
    return _Matcher(*pickle.loads(definitions))


@dataclass(frozen=True, slots=True)
class StagedMerge:
    """Merges the staged rows, in the transaction that accounts for the batch."""

    _job: str
    _delay_ms: int
    _grace_ms: int
    _passes: PassRunner
    _clock: Clock

    def merge(self, connection: sa.Connection, staged: StagedAttempts, known: DefinitionsSnapshot, scan: Scan) -> int:
        """Merge the rows and return the number of new alarms. Until the commit, no definition can change, and no
        definition or alarm can be deleted. If definitions differ from ``known``, the windows of replaced functions and
        periods are excluded, as if the batch had been merged before the change, because its records were received
        before the change. Raises `EvaluatorFenced`, `StagingLost`.
        """
        windows.check_staged(connection, staged)
        definitions.lock_version(connection)
        stored = self._hold_state(connection, scan)
        current = definitions.load_snapshot(connection, known)
        if current is not known:
            windows.drop_changed(connection, staged)
        now_ms = self._clock.time_ms()
        windows.merge_staged(connection, staged, {each.id: each for each in current.sub_expressions})
        created = alarms.create_alarms(connection, staged, now_ms)
        alarms.mark_changed(connection, staged)
        staging.clear(connection, alarm_staging, staged.batch, now_ms)
        new = watermark.advanced(stored, scan, self._grace_ms)
        watermark.save(connection, self._job, new)
        if created:
            self._passes.evaluate_new(connection, new, now_ms)
        return created

    def _hold_state(self, connection: sa.Connection, scan: Scan) -> EvaluatorState:
        """Lock the stored state. The locked offsets exclude other merges. No pass may be running."""
        stored = watermark.load(connection, self._job)
        watermark.hold(connection, self._job, stored)
        if stored is None:
            return watermark.initial(scan, self._delay_ms)
        if stored.pass_to_ms is not None:
            raise EvaluatorFenced(self._job)
        return stored
