# SPDX-License-Identifier: Apache-2.0
"""Staging tables: executors write merged partials to them if they can reach the database; otherwise, the driver writes
them.

A task may run twice, and both attempts may commit (if an executor fails after its COPY, or Spark runs a speculative
attempt). So each attempt stages under its own number, and only the attempts that Spark reports as successful count.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_store import SESSIONS, OffsetStore
from monasca_common.pipeline.source.small_batch import DriverRecords
from monasca_common.pipeline.spark.arrow import ArrowFunction, Columns, arrow_schema, ddl, row_batches
from monasca_common.pipeline.spark.schemas import BatchSchemas
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.sql import tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 5_000
ABANDONED_MS = 86_400_000
"""Staged rows that are older than this were left by a crash."""


@dataclass(frozen=True, slots=True)
class StagingTable:
    """The staging table of a job. ``partials``: the columns of partials; ``key``: those that are equal in the partials
    that one row merges. ``columns``: the columns of the table after batch, attempt and staged. ``rows``: a picklable
    function that merges the partials of a task to rows."""

    name: str
    partials: Columns
    key: tuple[str, ...]
    columns: Columns
    rows: Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[Any, ...]]]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    @property
    def copy(self) -> str:
        return f"COPY {self.name} (batch, attempt, staged, {', '.join(self.names)}) FROM STDIN"

    def batches(self, partials: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches."""
        yield from row_batches(self.rows(partials), arrow_schema(self.columns))


@dataclass(frozen=True, slots=True)
class StagedAttempts:
    """The successful ``attempts`` of ``batch``, and the number of ``rows`` that they staged."""

    batch: str
    attempts: tuple[int, ...]
    rows: int

    def check(self, found: int) -> None:
        """Raise `StagingLost` unless the database has all of these rows."""
        if found != self.rows:
            raise StagingLost(f"{self.rows} rows were staged for a batch, but the table has {found}")

    def within(self, table: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
        """Return the condition for these rows of the staging table."""
        return table.c.batch == self.batch, table.c.attempt.in_(self.attempts)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Copies the merged rows of a task to PostgreSQL on an executor, in one transaction."""

    table: StagingTable
    connection: str = field(repr=False)
    batch: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        rows = self._copy(attempt, self.table.rows(batches))
        fail_point("pipeline.staged_task")
        yield pa.record_batch({"attempt": [attempt], "rows": [rows]})

    def _copy(self, attempt: int, rows: Iterator[tuple[Any, ...]]) -> int:
        from monasca_common.storage.sql.bounded import connect_arguments, open_connection

        first = next(rows, None)
        if first is None:
            return 0
        arguments = connect_arguments(self.connection)
        staged_ms, count = time.time_ns() // 1_000_000, 1
        with (
            open_connection(arguments, SESSIONS, application="monasca-pipeline staging") as opened,
            opened.cursor().copy(self.table.copy.encode()) as copy,
        ):
            copy.write_row((self.batch, attempt, staged_ms, *first))
            for row in rows:
                copy.write_row((self.batch, attempt, staged_ms, *row))
                count += 1
        return count


class BatchStaging:
    """Computes the partials of the batches of one job, on executors or in the driver, and stages them."""

    def __init__(self, spark: SparkSession, stream: StreamSettings, offset_store: OffsetStore) -> None:
        self._stream = stream
        self._offset_store = offset_store
        self._schemas = BatchSchemas(spark, stream)
        self._tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)

    def stage(
        self,
        records: DataFrame | DriverRecords,
        batch: str,
        decoder: Callable[[EnvelopeReader], ArrowFunction],
        table: StagingTable,
        *,
        place: Sequence[str] = ("partition", "offset"),
        condition: str = "true",
    ) -> StagedAttempts:
        """Stage the partials of ``records`` (rows of the connector, or records of the driver) in ``table`` under the
        name of ``batch``. ``decoder``: returns the function that computes partials from envelopes. ``place``: the
        expressions that the function needs in addition to envelopes. ``condition``: selects partials of executors.
        """
        if isinstance(records, DriverRecords):
            return self._stage_rows(table.rows(decoder(self._schemas.reader)(records.batches())), table, batch)
        frame = records.selectExpr(*place, *self._schemas.columns)

        def on_executors(envelopes: EnvelopeReader) -> StagedAttempts:
            partials = frame.mapInArrow(decoder(envelopes), ddl(table.partials)).where(condition)
            # After this shuffle, one task has all partials of a key.
            shuffled = partials.repartition(self._tasks, *table.key)
            if not self._offset_store.is_shared:
                rows = shuffled.mapInArrow(table.batches, ddl(table.columns)).toLocalIterator()
                return self._stage_rows(map(tuple, rows), table, batch)
            copy = _Copy(table, self._stream.connection, batch)
            done = shuffled.mapInArrow(copy, "attempt long, rows long").collect()
            return StagedAttempts(batch, tuple(row.attempt for row in done), sum(row.rows for row in done))

        return self._schemas.run(on_executors)

    def _stage_rows(self, rows: Iterator[tuple[Any, ...]], table: StagingTable, batch: str) -> StagedAttempts:
        """Stage rows from the driver. The number of rows of a transaction is limited, because a transaction that is
        open while the rows are computed would block all writers."""
        now_ns, staged = time.time_ns(), 0
        while some := list(itertools.islice(rows, _ROWS)):
            with self._offset_store.writing() as connection:
                to = tables.metadata.tables[table.name]
                insert(connection, to, table.names, batch, now_ns, some, now_ns // 1_000_000)
            staged += len(some)
        return StagedAttempts(batch, (now_ns,), staged)


def insert(
    connection: sa.Connection,
    table: sa.Table,
    names: Sequence[str],
    batch: str,
    attempt: int,
    rows: Iterable[tuple[Any, ...]],
    now_ms: int,
) -> None:
    """Stage rows with these columns."""
    fixed = {"batch": batch, "attempt": attempt, "staged": now_ms}
    connection.execute(table.insert(), [fixed | dict(zip(names, row, strict=True)) for row in rows])


def spaces(column: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
    """Return the number of spaces in a text that joins the sums or readings of several partials."""
    return sa.func.length(column) - sa.func.length(sa.func.replace(column, " ", ""))


def clear(connection: sa.Connection, table: sa.Table, batch: str, now_ms: int) -> None:
    """Remove the rows staged for ``batch``, and rows that crashes left more than a day ago."""
    old = sa.or_(table.c.batch == batch, table.c.staged < now_ms - ABANDONED_MS)
    connection.execute(table.delete().where(old))
