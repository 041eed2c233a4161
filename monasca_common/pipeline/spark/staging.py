# SPDX-License-Identifier: Apache-2.0
"""Merged partials into the staging table: by the executors where they reach the database, else by the driver.

A task may run twice, and both runs may commit (an executor that dies after its COPY, a speculative copy). So each
attempt stages under its own number, and only those count that Spark names as having succeeded.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline import usage_table
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.spark import partial_frames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SECONDS = 60.0
_ROWS = 5_000
_COPY = f"COPY aggregate_staging (batch, attempt, staged, {', '.join(usage_table.STAGED)}) FROM STDIN"


@dataclass(frozen=True, slots=True)
class Staged:
    """``attempts`` that count, and how many ``rows`` they have staged."""

    attempts: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """On an executor: what a task has merged goes to PostgreSQL, in one transaction."""

    connection: str = field(repr=False)
    batch: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        rows = self._copy(attempt, partial_frames.merged_rows(batches))
        fail_point("pipeline.staged_task")
        yield pa.record_batch({"attempt": [attempt], "rows": [rows]})

    def _copy(self, attempt: int, rows: Iterator[tuple[Any, ...]]) -> int:
        from monasca_common.storage.postgresql import connection as postgresql

        first = next(rows, None)
        if first is None:
            return 0
        arguments = postgresql.connect_arguments(self.connection)
        staged_ms, count = time.time_ns() // 1_000_000, 1
        with postgresql.connect(arguments, timeout_seconds=_SECONDS, application="monasca-pipeline") as opened:
            opened.deadline = float("inf")
            with opened.transaction(), opened.cursor().copy(_COPY.encode()) as copy:
                copy.write_row((self.batch, attempt, staged_ms, *first))
                for row in rows:
                    copy.write_row((self.batch, attempt, staged_ms, *row))
                    count += 1
        return count


def stage(partial_frame: DataFrame, ledger: Ledger, connection: str, batch: str) -> Staged:
    """Compute the frame and stage it under the name of ``batch``; ``partial_frame`` is `together`."""
    if not ledger.is_shared:
        return _stage_by_driver(partial_frame, ledger, batch)
    done = partial_frame.mapInArrow(_Copy(connection, batch), "attempt long, rows long").collect()
    return Staged(tuple(row.attempt for row in done), sum(row.rows for row in done))


def _stage_by_driver(partial_frame: DataFrame, ledger: Ledger, batch: str) -> Staged:
    """Some rows in a transaction each: one that is open while Spark computes would keep all others from writing."""
    rows = (tuple(row) for row in partial_frames.staged_frame(partial_frame).toLocalIterator())
    now_ns, staged = time.time_ns(), 0
    while some := list(itertools.islice(rows, _ROWS)):
        with ledger.writing() as connection:
            usage_table.stage(connection, batch, now_ns, now_ns // 1_000_000, some)
        staged += len(some)
    return Staged((now_ns,), staged)
