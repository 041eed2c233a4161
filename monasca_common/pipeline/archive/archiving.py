# SPDX-License-Identifier: Apache-2.0
"""Topics to Parquet, each record once.

A batch is a range of offsets of each partition. Executors write its files where nobody looks; one transaction records
them and advances the offsets; then they are moved to where readers find them. What is not in the manifest is never
moved, and what is, always: by this process, or by the next.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.expiry import Expiry
from monasca_common.pipeline.archive.manifest import ArchivedFile, State
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writing import HourFiles, Staged
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.jobs.ranges import next_ranges
from monasca_common.pipeline.ledger import Ledger, OffsetRange, Source
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.topic_view import TopicView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWNER = "_archive"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """``offsets``: that were accounted for. ``behind``: that are left. ``undated``: filed by Kafka's time.
    ``expired``: files that were removed."""

    offsets: int = 0
    behind: int = 0
    records: int = 0
    undated: int = 0
    files: int = 0
    size_bytes: int = 0
    expired: int = 0

    def plus(self, other: BatchReport) -> BatchReport:
        return BatchReport(
            self.offsets + other.offsets,
            self.behind + other.behind,
            self.records + other.records,
            self.undated + other.undated,
            self.files + other.files,
            self.size_bytes + other.size_bytes,
            self.expired + other.expired,
        )

    def results(self) -> dict[str, int]:
        return {
            "records": self.records,
            "undated_records": self.undated,
            "files": self.files,
            "bytes": self.size_bytes,
            "expired_files": self.expired,
        }


class Archiving:
    """One driver of the job, for one topic. `step` is called again and again; what it raises leaves everything as it
    was, but for hidden files, which the next step removes."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ArchiveSettings,
        stream: StreamSettings,
        view: TopicView,
        ledger: Ledger,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._stream = stream
        self._view = view
        self._ledger = ledger
        self._clock = clock or SystemClock()
        self._store = Store(settings.location)
        self._expiry = Expiry(ledger, self._store, settings.retention_days)
        self._is_tidy = False

    def step(self) -> BatchReport:
        """One batch, if there is one.

        Raises `Fenced`, `RecordsLost`, `AlreadyArchived`, and the errors of Kafka, storage, Spark and the store.
        """
        stream = self._stream
        source = Source(stream.group, stream.topic, self._view.topic_id())
        if not self._is_tidy:
            check_owner(self._store, stream.group)
            self._recover(source)
        self._is_tidy = False
        ranges, behind = next_ranges(self._view, self._ledger, source, stream.max_offsets_per_trigger)
        report = self._batch(source, ranges) if ranges else BatchReport()
        expired = self._expiry.apply(source, self._clock.time_ms())
        self._is_tidy = True
        return report.plus(BatchReport(behind=behind, expired=expired))

    def _batch(self, source: Source, ranges: Sequence[OffsetRange]) -> BatchReport:
        stream, batch = self._stream, uuid.uuid4().hex
        records = connector.ranges_frame(self._spark, stream.consumer, ranges, min_partitions=stream.min_partitions)
        folder = layout.staging_folder(stream.topic, batch)
        files = HourFiles(self._store, stream.topic, batch, folder, self._settings.compression)
        staged = files.stage(records)
        fail_point("archive.after_write")
        with self._ledger.advance(source, ranges) as connection:
            manifest.lock(connection, source)
            manifest.check_new(connection, source, ranges)
            self._check_staged(staged.files)
            manifest.add(connection, source, staged.files, self._clock.time_ms())
            fail_point("archive.inside_transaction")
        fail_point("archive.before_rename")
        self._place(source, staged.files)
        self._store.remove_folder(folder)
        self._view.commit({each.partition: each.end for each in ranges})
        return _report(ranges, staged)

    def _check_staged(self, files: Sequence[ArchivedFile]) -> None:
        """Under the lock, so that nobody can take them for orphans any more."""
        for file in files:
            size_bytes = self._store.size(file.staged)
            if size_bytes != file.size_bytes:
                raise StagingLost(f"{file.staged} was written with {file.size_bytes} bytes, and has {size_bytes} now")

    def _place(self, source: Source, files: Sequence[ArchivedFile]) -> None:
        for file in files:
            self._store.place(file.staged, file.path)
            fail_point("archive.half_renamed")
        with self._ledger.writing() as connection:
            manifest.set_placed(connection, source, sorted({file.batch for file in files}))

    def _recover(self, source: Source) -> None:
        """Finish what is committed, remove what is not: by a crash, or by a batch that failed."""
        with self._ledger.writing() as connection:
            # A batch that is to be committed has the lock, and finds its files missing if they were removed.
            manifest.lock(connection, source)
            committed = manifest.find(connection, source, State.COMMITTED)
            orphans = set(self._store.folders(layout.staging_folder(source.topic)))
            for batch in sorted(orphans - {file.batch for file in committed}):
                self._store.remove_folder(layout.staging_folder(source.topic, batch))
        self._place(source, committed)
        for batch in {file.batch for file in committed}:
            self._store.remove_folder(layout.staging_folder(source.topic, batch))
        self._expiry.finish(source)


def check_owner(store: Store, group: str) -> None:
    """Raises `ConfigurationError` where another group archives: each record would be there twice."""
    found = store.read_small(_OWNER)
    if not found:  # empty where the disk had room for its name only
        with store.writing(_OWNER) as stream:
            stream.write(group.encode())
    elif found.decode() != group:
        raise ConfigurationError(
            f"the archive is that of group_id {found.decode()!r}, and this job's is {group!r}: readers would find each "
            "record twice; give it a location of its own"
        )


def _report(ranges: Sequence[OffsetRange], staged: Staged) -> BatchReport:
    return BatchReport(
        offsets=sum(each.span for each in ranges),
        records=sum(file.records for file in staged.files),
        undated=staged.undated,
        files=len(staged.files),
        size_bytes=sum(file.size_bytes for file in staged.files),
    )
