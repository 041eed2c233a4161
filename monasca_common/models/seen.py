# SPDX-License-Identifier: Apache-2.0
"""A memory of what was worked out before, bounded in entries and in bytes."""

from __future__ import annotations

from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Seen(Generic[K, V]):
    """Pure results by their input: forgetting one costs time and nothing else.

    ``find`` is a dictionary's ``get``. When full the older half is forgotten at once, which costs a tenth of
    keeping the order of use. What is too large is not kept, so that strangers cannot fill the memory with it.
    Threads may share one: each step is one operation of the dictionary, or is undone by losing an entry.
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
            self._forget()
        self._entries[key] = value

    def _forget(self) -> None:
        # A copy of the keys in one step: another thread may add one meanwhile.
        for key in list(islice(list(self._entries), max(1, self._max_entries // 2))):
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)
