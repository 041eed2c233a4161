# SPDX-License-Identifier: Apache-2.0
"""Turns Kafka's records into folded rows, as frames: each record is decoded once, whatever the number of definitions.

Each task folds its records before the shuffle, so that what is moved grows with the number of windows and series, not
of records. The driver computes a small batch without Spark.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series
from monasca_common.pipeline.evaluate.arrivals import BUCKET_MS
from monasca_common.pipeline.evaluate.folding import FoldedRow, FoldedSeries, Folding, merged_rows
from monasca_common.pipeline.evaluate.matching import ActiveSubExpression, MatchTarget, SubExpressionIndex
from monasca_common.pipeline.rejection import MALFORMED, TOO_NEW, Rejection
from monasca_common.pipeline.spark.arrow import (
    OnRejected,
    ToPartials,
    arrow_schema,
    by_partition,
    ddl,
    numbers,
    row_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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
