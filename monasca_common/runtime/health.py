# SPDX-License-Identifier: Apache-2.0
"""The health of services, as reported to probes. The loops of a live service complete their turns; restart a service
that is not live. A ready service does its work; a service that is not ready may be waiting for a database, so a restart
would not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from monasca_common.kafka.clock import Clock

#: The maximum duration of one loop turn in a live service.
LIVE_SECONDS = 600.0
#: If messages wait for this time and none is processed, the service counts as stalled.
STALL_SECONDS = 60.0


class ServiceHealth:
    """The probes of the paths ``/healthcheck``, ``/healthz`` and ``/readyz``. Each returns whether it succeeds, and the
    body of its response. ``service``: the name of the service in metrics.

    ``turns`` returns the seconds since the last turn of each loop, or ``None`` for a loop that is not running, which
    counts as live. ``reasons`` returns why the service is not ready. ``facts`` returns other parts of the body of
    ``/healthcheck``, which succeeds if the service is ready. ``live_seconds``: the maximum duration of a turn.
    """

    def __init__(
        self,
        service: str,
        turns: Callable[[], Mapping[str, float | None]],
        reasons: Callable[[], Iterable[str]],
        facts: Callable[[], Mapping[str, Any]] = dict,
        *,
        live_seconds: float = LIVE_SECONDS,
    ) -> None:
        self.service = service
        self._turns = turns
        self._reasons = reasons
        self._facts = facts
        self._live_seconds = live_seconds

    def live(self) -> tuple[bool, dict[str, Any]]:
        ages = dict(self._turns())
        live = all(age is None or age <= self._live_seconds for age in ages.values())
        return live, {"live": live, "seconds_since_turn": ages}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        reasons = list(self._reasons())
        return not reasons, {"ready": not reasons, "reasons": reasons}

    def health(self) -> tuple[bool, dict[str, Any]]:
        reasons = list(self._reasons())
        return not reasons, {"healthy": not reasons, "reasons": reasons, **self._facts()}


class LoopHealth(ServiceHealth):
    """The health of a service with one loop, whose thread calls `turned` and `failed`.

    ``more`` returns additional reasons why the service is not ready.
    """

    def __init__(
        self,
        service: str,
        clock: Clock,
        *,
        reason: str = "not started yet",
        more: Callable[[], Iterable[str]] = tuple,
        live_seconds: float = LIVE_SECONDS,
    ) -> None:
        def reasons() -> list[str]:
            return [*([self.reason] if self.reason else ()), *more()]

        super().__init__(service, lambda: {service: self.turn_seconds}, reasons, live_seconds=live_seconds)
        self.reason = reason
        self._clock = clock
        self._turned_at = clock.monotonic()

    @property
    def turn_seconds(self) -> float:
        return self._clock.monotonic() - self._turned_at

    def turned(self, reason: str | None = None) -> None:
        """Record a turn of the loop. ``reason``: why it does not work, empty if it works, or ``None`` if unchanged."""
        self._turned_at = self._clock.monotonic()
        if reason is not None:
            self.reason = reason

    def failed(self, error: Exception) -> None:
        """Record that the loop failed and restarts after a back-off."""
        self.turned(str(error) or type(error).__name__)
