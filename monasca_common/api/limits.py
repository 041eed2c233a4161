# SPDX-License-Identifier: Apache-2.0
"""How much at once: requests in flight, and nothing queued behind them.

The server has more threads than requests may be in flight (`threads_of`), so that one too many finds a thread that
says no, and some for health alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from monasca_common.api.notes import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.api.settings import ApiSettings

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

# Threads beyond those that wait: they answer 503 meanwhile.
_SPARE_THREADS = 8
#: Threads for what is in `ALWAYS_SERVED` and nothing else.
HEALTH_THREADS = 4

#: Paths that are served whatever else is in flight.
ALWAYS_SERVED = frozenset({"/healthcheck", "/metrics", "/v2.0", "/v2.0/", "/", ""})

RETRY_AFTER_SECONDS = 1
_READS = frozenset({"GET", "HEAD"})

_BUSY = msgspec.json.encode(
    error_body(
        503,
        "Service Unavailable",
        "as many requests are being served as this server takes at a time; nothing of this one was looked at: send it "
        "again later, or slower",
        delivered=0,
        unknown=0,
    )
)


def places_of(settings: ApiSettings) -> int:
    """How many requests are in flight at most. As many as ``max_in_flight`` may wait for one topic of Kafka
    (`TopicProducer`), so a quarter more are for those who need another, which one stuck topic cannot take."""
    return settings.max_in_flight + max(1, settings.max_in_flight // 4)


def threads_of(settings: ApiSettings) -> int:
    """How many threads a worker needs: for the requests in flight, for those that wait for Keystone, and to spare."""
    waiting = settings.max_in_flight if settings.auth_strategy == "keystone" else 0
    return places_of(settings) + waiting + _SPARE_THREADS


class InFlightLimit:
    """Serves ``limit`` requests at a time, reads half of them at most; one more is answered at once."""

    def __init__(self, app: WsgiApp, limit: int) -> None:
        self._app = app
        self._all = threading.BoundedSemaphore(limit)
        self._reads = threading.BoundedSemaphore(max(1, limit // 2))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in ALWAYS_SERVED:
            return self._app(environ, start_response)
        if environ["REQUEST_METHOD"] in _READS:
            return self._within(self._reads, self._serve, environ, start_response)
        return self._serve(environ, start_response)

    def guarded(self, app: WsgiApp) -> WsgiApp:
        """``app``, which comes before this limit (authentication), asked only while there is a place: what is refused
        costs neither a token's validation nor its body."""

        def guard(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            if environ.get("PATH_INFO") not in ALWAYS_SERVED:
                slots = self._reads if environ["REQUEST_METHOD"] in _READS else self._all
                for each in {slots, self._all}:
                    if not each.acquire(blocking=False):
                        return _refuse(environ, start_response)
                    each.release()
            return app(environ, start_response)

        return guard

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self._within(self._all, self._app, environ, start_response)

    @staticmethod
    def _within(
        slots: threading.Semaphore, app: WsgiApp, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        if not slots.acquire(blocking=False):
            return _refuse(environ, start_response)
        try:
            return app(environ, start_response)  # answers are made whole before this returns, none is streamed
        finally:
            slots.release()


def _refuse(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    note_reason(environ, Reason.BUSY)
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(_BUSY))),
        ("Retry-After", str(RETRY_AFTER_SECONDS)),
    ]
    start_response("503 Service Unavailable", headers)
    return [_BUSY]
