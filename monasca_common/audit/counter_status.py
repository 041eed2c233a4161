# SPDX-License-Identifier: Apache-2.0
"""How a counter of a log is: what probes ask, and what Prometheus has of it."""

from __future__ import annotations

from monasca_common.kafka.clock import Clock
from monasca_common.runtime.health import LoopHealth


class CounterStatus:
    """The thread that counts calls `turned`, `reported` and `failed`; any other asks.

    ``messages``: how many it has counted. ``failures``: how often it began again after an error.
    """

    def __init__(self, clock: Clock) -> None:
        self.messages = 0
        self.failures = 0
        self._state = LoopHealth(
            "audit_count",
            clock,
            trouble="nothing has been reported yet",
            facts=lambda: {"counted_messages": self.messages},
        )
        self.health = self._state.probes
        self.reported = self._state.works

    def turned(self, messages: int) -> None:
        """So many were polled and counted."""
        self._state.turned()
        self.messages += messages

    def failed(self, error: Exception) -> None:
        """It begins again after a while."""
        self.failures += 1
        self._state.failed(error)
