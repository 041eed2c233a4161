# SPDX-License-Identifier: Apache-2.0
"""Removes the files of hours that are older than the retention."""

from __future__ import annotations

from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.manifest import FileState
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.source.offset_store import OffsetStore, Source

_DAY_MS = 86_400_000


class Expiry:
    """Removes old hours of one archive. With ``retention_days`` 0 nothing is ever removed."""

    def __init__(self, offset_store: OffsetStore, store: Store, retention_days: int) -> None:
        self._offset_store = offset_store
        self._store = store
        self._kept_ms = retention_days * _DAY_MS
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
