# SPDX-License-Identifier: Apache-2.0
"""The writers of one consumer: one per concurrent batch, opened on demand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from monasca_common.storage.base import Storage, Writer


class WriterPool:
    """Lends a writer to each caller, preferably the most recently used one, because its cache is warm."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._idle: list[Writer] = []
        self._closed = False

    @contextlib.contextmanager
    def writer(self) -> Iterator[Writer]:
        """Lend an idle writer, or open one. Raises the errors of `Storage.open_writer`."""
        with self._lock:
            writer = self._idle.pop() if self._idle else None
        writer = writer or self._storage.open_writer()
        try:
            yield writer
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(writer)
            if not keep:
                writer.close()

    def close(self) -> None:
        """Close idle writers now, and each busy writer when its transaction ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for writer in idle:
            writer.close()
