# SPDX-License-Identifier: Apache-2.0
"""The loops of the service's worker that run next to its member."""

from __future__ import annotations

from msgspec import structs

from monasca_common.kafka.clock import Clock
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.member_health import MAX_REASON, MemberState, MemberStatus
from monasca_common.runtime.restarts import Loop


class WorkerLoop(Loop):
    """A loop of a worker, which reports its status like a member. ``status``: the status of the replaced loop, whose
    restarts continue to be counted."""

    def __init__(self, subject: str, clock: Clock, status: MemberStatus, *, reason: str = "not started yet") -> None:
        super().__init__(subject, clock)
        self.health = LoopHealth(status.name, clock, reason=reason)
        self.restarts = status.restarts
        self._status = status

    def failed(self, error: Exception) -> None:
        self.health.failed(error)

    def status(self) -> MemberStatus:
        """Return the current status. Thread-safe."""
        reason, now_ms = self.health.reason[:MAX_REASON], self.clock.time_ms()
        return structs.replace(
            self._status,
            state=MemberState.FAILED if reason else MemberState.RUNNING,
            reason=reason,
            restarts=self.restarts,
            reported_ms=now_ms,
            turned_ms=now_ms - round(self.health.turn_seconds * 1000),
            moved_ms=now_ms,
        )
