# SPDX-License-Identifier: Apache-2.0
"""The offsets that can be committed: the gap-free prefix of done messages, per partition and assignment epoch."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from monasca_common.kafka.message import OffsetAndEpoch, PartitionBatch, TopicPartition


class OffsetTracker:
    """Tracks messages from their poll to their commit. Thread-safe.

    ``max_span``: `full` contains a partition once this number of its received messages is uncommitted. A later
    epoch of a partition replaces the state of the earlier epoch; calls for an earlier epoch are ignored.
    """

    def __init__(self, max_span: int) -> None:
        self._max_span = max_span
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._confirmed: dict[TopicPartition, int] = {}
        # The polling thread reads these sets in each pass; there may be ten thousand partitions.
        self._advanced: set[_Partition] = set()  # partitions that are done beyond the committed position
        self._full: set[_Partition] = set()
        # Reentrant, because a signal handler may call this on the thread that it interrupted here.
        self._lock = threading.RLock()

    def received(self, part: PartitionBatch) -> None:
        """Track polled messages. Messages that are read again after a seek are no longer done."""
        offsets = part.offsets
        if offsets:
            with self._lock:
                self._receive(part, offsets[0], offsets)

    def reached(self, part: PartitionBatch) -> None:
        """Track the end of the log with ``part``, a range without messages; `done_range` marks it as done. While
        earlier messages are not done, it can be called again with the same or a later end; they remain tracked.
        """
        with self._lock:
            start = part.start_offset
            state = self._partitions.get(part.topic_partition)
            if state is not None and state.epoch == part.epoch:
                start = max(start, state.end)
            if start < part.next_offset:
                self._receive(part, start, [part.next_offset - 1], is_end=True)

    def start_at(self, partition: TopicPartition, at: OffsetAndEpoch) -> None:
        """Start a partition without received messages, in which all offsets before ``at`` are done, but possibly not
        committed."""
        with self._lock:
            if partition not in self._partitions:
                state = self._partitions[partition] = _Partition(partition, at.epoch, at.next_offset)
                state.committed = -1
                self._sort(state)

    def done_range(self, partition: TopicPartition, epoch: int, first: int, next_offset: int) -> None:
        """Mark every received message from ``first`` up to but not including ``next_offset`` as done: handled, or
        published as an acknowledged dead letter."""
        with self._lock:
            state = self._partitions.get(partition)
            if state is not None and state.epoch == epoch:
                state.finish(first, next_offset)
                self._sort(state)

    def committable(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the position up to which each partition is done, if that position is after the `committed`
        position."""
        with self._lock:
            return {state.partition: OffsetAndEpoch(state.epoch, state.done) for state in self._advanced}

    def first_undone(self, partition: TopicPartition) -> int | None:
        """Return the offset below which all received messages are done, or ``None`` if there are none."""
        with self._lock:
            state = self._partitions.get(partition)
            return None if state is None else state.done

    def committed(self, progress: Mapping[TopicPartition, OffsetAndEpoch]) -> None:
        """Store the positions that the broker confirmed."""
        with self._lock:
            for partition, (epoch, next_offset) in progress.items():
                self._confirmed[partition] = next_offset
                state = self._partitions.get(partition)
                if state is not None and state.epoch == epoch:
                    state.commit(next_offset)
                    self._sort(state)

    def confirmed(self) -> dict[TopicPartition, int]:
        """Return the last confirmed offset (next to read) of each partition, including forgotten ones."""
        with self._lock:
            return dict(self._confirmed)

    def unfinished(self) -> dict[TopicPartition, int]:
        """Return the number of received messages of each partition that are not done."""
        with self._lock:
            return {tp: count for tp, state in self._partitions.items() if (count := state.unfinished)}

    def full(self) -> set[TopicPartition]:
        """Return the partitions that should not be read until some of their messages are committed."""
        with self._lock:
            return {state.partition for state in self._full}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the state of partitions that were revoked or lost, or whose work was abandoned."""
        with self._lock:
            for partition in partitions:
                self._drop(self._partitions.pop(partition, None))

    def _receive(self, part: PartitionBatch, start: int, offsets: list[int], *, is_end: bool = False) -> None:
        state = self._partitions.get(part.topic_partition)
        if state is not None and part.epoch < state.epoch:
            return
        if state is None or part.epoch > state.epoch or start < state.end:
            self._drop(state)
            state = self._partitions[part.topic_partition] = _Partition(part.topic_partition, part.epoch, start)
        state.receive(offsets, is_end=is_end)
        self._sort(state)

    def _drop(self, state: _Partition | None) -> None:
        if state is not None:
            self._advanced.discard(state)
            self._full.discard(state)

    def _sort(self, state: _Partition) -> None:
        for holds, among in (
            (state.done > state.committed, self._advanced),
            (state.span >= self._max_span, self._full),
        ):
            if holds:
                among.add(state)
            else:
                among.discard(state)


class _Partition:
    """One partition under one epoch: the received and uncommitted offsets, ascending, but not always contiguous."""

    def __init__(self, partition: TopicPartition, epoch: int, start: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.end = start  # next to receive
        self.done = start  # next to read after the gap-free prefix
        self.committed = start
        self._offsets: list[int] = []
        self._done = bytearray()  # 1 for each offset that is done, else 0
        self._prefix = 0  # the number of offsets in the gap-free prefix
        self._ends: set[int] = set()  # offsets that are ends of the log, not messages

    def receive(self, offsets: list[int], *, is_end: bool) -> None:
        undone = bytes(len(offsets))
        self.end = offsets[-1] + 1
        # No call between these lines, because a signal handler that runs in it would see different lengths.
        self._offsets += offsets
        self._done += undone
        if is_end:
            self._ends.update(offsets)

    @property
    def span(self) -> int:
        return len(self._offsets) - len(self._ends)

    @property
    def unfinished(self) -> int:
        states = zip(self._offsets, self._done, strict=True)
        return sum(not done and offset not in self._ends for offset, done in states)

    def finish(self, first: int, next_offset: int) -> None:
        low, high = bisect_left(self._offsets, first), bisect_left(self._offsets, next_offset)
        self._done[low:high] = b"\1" * (high - low)
        if low <= self._prefix < high:
            undone = self._done.find(0, high)
            self._prefix = len(self._done) if undone < 0 else undone
            self.done = self._offsets[self._prefix - 1] + 1

    def commit(self, next_offset: int) -> None:
        self.committed = max(self.committed, next_offset)
        count = min(self._prefix, bisect_left(self._offsets, next_offset))
        self._ends.difference_update(self._offsets[:count])
        del self._offsets[:count], self._done[:count]
        self._prefix -= count
