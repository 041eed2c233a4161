# SPDX-License-Identifier: Apache-2.0
"""What probes ask a service: does it live, is it ready, and what is wrong with it?

Live means that its loops turn: what does not live is cured by a restart. Ready means that it does its work: what is not
ready may wait for a database, which no restart brings back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monasca_common.kafka.clock import Clock

#: Whether it is so, and the body that tells more.
HealthLook = Callable[[], tuple[bool, dict[str, Any]]]


#: How long a loop of a service may take for a turn before the service does not live.
LIVE_SECONDS = 600.0
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


@dataclass(slots=True)
class LoopTurn:
    """When a loop last turned. The thread of the loop calls `turned`, any other asks."""

    clock: Clock
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self.turned()

    def turned(self) -> None:
        self._at = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.clock.monotonic() - self._at


class LoopHealth:
    """The health of a service with one loop. Its thread calls `turned`, `works` and `failed`; any other asks.

    ``turn_seconds``: how long ago the loop has turned; by default, since `turned`. ``more``: what else keeps it from
    being ready. ``facts``: further parts of the body of ``/healthcheck``.
    """

    def __init__(
        self,
        service: str,
        clock: Clock,
        *,
        trouble: str = "it has not begun",
        turn_seconds: Callable[[], float | None] | None = None,
        more: Callable[[], Iterable[str]] = tuple,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        turn = LoopTurn(clock)
        self.turned = turn.turned
        self.trouble = trouble
        self._more = more
        self._facts = facts
        age = turn_seconds or (lambda: turn.seconds)
        self.probes = ServiceHealth(service, self._look, liveness(lambda: {service: age()}), readiness(self._reasons))

    def works(self) -> None:
        """Note that it has done its work."""
        self.trouble = ""

    def failed(self, error: Exception) -> None:
        """Note that the loop restarts after a back-off."""
        self.turned()
        self.trouble = str(error) or type(error).__name__

    def _reasons(self) -> list[str]:
        return [*([self.trouble] if self.trouble else ()), *self._more()]

    def _look(self) -> tuple[bool, dict[str, Any]]:
        reasons = self._reasons()
        return not reasons, {"healthy": not reasons, "reasons": reasons, **self._facts()}
