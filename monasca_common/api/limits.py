# SPDX-License-Identifier: Apache-2.0
"""Limits on concurrent requests; requests beyond these limits are refused, not queued.

The server has more threads than slots (`threads_of`). The spare threads refuse excess requests and serve health checks
while all other threads wait for Kafka or a database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from monasca_common.api.log_fields import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.api.settings import ApiSettings

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

# Spare threads never wait: they serve health checks and refuse excess requests (503) within milliseconds.
_SPARE_THREADS = 12

#: Paths that are served without a token and without a slot.
PUBLIC_PATHS = frozenset(
    {"/healthcheck", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v2.0", "/v2.0/", "/", ""}
)

REMOTE_WRITE, OTLP_METRICS, OTLP_LOGS = "/api/v1/write", "/v1/metrics", "/v1/logs"
RETRY_AFTER_SECONDS = 1
#: Paths that accept the formats of other systems.
INTAKE_PATHS = frozenset({REMOTE_WRITE, OTLP_METRICS, OTLP_LOGS})
_TO_KAFKA = INTAKE_PATHS | {"/v2.0/metrics", "/v2.0/logs", "/v1.0/events"}

_BUSY = msgspec.json.encode(
    error_body(
        503,
        "Service Unavailable",
        "the server has reached its limit of concurrent requests and has not read this request: repeat it later, or "
        "send fewer requests concurrently",
        delivered=0,
        unknown=0,
    )
)


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """The maximum number of concurrent requests of each kind.

    ``posts`` wait for Kafka, ``others`` wait for the database. Each topic has ``own_of_topic`` reserved slots of
    ``posts``; all topics share the ``common`` ones. So a topic has slots even if all other topics are stalled.
    """

    posts: int
    others: int
    own_of_topic: int
    common: int


def request_slots(settings: ApiSettings) -> RequestSlots:
    own = max(1, settings.max_in_flight // 4)
    common = settings.max_in_flight - own
    return RequestSlots(common + own * len(settings.posted_topics), settings.max_in_flight // 2, own, common)


def threads_of(settings: ApiSettings) -> int:
    """Return a worker's number of threads: one per slot, one per request that waits for Keystone, and spare ones."""
    slots = request_slots(settings)
    waiting = settings.max_in_flight if settings.auth_strategy == "keystone" else 0
    return slots.posts + slots.others + waiting + _SPARE_THREADS


class InFlightLimit:
    """Serves posts and other requests while slots are free; refuses further requests immediately with status 503.

    ``authenticated``: adds token validation, which has separate slots, to ``app``. If no slot is free, a request is
    refused before its token is validated and its body is read.
    """

    def __init__(
        self, app: WsgiApp, slots: RequestSlots, authenticated: Callable[[WsgiApp], WsgiApp] = lambda app: app
    ) -> None:
        self._app = app
        self._validated = authenticated(self._admitted)
        # Each item is a free slot, because a semaphore would take 7 us of the 60 us that a post of one metric takes.
        self._posts = deque([None] * slots.posts)
        self._others = deque([None] * slots.others)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in PUBLIC_PATHS:
            return self._app(environ, start_response)
        return self._validated(environ, start_response) if self._free(environ) else _refuse(environ, start_response)

    def _admitted(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        free = self._free(environ)
        try:
            free.pop()
        except IndexError:
            return _refuse(environ, start_response)
        try:
            # responses are not streamed, so each response is complete at this point
            return self._app(environ, start_response)
        finally:
            free.append(None)

    def _free(self, environ: Environ) -> deque[None]:
        goes_to_kafka = environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO", "").rstrip("/") in _TO_KAFKA
        return self._posts if goes_to_kafka else self._others


def _refuse(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    note_reason(environ, Reason.BUSY)
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(_BUSY))),
        ("Retry-After", str(RETRY_AFTER_SECONDS)),
    ]
    start_response("503 Service Unavailable", headers)
    return [_BUSY]
