# SPDX-License-Identifier: Apache-2.0
"""Moves committed files to the folders that readers use, and removes expired files. The manifest decides which files to
move or remove, so the next process can repeat every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.manifest import ArchivedFile, FileState
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.storage.retention import DAY_MS


class Placement:
    """Places the files of one archive."""

    def __init__(self, store: Store, offset_store: OffsetStore) -> None:
        self._store = store
        self._offset_store = offset_store

    def check_staged(self, files: Sequence[ArchivedFile]) -> None:
        """Check that the files are complete and can be placed. The caller holds the lock, so no other process can
        remove them as orphans. Raises `StagingLost`, or `ConfigurationError` for a file that is too large."""
        largest_bytes = self._store.largest_bytes
        for file in files:
            size_bytes = self._store.size(file.staged)
            if size_bytes != file.size_bytes:
                raise StagingLost(f"{file.staged} was written with {file.size_bytes} bytes, but now has {size_bytes}")
            if largest_bytes is not None and size_bytes > largest_bytes:
                raise ConfigurationError(
                    f"{file.staged} has {size_bytes} bytes, but S3 cannot move files of more than {largest_bytes}: "
                    "lower max_offsets_per_trigger in group [pipeline_archive]"
                )

    def place(self, source: Source, files: Sequence[ArchivedFile]) -> None:
        """Move committed files to the folders that readers use."""
        if not files:
            return
        for file in files:
            self._store.place(file.staged, file.path)
            fail_point("archive.half_renamed")
        with self._offset_store.writing() as connection:
            manifest.set_placed(connection, source, sorted({file.batch for file in files}))


class Expiry:
    """Removes old hours of one archive. With ``retention_days`` 0, nothing is removed."""

    def __init__(self, offset_store: OffsetStore, store: Store, retention_days: int) -> None:
        self._offset_store = offset_store
        self._store = store
        self._kept_ms = retention_days * DAY_MS
        self._applied_ms = -HOUR_MS

    def apply(self, source: Source, now_ms: int) -> int:
        """Remove files that are too old, at most once an hour (failed calls do not count). Return the number of
        removed files."""
        if not self._kept_ms or abs(now_ms - self._applied_ms) < HOUR_MS:
            return 0
        with self._offset_store.writing() as connection:
            manifest.lock(connection, source)
            # An hour is removed when its last millisecond is older than the retention.
            manifest.set_expired(connection, source, now_ms - self._kept_ms - HOUR_MS + 1)
        removed = self.finish(source)
        self._applied_ms = now_ms
        return removed

    def finish(self, source: Source) -> int:
        """Remove the expired files, including those left by a crash. Return their number."""
        with self._offset_store.reading() as connection:
            files = manifest.find(connection, source, FileState.EXPIRED)
        for file in files:
            self._store.remove_file(file.path)
        for folder in sorted({layout.hour_folder(file.topic, file.hour_ms) for file in files}):
            if self._store.remove_empty_folder(folder):
                self._store.remove_empty_folder(folder.rpartition("/")[0])  # the day
        if files:
            with self._offset_store.writing() as connection:
                manifest.remove_expired(connection, source, files)
        return len(files)
