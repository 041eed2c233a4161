# SPDX-License-Identifier: Apache-2.0
"""The writers of one consumer: as many as are in use at once, opened when they are first needed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from monasca_common.storage.base import Storage, Writer


class WriterPool:
    """Lends each caller a writer of its own; the one used last first, because its cache is warm."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._idle: list[Writer] = []
        self._closed = False

    @contextlib.contextmanager
    def writer(self) -> Iterator[Writer]:
        """Lend a writer. Without an idle one it opens one, and raises what `Storage.open_writer` raises."""
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
        """Close the idle writers now, and each other one when it is returned, because its transaction is under way."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for writer in idle:
            writer.close()
