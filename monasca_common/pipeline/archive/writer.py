# SPDX-License-Identifier: Apache-2.0
"""Writes records on executors to Parquet files, one for each partition and hour, in the hidden folder of their batch.

A staged file has its own suffix, because some readers list hidden folders. A task reports its files when they are
complete and on disk. Files of another attempt are never reported; they are removed with the folder.

The hour comes from the event time, as the models parse it; a message without an event time is filed by Kafka's
timestamp. An envelope's top-level member identifies its model: ``metric``, ``alarm-transitioned``, ``log`` or
``event``. An envelope that breaks another rule of its model is also archived. Event times are computed by Spark's own
expressions, because passing each record through Python takes longer than all other steps of the job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.models import times
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.layout import HOUR_MS, STAGED, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.spark.schemas import readable
from monasca_common.runtime.envelopes import EnvelopeReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


#: The columns of the connector's rows that are archived; the topic is in the name of the folder.
KEPT = ("partition", "offset", "timestamp", "key", "value", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"
# These columns divide the records into files, and are not written to the files.
_HOUR, _DATED = "of_hour", "is_dated"
_TEXT = "text"  # the value in JSON
_REPORT = (
    "path string, partition long, hour long, first long, last long, records long, undated long, bytes long, newest long"
)
_MOST_OPEN = 256  # the maximum number of open files of a task
# The values of the other columns are all different, so a dictionary would take time and save nothing.
_DICTIONARIES = ["partition", "key", "headers.list.element.key"]
#: The last millisecond of the year 9999. A later time has no date, and counts as missing.
LATEST_MS = 253_402_300_799_999
# Matches a metric as the API and agents write it. The expression is three times as fast as the parser, which reads all
# other envelopes. It cannot match within a string, because quotes in strings are escaped.
_USUAL_METRIC = r'^\{"metric": ?\{"name": ?"[^"]*", ?"dimensions": ?\{[^}]*\}, ?"timestamp": ?(\d{1,15})[,}]'
_DATE = f"^(?:{times.ISO_8601.pattern})$"
_MEMBERS = ("metric", "alarm-transitioned", "log", "event")


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The staged files of a batch. ``undated``: the number of records that are filed by Kafka's timestamp.
    ``newest_ms``: the greatest event time of each partition."""

    files: tuple[ArchivedFile, ...]
    undated: int
    newest_ms: Mapping[int, float]


def stage_files(
    records: DataFrame, store: Store, topic: str, batch: str, envelopes: EnvelopeReader | None = None
) -> StagedFiles:
    """Write the connector's rows to files in the hidden folder of the batch. Return these files; each is complete and
    on disk.

    ``envelopes``: converts values in Avro to JSON, from which the event time is read. If it is ``None`` or has no
    registry, all values are JSON.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql import types

    records = records.select(*KEPT)
    if envelopes is not None and envelopes.schema is not None:
        with_text = types.StructType([*records.schema.fields]).add(_TEXT, "binary")
        records = records.mapInArrow(_AddText(envelopes), with_text)
    own = sql.col("own_ms")
    # Passing a null list to Python takes Spark five times as long as all other fields of a record.
    headers = sql.coalesce(sql.col("headers"), sql.array().cast(_HEADERS))
    rows = (
        with_own_ms(records)
        .withColumn("event_ms", sql.coalesce(own, kafka_ms(sql.col("timestamp"))))
        .withColumn("headers", headers)
        .select(
            *KEPT,
            sql.timestamp_millis("event_ms").alias("event_time"),
            sql.expr(f"event_ms DIV {HOUR_MS}").alias(_HOUR),
            own.isNotNull().alias(_DATED),
        )
    )
    task = _WriteHours(store.location, layout.staging_folder(topic, batch))
    reports = rows.mapInArrow(task, _REPORT).collect()
    files = (
        ArchivedFile(
            topic,
            each.hour * HOUR_MS,
            Offsets(each.partition, each["first"], each.last),
            each.records,
            each.bytes,
            batch,
            each.path,
        )
        for each in sorted(reports, key=lambda each: each.path)
    )
    newest_ms: dict[int, float] = {}
    for each in reports:
        newest_ms[each.partition] = max(each.newest, newest_ms.get(each.partition, each.newest))
    return StagedFiles(tuple(files), sum(each.undated for each in reports), newest_ms)


@dataclass(frozen=True, slots=True)
class _AddText:
    """On an executor, adds the values in JSON, or null for values that cannot be read."""

    envelopes: EnvelopeReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in readable(batches, self.envelopes):
            texts, _ = self.envelopes.as_json(batch.column("value").to_pylist())
            yield batch.append_column(_TEXT, pa.array(texts, pa.binary()))


@dataclass(frozen=True, slots=True)
class _WriteHours:
    """Writes the records of a task on an executor, and reports its files."""

    location: str = field(repr=False)
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        files = TaskFiles(Store(self.location), f"{self.folder}/{context.taskAttemptId()}")
        for batch in batches:
            files.add(batch)
        if reports := files.close():
            yield pa.RecordBatch.from_pylist(reports)


class TaskFiles:
    """The files of one task. ``prefix``: the start of their paths."""

    def __init__(self, store: Store, prefix: str, *, most_open: int = _MOST_OPEN) -> None:
        self._store = store
        self._prefix = prefix
        self._most_open = most_open
        self._open: dict[tuple[int, int], HourFile] = {}  # the most recently written file is last
        self._number = 0
        self._reports: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write records, in the order of their offsets."""
        import pyarrow as pa
        import pyarrow.compute as pc

        places = pa.Table.from_batches([batch]).group_by(["partition", _HOUR], use_threads=False).aggregate([])
        for place in places.to_pylist():
            partition, hour = place["partition"], place[_HOUR]
            part = batch
            if places.num_rows > 1:
                wanted = pc.and_(pc.equal(batch.column("partition"), partition), pc.equal(batch.column(_HOUR), hour))
                part = batch.filter(wanted)
            self._file(partition, hour).write(part.drop_columns([_HOUR]))

    def close(self) -> list[dict[str, Any]]:
        """Complete the files. Return a report for each file."""
        for key in list(self._open):
            self._close(key)
        return self._reports

    def _file(self, partition: int, hour: int) -> HourFile:
        key = (partition, hour)
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= self._most_open:
                self._close(next(iter(self._open)))
            file = HourFile(self._store, f"{self._prefix}-{self._number:05}{STAGED}")
            self._number += 1
        self._open[key] = file
        return file

    def _close(self, key: tuple[int, int]) -> None:
        partition, hour = key
        file = self._open.pop(key)
        self._reports.append({"path": file.path, "partition": partition, "hour": hour, **file.close()})


class HourFile:
    """An open file; each call of `write` adds a row group."""

    def __init__(self, store: Store, path: str) -> None:
        self.path = path
        self._store = store
        self._writer: Any = None
        self._stack = contextlib.ExitStack()
        self._offsets: list[int] = []
        self._records = self._undated = self._newest_ms = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write at least one record."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        table = pa.Table.from_batches([batch])
        self._offsets += pc.min_max(table.column("offset")).as_py().values()
        self._records += table.num_rows
        self._undated += table.num_rows - pc.sum(table.column(_DATED)).as_py()
        table = table.drop_columns([_DATED])
        for name in ("timestamp", "event_time"):
            times_ms = table.column(name).cast(pa.timestamp("ms", tz="UTC"))
            table = table.set_column(table.schema.get_field_index(name), name, times_ms)
        self._newest_ms = max(self._newest_ms, pc.max(table.column("event_time")).value)
        if self._writer is None:
            stream = self._stack.enter_context(self._store.writing(self.path))
            writer = pq.ParquetWriter(stream, table.schema, compression="zstd", use_dictionary=_DICTIONARIES)
            self._writer = self._stack.enter_context(writer)
        self._writer.write_table(table)

    def close(self) -> dict[str, int]:
        """Complete the file and flush it to disk. Return the fields of a report."""
        self._stack.close()
        return {
            "first": min(self._offsets),
            "last": max(self._offsets),
            "records": self._records,
            "undated": self._undated,
            "bytes": self._store.size(self.path) or 0,
            "newest": self._newest_ms,
        }


def with_own_ms(records: DataFrame) -> DataFrame:
    """Add the column ``own_ms`` with the event time in ``value`` (or in its JSON text), or null without an event time.
    If a member is repeated, the first occurrence counts."""
    from pyspark.sql import functions as sql

    text = sql.col(_TEXT if _TEXT in records.columns else "value").cast("string")
    usual = sql.nullif(sql.regexp_extract(text, _USUAL_METRIC, 1), sql.lit(""))
    others = (sql.get_json_object(text, f"$.{member}.timestamp") for member in _MEMBERS)
    written = sql.col("written")
    number_ms = sql.coalesce(written.try_cast("bigint"), _whole(written.try_cast("double")))
    # The creation_time replaces a missing event time.
    created = sql.get_json_object(text, "$.creation_time").try_cast("double")
    creation_ms = sql.when(written.isNull(), _whole(sql.bround(created * 1000)))
    # Compute in steps, because Spark can compute a value twice if one expression uses it twice.
    return (
        records.withColumn("written", sql.coalesce(usual, *others))
        .withColumn("written_ms", sql.coalesce(number_ms, _date_ms(written), creation_ms))
        .withColumn("own_ms", sql.when(sql.col("written_ms").between(0, LATEST_MS), sql.col("written_ms")))
        .drop("written", "written_ms")
    )


def _date_ms(written: Column) -> Column:
    """Return the time of the date text of logs and events, as their models read it. A metric with a date text is
    invalid, so its hour does not matter."""
    from pyspark.sql import functions as sql

    # If the text has both Z and an offset, as in an example of the public API, the offset applies. Spark requires
    # seconds before the offset.
    offset_alone = sql.regexp_replace(written, "Z([+-])", "$1")
    with_seconds = sql.regexp_replace(offset_alone, "^(.{16})(?!:)", "$1:00")
    usual = sql.replace(with_seconds, sql.lit(","), sql.lit("."))
    return sql.when(written.rlike(_DATE), sql.unix_millis(usual.try_cast("timestamp")))


def _whole(number: Column) -> Column:
    from pyspark.sql import functions as sql

    return sql.when(number.between(0, LATEST_MS), sql.floor(number))


def kafka_ms(timestamp: Column) -> Column:
    """Return Kafka's timestamp in ms, limited to the years that dates support. It is -1 in a topic without
    timestamps."""
    from pyspark.sql import functions as sql

    return sql.least(sql.greatest(sql.unix_millis(timestamp), sql.lit(0)), sql.lit(LATEST_MS))
