# SPDX-License-Identifier: Apache-2.0
"""Executors write records to Parquet files, one for each partition and hour, in the hidden folder of their batch.

A staged file has a suffix of its own, because some readers look into hidden folders. A task reports its files when they
are complete and on disk; those of another attempt at it are never reported, and go with the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.archive import metric_columns, reading
from monasca_common.pipeline.archive.event_time import kafka_ms, with_own_ms
from monasca_common.pipeline.archive.layout import HOUR_MS, STAGED, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.selection import Selection
from monasca_common.pipeline.archive.settings import Columns, Compression
from monasca_common.pipeline.archive.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: The columns of the connector's rows that are archived; the topic is in the name of the folder.
KEPT = ("partition", "offset", "timestamp", "key", "value", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"
# These divide the records into files, and are not in them.
_HOUR, _DATED = "of_hour", "is_dated"
_REPORT = (
    "path string, partition long, hour long, first long, last long, records long, undated long, bytes long, newest long"
)
# Records that a task holds until they are a part of a file, and the files that it has open.
_MOST_BYTES = 128 * 1024 * 1024
_MOST_OPEN = 256
# What a merged file has in one part.
_PART_BYTES = 32 * 1024 * 1024
# The other columns are all different, so a dictionary would cost time and save nothing.
_DICTIONARIES = ["partition", "key", "headers.list.element.key", *metric_columns.DICTIONARIES]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The staged files of a batch. ``undated``: records that are filed by Kafka's timestamp. ``newest_ms``: the
    greatest event time of each partition."""

    files: tuple[ArchivedFile, ...]
    undated: int
    newest_ms: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class HourFiles:
    """Stages the files of one batch. ``folder``: the hidden folder of the batch."""

    store: Store = field(repr=False)
    topic: str
    batch: str
    folder: str
    compression: Compression
    columns: Columns = "raw"

    def stage(self, records: DataFrame) -> StagedFiles:
        """Write the connector's rows to files in the batch's folder. Returns these files; each is complete and on
        disk."""
        from pyspark.sql import functions as sql

        own = sql.col("own_ms")
        rows = (
            with_own_ms(records.select(*KEPT))
            .withColumn("event_ms", sql.coalesce(own, kafka_ms(sql.col("timestamp"))))
            .withColumn("headers", _handed_over(sql.col("headers")))
            .select(
                *KEPT,
                sql.timestamp_millis("event_ms").alias("event_time"),
                sql.expr(f"event_ms DIV {HOUR_MS}").alias(_HOUR),
                own.isNotNull().alias(_DATED),
            )
        )
        task = _WriteHours(self.store.location, self.folder, self.compression, self.columns)
        reports = rows.mapInArrow(task, _REPORT).collect()
        files = (
            ArchivedFile(
                self.topic,
                each.hour * HOUR_MS,
                Offsets(each.partition, each["first"], each.last),
                each.records,
                each.bytes,
                self.batch,
                each.path,
            )
            for each in sorted(reports, key=lambda each: each.path)
        )
        newest_ms: dict[int, float] = {}
        for each in reports:
            newest_ms[each.partition] = max(each.newest, newest_ms.get(each.partition, each.newest))
        return StagedFiles(tuple(files), sum(each.undated for each in reports), newest_ms)


@dataclass(frozen=True, slots=True)
class _WriteHours:
    """Runs on an executor: writes the records of a task, and reports its files."""

    location: str = field(repr=False)
    folder: str
    compression: Compression
    columns: Columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        prefix = f"{self.folder}/{context.taskAttemptId()}"
        files = TaskFiles(Store(self.location), prefix, self.compression, self.columns)
        for batch in batches:
            files.add(_with_null_headers(batch))
        if reports := files.close():
            yield pa.RecordBatch.from_pylist(reports)


def _handed_over(headers: Column) -> Column:
    """Empty instead of null: a null list costs Spark's way to Python five times as much as all else of a record."""
    from pyspark.sql import functions as sql

    return sql.coalesce(headers, sql.array().cast(_HEADERS))


def _with_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As the connector has them: it knows no empty list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    headers = batch.column("headers")
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    at = batch.schema.get_field_index("headers")
    return batch.set_column(at, "headers", pc.if_else(is_empty, pa.scalar(None, headers.type), headers))


class TaskFiles:
    """The files of one task. ``prefix``: how their paths begin."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        compression: Compression,
        columns: Columns,
        *,
        most_bytes: int = _MOST_BYTES,
        most_open: int = _MOST_OPEN,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._compression = compression
        self._columns = columns
        self._most_bytes = most_bytes
        self._most_open = most_open
        self._open: dict[tuple[int, int], HourFile] = {}  # the one that was written last stands last
        self._held_bytes = self._number = 0
        self._reports: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets."""
        import pyarrow as pa
        import pyarrow.compute as pc

        places = pa.Table.from_batches([batch]).group_by(["partition", _HOUR], use_threads=False).aggregate([])
        for place in places.to_pylist():
            partition, hour = place["partition"], place[_HOUR]
            part = batch
            if places.num_rows > 1:
                wanted = pc.and_(pc.equal(batch.column("partition"), partition), pc.equal(batch.column(_HOUR), hour))
                part = batch.filter(wanted)
            self._held_bytes += self._file(partition, hour).hold(part.drop_columns([_HOUR]))
        while self._held_bytes > self._most_bytes:
            self._held_bytes -= max(self._open.values(), key=lambda file: file.held_bytes).write()

    def close(self) -> list[dict[str, Any]]:
        """Complete the files. Returns a report of each."""
        for key in list(self._open):
            self._close(key)
        return self._reports

    def _file(self, partition: int, hour: int) -> HourFile:
        key = (partition, hour)
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= self._most_open:
                self._close(next(iter(self._open)))
            path = f"{self._prefix}-{self._number:05}{STAGED}"
            self._number += 1
            file = HourFile(self._store, path, self._compression, self._columns)
        self._open[key] = file
        return file

    def _close(self, key: tuple[int, int]) -> None:
        partition, hour = key
        file = self._open.pop(key)
        self._held_bytes -= file.held_bytes
        self._reports.append({"path": file.path, "partition": partition, "hour": hour, **file.close()})


class HourFile:
    """A file that is written part by part; what is held is the next part."""

    def __init__(self, store: Store, path: str, compression: Compression, columns: Columns) -> None:
        self.path = path
        self.held_bytes = 0
        self._store = store
        self._compression = compression
        self._columns = columns
        self._held: list[pa.RecordBatch] = []
        self._writer: Any = None
        self._stack = contextlib.ExitStack()
        self._offsets: list[tuple[int, int]] = []
        self._records = self._undated = self._newest_ms = 0

    def hold(self, batch: pa.RecordBatch) -> int:
        """Keep records for the next part. Returns how many bytes they have in memory."""
        held = int(batch.nbytes)
        self._held.append(batch)
        self.held_bytes += held
        return held

    def write(self) -> int:
        """Write what is held. Returns how many bytes that were in memory."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(self._held)
        bounds = pc.min_max(table.column("offset")).as_py()
        self._offsets.append((bounds["min"], bounds["max"]))
        self._records += table.num_rows
        self._undated += table.num_rows - pc.sum(table.column(_DATED)).as_py()
        newest = pc.max(table.column("event_time")).cast(pa.timestamp("ms", tz="UTC"))
        self._newest_ms = max(self._newest_ms, newest.value)
        self._append(archived_table(table.drop_columns([_DATED]), self._columns))
        written, self._held, self.held_bytes = self.held_bytes, [], 0
        return written

    def close(self) -> dict[str, int]:
        """Complete the file: it is on disk. Returns what a report has of its content."""
        if self._held:
            self.write()
        self._stack.close()
        return {
            "first": min(first for first, _ in self._offsets),
            "last": max(last for _, last in self._offsets),
            "records": self._records,
            "undated": self._undated,
            "bytes": self._store.size(self.path) or 0,
            "newest": self._newest_ms,
        }

    def _append(self, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            stream = self._stack.enter_context(self._store.writing(self.path))
            writer = pq.ParquetWriter(stream, table.schema, compression=self._compression, use_dictionary=_DICTIONARIES)
            self._writer = self._stack.enter_context(writer)
        self._writer.write_table(table)


def merge(
    store: Store, paths: Sequence[str], staged: str, compression: Compression, columns: Columns
) -> dict[str, Any]:
    """Write the records of these files, whose offsets are in this order, to one. Returns a report of it."""
    import pyarrow as pa

    file = HourFile(store, staged, compression, columns)
    for path in paths:
        for batch in reading.read(store, path, Selection()):
            file.hold(batch.append_column(_DATED, pa.array([True] * batch.num_rows)))
            if file.held_bytes > _PART_BYTES:
                file.write()
    return {"path": staged, **file.close()}


def archived_table(table: pa.Table, columns: Columns) -> pa.Table:
    """The table as it is archived: times in milliseconds, and what is parsed of the values."""
    import pyarrow as pa

    millisecond = pa.timestamp("ms", tz="UTC")
    for name in ("timestamp", "event_time"):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(millisecond))
    if columns == "parsed":
        for name, column in metric_columns.parsed(table.column("value").to_pylist()).items():
            table = table.append_column(name, column)
    return table
