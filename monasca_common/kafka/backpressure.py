# SPDX-License-Identifier: Apache-2.0
"""How much may wait in memory, and which partitions are paused when it is too much.

A bounded buffer comes first and pausing last, because a pause throws away what the client has prefetched: a reader of
a backlog, whose partitions come in long runs, would fetch most of it twice, and wait for it in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processing.lanes import Load

_RESUME_BELOW = 0.5  # of a partition's share; so that it does not flap


@dataclass(frozen=True, slots=True)
class Decision:
    """``stalled``: there is no room; reading on is pointless until something is handled, and before anything is
    paused there should be time for that."""

    pause: frozenset[TopicPartition]
    resume: frozenset[TopicPartition]
    stalled: bool


class Backpressure:
    """Half of ``max_messages`` and ``max_bytes`` is for whoever comes first, half is shared equally.

    Once the first half is taken, a partition that is over its share is paused until it is below half of it, so that
    one whose handler is stuck does not take the room of the others. Holds the set of what is paused; decides, and
    touches no consumer.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._half = Load(max_messages // 2, max_bytes // 2)
        self.paused: frozenset[TopicPartition] = frozenset()

    def decide(
        self,
        assigned: Collection[TopicPartition],
        loads: Mapping[TopicPartition, Load],
        blocked: Collection[TopicPartition] = (),
    ) -> Decision:
        """What to pause and resume now. ``blocked``: partitions over another limit, whatever their load."""
        total = Load(sum(load.messages for load in loads.values()), sum(load.bytes for load in loads.values()))
        stalled = bool(assigned) and self._over(total, 1.0)
        wanted = frozenset(
            partition
            for partition in assigned
            if partition in blocked
            or (partition in self.paused and self._over(loads.get(partition, Load()), _RESUME_BELOW / len(assigned)))
            or (stalled and self._over(loads.get(partition, Load()), 1.0 / len(assigned)))
        )
        return Decision(
            pause=wanted - self.paused, resume=(self.paused - wanted) & frozenset(assigned), stalled=stalled
        )

    def applied(self, decision: Decision) -> None:
        """The consumer did what was decided."""
        self.paused = (self.paused | decision.pause) - decision.resume

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """They were revoked or lost; should they come back, they are not held."""
        self.paused -= frozenset(partitions)

    def _over(self, load: Load, share: float) -> bool:
        return load.messages >= max(1.0, self._half.messages * share) or load.bytes >= self._half.bytes * share
