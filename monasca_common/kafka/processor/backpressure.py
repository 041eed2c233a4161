# SPDX-License-Identifier: Apache-2.0
"""Limits how much waits in memory, and decides which partitions are paused.

A bounded buffer comes first and pausing last, because a pause throws away what the client has prefetched: a reader of
a backlog, whose partitions come in long runs, would fetch most of it twice, and wait for it in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.queues import Load

_RESUME_BELOW = 0.5  # of a partition's share; so that it does not flap


@dataclass(frozen=True, slots=True)
class Decision:
    """``stalled``: there is no room; reading on is pointless until something is handled, and before anything is
    paused there should be time for that."""

    pause: frozenset[TopicPartition]
    resume: frozenset[TopicPartition]
    stalled: bool


class Backpressure:
    """Half of ``max_messages`` and ``max_bytes`` goes to whichever partition comes first, half is shared equally.

    Once the first half is taken, a partition that is over its share is paused until it is below half of it, so that
    one whose handler is stuck does not take the room of the others. It keeps the set of paused partitions; it decides,
    and calls no consumer.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._half = Load(max_messages // 2, max_bytes // 2)
        self.paused: frozenset[TopicPartition] = frozenset()

    def decide(
        self,
        assigned: Set[TopicPartition],
        loads: Mapping[TopicPartition, Load],
        blocked: Collection[TopicPartition] = (),
    ) -> Decision:
        """What to pause and resume now. ``loads``: of the partitions that occupy anything. ``blocked``: partitions over
        another limit, whatever their load."""
        total = Load(sum(load.messages for load in loads.values()), sum(load.bytes for load in loads.values()))
        stalled = bool(assigned) and self._over(total, 1.0)
        # Only these can be concerned, of perhaps ten thousand that are assigned.
        concerned = self.paused.union(blocked, loads if stalled else ())
        wanted = frozenset(
            partition
            for partition in concerned
            if partition in assigned
            and (
                partition in blocked
                or (
                    partition in self.paused and self._over(loads.get(partition, Load()), _RESUME_BELOW / len(assigned))
                )
                or (stalled and self._over(loads.get(partition, Load()), 1.0 / len(assigned)))
            )
        )
        return Decision(
            pause=wanted - self.paused,
            resume=frozenset(partition for partition in self.paused - wanted if partition in assigned),
            stalled=stalled,
        )

    def applied(self, decision: Decision) -> None:
        """Note that the consumer has applied the decision."""
        self.paused = (self.paused | decision.pause) - decision.resume

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that were revoked or lost; if they come back, they are not paused."""
        self.paused -= frozenset(partitions)

    def _over(self, load: Load, share: float) -> bool:
        return load.messages >= max(1.0, self._half.messages * share) or load.bytes >= self._half.bytes * share
