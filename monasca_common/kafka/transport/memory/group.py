# SPDX-License-Identifier: Apache-2.0
"""A consumer group: its members, their partitions, and its commits. Pure state; the broker's lock protects it.

A rebalance sets a new *target*. Each member moves towards it by the steps of `Group.next_step`: it first releases
partitions outside its share, then gets the partitions of its share that no other member holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monasca_common.kafka.message import TopicPartition


@dataclass(slots=True, eq=False)
class MemoryMember:
    """The membership of one consumer; a consumer that lost its membership rejoins with another object."""

    member_id: str
    topics: tuple[str, ...]
    max_poll_seconds: float
    owned: set[TopicPartition] = field(default_factory=set)
    expires_at: float = math.inf  # the time limit of the next poll; a consumer in a poll cannot exceed it
    ended: str | None = None  # the name of the error that ended the membership


class Step(NamedTuple):
    """The next step of a member: ``kind`` is "revoke" or "assign"."""

    kind: str
    partitions: tuple[TopicPartition, ...]


class Group:
    def __init__(self) -> None:
        self.members: dict[str, MemoryMember] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self._targets: dict[str, set[TopicPartition]] = {}

    def join(self, member: MemoryMember, partition_counts: Mapping[str, int]) -> None:
        self.members[member.member_id] = member
        self.rebalance(partition_counts)

    def remove(self, member: MemoryMember, reason: str, partition_counts: Mapping[str, int]) -> None:
        """Remove a member: ``reason`` is the Kafka error that its next request gets."""
        if self.is_live(member):
            del self.members[member.member_id]
            member.ended = reason
            self.rebalance(partition_counts)

    def is_live(self, member: MemoryMember) -> bool:
        return self.members.get(member.member_id) is member

    def overdue(self, now: float) -> list[MemoryMember]:
        return [member for member in self.members.values() if member.expires_at <= now]

    def next_expiry(self) -> float:
        return min((member.expires_at for member in self.members.values()), default=math.inf)

    def rebalance(self, partition_counts: Mapping[str, int]) -> None:
        self._targets = balance(self.members.values(), partition_counts)

    def next_step(self, member: MemoryMember) -> Step | None:
        """Return the next step of ``member``, or ``None`` if it has no step or other members must release partitions
        first."""
        target = self._targets.get(member.member_id, set())
        surplus = member.owned - target
        if surplus:
            return Step("revoke", tuple(sorted(surplus)))
        ready = target.difference(*(other.owned for other in self.members.values()))
        return Step("assign", tuple(sorted(ready))) if ready else None

    def may_commit(self, member: MemoryMember | None) -> bool:
        """Return whether a client may commit: any live member, for any partition; a non-member only if the group is
        empty."""
        return self.is_live(member) if member is not None else not self.members


def balance(members: Iterable[MemoryMember], partition_counts: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
    """Distribute partitions evenly, with as few changes of owners as possible."""
    team = list(members)
    shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in team}
    for topic, count in sorted(partition_counts.items()):
        readers = [member for member in team if topic in member.topics]
        if readers:
            partitions = [TopicPartition(topic, number) for number in range(count)]
            for member in readers:
                shares[member.member_id] |= member.owned.intersection(partitions) - set().union(*shares.values())
            _hand_out(partitions, [member.member_id for member in readers], shares)
    return shares


def _hand_out(partitions: Iterable[TopicPartition], readers: list[str], shares: dict[str, set[TopicPartition]]) -> None:
    """Assign unowned partitions to the smallest shares, and move others until shares differ by at most one."""
    for partition in partitions:
        owner = next((reader for reader in readers if partition in shares[reader]), None)
        poorest = min(readers, key=lambda reader: len(shares[reader]))
        if owner is None:
            shares[poorest].add(partition)
        elif len(shares[owner]) - len(shares[poorest]) >= 2:
            shares[owner].discard(partition)
            shares[poorest].add(partition)
