# SPDX-License-Identifier: Apache-2.0
"""Moves committed files to where readers find them, and removes the files that they replace, and those that expire.

This process or the next one does what the manifest says, and doing it twice changes nothing. Files that replace others
take their place in one step where the file system can exchange two folders (a disk of Linux), so no reader finds a
record twice, or misses it. Elsewhere the new files are placed first, and a reader that lists the folder before the old
ones are removed finds both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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
        """Check that the files are whole, and can be placed. The caller holds the lock, so no process can remove them
        as orphans any more. Raises `StagingLost`; `ConfigurationError` for a file that is too large."""
        largest_bytes = self._store.largest_bytes
        for file in files:
            size_bytes = self._store.size(file.staged)
            if size_bytes != file.size_bytes:
                raise StagingLost(f"{file.staged} was written with {file.size_bytes} bytes, and has {size_bytes} now")
            if largest_bytes is not None and size_bytes > largest_bytes:
                raise ConfigurationError(
                    f"{file.staged} has {size_bytes} bytes, and S3 moves no file of more than {largest_bytes}: lower "
                    "max_offsets_per_trigger in group [pipeline_archive]"
                )

    def place(self, source: Source, files: Sequence[ArchivedFile]) -> None:
        """Move committed files into place."""
        if not files:
            return
        for file in files:
            self._store.place(file.staged, file.path)
            fail_point("archive.half_renamed")
        with self._offset_store.writing() as connection:
            manifest.set_placed(connection, source, sorted({file.batch for file in files}))

    def finish(self, source: Source, committed: Sequence[ArchivedFile], replaced: Sequence[ArchivedFile]) -> None:
        """Place what is committed, then remove what is replaced. Both were read in one transaction, so each file that
        replaces another is placed before."""
        if replaced:
            self._exchange(source, committed, replaced)
        with self._offset_store.reading() as connection:
            unplaced = _still(manifest.find(connection, source, FileState.COMMITTED), committed)
            replaced = _still(manifest.find(connection, source, FileState.REPLACED), replaced)
        self.place(source, unplaced)
        for file in replaced:
            self._store.remove_file(file.path)
        for batch in {file.batch for file in committed}:
            self._store.remove_folder(layout.staging_folder(source.topic, batch))
        if replaced:
            with self._offset_store.writing() as connection:
                manifest.remove(connection, source, replaced, FileState.REPLACED)

    def _exchange(self, source: Source, committed: Sequence[ArchivedFile], replaced: Sequence[ArchivedFile]) -> None:
        """Exchange the folder of each hour in which files are replaced, where that is possible."""
        for hour_ms, group in itertools.groupby(sorted(replaced, key=_hour), _hour):
            old = list(group)
            new = [file for file in committed if file.hour_ms == hour_ms]
            folder = layout.hour_folder(source.topic, hour_ms)
            with self._offset_store.writing() as connection:
                # No file of this hour is committed, placed or expired before the end of the transaction.
                manifest.lock(connection, source)
                if manifest.states(connection, source, hour_ms) != _states(new, old):
                    continue  # a batch that is not placed, or a file that is being removed: one file after the other
                names = {file.path: file.staged for file in new}
                if self._store.exchange(folder, names, {file.path for file in old}):
                    fail_point("compaction.exchanged")
                    manifest.set_placed(connection, source, sorted({file.batch for file in new}), hour_ms)
                    manifest.remove(connection, source, old, FileState.REPLACED)


def _hour(file: ArchivedFile) -> int:
    return file.hour_ms


def _still(found: Iterable[ArchivedFile], known: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    names = {(file.hour_ms, file.name) for file in known}
    return [file for file in found if (file.hour_ms, file.name) in names]


def _states(new: Sequence[ArchivedFile], old: Sequence[ArchivedFile]) -> dict[str, FileState]:
    """Return the states of the files of an hour that are not placed."""
    return {file.name: FileState.COMMITTED for file in new} | {file.name: FileState.REPLACED for file in old}


class Expiry:
    """Removes old hours of one archive. With ``retention_days`` 0 nothing is ever removed."""

    def __init__(self, offset_store: OffsetStore, store: Store, retention_days: int) -> None:
        self._offset_store = offset_store
        self._store = store
        self._kept_ms = retention_days * DAY_MS
        self._applied_ms = -HOUR_MS

    def apply(self, source: Source, now_ms: int) -> int:
        """Remove what is too old, at most once an hour. Returns how many files were removed."""
        if not self._kept_ms or now_ms - self._applied_ms < HOUR_MS:
            return 0
        self._applied_ms = now_ms
        with self._offset_store.writing() as connection:
            manifest.lock(connection, source)
            # An hour is removed when its last millisecond is older than the retention.
            manifest.set_expired(connection, source, now_ms - self._kept_ms - HOUR_MS + 1)
        return self.finish(source)

    def finish(self, source: Source) -> int:
        """Remove the expired files, also those that a crash left. Returns how many."""
        with self._offset_store.reading() as connection:
            files = manifest.find(connection, source, FileState.EXPIRED)
        for file in files:
            self._store.remove_file(file.path)
        for folder in sorted({layout.hour_folder(file.topic, file.hour_ms) for file in files}):
            self._remove_empty(folder)
        if files:
            with self._offset_store.writing() as connection:
                manifest.remove(connection, source, files, FileState.EXPIRED)
        return len(files)

    def _remove_empty(self, folder: str) -> None:
        """Remove the folder of the hour if it is empty, and then that of the day."""
        if self._store.remove_empty_folder(folder):
            self._store.remove_empty_folder(folder.rpartition("/")[0])
