# SPDX-License-Identifier: Apache-2.0
"""A consumer group: who is in it, who owns what, and what it committed. Pure state; the broker's lock guards it.

A rebalance is a new *target*. Each member moves towards it by the steps that `Group.next_step` gives it:
first it lets go of what it should not have, then, as soon as nobody else holds them, it takes its own.
An eager member lets go of everything first; that is all the difference between the two protocols.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monasca_common.kafka.message import TopicPartition


@dataclass(slots=True, eq=False)
class MemoryMember:
    """One consumer's membership; a consumer that lost it joins again with another object."""

    member_id: str
    client_id: str
    topics: tuple[str, ...]
    eager: bool
    static: bool
    max_poll_seconds: float
    owned: set[TopicPartition] = field(default_factory=set)
    generation: int = -1
    expires_at: float = math.inf
    ended: str | None = None  # the name of the error that ended the membership

    def touch(self, now: float) -> None:
        """The consumer came back from a poll: the time until the next one runs."""
        self.expires_at = now + self.max_poll_seconds

    def hold(self) -> None:
        """The consumer is inside a poll: it cannot exceed anything."""
        self.expires_at = math.inf


class Step(NamedTuple):
    """The next thing for a member to do: ``kind`` is "revoke" or "assign"."""

    kind: str
    partitions: tuple[TopicPartition, ...]


class Group:
    def __init__(self) -> None:
        self.members: dict[str, MemoryMember] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.generation = 0
        self._targets: dict[str, set[TopicPartition]] = {}

    def join(self, member: MemoryMember, partition_counts: Mapping[str, int]) -> None:
        """Let a member in. A static member's successor takes its share over, and fences it."""
        known = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if known is None:
            self.rebalance(partition_counts)
        else:
            known.ended = "FENCED_INSTANCE_ID"
            member.generation = self.generation

    def remove(self, member: MemoryMember, reason: str, partition_counts: Mapping[str, int]) -> None:
        """Take a member out: ``reason`` is the Kafka error it meets when it comes back."""
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
        self.generation += 1
        self._targets = balance(self.members.values(), partition_counts)

    def next_step(self, member: MemoryMember) -> Step | None:
        """What ``member`` has to do now; ``None``: nothing, or wait for others to let go."""
        target = self._targets.get(member.member_id, set())
        starts_over = member.eager and member.generation != self.generation
        surplus = member.owned if starts_over else member.owned - target
        if surplus:
            return Step("revoke", tuple(sorted(surplus)))
        member.generation = self.generation
        taken = set().union(*(other.owned for other in self.members.values() if other is not member))
        wanted = target - member.owned
        ready = wanted - taken
        # An eager assignment comes whole: it waits until everything in it is free.
        if not ready or (member.eager and ready != wanted):
            return None
        return Step("assign", tuple(sorted(ready)))

    def may_commit(self, member: MemoryMember | None) -> bool:
        """Any live member may commit any partition; strangers only while there is no member at all."""
        return self.is_live(member) if member is not None else not self.members


def balance(members: Iterable[MemoryMember], partition_counts: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
    """Share partitions out evenly, changing the owner of as few as possible."""
    team = list(members)
    shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in team}
    for topic, count in sorted(partition_counts.items()):
        readers = [member for member in team if topic in member.topics]
        if readers:
            partitions = [TopicPartition(topic, number) for number in range(count)]
            _keep(partitions, readers, shares)
            _hand_out(partitions, [member.member_id for member in readers], shares)
    return shares


def _keep(
    partitions: Collection[TopicPartition], readers: Iterable[MemoryMember], shares: dict[str, set[TopicPartition]]
) -> None:
    for member in readers:
        shares[member.member_id] |= member.owned.intersection(partitions) - set().union(*shares.values())


def _hand_out(partitions: Iterable[TopicPartition], readers: list[str], shares: dict[str, set[TopicPartition]]) -> None:
    """Give what nobody has to the poorest, and let the rich give to the poor until they differ by one at most."""
    for partition in partitions:
        owner = next((reader for reader in readers if partition in shares[reader]), None)
        poorest = min(readers, key=lambda reader: len(shares[reader]))
        if owner is None:
            shares[poorest].add(partition)
        elif len(shares[owner]) - len(shares[poorest]) >= 2:
            shares[owner].discard(partition)
            shares[poorest].add(partition)
