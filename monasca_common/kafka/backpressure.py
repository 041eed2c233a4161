# SPDX-License-Identifier: Apache-2.0
"""How much may wait in memory, and which partitions are paused when it is too much.

A bounded buffer comes first and pausing last, because a pause throws away what the client has prefetched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processing.lanes import Load

_RESUME_BELOW = 0.5  # of a partition's share; so that it does not flap


@dataclass(frozen=True, slots=True)
class Decision:
    """``stalled``: every partition has had its share; reading on is pointless until something is handled."""

    pause: frozenset[TopicPartition]
    resume: frozenset[TopicPartition]
    stalled: bool


class Backpressure:
    """Gives each assigned partition an equal share of ``max_messages`` and ``max_bytes``.

    A partition that is over its share is paused until it is below half of it, so that one whose handler is stuck
    does not take the room of the others. Holds the set of what is paused; decides, and touches no consumer.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max = Load(max_messages, max_bytes)
        self.paused: frozenset[TopicPartition] = frozenset()

    def decide(
        self,
        assigned: Collection[TopicPartition],
        loads: Mapping[TopicPartition, Load],
        blocked: Collection[TopicPartition] = (),
    ) -> Decision:
        """What to pause and resume now. ``blocked``: partitions over another limit, whatever their load."""
        wanted = frozenset(
            partition
            for partition in assigned
            if partition in blocked
            or self._over(
                loads.get(partition, Load()), len(assigned), _RESUME_BELOW if partition in self.paused else 1.0
            )
        )
        return Decision(
            pause=wanted - self.paused,
            resume=(self.paused - wanted) & frozenset(assigned),
            stalled=bool(assigned) and len(wanted) == len(assigned),
        )

    def applied(self, decision: Decision) -> None:
        """The consumer did what was decided."""
        self.paused = (self.paused | decision.pause) - decision.resume

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """They were revoked or lost; should they come back, they are not held."""
        self.paused -= frozenset(partitions)

    def _over(self, load: Load, assigned: int, share: float) -> bool:
        scale = share / assigned
        return load.messages >= max(1.0, self._max.messages * scale) or load.bytes >= self._max.bytes * scale
