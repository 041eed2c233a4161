# SPDX-License-Identifier: Apache-2.0
"""What probes ask a service: does it live, is it ready, and what is wrong with it?

Live means that its loops turn: what does not live is cured by a restart. Ready means that it does its work: what is not
ready may wait for a database, which no restart brings back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monasca_common.kafka.clock import Clock

#: Whether it is so, and the body that tells more.
HealthLook = Callable[[], tuple[bool, dict[str, Any]]]


#: How long a loop of a service may take for a turn before the service does not live.
LIVE_SECONDS = 600.0
#: Messages that wait for this time, while none is done, are a stall.
STALL_SECONDS = 60.0
#: How long a worker of gunicorn may be silent before it is replaced.
WORKER_SILENT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``service``: its name in metrics. ``health``: of ``/healthcheck``; ``live``: of ``/healthz``; ``ready``: of
    ``/readyz``."""

    service: str
    health: HealthLook
    live: HealthLook
    ready: HealthLook


def liveness(turns: Callable[[], Mapping[str, float | None]], limit_seconds: float = LIVE_SECONDS) -> HealthLook:
    """``turns``: how many seconds ago each loop has turned; ``None``: it runs none now, which is not its fault."""

    def look() -> tuple[bool, dict[str, Any]]:
        ages = dict(turns())
        live = all(age is None or age <= limit_seconds for age in ages.values())
        return live, {"live": live, "seconds_since_turn": ages}

    return look


def readiness(reasons: Callable[[], Iterable[str]]) -> HealthLook:
    """``reasons``: why it is not ready; none: it is."""

    def look() -> tuple[bool, dict[str, Any]]:
        found = list(reasons())
        return not found, {"ready": not found, "reasons": found}

    return look


class LoopHealth:
    """The health of a service with one loop. Its thread calls `turned` and `failed`; any other asks.

    ``more``: what else keeps it from being ready. ``facts``: further parts of the body of ``/healthcheck``.
    ``live_seconds``: how long a turn may take.
    """

    def __init__(
        self,
        service: str,
        clock: Clock,
        *,
        trouble: str = "it has not begun",
        more: Callable[[], Iterable[str]] = tuple,
        facts: Callable[[], Mapping[str, Any]] = dict,
        live_seconds: float = LIVE_SECONDS,
    ) -> None:
        self.trouble = trouble
        self._clock = clock
        self._turned_at = clock.monotonic()
        self._more = more
        self._facts = facts
        live = liveness(lambda: {service: self.turn_seconds}, live_seconds)
        self.probes = ServiceHealth(service, self._look, live, readiness(self._reasons))

    @property
    def turn_seconds(self) -> float:
        """How long ago the loop has turned."""
        return self._clock.monotonic() - self._turned_at

    def turned(self, trouble: str | None = None) -> None:
        """Note that the loop has turned. ``trouble``: why it does not do its work; empty: it does; ``None``: as
        before."""
        self._turned_at = self._clock.monotonic()
        if trouble is not None:
            self.trouble = trouble

    def failed(self, error: Exception) -> None:
        """Note that the loop restarts after a back-off."""
        self.turned(str(error) or type(error).__name__)

    def _reasons(self) -> list[str]:
        return [*([self.trouble] if self.trouble else ()), *self._more()]

    def _look(self) -> tuple[bool, dict[str, Any]]:
        reasons = self._reasons()
        return not reasons, {"healthy": not reasons, "reasons": reasons, **self._facts()}
