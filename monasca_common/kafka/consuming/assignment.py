# SPDX-License-Identifier: Apache-2.0
"""What a consumer owns: each partition's assignment epoch, position, and whether it delivers anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monasca_common.kafka.message import TopicPartition


class Assignment:
    """State without I/O. Changed by the polling thread alone; `epoch` may be asked by any.

    A partition that was given has no position until `started`; until then it delivers nothing.
    """

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, int] = {}
        self._last_epoch = 0
        self._given_up: set[TopicPartition] = set()
        self.starts: dict[TopicPartition, int] = {}  # where each assignment began
        self.positions: dict[TopicPartition, int] = {}  # next to hand out
        self.waiting: set[TopicPartition] = set()  # no position is known yet
        self.out_of_range: set[TopicPartition] = set()
        self.held: set[TopicPartition] = set()  # paused by the caller

    def give(self, partitions: Iterable[TopicPartition]) -> None:
        """These are owned from now on, under an epoch of their own."""
        self._last_epoch += 1
        for partition in partitions:
            self._epochs[partition] = self._last_epoch
            self.waiting.add(partition)

    def started(self, positions: Mapping[TopicPartition, int]) -> None:
        """These will be read from here."""
        self.starts.update({tp: offset for tp, offset in positions.items() if tp in self.waiting})
        self.positions.update(positions)
        self.waiting.difference_update(positions)
        self.out_of_range.difference_update(positions)

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """These are owned no more: their epochs are over, and the caller's pause with them."""
        for partition in partitions:
            self._epochs.pop(partition, None)
            self.starts.pop(partition, None)
            self.positions.pop(partition, None)
            for state in (self.waiting, self.out_of_range, self.held):
                state.discard(partition)
            self._given_up.add(partition)

    def epoch(self, partition: tuple[str, int]) -> int | None:
        """The epoch of a partition, ``None`` if it is not owned."""
        return self._epochs.get(partition)  # type: ignore[call-overload,no-any-return]

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self._epochs)

    def stamp(self) -> None:
        """A poll begins: from here on, `given_up` tells what was taken during it."""
        if self._given_up:
            self._given_up = set()

    @property
    def given_up(self) -> set[TopicPartition]:
        """Partitions taken since `stamp`, even if they were given again: rows of theirs may be of the old epoch."""
        return self._given_up
