# SPDX-License-Identifier: Apache-2.0
"""Which offsets may be committed: the gap-free prefix of what is done, per partition and assignment epoch."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.message import PartitionBatch, TopicPartition

_MAX_OFFSET = 2**63 - 1


class Progress(NamedTuple):
    """How far a partition was handled under one assignment: ``next_offset`` is the next to read."""

    epoch: int
    next_offset: int


def check_offsets(offsets: Mapping[TopicPartition, object]) -> None:
    """Raise `MisuseError` for what is no offset: negative numbers are commands to the client, such as "the end"."""
    for (topic, number), offset in offsets.items():
        if not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
            raise MisuseError(f"{offset!r} is no offset of {topic}/{number}: next offsets are whole numbers from 0 on")


class OffsetTracker:
    """Follows messages from their poll to their commit. Thread-safe.

    ``max_span``: how many messages of one partition may be received and not yet committed before `full` names it.
    A later epoch of a partition replaces all that is known of the earlier one; word of an earlier one is ignored.
    """

    def __init__(self, max_span: int) -> None:
        self._max_span = max_span
        self._partitions: dict[TopicPartition, _Partition] = {}
        # Reentrant, for a signal handler may ask on the very thread that it has interrupted in here.
        self._lock = threading.RLock()

    def received(self, part: PartitionBatch) -> None:
        """These messages were polled. What comes again after a seek back is undone again."""
        offsets = part.offsets
        if not offsets:
            return
        with self._lock:
            known = self._partitions.get(part.topic_partition)
            if known is not None and part.epoch < known.epoch:
                return
            if known is None or part.epoch > known.epoch or offsets[0] < known.end:
                known = self._partitions[part.topic_partition] = _Partition(part.epoch, offsets[0])
            known.receive(offsets)

    def done(self, partition: TopicPartition, epoch: int, offset: int) -> None:
        """This message is handled, or dead-lettered and acknowledged."""
        self.done_range(partition, epoch, offset, offset + 1)

    def done_range(self, partition: TopicPartition, epoch: int, first: int, next_offset: int) -> None:
        """Every message received from ``first`` up to, not including, ``next_offset`` is done."""
        with self._lock:
            known = self._partitions.get(partition)
            if known is not None and known.epoch == epoch:
                known.finish(first, next_offset)

    def committable(self) -> dict[TopicPartition, Progress]:
        """How far each partition is done, where that is further than what `committed` told."""
        with self._lock:
            return {
                partition: Progress(known.epoch, known.done)
                for partition, known in self._partitions.items()
                if known.done > known.committed
            }

    def committed(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """The broker confirmed these."""
        with self._lock:
            for partition, (epoch, next_offset) in progress.items():
                known = self._partitions.get(partition)
                if known is not None and known.epoch == epoch:
                    known.commit(next_offset)

    def span(self, partition: TopicPartition) -> int:
        """How many messages of a partition were received and are not committed."""
        with self._lock:
            known = self._partitions.get(partition)
            return 0 if known is None else known.span

    def unfinished(self) -> dict[TopicPartition, int]:
        """How many messages of each partition were received and are not done."""
        with self._lock:
            counts = {partition: known.unfinished for partition, known in self._partitions.items()}
        return {partition: count for partition, count in counts.items() if count}

    def full(self) -> set[TopicPartition]:
        """The partitions of which no more should be read until something is committed."""
        with self._lock:
            return {partition for partition, known in self._partitions.items() if known.span >= self._max_span}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what is known of these: they were revoked or lost, or their work was abandoned."""
        with self._lock:
            for partition in partitions:
                self._partitions.pop(partition, None)


class _Partition:
    """One partition under one epoch: blocks of received offsets, oldest first."""

    def __init__(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self.end = start  # next to receive
        self.done = start  # next to read after the gap-free prefix
        self.committed = start
        self.span = 0
        self._open: list[_Block] = []
        self._uncommitted: deque[tuple[int, int]] = deque()  # (next offset, messages) of each block, oldest first

    def receive(self, offsets: list[int]) -> None:
        self.end = offsets[-1] + 1
        self.span += len(offsets)
        self._open.append(_Block(offsets))
        self._uncommitted.append((self.end, len(offsets)))

    @property
    def unfinished(self) -> int:
        return sum(block.left for block in self._open)

    def finish(self, first: int, next_offset: int) -> None:
        for index in range(bisect_left(self._open, first, key=_last), len(self._open)):
            if self._open[index].offsets[0] >= next_offset:
                break
            self._open[index].finish(first, next_offset)
        finished = 0
        for block in self._open:
            self.done = max(self.done, block.done_below)
            if block.left:
                break
            finished += 1
        del self._open[:finished]

    def commit(self, next_offset: int) -> None:
        self.committed = max(self.committed, next_offset)
        while self._uncommitted and self._uncommitted[0][0] <= next_offset:
            self.span -= self._uncommitted.popleft()[1]


class _Block:
    """Offsets that one poll received, ascending but not always contiguous, and which of them are done."""

    __slots__ = ("_flags", "_prefix", "left", "offsets")

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.left = len(offsets)
        self._flags = bytearray(len(offsets))
        self._prefix = 0

    def finish(self, first: int, next_offset: int) -> None:
        low = bisect_left(self.offsets, first)
        high = bisect_left(self.offsets, next_offset)
        self.left -= self._flags.count(0, low, high)
        self._flags[low:high] = b"\1" * (high - low)
        if low <= self._prefix < high:
            undone = self._flags.find(0, high)
            self._prefix = len(self.offsets) if undone < 0 else undone

    @property
    def done_below(self) -> int:
        """One past the last offset of this block's gap-free prefix; 0 without one."""
        return self.offsets[self._prefix - 1] + 1 if self._prefix else 0


def _last(block: _Block) -> int:
    return block.offsets[-1]
