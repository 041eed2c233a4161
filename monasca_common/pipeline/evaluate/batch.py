# SPDX-License-Identifier: Apache-2.0
"""Turns Kafka's records into folded rows, as frames: each record is decoded once, whatever the number of definitions.

Each task folds its records before the shuffle, so that what is moved grows with the number of windows and series, not
of records. The driver computes a small batch without Spark.

Evaluates alarms, batch by batch: measurements are merged into windows, then what is due is evaluated.

Every transaction holds the evaluator's row, so merges and rounds are in one order: an alarm that a merge makes is in
the next round, and a round sees all measurements that were read before it.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series
from monasca_common.pipeline.errors import DefinitionsChanged, EvaluatorFenced, NotEvaluated
from monasca_common.pipeline.evaluate import alarms, definitions, watermark, windows
from monasca_common.pipeline.evaluate.definitions import (
    ActiveDefinitions,
    ActiveSubExpression,
    MatchTarget,
    SubExpressionIndex,
)
from monasca_common.pipeline.evaluate.passes import RoundReport, Rounds
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.evaluate.watermark import BUCKET_MS, Arrivals, Look, SteadyTime, StoredProgress
from monasca_common.pipeline.evaluate.windows import FoldedRow, FoldedSeries, Folding, merged_rows
from monasca_common.pipeline.jobs.fenced_batch import BatchLimits, BatchResult, FencedBatches, PlannedBatch
from monasca_common.pipeline.jobs.timing import PartitionLag, StageSeconds
from monasca_common.pipeline.rejection import MALFORMED, TOO_NEW, Rejection
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.arrow import (
    OnRejected,
    ToPartials,
    arrow_schema,
    by_partition,
    ddl,
    numbers,
    row_batches,
)
from monasca_common.pipeline.spark.counts import TaskCounts
from monasca_common.pipeline.spark.rejected import RejectedPublisher
from monasca_common.pipeline.spark.staging import StagedAttempts, StagingTable
from monasca_common.pipeline.windows import FUTURE_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


MOST_TRIES = 3
"""A batch is computed so often while definitions change; then what still fits is taken."""


_GIVES_WAY_MS = 100
"""Less than PostgreSQL's ``deadlock_timeout``: it would end the change of the definition."""


_HELD_BY_ANOTHER = ("55P03", "40P01")


#: The columns of `FoldedRow`.
FOLDED = (
    *(("sub_expression_id", "string"), ("windows", "long"), ("match_key", "binary"), ("match_values", "string")),
    *(("window_start", "long"), ("record_count", "long"), ("sums", "string"), ("least", "double")),
    *(("greatest", "double"), ("newest", "double"), ("readings", "string")),
    *(("series_id", "binary"), ("dimensions", "string"), ("received", "long")),
)
KEY = ("sub_expression_id", "match_key", "window_start", "series_id")
_MOST_REMEMBERED = 200_000
_TOO_NEW = Rejection(TOO_NEW, "metric.timestamp is further ahead than clocks differ: is it in milliseconds?")

#: Called with how many records were taken, how many were rejected, and the newest event time of each partition.
OnCounts = Callable[[int, int, Mapping[int, float]], None]
#: Called with the offset and Kafka's time of the last record of each partition, and the starts of the buckets of
#: `BUCKET_MS` in which a record came.
OnArrivals = Callable[[Mapping[int, tuple[int, int]], AbstractSet[int]], None]


@dataclass(frozen=True, slots=True)
class EvaluateReport:
    """The result of one step. See `BatchResult`; ``behind``: how many offsets are left; ``made``: new alarms."""

    batch: BatchResult = field(default_factory=BatchResult)
    behind: int = 0
    round: RoundReport = field(default_factory=RoundReport)
    published: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        return self.batch.offsets

    @property
    def lags(self) -> tuple[PartitionLag, ...]:
        return self.batch.lags

    def results(self) -> dict[str, int]:
        return {
            "records": self.batch.records,
            "rejected": self.batch.rejected,
            "duplicates": self.batch.duplicates,
            "new_alarms": self.batch.groups,
            "evaluated_alarms": self.round.alarms,
            "transitions": self.round.transitions,
            "published_transitions": self.published,
        }


class Evaluation:
    """One driver of the job. Its caller repeats `step`. What a `step` that raises has committed, the next goes on
    from."""

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
        self._offset_store = offset_store
        stream, limits = settings.stream, BatchLimits(settings.duplicates_lookback, settings.one_task_offsets)
        self._batches = FencedBatches(spark, "evaluate", stream, limits, topic, offset_store, self._clock)
        grace_ms = settings.outage_grace_seconds * 1000
        delay_ms = settings.delay_seconds * 1000
        self._folding = FoldingStage(spark, settings, offset_store)
        self._rounds = Rounds(
            offset_store,
            stream.name,
            delay_ms,
            grace_ms,
            self._clock,
            writes_history=settings.writes_history,
        )
        self._merging = Merging(stream.name, delay_ms, grace_ms, offset_store, self._rounds, self._clock)
        self._publisher = publisher

    def step(self) -> EvaluateReport:
        """Merge one batch, if there is one, evaluate what is due, and publish what has changed.

        Raises `Fenced`, `RecordsLost`, and the errors of Kafka, storage and Spark.
        """
        timing = StageSeconds(self._clock)
        with timing.stage("evaluate"):
            finished = self._rounds.finish()
        with timing.stage("plan"):
            planned = self._batches.plan()
        look, batch = self._batch(planned, self._steady.time_ms(planned.look_ms), timing)
        self._steady.compare(look.last_kafka_ms.values())
        with timing.stage("evaluate"):
            done = self._rounds.run(look).following(finished)
        with timing.stage("publish"):
            published = self._publisher.publish()
        self._rounds.forget(self._clock.time_ms())
        seconds = timing.seconds if batch.offsets or done.alarms else {}
        return EvaluateReport(batch, planned.behind, done, published, seconds)

    def _batch(self, planned: PlannedBatch, steady_ms: int, timing: StageSeconds) -> tuple[Look, BatchResult]:
        told: list[ActiveDefinitions] = []
        for tries in range(1, MOST_TRIES + 1):
            is_last = tries == MOST_TRIES
            attempt = _Attempt(self._folding, self._merging, planned, steady_ms, tuple(told), is_last=is_last)
            try:
                result = self._batches.run(planned, timing, attempt.stage, attempt.merge)
            except DefinitionsChanged:
                told.append(attempt.discard())
                continue
            return attempt.look, result
        raise AssertionError("the last attempt takes what there is")


class _Attempt:
    """One computation of a batch, with the definitions that there were when it began. ``told``: those with which it was
    computed before, and its dead letters published. ``steady_ms``: the time of the look by `SteadyTime`."""

    def __init__(
        self,
        folding: FoldingStage,
        merging: Merging,
        planned: PlannedBatch,
        steady_ms: int,
        told: tuple[ActiveDefinitions, ...],
        *,
        is_last: bool,
    ) -> None:
        self._told = told
        self._batch = ""
        self._folding = folding
        self._merging = merging
        self._is_last = is_last
        # A step forward may be right, as after a suspended machine resumes: its measurements are not too new.
        self._latest_ms = max(planned.look_ms, steady_ms) + FUTURE_MS
        self._definitions: ActiveDefinitions | None = None
        ended, partitions = planned.range_plan.ended, planned.range_plan.partitions
        self.look = Look(steady_ms, ended, partitions=partitions, topic_id=planned.source.topic_id)

    def stage(self, records: DataFrame | DriverRecords, batch: str, counts: TaskCounts) -> StagedAttempts:
        self._batch = batch
        definitions, staged, arrivals = self._folding.stage(records, batch, counts, self._latest_ms, self._told)
        self._definitions = definitions
        self.look = replace(self.look, last_kafka_ms=arrivals.last_ms, arrivals=arrivals.buckets)
        return staged

    def discard(self) -> ActiveDefinitions:
        """Remove what is staged; the definitions with which it was computed."""
        assert self._definitions is not None
        self._merging.discard(self._batch)
        return self._definitions

    def merge(self, connection: sa.Connection, batch: str, staged: StagedAttempts) -> int:
        assert self._definitions is not None
        return self._merging.merge(
            connection, batch, staged, self._definitions, self.look, takes_what_fits=self._is_last
        )


class FoldingStage:
    """Folds the records of a batch on executors, and stages the result."""

    def __init__(self, spark: SparkSession, settings: EvaluateSettings, offset_store: OffsetStore) -> None:
        self._spark = spark
        self._settings = settings
        self._offset_store = offset_store
        self._rejected = RejectedPublisher.of(settings.stream, NotEvaluated)
        self._tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        self._known: ActiveDefinitions | None = None

    def stage(
        self,
        records: DataFrame | DriverRecords,
        batch: str,
        counts: TaskCounts,
        latest_ms: int,
        told: tuple[ActiveDefinitions, ...],
    ) -> tuple[ActiveDefinitions, StagedAttempts, Arrivals]:
        """``latest_ms``, ``told``: see `RecordFolding`."""
        with self._offset_store.reading() as connection:
            known = self._known = definitions.current(connection, self._known)
        portable = portable_definitions(known.sub_expressions)
        arrivals = Arrivals(None if isinstance(records, DriverRecords) else self._spark)
        earlier = tuple(portable_definitions(each.sub_expressions) for each in told)
        folding = RecordFolding(portable, latest_ms, self._rejected, counts.adder(), arrivals.adder(), earlier)
        table = StagingTable("alarm_staging", FOLDED, MergedRows(portable), windows.insert)
        if isinstance(records, DriverRecords):
            rows = table.rows(folding(records.batches()))
            staged = staging.stage_rows(rows, table, self._offset_store, batch)
        else:
            to_rows = folded(records, folding, self._tasks)
            staged = staging.stage(to_rows, table, self._offset_store, self._settings.stream.connection, batch)
        return known, staged, arrivals


class _Matcher:
    """The decoder and the index of a worker process. It remembers the targets of a series."""

    def __init__(self, active: Sequence[ActiveSubExpression]) -> None:
        self.active = {each.id: each for each in active}
        self.decode = MetricDecoder(_MOST_REMEMBERED).decode_readings
        self._index = SubExpressionIndex(active)
        self._seen: Seen[bytes, tuple[MatchTarget, ...]] = Seen(_MOST_REMEMBERED)

    def targets(self, series: Series) -> tuple[MatchTarget, ...]:
        found = self._seen.find(series.id)
        if found is None:
            found = self._index.targets(series)
            self._seen.keep(series.id, found, 0)
        return found


@dataclass(frozen=True, slots=True)
class RecordFolding:
    """What executors need to fold records. ``definitions``: made by `portable_definitions`. ``latest_ms``: the latest
    event time that is accepted. ``told``: the definitions with which the same records were folded before, and their
    dead letters published."""

    definitions: bytes = field(repr=False)
    latest_ms: int
    on_rejected: OnRejected
    on_counts: OnCounts
    on_arrivals: OnArrivals
    told: tuple[bytes, ...] = field(default=(), repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _FoldingTask(_matcher(self.definitions))
        for batch in batches:
            self._fold(task, batch)
        yield from row_batches(task.folding.rows(), arrow_schema(FOLDED))

    def _fold(self, task: _FoldingTask, batch: pa.RecordBatch) -> None:
        partitions, offsets, kafka_ms = (numbers(batch, name) for name in ("partition", "offset", "kafka_ms"))
        decoded = task.decode(batch.column("value").to_pylist())
        letters = {} if self.told else {index: _malformed(error) for index, error in decoded.errors.items()}
        taken, too_new, newest_ms = 0, 0, dict[int, float]()
        find, latest_ms = task.known.get, self.latest_ms
        for index, (series, at_ms, value) in zip(decoded.indices, decoded.rows, strict=True):
            folded = find(series.id)
            if folded is None:
                folded = task.folded(series)
            if not folded:
                continue
            time_ms, partition, received_ms = float(at_ms), partitions[index], kafka_ms[index]
            if time_ms > latest_ms:
                too_new += 1
                if not any(_matcher(each).targets(series) for each in self.told):
                    letters[index] = _TOO_NEW
                continue
            if time_ms > newest_ms.get(partition, -1.0):
                newest_ms[partition] = time_ms
            reading = (time_ms, partition, offsets[index], value)
            for each in folded:
                if received_ms >= each.created_ms:
                    each.add(reading, received_ms)
                    taken += 1
        for partition, found in by_partition(partitions, offsets, letters).items():
            self.on_rejected(partition, found)
        self.on_counts(taken, len(decoded.errors) + too_new, newest_ms)
        self.on_arrivals(_last(partitions, offsets, kafka_ms), {each // BUCKET_MS * BUCKET_MS for each in kafka_ms})


class _FoldingTask:
    """What one task has folded. ``known``: where the readings of a series go, by its id; of those that no definition
    has, which may be more by far, nothing is kept."""

    def __init__(self, matcher: _Matcher) -> None:
        self.decode = matcher.decode
        self.folding = Folding()
        self.known: dict[bytes, tuple[FoldedSeries, ...]] = {}
        self._targets = matcher.targets

    def folded(self, series: Series) -> tuple[FoldedSeries, ...]:
        """Of a series that is not ``known``."""
        found = tuple(self.folding.series(target, series) for target in self._targets(series))
        if found:
            self.known[series.id] = found
        return found


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Runs on an executor: one row of each key, of the folded rows of several tasks."""

    definitions: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        return merged_rows(_rows(batches), _matcher(self.definitions).active)


def portable_definitions(active: Sequence[ActiveSubExpression]) -> bytes:
    """The same bytes for the same sub-expressions, so that a worker's memory outlives the batch."""
    return pickle.dumps(sorted(active, key=lambda each: each.id))


def folded(records: DataFrame, folding: RecordFolding, tasks: int) -> ToPartials:
    """By a shuffle to ``tasks``, after which one task has all rows of a key."""
    return _read(records).mapInArrow(folding, ddl(FOLDED)).repartition(tasks, *KEY).mapInArrow


def _read(records: DataFrame) -> DataFrame:
    return records.selectExpr("partition", "offset", "unix_millis(timestamp) AS kafka_ms", "value")


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[FoldedRow]:
    for batch in batches:
        yield from map(FoldedRow._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))


@functools.lru_cache(maxsize=4)
def _matcher(definitions: bytes) -> _Matcher:
    """Of this worker process; its memory serves the next batch too."""
    return _Matcher(pickle.loads(definitions))


def _last(partitions: Sequence[int], offsets: Sequence[int], times_ms: Sequence[int]) -> dict[int, tuple[int, int]]:
    """By offset, not by time: a producer's clock may be a day ahead."""
    if partitions and partitions.count(partitions[0]) == len(partitions):  # a task reads one partition at a time
        return {partitions[0]: max(zip(offsets, times_ms, strict=True))}
    last: dict[int, tuple[int, int]] = {}
    for partition, found in zip(partitions, zip(offsets, times_ms, strict=True), strict=True):
        last[partition] = max(found, last.get(partition, found))
    return last


def _malformed(error: InvalidEnvelope) -> Rejection:
    return Rejection(MALFORMED, str(error))


class Merging:
    """Merges what is staged, in the transaction that accounts for it."""

    def __init__(
        self, job: str, delay_ms: int, grace_ms: int, offset_store: OffsetStore, rounds: Rounds, clock: Clock
    ) -> None:
        self._job = job
        self._delay_ms = delay_ms
        self._grace_ms = grace_ms
        self._offset_store = offset_store
        self._rounds = rounds
        self._clock = clock

    def merge(
        self,
        connection: sa.Connection,
        batch: str,
        staged: StagedAttempts,
        known: ActiveDefinitions,
        look: Look,
        *,
        takes_what_fits: bool,
    ) -> int:
        """The number of new alarms. Who changes definitions meanwhile waits for the end alone, unless it
        ``takes_what_fits``.

        Raises `EvaluatorFenced`, `StagingLost`, and `DefinitionsChanged` if a definition of the batch is another than
        that of ``known``, before it is merged or after, unless it ``takes_what_fits``.
        """
        windows.check(connection, batch, staged)
        version = definitions.hold_version(connection) if takes_what_fits else definitions.version(connection)
        stored = self._hold_progress(connection, look)
        ids = windows.sub_expression_ids(connection, batch, staged)
        versions = definitions.versions(connection, ids)
        if versions != {each: known.versions[each] for each in ids}:
            if not takes_what_fits and any(known.versions[each] != found for each, found in versions.items()):
                raise DefinitionsChanged("definitions of alarms changed while a batch was computed")
            windows.leave_out_changed(connection, batch, staged)
        now_ms = self._clock.time_ms()
        with contextlib.nullcontext() if takes_what_fits else _giving_way(connection):
            windows.forget_late(connection, batch, staged, stored)
            made = self._merged(connection, batch, staged, known, now_ms)
            held = definitions.hold_version(connection)
        if held != version and definitions.versions(connection, ids) != versions:
            raise DefinitionsChanged("definitions of alarms changed while a batch was merged")
        new = watermark.after(stored, look, self._grace_ms)
        watermark.save(connection, self._job, new)
        if made:
            self._rounds.begin(connection, held, new, now_ms)
        return made

    def _merged(
        self, connection: sa.Connection, batch: str, staged: StagedAttempts, known: ActiveDefinitions, now_ms: int
    ) -> int:
        windows.merge(connection, batch, staged, {each.id: each for each in known.sub_expressions})
        made = alarms.make_alarms(connection, batch, staged, now_ms)
        alarms.note_changed(connection, batch, staged)
        windows.clear(connection, batch, now_ms)
        return made

    def discard(self, batch: str) -> None:
        """Remove what is staged, and is computed again."""
        with self._offset_store.writing() as connection:
            windows.clear(connection, batch, self._clock.time_ms())

    def _hold_progress(self, connection: sa.Connection, look: Look) -> StoredProgress:
        """As it is, because the offsets that are held keep other merges away; no round may be open."""
        stored = watermark.load(connection, self._job)
        watermark.hold(connection, self._job, stored)
        if stored is None:
            return watermark.begun(look, self._delay_ms)
        if stored.round_to_ms is not None:
            raise EvaluatorFenced(self._job)
        return stored


@contextlib.contextmanager
def _giving_way(connection: sa.Connection) -> Iterator[None]:
    """Raises `DefinitionsChanged` instead of waiting for whoever deletes a definition, which may wait for this."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_GIVES_WAY_MS}")
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) not in _HELD_BY_ANOTHER:
            raise
        raise DefinitionsChanged("a definition is changing whose measurements are being merged") from error
