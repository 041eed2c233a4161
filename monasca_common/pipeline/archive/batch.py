# SPDX-License-Identifier: Apache-2.0
"""Writes each record of a topic to Parquet once.

A batch is a range of offsets of each partition. Executors write its files to a hidden folder. One transaction records
the files in the manifest and advances the offsets; then the files are moved to the folders that readers use. A file
that is not in the manifest is never moved. A file in the manifest is always moved, by this process or by the next one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.manifest import FileState
from monasca_common.pipeline.archive.placement import Expiry, Placement
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writer import StagedFiles, stage_files
from monasca_common.pipeline.jobs.activity import LastBatch, note_batch
from monasca_common.pipeline.jobs.durations import EventTimeLags, StageSeconds
from monasca_common.pipeline.jobs.job import JobProgress
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.pipeline.source.ranges import plan
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.schemas import BatchSchemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWNER = "_archive"


class Archiver:
    """One driver of the job, for one topic. Its caller repeats `step`. A `step` that fails leaves hidden files, which
    the next step places or removes."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ArchiveSettings,
        stream: StreamSettings,
        topic: SourceTopic,
        offset_store: OffsetStore,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._stream = stream
        self._topic = topic
        self._offset_store = offset_store
        self._clock = clock or SystemClock()
        self._schemas = BatchSchemas(spark, stream)
        self._store = Store(settings.location)
        self._placement = Placement(self._store, offset_store)
        self._expiry = Expiry(offset_store, self._store, settings.retention_days)
        self._lags = EventTimeLags(stream.topic)
        self._is_tidy = False
        self._is_new = True
        self._unplaced = set[str]()  # batches of this process

    def step(self) -> JobProgress:
        """Archive one batch, if any. Raises `Fenced`, `RecordsLost`, `AlreadyArchived`, and the errors of Kafka,
        Spark, the database and the files.
        """
        stream = self._stream
        source = Source(stream.group, stream.topic, self._topic.topic_id())
        if not self._is_tidy:
            check_owner(self._store, stream.group)
            self._recover(source)
        self._is_tidy = False
        timing = StageSeconds(self._clock)
        with timing.stage("plan"):
            planned = plan(self._topic, self._offset_store, source, stream.max_offsets_per_trigger)
        if planned.ranges:
            progress = replace(self._batch(source, planned.ranges, timing), stage_seconds=timing.seconds)
        else:
            lags = self._lags.after((), {}, self._clock.time_ms())
            progress = replace(_progress(0, StagedFiles((), 0, {})), lags=lags)
        expired = self._expiry.apply(source, self._clock.time_ms())
        self._is_tidy = True
        return progress.plus(JobProgress(left=planned.behind, results={"expired_files": expired}))

    def _batch(self, source: Source, ranges: Sequence[OffsetRange], timing: StageSeconds) -> JobProgress:
        stream, batch, began = self._stream, uuid.uuid4().hex, self._clock.monotonic()
        self._unplaced.add(batch)
        frame = connector.ranges_frame(self._spark, stream.consumer, ranges, min_partitions=stream.min_partitions)
        count = sum(each.span for each in ranges)
        self._spark.sparkContext.setJobGroup(batch, f"archive: {stream.topic}, {count} offsets")
        with timing.stage("write"):
            staged = self._schemas.run(partial(stage_files, frame, self._store, stream.topic, batch))
        progress = _progress(count, staged)
        fail_point("archive.after_write")
        with timing.stage("commit"), self._offset_store.advance(source, ranges) as connection:
            manifest.lock(connection, source)
            manifest.check_new(connection, source, ranges)
            self._placement.check_staged(staged.files)
            manifest.add(connection, source, staged.files, self._clock.time_ms())
            seconds = self._clock.monotonic() - began
            records = progress.results["records"]
            note_batch(connection, source, LastBatch(self._clock.time_ms(), seconds, progress.done, records))
            fail_point("archive.inside_transaction")
        fail_point("archive.before_rename")
        with timing.stage("place"):
            self._placement.place(source, staged.files)
            self._store.remove_folder(layout.staging_folder(stream.topic, batch))
            self._unplaced.remove(batch)
        self._topic.commit({each.partition: each.end for each in ranges})
        return replace(progress, lags=self._lags.after(ranges, staged.newest_ms, self._clock.time_ms()))

    def _recover(self, source: Source) -> None:
        """Place the committed files, and remove files that a failed batch or, at the start, an ended process left
        behind. Later, another batch may belong to a process that runs by mistake: if two processes removed each
        other's files, none would continue."""
        with self._offset_store.writing() as connection:
            # A batch commits while it holds the same lock, and fails if its files were removed.
            manifest.lock(connection, source)
            committed = manifest.find(connection, source, FileState.COMMITTED)
            batches = {file.batch for file in committed}
            for batch in sorted({*self._store.folders(layout.staging_folder(source.topic))} - batches):
                if self._is_new or batch in self._unplaced:
                    self._store.remove_folder(layout.staging_folder(source.topic, batch))
        self._is_new = False
        self._placement.place(source, committed)
        for batch in batches:
            self._store.remove_folder(layout.staging_folder(source.topic, batch))
        self._expiry.finish(source)


def check_owner(store: Store, group: str) -> None:
    """Raise `ConfigurationError` if another group archives here, because each record would be archived twice."""
    found = store.read_small(_OWNER)
    if not found:  # empty if the disk was full when the file was written
        with store.writing(_OWNER) as stream:
            stream.write(group.encode())
    elif found.decode() != group:
        raise ConfigurationError(
            f"the archive belongs to group_id {found.decode()!r}, and this job's is {group!r}: readers would find each "
            "record twice; give it its own location"
        )


def _progress(offsets: int, staged: StagedFiles) -> JobProgress:
    """Return the progress of a batch. ``undated_records``: the number of records filed by Kafka's timestamp."""
    results = {
        "records": sum(file.records for file in staged.files),
        "undated_records": staged.undated,
        "files": len(staged.files),
        "bytes": sum(file.size_bytes for file in staged.files),
    }
    return JobProgress(offsets, results=results)
