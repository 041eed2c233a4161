# SPDX-License-Identifier: Apache-2.0
"""How a counter of a log is: what probes ask, and what Prometheus has of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monasca_common.kafka.clock import Clock
from monasca_common.runtime.health import LoopTurn, ServiceHealth, liveness, readiness


class CounterStatus:
    """The thread that counts calls `turned`, `reported` and `failed`; any other asks.

    ``messages``: how many it has counted. ``failures``: how often it began again after an error.
    """

    def __init__(self, clock: Clock) -> None:
        self._turn = LoopTurn(clock)
        self._trouble = "nothing has been reported yet"
        self.messages = 0
        self.failures = 0
        self.health = ServiceHealth(
            "audit_count",
            self._look,
            liveness(lambda: {"audit_count": self._turn.seconds}),
            readiness(self._reasons),
        )

    def turned(self, messages: int) -> None:
        """So many were polled and counted."""
        self._turn.turned()
        self.messages += messages

    def reported(self) -> None:
        """All that was counted is reported."""
        self._trouble = ""

    def failed(self, error: Exception) -> None:
        """It begins again after a while."""
        self._turn.turned()
        self.failures += 1
        self._trouble = str(error) or type(error).__name__

    def _reasons(self) -> Iterator[str]:
        if self._trouble:
            yield self._trouble

    def _look(self) -> tuple[bool, dict[str, Any]]:
        reasons = list(self._reasons())
        return not reasons, {"healthy": not reasons, "reasons": reasons, "counted_messages": self.messages}
