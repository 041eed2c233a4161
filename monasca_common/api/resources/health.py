# SPDX-License-Identifier: Apache-2.0
"""``GET /healthcheck`` and ``/readyz`` return status 200 if all requested parts work, otherwise 503 with the reasons.
``GET /healthz`` returns 200 if this worker responds.

Posts need only Kafka, and reads need only storage. A load balancer that forwards only posts or only reads should
request ``?part=producer`` or ``?part=storage``; otherwise it would remove workers that can still accept posts while
the database is unavailable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import falcon

from monasca_common.api import paging
from monasca_common.api.problems import bad_request
from monasca_common.kafka import AuthorizationError, FatalError, ProducerHealth, ProducerPool
from monasca_common.storage.errors import StorageError
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.storage.sql.reader import SqlReader

LOG = logging.getLogger(__name__)

_ALWAYS_SHOWN = {"outstanding_messages", "oldest_unacknowledged_seconds"}
_CACHE_SECONDS = 2.0  # this interval limits the load caused by health checks
_EMPTY_TENANT = "healthcheck"  # this tenant has no series, so the read needs one index access


@dataclass(frozen=True, slots=True)
class CheckResult:
    ok: bool
    facts: Mapping[str, Any]


Check = Callable[[], CheckResult]


class Health:
    """Serves the results of ``checks`` by part. Thread-safe: one thread runs a check; other threads return its last
    result."""

    def __init__(self, checks: Mapping[str, Check], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._checks = {part: _CachedCheck(check, monotonic) for part, check in checks.items()}

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        requested = request.get_param("part")
        if requested is not None and requested not in self._checks:
            raise bad_request(f"part must be one of {', '.join(self._checks)}: correct or omit it")
        parts = [requested] if requested is not None else list(self._checks)
        states = {part: self._checks[part].state() for part in parts}
        ok = all(state.ok for state in states.values())
        response.status = falcon.HTTP_200 if ok else falcon.HTTP_503
        response.cache_control = ["no-store"]
        body: dict[str, Any] = {"status": _word(ok)}
        for part, state in states.items():
            body[part] = {"status": _word(state.ok), **state.facts}
        paging.answer(response, body)

    on_head = on_get


class Liveness:
    """Responds without any check, because a worker that responds does not need a restart."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.cache_control = ["no-store"]
        paging.answer(response, {"live": True})

    on_head = on_get


class _CachedCheck:
    def __init__(self, check: Check, monotonic: Callable[[], float]) -> None:
        self._check = check
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._state: CheckResult | None = None
        self._until = float("-inf")

    def state(self) -> CheckResult:
        cached = self._state
        if cached is not None and self._monotonic() < self._until:
            return cached
        # A check takes seconds if a server hangs; until it finishes, requests get the last result.
        if not self._lock.acquire(blocking=cached is None):
            assert cached is not None
            return cached
        try:
            if self._state is None or self._monotonic() >= self._until:
                self._state = self._check()
                self._until = self._monotonic() + _CACHE_SECONDS
            return self._state
        finally:
            self._lock.release()


def producer_check(producers: ProducerPool, probe: Callable[[], None] | None) -> Check:
    """Return a check that names stalled and refused topics. It fails only if all used topics are stalled or refused,
    because a load balancer removes a failing worker for all topics.

    ``probe``: sends a request to the brokers and raises if they do not respond. Without it, an idle producer would
    detect a failure only after a minute, and an unhealthy worker, which gets no posts, would never become healthy
    again.
    """

    def check() -> CheckResult:
        opened = producers.opened()
        healths = {each.topic: each.health() for each in opened}
        old = [each.topic for each in opened if each.is_old]
        stalled = sorted(each.topic for each in opened if each.is_stalled)
        refused = sorted(topic for topic, health in healths.items() if _is_refused(health))
        oldest = max((health.oldest_unacknowledged_seconds for health in healths.values()), default=0.0)
        facts: dict[str, Any] = {
            "outstanding_messages": sum(health.outstanding_messages for health in healths.values()),
            "oldest_unacknowledged_seconds": round(oldest, 3),
            "recreated_topics": sum(health.recreated_topics for health in healths.values()),
            "stalled_topics": stalled,
            "partly_stalled_topics": sorted(topic for topic in old if topic not in stalled),
            "refused_topics": refused,
        }
        facts = {name: value for name, value in facts.items() if value or name in _ALWAYS_SHOWN}
        used = {each.topic for each in opened if each.used} or set(healths)
        if used and used <= {*stalled, *refused}:
            reason = "Kafka permanently refuses this client: see the log" if refused else "Kafka does not acknowledge"
            return CheckResult(False, {**facts, "reason": reason})
        if probe is not None:
            try:
                probe()
            except Exception as error:  # any error means that no broker responded
                LOG.warning("the health check failed: Kafka does not respond: %s", error)
                return CheckResult(False, {**facts, "reason": "Kafka does not respond"})
        return CheckResult(True, facts)

    return check


def _is_refused(health: ProducerHealth) -> bool:
    """Return whether Kafka refuses this client permanently."""
    return health.finished or isinstance(health.last_error, AuthorizationError | FatalError)


def storage_check(reader: SqlReader | None) -> Check:
    """Return a check that reads from storage. Without a reader, the check always succeeds."""

    def check() -> CheckResult:
        if reader is None:
            return CheckResult(True, {"reads": False})
        try:
            reader.series(SeriesFilter(tenant=_EMPTY_TENANT), PageOf(1))
        except StorageError as error:
            LOG.warning("the health check failed: the database does not respond: %s", error)
            return CheckResult(False, {"reason": "the database does not respond"})
        return CheckResult(True, {})

    return check


def _word(ok: bool) -> str:
    return "ok" if ok else "failing"
