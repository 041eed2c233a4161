# SPDX-License-Identifier: Apache-2.0
"""Evaluates alarms, batch by batch: measurements are merged into windows, then what is due is evaluated.

Every transaction holds the evaluator's row, so merges and rounds are in one order: an alarm that a merge makes is in
the next round, and a round sees all measurements that were read before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.errors import DefinitionsChanged, EvaluatorFenced, NotEvaluated
from monasca_common.pipeline.evaluate import active, alarm_making, frames, horizon, progress, summaries, window_table
from monasca_common.pipeline.evaluate.active import ActiveDefinitions
from monasca_common.pipeline.evaluate.arrivals import Arrivals
from monasca_common.pipeline.evaluate.horizon import Look
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.pipeline.evaluate.publishing import TransitionPublisher
from monasca_common.pipeline.evaluate.rounds import RoundReport, Rounds
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.evaluate.steady_time import SteadyTime
from monasca_common.pipeline.jobs.fenced_batch import BatchLimits, BatchResult, FencedBatches, PlannedBatch
from monasca_common.pipeline.jobs.timing import PartitionLag, StageSeconds
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.counts import TaskCounts
from monasca_common.pipeline.spark.rejected import RejectedPublisher
from monasca_common.pipeline.spark.staging import StagedAttempts, StagingTable
from monasca_common.pipeline.windows import FUTURE_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_TRIES = 3
"""A batch is computed so often while definitions change; then what still fits is taken."""
_GIVES_WAY_MS = 100
"""Less than PostgreSQL's ``deadlock_timeout``: it would end the change of the definition."""
_HELD_BY_ANOTHER = ("55P03", "40P01")


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
            known = self._known = active.current(connection, self._known)
        portable = frames.portable_definitions(known.sub_expressions)
        arrivals = Arrivals(None if isinstance(records, DriverRecords) else self._spark)
        earlier = tuple(frames.portable_definitions(each.sub_expressions) for each in told)
        folding = frames.RecordFolding(portable, latest_ms, self._rejected, counts.adder(), arrivals.adder(), earlier)
        table = StagingTable("alarm_staging", frames.FOLDED, frames.MergedRows(portable), window_table.insert)
        if isinstance(records, DriverRecords):
            rows = table.rows(folding(records.batches()))
            staged = staging.stage_rows(rows, table, self._offset_store, batch)
        else:
            to_rows = frames.folded(records, folding, self._tasks)
            staged = staging.stage(to_rows, table, self._offset_store, self._settings.stream.connection, batch)
        return known, staged, arrivals


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
        window_table.check(connection, batch, staged)
        version = active.hold_version(connection) if takes_what_fits else active.version(connection)
        stored = self._hold_progress(connection, look)
        ids = window_table.sub_expression_ids(connection, batch, staged)
        versions = active.versions(connection, ids)
        if versions != {each: known.versions[each] for each in ids}:
            if not takes_what_fits and any(known.versions[each] != found for each, found in versions.items()):
                raise DefinitionsChanged("definitions of alarms changed while a batch was computed")
            window_table.leave_out_changed(connection, batch, staged)
        now_ms = self._clock.time_ms()
        with contextlib.nullcontext() if takes_what_fits else _giving_way(connection):
            summaries.forget_late(connection, batch, staged, stored)
            made = self._merged(connection, batch, staged, known, now_ms)
            held = active.hold_version(connection)
        if held != version and active.versions(connection, ids) != versions:
            raise DefinitionsChanged("definitions of alarms changed while a batch was merged")
        new = horizon.after(stored, look, self._grace_ms)
        progress.save(connection, self._job, new)
        if made:
            self._rounds.begin(connection, held, new, now_ms)
        return made

    def _merged(
        self, connection: sa.Connection, batch: str, staged: StagedAttempts, known: ActiveDefinitions, now_ms: int
    ) -> int:
        window_table.merge(connection, batch, staged, {each.id: each for each in known.sub_expressions})
        made = alarm_making.make_alarms(connection, batch, staged, now_ms)
        alarm_making.note_changed(connection, batch, staged)
        window_table.clear(connection, batch, now_ms)
        return made

    def discard(self, batch: str) -> None:
        """Remove what is staged, and is computed again."""
        with self._offset_store.writing() as connection:
            window_table.clear(connection, batch, self._clock.time_ms())

    def _hold_progress(self, connection: sa.Connection, look: Look) -> StoredProgress:
        """As it is, because the offsets that are held keep other merges away; no round may be open."""
        stored = progress.load(connection, self._job)
        progress.hold(connection, self._job, stored)
        if stored is None:
            return horizon.begun(look, self._delay_ms)
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
