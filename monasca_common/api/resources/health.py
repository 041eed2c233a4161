# SPDX-License-Identifier: Apache-2.0
"""``GET /healthcheck`` and ``/readyz``: 200 while everything asked about works, else 503 and what does not.

``GET /healthz``: 200 while this worker answers at all.

Posts need Kafka alone and reads storage alone, so a balancer of one kind asks for its part: ``?part=producer`` or
``?part=storage``; otherwise an unavailable database would take healthy writers out of rotation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import falcon
import msgspec

from monasca_common.api.problems import bad_request
from monasca_common.kafka import AuthorizationError, FatalError, ProducerHealth, ProducerPool
from monasca_common.storage.errors import StorageError
from monasca_common.storage.reader import PageOf, Reader, SeriesFilter

LOG = logging.getLogger(__name__)

_ALWAYS_TOLD = {"outstanding_messages", "oldest_unacknowledged_seconds"}
_KEEP_SECONDS = 2.0  # the last result is returned again for so long: health checks must not become the load
_NOBODY = "healthcheck"  # a tenant without series: one look at an index


@dataclass(frozen=True, slots=True)
class CheckResult:
    ok: bool
    facts: Mapping[str, Any]


Check = Callable[[], CheckResult]


class Health:
    """``checks`` by part. Thread-safe: one thread checks, the others get the last result."""

    def __init__(self, checks: Mapping[str, Check], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._kept = {part: _LastChecks(check, monotonic) for part, check in checks.items()}

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        asked = request.get_param("part")
        if asked is not None and asked not in self._kept:
            raise bad_request(f"part is one of {', '.join(self._kept)}: correct it, or leave it out")
        parts = [asked] if asked is not None else list(self._kept)
        states = {part: self._kept[part].state() for part in parts}
        ok = all(state.ok for state in states.values())
        response.status = falcon.HTTP_200 if ok else falcon.HTTP_503
        response.content_type = falcon.MEDIA_JSON
        response.cache_control = ["no-store"]
        body: dict[str, Any] = {"status": _word(ok)}
        for part, state in states.items():
            body[part] = {"status": _word(state.ok), **state.facts}
        response.data = msgspec.json.encode(body)

    on_head = on_get


class Liveness:
    """What asks for nothing: a worker that gives this answer needs no restart."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = falcon.MEDIA_JSON
        response.cache_control = ["no-store"]
        response.data = msgspec.json.encode({"live": True})

    on_head = on_get


class _LastChecks:
    def __init__(self, check: Check, monotonic: Callable[[], float]) -> None:
        self._check = check
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._state: CheckResult | None = None
        self._until = float("-inf")

    def state(self) -> CheckResult:
        kept = self._state
        if kept is not None and self._monotonic() < self._until:
            return kept
        # A check takes seconds where something hangs: requests meanwhile get the last result.
        if not self._lock.acquire(blocking=kept is None):
            assert kept is not None
            return kept
        try:
            if self._state is None or self._monotonic() >= self._until:
                self._state = self._check()
                self._until = self._monotonic() + _KEEP_SECONDS
            return self._state
        finally:
            self._lock.release()


def producer_check(producers: ProducerPool, probe: Callable[[], None] | None) -> Check:
    """A topic that is stalled or refused is named. The part fails when all that were posted to are, because a balancer
    that takes the worker away takes it from the other topics as well.

    ``probe`` asks the brokers something and raises whatever it gets when they do not answer: an idle producer
    hears of nothing by itself for a minute. A worker that gets no posts because it is not healthy becomes so by this.
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
        facts = {name: value for name, value in facts.items() if value or name in _ALWAYS_TOLD}
        concerned = {each.topic for each in opened if each.used} or set(healths)
        if concerned and concerned <= {*stalled, *refused}:
            reason = "Kafka refuses this client for good: see the log" if refused else "Kafka acknowledges nothing"
            return CheckResult(False, {**facts, "reason": reason})
        if probe is not None:
            try:
                probe()
            except Exception as error:  # whatever it is, the brokers were not reached
                LOG.warning("Kafka does not answer the health check: %s", error)
                return CheckResult(False, {**facts, "reason": "Kafka does not answer"})
        return CheckResult(True, facts)

    return check


def _is_refused(health: ProducerHealth) -> bool:
    """Whether Kafka refuses this client permanently."""
    return health.finished or isinstance(health.last_error, AuthorizationError | FatalError)


def storage_check(reader: Reader | None) -> Check:
    """``None``: this API has no storage to read from, which is not a failure."""

    def check() -> CheckResult:
        if reader is None:
            return CheckResult(True, {"reads": False})
        try:
            reader.series(SeriesFilter(tenant=_NOBODY), PageOf(1))
        except StorageError as error:
            LOG.warning("Storage does not answer the health check: %s", error)
            return CheckResult(False, {"reason": "the database does not answer"})
        return CheckResult(True, {})

    return check


def _word(ok: bool) -> str:
    return "ok" if ok else "failing"
