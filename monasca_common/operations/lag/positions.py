# SPDX-License-Identifier: Apache-2.0
"""Which position of a group counts: a service that stores rows keeps its own in a database, and Kafka has a copy of it.

Verdicts on lag are by Kafka's offsets, for every group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.history import PartitionHistory
from monasca_common.operations.lag.verdict import LagStatus, group_lag


@dataclass(frozen=True, slots=True)
class DatabasePositions:
    """What a database has, by group: the next offset of each partition. ``trouble``: why that is not known."""

    groups: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    trouble: str = ""

    def place(self, group: str) -> str:
        """Where the position is that counts: ``database`` or ``kafka``; ``unknown``."""
        return "unknown" if self.trouble else "database" if group in self.groups else "kafka"

    def differ(
        self,
        group: str,
        judged: Mapping[TopicPartition, PartitionHistory],
        partition: TopicPartition | None = None,
    ) -> bool | None:
        """Whether the group, or this partition of it, is judged by another position than the one that counts; ``None``:
        that is not known."""
        if self.trouble:
            return None
        differing = _differing(self.of(group, judged), _copies(judged))
        return bool(differing) if partition is None else partition in differing

    def of(self, group: str, judged: Mapping[TopicPartition, PartitionHistory]) -> dict[TopicPartition, int]:
        """Those of a group, in the topics in which it is judged."""
        topics = {partition.topic for partition in judged}
        return {each: at for each, at in self.groups.get(group, {}).items() if each.topic in topics}


ReadPositions = Callable[[], DatabasePositions]


def no_database() -> DatabasePositions:
    """All positions are Kafka's."""
    return DatabasePositions()


def which_counts(
    judged: Mapping[str, Mapping[TopicPartition, PartitionHistory]], stored: DatabasePositions
) -> list[str]:
    """What is to be said beside the verdicts on groups: where one is by a copy, and the database has other positions;
    or that this is not known.

    The copy of a group that runs is always a little behind, which is worth no word while the verdict is good.
    """
    if stored.trouble:
        unknown = "judged by Kafka's offsets; whether a database has others, which would count, is not known"
        return [f"{unknown}: {stored.trouble}"]
    return [line for group, partitions in judged.items() for line in _which_counts(group, partitions, stored)]


def differing_copies(counting: Mapping[TopicPartition, int], copies: Mapping[TopicPartition, int]) -> list[str]:
    """Where Kafka's copy of a group's positions is not what the database has, which one counts, and why."""
    lines = [
        f"  {partition.topic}/{partition.partition}: {at} in the database, {copies.get(partition, 'none')} in Kafka"
        for partition, at in sorted(_differing(counting, copies).items())
    ]
    if not lines:
        return []
    why = (
        "The database counts, because it has rows and offsets in one transaction, and the service goes on from there. "
        "Kafka's copy, which is committed afterwards and which lag tools look at, differs:"
    )
    return [why, *lines]


def _which_counts(
    group: str, judged: Mapping[TopicPartition, PartitionHistory], stored: DatabasePositions
) -> list[str]:
    copies = _copies(judged)
    lag = group_lag(known.lag for known in judged.values())
    well = lag.status is LagStatus.OK and not lag.is_error
    worth = {each: at for each, at in stored.of(group, judged).items() if not well or copies.get(each, 0) > at}
    lines = differing_copies(worth, copies)
    return lines and [f"the verdict on {group} is by its copy in Kafka. {lines[0]}", *lines[1:]]


def _differing(
    counting: Mapping[TopicPartition, int], copies: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Those that count, and of which the copy is another one, or is not there."""
    return {partition: at for partition, at in counting.items() if copies.get(partition) != at}


def _copies(judged: Mapping[TopicPartition, PartitionHistory]) -> dict[TopicPartition, int]:
    return {partition: known.commits[-1].offset for partition, known in judged.items() if known.commits}
