# SPDX-License-Identifier: Apache-2.0
"""The partitions of a consumer: the assignment epoch and position of each, and whether it delivers messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monasca_common.kafka.message import TopicPartition


class Assignment:
    """State without I/O. Only the polling thread changes it; any thread may call `epoch`.

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
        self.ends: dict[TopicPartition, int] = {}  # where the log ended when everything before was handed out

    def give(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions, each with a new epoch."""
        self._last_epoch += 1
        for partition in partitions:
            self._epochs[partition] = self._last_epoch
            self.waiting.add(partition)

    def started(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the positions at which reading starts."""
        self.starts.update({tp: offset for tp, offset in positions.items() if tp in self.waiting})
        self.positions.update(positions)
        for partition in positions:
            self.ends.pop(partition, None)
        self.waiting.difference_update(positions)
        self.out_of_range.difference_update(positions)

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions, which ends their epochs and the caller's pause."""
        for partition in partitions:
            self._epochs.pop(partition, None)
            self.starts.pop(partition, None)
            self.positions.pop(partition, None)
            self.ends.pop(partition, None)
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
        """Begin a poll: from here on, `given_up` has what was revoked during it."""
        if self._given_up:
            self._given_up = set()

    @property
    def given_up(self) -> set[TopicPartition]:
        """Partitions taken since `stamp`, even if they were given again: rows of theirs may be of the old epoch."""
        return self._given_up
