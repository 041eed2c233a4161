# SPDX-License-Identifier: Apache-2.0
"""Merges the small files of an archive's hours.

Executors write the merged files to a hidden folder. One transaction records them in the manifest, and that they replace
the small ones; then they take their place. A crash before it changes nothing; after it, the next process that archives
or compacts does the rest.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.layout import HOUR_MS, STAGED, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile, FileState
from monasca_common.pipeline.archive.placement import Placement
from monasca_common.pipeline.archive.settings import ArchiveSettings, Columns, Compression
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writer import merge
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.spark.description import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TARGET_BYTES = 128 * 1024 * 1024  # of a merged file; those smaller than half of it are merged
_MERGES_A_TASK = 4
Files = tuple[ArchivedFile, ...]


@dataclass(frozen=True, slots=True)
class _MergeFiles:
    """Runs on an executor: merges some files to one, and reports it."""

    location: str = field(repr=False)
    folder: str
    compression: Compression
    columns: Columns

    def __call__(self, numbered: tuple[int, Sequence[str]]) -> dict[str, Any]:
        number, paths = numbered
        staged = f"{self.folder}/{number:05}-{uuid.uuid4().hex[:8]}{STAGED}"
        return merge(Store(self.location), paths, staged, self.compression, self.columns)


class Compaction:
    """Merges the small files of one topic."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ArchiveSettings,
        source: Source,
        offset_store: OffsetStore,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._source = source
        self._offset_store = offset_store
        self._clock = clock or SystemClock()
        self._placement = Placement(Store(settings.location), offset_store)

    def run(self, from_ms: int | None, to_ms: int | None, watcher: JobWatcher) -> JobProgress:
        """Merge the small files of the hours that begin in [from_ms, to_ms), until the watcher stops it.

        ``done`` and ``left`` count records. Raises `StagingLost`, and the errors of storage, of Spark and of the store.
        """
        began = self._clock.monotonic()
        self._finish()
        with self._offset_store.reading() as connection:
            placed = manifest.find(connection, self._source, FileState.PLACED)
        last_ms = self._clock.time_ms() - HOUR_MS if to_ms is None else to_ms
        wanted = [file for file in placed if (from_ms or 0) <= file.hour_ms < last_ms]
        bins = list(binned(wanted, _TARGET_BYTES))
        left = sum(file.records for some in bins for file in some)
        done = merged_files = new_files = 0
        progress = JobProgress(0, left, 0.0)
        size = self._tasks * _MERGES_A_TASK
        for start in range(0, len(bins), size):
            some = bins[start : start + size]
            if watcher.stop.is_set():
                break
            self._merge(some)
            records = sum(file.records for files in some for file in files)
            done, left = done + records, left - records
            merged_files, new_files = merged_files + sum(map(len, some)), new_files + len(some)
            results = {"merged_files": merged_files, "new_files": new_files}
            progress = JobProgress(done, left, self._clock.monotonic() - began, results)
            watcher.tell(progress)
        return progress

    @property
    def _tasks(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def _merge(self, bins: Sequence[Files]) -> None:
        settings, batch = self._settings, uuid.uuid4().hex
        folder = layout.staging_folder(self._source.topic, batch)
        task = _MergeFiles(settings.location, folder, settings.compression, settings.columns)
        numbered = [(number, [file.path for file in files]) for number, files in enumerate(bins)]
        text = f"compact: {self._source.topic}, {sum(map(len, bins))} files to {len(bins)}"
        with described(self._spark, batch, text):
            paths = self._spark.sparkContext.parallelize(numbered, min(len(numbered), self._tasks))
            reports = paths.map(task).collect()
        merged = [_merged(files, report, batch) for files, report in zip(bins, reports, strict=True)]
        fail_point("compaction.after_write")
        with self._offset_store.writing() as connection:
            manifest.lock(connection, self._source)
            self._placement.check_staged(merged)
            manifest.replace(connection, self._source, [file for files in bins for file in files])
            manifest.add(connection, self._source, merged, self._clock.time_ms())
            fail_point("compaction.inside_transaction")
        fail_point("compaction.after_commit")
        self._finish()
        Store(settings.location).remove_folder(folder)

    def _finish(self) -> None:
        with self._offset_store.reading() as connection:
            committed = manifest.find(connection, self._source, FileState.COMMITTED)
            replaced = manifest.find(connection, self._source, FileState.REPLACED)
        if replaced:
            self._placement.finish(self._source, committed, replaced)


def binned(files: Iterable[ArchivedFile], target_bytes: int) -> Iterator[Files]:
    """Files that are to be merged to one: of one hour and one partition, smaller than half of the target each, and
    together not larger than it."""

    def place(file: ArchivedFile) -> tuple[int, str, int]:
        return file.hour_ms, file.topic_id or "", file.offsets.partition

    small = [file for file in files if file.size_bytes < target_bytes // 2]
    for _, group in itertools.groupby(sorted(small, key=lambda file: (*place(file), file.offsets.first)), place):
        some: list[ArchivedFile] = []
        for file in group:
            if some and sum(each.size_bytes for each in some) + file.size_bytes > target_bytes:
                yield from [tuple(some)] if len(some) > 1 else []
                some = []
            some.append(file)
        if len(some) > 1:
            yield tuple(some)


def _merged(files: Files, report: dict[str, Any], batch: str) -> ArchivedFile:
    one = files[0]
    offsets = Offsets(one.offsets.partition, report["first"], report["last"])
    return ArchivedFile(
        one.topic, one.hour_ms, offsets, report["records"], report["bytes"], batch, report["path"], one.topic_id
    )
