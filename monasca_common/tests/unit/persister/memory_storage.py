# SPDX-License-Identifier: Apache-2.0
"""A storage in memory, with the fence and with faults on demand."""

import threading
from bisect import bisect_left
from unittest.mock import Mock

from monasca_common.storage import fence
from monasca_common.storage.base import Capability, Kind, Storage, Writer, Written
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.fence import StoredNext


class MemoryStorage(Storage):
    """``faults``: errors that the next calls of writers raise, in order. ``rows``: the stored rows."""

    capabilities = frozenset(Capability)
    kinds = frozenset(Kind)
    open_reader = upgrade = status = prune = Mock(side_effect=NotImplementedError)

    def __init__(self):
        self.lock = threading.Lock()
        self.next = {}
        self.rows = []
        self.message_ids = []
        self.by_id = []
        self.claims = []
        self.faults = []
        self.opened = 0
        self.closed = 0

    def open_writer(self):
        self.strike()
        self.opened += 1
        return MemoryWriter(self)

    def strike(self):
        if self.faults:
            raise self.faults.pop(0)

    def away(self, times):
        self.faults += [StorageUnavailable("unavailable, for the test")] * times


class MemoryWriter(Writer):
    def __init__(self, storage):
        self._storage = storage

    def next_offsets(self, group, partitions):
        self._storage.strike()
        stored = {}
        for partition, topic_id in partitions.items():
            if (group, *partition) in self._storage.next:
                known = self._storage.next[group, *partition]
                fence.check_topic(partition.topic, known.topic_id, topic_id)
                stored[partition] = known.next_offset
        return stored

    def begin(self, group, starts, topic_ids):
        self._storage.strike()
        for partition, start in starts.items():
            self._storage.next.setdefault((group, *partition), StoredNext(start, topic_ids[partition]))
        return self.next_offsets(group, topic_ids)

    def write(self, claim, rows):
        fence.check_call(claim, rows)
        self._storage.strike()
        with self._storage.lock:
            first = bisect_left(rows.offsets, self._advance(claim))
            self._storage.claims.append(claim)
            self._storage.rows += rows.values[first:]
            self._storage.message_ids += rows.message_ids[first:]
            self._storage.by_id += rows.by_id[first:]
        return Written(stored=len(rows.values) - first, skipped=first)

    def accounted(self, claim):
        self._storage.strike()
        with self._storage.lock:
            self._advance(claim)

    def _advance(self, claim):
        """Move the stored offset to the end of the claim, and return the first offset that is not stored yet."""
        key = (claim.group, claim.topic, claim.partition)
        stored = self._storage.next.setdefault(key, StoredNext(claim.start, claim.topic_id))
        first = fence.first_new(claim, stored)
        if claim.end > stored.next_offset:
            self._storage.next[key] = StoredNext(claim.end, claim.topic_id)
        return first

    def close(self):
        self._storage.closed += 1
