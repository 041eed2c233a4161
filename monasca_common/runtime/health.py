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
