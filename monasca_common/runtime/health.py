# SPDX-License-Identifier: Apache-2.0
"""The health of services, as reported to probes. The loops of a live service complete their turns; restart a service
that is not live. A ready service does its work; a service that is not ready may be waiting for a database, so a restart
would not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monasca_common.kafka.clock import Clock

#: Returns whether the probe succeeds, and the body of its response.
Probe = Callable[[], tuple[bool, dict[str, Any]]]


#: The maximum duration of one loop turn in a live service.
LIVE_SECONDS = 600.0
#: If messages wait for this time and none is processed, the service stalls.
STALL_SECONDS = 60.0
#: The time without a sign of life after which gunicorn replaces a worker.
WORKER_SILENT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """The probes of the paths ``/healthcheck``, ``/healthz`` and ``/readyz``. Metrics have the name ``service``."""

    service: str
    health: Probe
    live: Probe
    ready: Probe


def liveness(turns: Callable[[], Mapping[str, float | None]], limit_seconds: float = LIVE_SECONDS) -> Probe:
    """Return the probe of liveness. ``turns`` returns the seconds since the last turn of each loop, or ``None`` for a
    loop that is not running, which counts as live."""

    def probe() -> tuple[bool, dict[str, Any]]:
        ages = dict(turns())
        live = all(age is None or age <= limit_seconds for age in ages.values())
        return live, {"live": live, "seconds_since_turn": ages}

    return probe


def readiness(reasons: Callable[[], Iterable[str]]) -> Probe:
    """Return the probe of readiness. ``reasons`` returns why the service is not ready."""

    def probe() -> tuple[bool, dict[str, Any]]:
        found = list(reasons())
        return not found, {"ready": not found, "reasons": found}

    return probe


class LoopHealth:
    """The health of a service with one loop, whose thread calls `turned` and `failed`.

    ``more`` returns additional reasons why the service is not ready, ``facts`` additional parts of the body of
    ``/healthcheck``. ``live_seconds``: the maximum duration of a turn.
    """

    def __init__(
        self,
        service: str,
        clock: Clock,
        *,
        reason: str = "not started yet",
        more: Callable[[], Iterable[str]] = tuple,
        facts: Callable[[], Mapping[str, Any]] = dict,
        live_seconds: float = LIVE_SECONDS,
    ) -> None:
        self.reason = reason
        self._clock = clock
        self._turned_at = clock.monotonic()
        self._more = more
        self._facts = facts
        live = liveness(lambda: {service: self.turn_seconds}, live_seconds)
        self.probes = ServiceHealth(service, self._probe, live, readiness(self._reasons))

    @property
    def turn_seconds(self) -> float:
        """Seconds since the last turn."""
        return self._clock.monotonic() - self._turned_at

    def turned(self, reason: str | None = None) -> None:
        """Record a turn of the loop. ``reason``: why the loop does not work; empty if it works; ``None``: unchanged."""
        self._turned_at = self._clock.monotonic()
        if reason is not None:
            self.reason = reason

    def failed(self, error: Exception) -> None:
        """Record that the loop failed and restarts after a back-off."""
        self.turned(str(error) or type(error).__name__)

    def _reasons(self) -> list[str]:
        return [*([self.reason] if self.reason else ()), *self._more()]

    def _probe(self) -> tuple[bool, dict[str, Any]]:
        reasons = self._reasons()
        return not reasons, {"healthy": not reasons, "reasons": reasons, **self._facts()}
