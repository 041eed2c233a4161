# SPDX-License-Identifier: Apache-2.0
"""The ends of logs, which the client reports once everything before was handed out."""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition


class LogEnds:
    """The ends of owned partitions, each with the epoch in which it was reached. Only the polling thread uses it."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._new: set[TopicPartition] = set()

    def reach(self, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Note the ends that a poll reached. Those of partitions that changed hands during it may be of either epoch:
        they are not noted, and returned, because they have to be reached again. Of a partition that waits for its
        start nobody needs an end."""
        assignment = self._assignment
        owned = {partition: end for partition, end in ends.items() if assignment.epoch(partition) is not None}
        again = []
        for partition, end in owned.items():
            if partition in assignment.given_up:
                again.append(partition)
            elif partition not in assignment.waiting:
                assignment.ends[partition] = end
                self._new.add(partition)
        return again

    def take(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """The ends reached since the last call, of partitions that are still owned and were not sought elsewhere."""
        taken, self._new = self._new, set()
        known = [(tp, self._assignment.epoch(tp), self._assignment.ends.get(tp)) for tp in taken]
        return {tp: OffsetAndEpoch(epoch, end) for tp, epoch, end in known if epoch is not None and end is not None}
