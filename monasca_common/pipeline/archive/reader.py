# SPDX-License-Identifier: Apache-2.0
"""Reads archived records of a time range as they were read from Kafka. Readers read only placed files: each file is
complete, and no record is in two files. An archive can therefore be read without its database.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.message import Message
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_ROWS = 10_000
#: The columns of every file.
RAW_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "event_time")
#: The columns of the connector, and ``event_time``.
FRAME_COLUMNS = ("topic", *RAW_COLUMNS)
_FRAME = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key string, value binary>>, event_time timestamp"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The event times in [from_ms, to_ms), where ``None`` means no bound."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has_time(self, first_ms: int, last_ms: int) -> bool:
        """Return whether the selection includes a time between ``first_ms`` and ``last_ms``, both inclusive."""
        after = self.from_ms is None or last_ms >= self.from_ms
        return after and (self.to_ms is None or first_ms < self.to_ms)


@dataclass(frozen=True, slots=True)
class Archive:
    """The selected records of one archived topic, which executors read."""

    location: str = field(repr=False)
    topic: str
    selection: Selection

    def read(self, path: str, columns: Sequence[str] = RAW_COLUMNS) -> Iterator[pa.RecordBatch]:
        """Yield the selected records of a file, in order of offset. Raises `ArchiveUnavailable`, `ArchiveDamaged`."""
        return read(Store(self.location), path, self.selection, columns)


def find_files(store: Store, topic: str, selection: Selection) -> list[str]:
    """Return the paths of the files of all hours that the selection overlaps, in order of time. Raises
    `ArchiveUnavailable`."""
    found: list[tuple[int, str]] = []
    root = layout.topic_folder(topic)
    for date in sorted(store.folders(root)):
        first_ms = layout.hour_of(f"{date}/hour=00")
        if first_ms is None or not selection.has_time(first_ms, first_ms + 24 * HOUR_MS - 1):
            continue
        for hour in store.folders(f"{root}/{date}"):
            hour_ms = layout.hour_of(f"{date}/{hour}")
            if hour_ms is not None and selection.has_time(hour_ms, hour_ms + HOUR_MS - 1):
                folder = f"{root}/{date}/{hour}"
                found += ((hour_ms, f"{folder}/{name}") for name in store.files(folder) if name.endswith(".parquet"))
    return [path for _, path in sorted(found)]


def read(
    store: Store, path: str, selection: Selection, columns: Sequence[str] = RAW_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yield the selected records of a file; see `Archive.read`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with store.reading(path) as opened, store.decoding(path):
        for batch in pq.ParquetFile(opened).iter_batches(batch_size=_ROWS, columns=list(columns)):
            wanted = batch
            times = batch.column("event_time").cast(pa.int64())
            if selection.from_ms is not None:
                wanted = wanted.filter(pc.greater_equal(times, selection.from_ms))
                times = wanted.column("event_time").cast(pa.int64())
            if selection.to_ms is not None:
                wanted = wanted.filter(pc.less(times, selection.to_ms))
            if wanted.num_rows:
                yield wanted


def messages(topic: str, batch: pa.RecordBatch) -> list[Message]:
    """Return the messages as they were read from Kafka."""
    import pyarrow as pa

    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value", "headers")]
    return [
        Message(topic, partition, offset, None if time_ms < 0 else time_ms, key, value, _headers(headers))
        for partition, offset, key, value, headers, time_ms in zip(*columns, times, strict=True)
    ]


def _headers(headers: Iterable[Mapping[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())


def _read_files(archive: Archive, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the files at the given paths, on an executor."""
    import pyarrow as pa

    store = Store(archive.location)
    microsecond = pa.timestamp("us", tz="UTC")
    for paths in batches:
        for path in paths.column(0).to_pylist():
            for batch in read(store, path, archive.selection):
                columns = {name: batch.column(name) for name in batch.schema.names}
                for name in ("timestamp", "event_time"):
                    columns[name] = columns[name].cast(microsecond)
                columns["topic"] = pa.array([archive.topic] * batch.num_rows, pa.string())
                yield pa.record_batch([columns[name] for name in FRAME_COLUMNS], names=list(FRAME_COLUMNS))


def archived_frame(spark: SparkSession, archive: Archive, paths: Sequence[str]) -> DataFrame:
    """Return the selected records of these files, with the connector's columns and ``event_time``."""
    files = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = max(1, min(len(paths), spark.sparkContext.defaultParallelism * 4))
    return files.repartition(tasks).mapInArrow(functools.partial(_read_files, archive), _FRAME)
