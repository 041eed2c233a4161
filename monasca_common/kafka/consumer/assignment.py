# SPDX-License-Identifier: Apache-2.0
"""The partitions of a consumer: their assignment epochs, positions, pauses and seeks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from monasca_common.kafka.consumer.commit import check_offsets
from monasca_common.kafka.errors import MisuseError, TransportError
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport

_NOT_FETCHING = "_STATE"  # librdkafka refuses to seek partitions that it does not fetch yet, or that are out of range


class Assignment:
    """The state of the assigned partitions, without I/O. Only the polling thread changes it; any thread can call
    `epoch`. An added partition has no position and delivers nothing until `started` is called.
    """

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, int] = {}
        self._last_epoch = 0
        self.starts: dict[TopicPartition, int] = {}  # the offset at which each partition started
        self.positions: dict[TopicPartition, int] = {}  # offset of the next message that a poll returns
        self.waiting: set[TopicPartition] = set()  # partitions without a known position
        self.out_of_range: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()  # paused by the caller
        self.ends: dict[TopicPartition, int] = {}  # the end of the log, once all messages before it were polled
        # Partitions that were revoked or moved during this poll, so it may have fetched messages of an old position.
        self.doubtful: set[TopicPartition] = set()
        self._new_ends: set[TopicPartition] = set()  # since the last call of `take_ends`

    def add(self, partitions: Iterable[TopicPartition]) -> None:
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

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions, which ends their epochs and the caller's pause."""
        for partition in partitions:
            for offsets in (self._epochs, self.starts, self.positions, self.ends):
                offsets.pop(partition, None)
            for state in (self.waiting, self.out_of_range, self.paused):
                state.discard(partition)
            self.doubtful.add(partition)

    def epoch(self, partition: tuple[str, int]) -> int | None:
        """Return the epoch of a partition, or ``None`` if it is not owned."""
        return self._epochs.get(partition)  # type: ignore[call-overload,no-any-return]

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self._epochs)

    def reach_ends(self, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Store the ends of logs that a poll reached. Return the doubtful partitions, whose ends a later poll must
        reach again, because the messages before these ends were not returned. Unowned partitions and partitions
        without a start offset are ignored."""
        again = []
        for partition, end in ends.items():
            if partition not in self._epochs:
                continue
            if partition in self.doubtful:
                again.append(partition)
            elif partition not in self.waiting:
                self.ends[partition] = end
                self._new_ends.add(partition)
        return again

    def take_ends(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the ends reached since the last call, for partitions that are still owned and whose position was not
        moved."""
        taken, self._new_ends = self._new_ends, set()
        found = [(tp, self._epochs.get(tp), self.ends.get(tp)) for tp in taken]  # another thread may close the epoch
        return {tp: OffsetAndEpoch(epoch, end) for tp, epoch, end in found if epoch is not None and end is not None}


class Positions:
    """Moves the positions of owned partitions."""

    def __init__(self, transport: ConsumerTransport, assignment: Assignment) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._assignment = assignment

    def move(self, positions: Mapping[TopicPartition, int]) -> None:
        """Resume from these offsets. Raises `MisuseError` for unowned partitions, and for invalid offsets."""
        check_offsets(positions)
        strangers = [tp for tp in positions if self._assignment.epoch(tp) is None]
        if strangers:
            named = ", ".join(f"{tp.topic}/{tp.partition}" for tp in strangers)
            raise MisuseError(
                f"{named} is not assigned to this consumer: seek only in the partitions that assignment() returns"
            )
        for partition, offset in positions.items():
            if partition in self._assignment.out_of_range or not self._seek(partition, offset):
                self._transport.assign_owned({partition: offset})
            self._assignment.started({partition: offset})
            self._assignment.doubtful.add(partition)

    def rewind(self, partitions: Iterable[TopicPartition]) -> None:
        """Read again the messages of these partitions that were fetched but not returned."""
        known = self._assignment.positions
        dead = self._assignment.out_of_range
        self.move({tp: known[tp] for tp in partitions if tp in known and tp not in dead})

    def lag(self, timeout: float) -> dict[TopicPartition, int]:
        """Return the lag of each partition: from its last fetch, or else from a request within ``timeout`` seconds."""
        positions = self._assignment.positions.copy()
        ends = self._transport.fetched_ends(positions)
        missing = positions.keys() - ends.keys()
        if missing and timeout > 0:
            with contextlib.suppress(TransportError):
                ends |= self._transport.end_offsets(missing, timeout)
        return {
            tp: max(0, ends[tp] - max(position, self._assignment.ends.get(tp, 0)))
            for tp, position in positions.items()
            if tp in ends
        }

    def _seek(self, partition: TopicPartition, offset: int) -> bool:
        try:
            self._transport.seek(partition, offset)
        except TransportError as error:
            if error.name != _NOT_FETCHING:
                raise
            return False
        return True
