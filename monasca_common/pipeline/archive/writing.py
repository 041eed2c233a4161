# SPDX-License-Identifier: Apache-2.0
"""Records to Parquet files of one hour each, on the executors.

A task writes into the hidden folder of its batch, under its own attempt's number: what a task that is run again, or
twice at once, has left there is never named by Spark as a result, and so is never placed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.archive.event_time import event_times
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.settings import Compression
from monasca_common.pipeline.archive.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Columns of the connector's rows that are kept; the topic is in the name of the folder.
KEPT = ("partition", "offset", "timestamp", "key", "value", "headers")
_TOLD = "name string, hour long, partition int, first long, last long, records long, bytes long, undated long"
# What a task holds in memory before it goes to files, and how many files it has open at once.
_HELD_BYTES = 64 * 1024 * 1024
_OPEN_FILES = 32
_ROW_GROUP = 128 * 1024


@dataclass(frozen=True, slots=True)
class Staged:
    """``undated``: records that are filed by Kafka's time."""

    files: tuple[ArchivedFile, ...]
    undated: int


@dataclass(frozen=True, slots=True)
class HourFiles:
    """Travels to the executors. ``folder``: of the batch, where nobody looks."""

    location: str = field(repr=False)
    topic: str
    batch: str
    folder: str
    compression: Compression

    def stage(self, records: DataFrame) -> Staged:
        """Write the connector's rows to files of the batch's folder; which ones. Each exists, complete."""
        rows = records.select(*KEPT).mapInArrow(self, _TOLD).collect()
        files = tuple(
            ArchivedFile(
                self.topic,
                row.hour * HOUR_MS,
                Offsets(row.partition, row.first, row.last),
                row.records,
                row.bytes,
                self.batch,
                row.name,
            )
            for row in rows
        )
        return Staged(files, sum(row.undated for row in rows))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        folder = f"{self.folder}/{context.taskAttemptId()}"
        with contextlib.closing(HourWriters(Store(self.location), folder, self.topic, self.compression)) as writers:
            for batch in batches:
                writers.add(batch)
            told = writers.finish()
        if told:
            yield _record_batch(told)


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    path: str
    context: contextlib.AbstractContextManager[Any]
    stream: Any
    writer: Any
    first: int
    last: int = 0
    records: int = 0
    undated: int = 0


@dataclass(slots=True)
class _Held:
    """What waits to be written of an hour."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    undated: int = 0


class HourWriters:
    """Sorts records by (partition, hour) and writes those of each into a file of its own, of one task.

    Where records of very many hours come, a file is closed for another, and the hour gets a second one.
    """

    def __init__(self, store: Store, folder: str, topic: str, compression: Compression) -> None:
        self._store = store
        self._folder = folder
        self._topic = topic
        self._compression = compression
        self._held: dict[tuple[int, int], _Held] = {}
        self._held_bytes = 0
        self._open: dict[tuple[int, int], _Open] = {}
        self._files = 0
        self._told: list[tuple[Any, ...]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns `KEPT`, in order of offset within each partition."""
        for key, part, undated in _by_hour(batch):
            held = self._held.setdefault(key, _Held())
            held.batches.append(part)
            held.bytes += part.nbytes
            held.undated += undated
            self._held_bytes += part.nbytes
        while self._held_bytes > _HELD_BYTES:
            self._write(max(self._held, key=lambda key: self._held[key].bytes))

    def finish(self) -> list[tuple[Any, ...]]:
        """Close every file; rows of `_TOLD`, of each."""
        for key in list(self._held):
            self._write(key)
        for key in list(self._open):
            self._close(key)
        return self._told

    def close(self) -> None:
        """Let go of what a failure has left open."""
        for opened in self._open.values():
            with contextlib.suppress(Exception):
                opened.context.__exit__(None, None, None)
        self._open.clear()

    def _write(self, key: tuple[int, int]) -> None:
        import pyarrow as pa

        held = self._held.pop(key)
        self._held_bytes -= held.bytes
        offsets = held.batches[0].column("offset")
        opened = self._open.get(key) or self._start(key, offsets[0].as_py())
        opened.writer.write_table(pa.Table.from_batches(held.batches), row_group_size=_ROW_GROUP)
        opened.last = held.batches[-1].column("offset")[-1].as_py()
        opened.records += sum(batch.num_rows for batch in held.batches)
        opened.undated += held.undated

    def _start(self, key: tuple[int, int], first: int) -> _Open:
        import pyarrow.parquet as pq

        if len(self._open) >= _OPEN_FILES:
            self._close(next(iter(self._open)))
        self._files += 1
        path = f"{self._folder}-{self._files}.parquet"
        context = self._store.writing(path)
        stream = context.__enter__()
        writer = pq.ParquetWriter(
            stream,
            schema(self._topic),
            compression=self._compression,
            # Values are all different: looking for repetitions, and keeping the least of them, is work in vain.
            use_dictionary=["partition", "key", "headers.list.element.key"],
            write_statistics=["partition", "offset", "timestamp", "event_time"],
        )
        self._open[key] = _Open(path, context, stream, writer, first)
        return self._open[key]

    def _close(self, key: tuple[int, int]) -> None:
        opened = self._open[key]
        opened.writer.close()
        size_bytes = opened.stream.tell()
        opened.context.__exit__(None, None, None)
        del self._open[key]
        partition, hour = key
        counted = (opened.records, size_bytes, opened.undated)
        self._told.append((opened.path, hour, partition, opened.first, opened.last, *counted))


@functools.lru_cache(maxsize=8)
def schema(topic: str) -> pa.Schema:
    """Of a file. Beside the folder the file itself says what topic it is of, in its metadata."""
    import pyarrow as pa

    millisecond = pa.timestamp("ms", tz="UTC")
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    fields = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", millisecond, nullable=False),
        pa.field("event_time", millisecond, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", header))),
    ]
    return pa.schema(fields, metadata={"monasca.topic": topic})


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch, int]]:
    """Of each (partition, hour) its rows, in the file's columns, and how many are undated."""
    import numpy as np
    import pyarrow as pa

    if not batch.num_rows:
        return
    kafka_ms = np.floor_divide(batch.column("timestamp").cast(pa.int64()).to_numpy(), 1000)
    found, undated = event_times(batch.column("value").to_pylist(), kafka_ms.tolist())
    times_ms = np.array(found, np.int64)
    partitions = batch.column("partition").to_numpy()
    hours = times_ms // HOUR_MS
    rows = _rows(batch, kafka_ms, times_ms)
    if partitions.min() == partitions.max() and hours.min() == hours.max():
        yield (int(partitions[0]), int(hours[0])), rows, undated
        return
    order = np.lexsort((hours, partitions))  # stable: offsets stay in order
    rows = rows.take(pa.array(order))
    keys = np.stack((partitions[order], hours[order]))
    cuts = [0, *(np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(cuts):
        partition, hour = keys[:, start].tolist()
        yield (partition, hour), rows.slice(start, end - start), undated
        undated = 0  # counted once


def _rows(batch: pa.RecordBatch, kafka_ms: Any, times_ms: Any) -> pa.RecordBatch:
    import pyarrow as pa

    wanted = schema("")
    columns = {
        **{name: batch.column(name) for name in ("partition", "offset", "key", "value", "headers")},
        "timestamp": pa.array(kafka_ms, wanted.field("timestamp").type),
        "event_time": pa.array(times_ms, wanted.field("event_time").type),
    }
    return pa.record_batch([columns[field.name].cast(field.type) for field in wanted], schema=wanted)


def _record_batch(told: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    names = [column.split()[0] for column in _TOLD.split(", ")]
    kinds = {"string": pa.string(), "long": pa.int64(), "int": pa.int32()}
    types = [kinds[column.split()[1]] for column in _TOLD.split(", ")]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*told, strict=True), types, strict=True)]
    return pa.record_batch(arrays, names=names)
