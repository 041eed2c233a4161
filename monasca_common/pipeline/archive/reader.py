# SPDX-License-Identifier: Apache-2.0
"""Archived records, selected by time, name and tenant, and read back as they came from Kafka.

Readers read the placed files: each is complete, and no two files have a record in common. So an archive can be read
without the database that it was written with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from monasca_common.kafka.message import Message
from monasca_common.models import json_text
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.patterns import Pattern

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_ROWS = 10_000
#: The columns that every file has.
RAW_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "event_time")
#: The columns of the connector, and ``event_time``.
FRAME_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "event_time")
_FRAME = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key string, value binary>>, event_time timestamp"
)
_LONGEST_VALID = 255
_REFUSED = (*json_text.UNREADABLE, TypeError)


class _ArchivedMetric(msgspec.Struct, gc=False):
    name: str = ""


class _ArchivedEvent(msgspec.Struct, gc=False):
    event_type: str = ""


class _ArchivedAlarm(msgspec.Struct, gc=False, rename="camel"):
    alarm_name: str = ""
    tenant_id: str = ""


class _ArchivedMeta(msgspec.Struct, gc=False):
    tenant: str = msgspec.field(default="", name="tenantId")
    project: str = msgspec.field(default="", name="project_id")


class _ArchivedEnvelope(msgspec.Struct, gc=False):
    metric: _ArchivedMetric | None = None
    event: _ArchivedEvent | None = None
    alarm: _ArchivedAlarm | None = msgspec.field(default=None, name="alarm-transitioned")
    meta: _ArchivedMeta | None = None


_decode = msgspec.json.Decoder(_ArchivedEnvelope).decode


@dataclass(frozen=True, slots=True)
class Selection:
    """Event times from ``from_ms`` to just before ``to_ms`` (``None``: no bound), and two regular expressions.

    ``name`` (a metric's name, an event's type, or an alarm's name) and ``tenant`` match the whole text. With one of
    them, a record that cannot be decoded is not selected.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    name: Pattern | None = None
    tenant: Pattern | None = None

    def has_time(self, first_ms: int, last_ms: int) -> bool:
        """Return whether a time between these, both included, may be selected."""
        after = self.from_ms is None or last_ms >= self.from_ms
        return after and (self.to_ms is None or first_ms < self.to_ms)

    @property
    def needs_value(self) -> bool:
        return self.name is not None or self.tenant is not None

    def wanted(self, values: Sequence[bytes | None]) -> list[bool]:
        """Return which values are selected by name and tenant; times are not compared here."""
        return [self._is_wanted(value) for value in values]

    def _is_wanted(self, value: bytes | None) -> bool:
        try:
            envelope = _decode(value)  # type: ignore[arg-type]
        except _REFUSED:
            return False
        name, tenant = _name_and_tenant(envelope)
        return _matches(self.name, name) and _matches(self.tenant, tenant)


def _matches(wanted: Pattern | None, text: str) -> bool:
    if wanted is None:
        return True
    # The names of valid messages repeat, and a lookup takes a tenth of the time of a match.
    return _is_all_of(wanted, text) if len(text) <= _LONGEST_VALID else wanted.is_all_of(text)


@functools.lru_cache(maxsize=10_000)
def _is_all_of(wanted: Pattern, text: str) -> bool:
    return wanted.is_all_of(text)


def _name_and_tenant(envelope: _ArchivedEnvelope) -> tuple[str, str]:
    """Return the name and the tenant; empty if missing, as the name of a log."""
    if envelope.alarm is not None:
        return envelope.alarm.alarm_name, envelope.alarm.tenant_id
    tenant = (envelope.meta.tenant or envelope.meta.project) if envelope.meta is not None else ""
    if envelope.metric is not None:
        return envelope.metric.name, tenant
    return envelope.event.event_type if envelope.event is not None else "", tenant


def find_files(store: Store, topic: str, selection: Selection) -> list[str]:
    """Return the paths of the files of the hours that the selection may cover, in order of time. Raises
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
    """Yield the selected records of a file, in order of offset. Raises `ArchiveUnavailable`, `ArchiveDamaged`."""
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
            if selection.needs_value and wanted.num_rows:
                wanted = wanted.filter(pa.array(selection.wanted(wanted.column("value").to_pylist())))
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


@dataclass(frozen=True, slots=True)
class _FileReader:
    """Runs on an executor: reads the records of the given paths."""

    location: str = field(repr=False)
    topic: str
    selection: Selection

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        store = Store(self.location)
        microsecond = pa.timestamp("us", tz="UTC")
        for paths in batches:
            for path in paths.column(0).to_pylist():
                for batch in read(store, path, self.selection):
                    columns = {name: batch.column(name) for name in batch.schema.names}
                    for name in ("timestamp", "event_time"):
                        columns[name] = columns[name].cast(microsecond)
                    columns["topic"] = pa.array([self.topic] * batch.num_rows, pa.string())
                    yield pa.record_batch([columns[name] for name in FRAME_COLUMNS], names=list(FRAME_COLUMNS))


def archived_frame(
    spark: SparkSession, location: str, topic: str, paths: Sequence[str], selection: Selection
) -> DataFrame:
    """Return the selected records of these files, with the connector's columns and ``event_time``."""
    files = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = max(1, min(len(paths), spark.sparkContext.defaultParallelism * 4))
    return files.repartition(tasks).mapInArrow(_FileReader(location, topic, selection), _FRAME)
