# SPDX-License-Identifier: Apache-2.0
"""Hours that are over for longer than records are kept are removed, now and then."""

from __future__ import annotations

from monasca_common.pipeline.archive import layout, manifest
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.manifest import State
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.ledger import Ledger, Source

_DAY_MS = 86_400_000


class Expiry:
    """``retention_days``: 0: nothing is ever removed."""

    def __init__(self, ledger: Ledger, store: Store, retention_days: int) -> None:
        self._ledger = ledger
        self._store = store
        self._kept_ms = retention_days * _DAY_MS
        self._applied_ms = -HOUR_MS

    def apply(self, source: Source, now_ms: int) -> int:
        """Once an hour; how many files were removed."""
        if not self._kept_ms or now_ms - self._applied_ms < HOUR_MS:
            return 0
        self._applied_ms = now_ms
        with self._ledger.writing() as connection:
            # An hour goes when its last millisecond is older than what is kept.
            manifest.set_expired(connection, source, now_ms - self._kept_ms - HOUR_MS + 1)
        return self.finish(source)

    def finish(self, source: Source) -> int:
        """Remove what was to be removed; after a crash, what is left of it."""
        with self._ledger.reading() as connection:
            files = manifest.find(connection, source, State.EXPIRED)
        for file in files:
            self._store.remove_file(file.path)
        for folder in sorted({layout.hour_folder(file.topic, file.hour_ms) for file in files}):
            self._remove_empty(folder)
        if files:
            with self._ledger.writing() as connection:
                manifest.remove_expired(connection, source, files)
        return len(files)

    def _remove_empty(self, folder: str) -> None:
        """The hour's, and the day's when that was its last."""
        if self._store.remove_empty_folder(folder):
            self._store.remove_empty_folder(folder.rpartition("/")[0])
