# SPDX-License-Identifier: Apache-2.0
"""Turns Kafka's records into partial aggregates, as frames. The aggregate job and backfill share this.

One pass decodes each record and copies it to the specifications that want it, whatever their number; one shuffle by
(specification, window, group) brings together what belongs together. Each task folds its records before the shuffle,
so that what is moved grows with the number of groups, not of records. The driver computes a small batch without Spark.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.aggregate import usage_table
from monasca_common.pipeline.aggregate.partials import Accumulator, Partial, PartialKey, group_text, merged
from monasca_common.pipeline.aggregate.records import Group, RecordReader, Records
from monasca_common.pipeline.spark.arrow import (
    OnRejected,
    ToPartials,
    arrow_schema,
    by_partition,
    ddl,
    numbers,
    row_batches,
)
from monasca_common.pipeline.spark.staging import StagingTable
from monasca_common.pipeline.specification.specification import Specifications
from monasca_common.pipeline.windows import TimeBounds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_READING = (("timestamp", "double"), ("partition", "int"), ("offset", "long"), ("value", "double"))
_ENDS = tuple((f"{end}_{name}", kind) for end in ("oldest", "latest") for name, kind in _READING)
PARTIALS = (
    *(("specification", "string"), ("window_start", "long"), ("group_values", "string"), ("record_count", "long")),
    *(("sums", "array<double>"), ("least", "double"), ("greatest", "double")),
    *_ENDS,
    ("sketch", "string"),
)
_STAGED = (  # the columns of `usage_table.STAGED`
    *(("specification", "string"), ("window_start", "long"), ("group_id", "binary"), ("group_values", "string")),
    *(("record_count", "long"), ("sums", "string"), ("least", "double"), ("greatest", "double")),
    *_ENDS,
    ("sketch", "string"),
)
KEY = ("specification", "window_start", "group_values")

#: Called with how many records were taken, how many were rejected, and the newest event time of each partition.
OnCounts = Callable[[int, int, Mapping[int, float]], None]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What executors need to compute partials."""

    specifications: bytes
    bounds: TimeBounds
    on_rejected: OnRejected
    on_counts: OnCounts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader, sketches = _reader(self.specifications)
        accumulator = Accumulator(sketches)
        for batch in batches:
            records = reader.read(batch.column("value").to_pylist(), self.bounds)
            partitions, offsets = numbers(batch, "partition"), numbers(batch, "offset")
            accumulator.add(records, partitions, offsets)
            for partition, rejected in by_partition(partitions, offsets, records.rejected).items():
                self.on_rejected(partition, rejected)
            self.on_counts(len(records.indices), len(records.rejected), _newest_ms(partitions, records))
        yield from partial_batches(accumulator.partials())


def decoding(
    specifications: Specifications, bounds: TimeBounds, on_rejected: OnRejected, on_counts: OnCounts
) -> Decoding:
    return Decoding(pickle.dumps(specifications), bounds, on_rejected, on_counts)


def partials(records: DataFrame, decoding: Decoding) -> DataFrame:
    """Turn rows of the connector into partials. Several tasks may each yield a partial of one key."""
    return _read(records).mapInArrow(decoding, ddl(PARTIALS))


def together(partial_frame: DataFrame, tasks: int) -> ToPartials:
    """By a shuffle after which one task has all partials of a key."""
    return partial_frame.repartition(tasks, *KEY).mapInArrow


def merged_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """One `usage_table.staged_row` per key."""
    for (specification, window_ms, (group,)), partial in merged(partials_of(batches)).items():
        yield usage_table.staged_row(specification, window_ms, group, partial)


#: Where partials are staged.
STAGING = StagingTable("aggregate_staging", _STAGED, merged_rows, usage_table.stage)


def _read(records: DataFrame) -> DataFrame:
    return records.select("partition", "offset", "value")


@functools.lru_cache(maxsize=2)
def _reader(specifications: bytes) -> tuple[RecordReader, dict[str, str]]:
    """The reader of this worker process, whose caches serve the next batch too, and the sketches for `Accumulator`."""
    known: Specifications = pickle.loads(specifications)
    return RecordReader(known), known.sketches


def _newest_ms(partitions: Sequence[int], records: Records) -> dict[int, float]:
    times_ms = records.timestamps_ms
    if times_ms and partitions.count(partitions[0]) == len(partitions):  # a task reads one partition at a time
        return {partitions[0]: max(times_ms)}
    newest: dict[int, float] = {}
    for index, time_ms in zip(records.indices, times_ms, strict=True):
        partition = partitions[index]
        newest[partition] = max(time_ms, newest.get(partition, time_ms))
    return newest


def partial_batches(partials: Iterable[tuple[PartialKey, Partial]]) -> Iterator[pa.RecordBatch]:
    rows = ((key.specification_id, key.window_ms, group_text(key.group), *one.as_row()) for key, one in partials)
    yield from row_batches(rows, arrow_schema(PARTIALS))


def partials_of(
    batches: Iterable[pa.RecordBatch], group_of: Callable[[str], Group] = lambda text: (text,)
) -> Iterator[tuple[PartialKey, Partial]]:
    """``group_of``: by default a group's text stands for the group, for those who read nothing of its columns."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for specification, window_ms, group, *row in zip(*columns, strict=True):
            yield PartialKey(specification, window_ms, group_of(group)), Partial.of_row(row)
