# SPDX-License-Identifier: Apache-2.0
"""How much at once: requests in flight, and nothing queued behind them.

The server has more threads than requests may be in flight, so that one too many finds a thread that says no.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

#: Threads beyond the requests in flight: they answer 503, health and versions while the others wait.
SPARE_THREADS = 8

RETRY_AFTER_SECONDS = 1
_ALWAYS_SERVED = frozenset({"/healthcheck", "/", ""})
_READS = frozenset({"GET", "HEAD"})

_BUSY = msgspec.json.encode(
    {
        "error": {
            "code": 503,
            "title": "Service Unavailable",
            "message": "as many requests are being served as this server takes at a time; nothing of this one was "
            "looked at: send it again later, or slower",
            "delivered": 0,
            "unknown": 0,
        }
    }
)


class InFlightLimit:
    """Serves ``limit`` requests at a time, reads half of them at most; one more is answered at once.

    Outermost, before authentication: what is refused costs neither a token's validation nor its body.
    """

    def __init__(self, app: WsgiApp, limit: int) -> None:
        self._app = app
        self._all = threading.BoundedSemaphore(limit)
        self._reads = threading.BoundedSemaphore(max(1, limit // 2))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in _ALWAYS_SERVED:
            return self._app(environ, start_response)
        if environ["REQUEST_METHOD"] in _READS:
            return self._within(self._reads, self._serve, environ, start_response)
        return self._serve(environ, start_response)

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self._within(self._all, self._app, environ, start_response)

    @staticmethod
    def _within(
        slots: threading.Semaphore, app: WsgiApp, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        if not slots.acquire(blocking=False):
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(_BUSY))),
                ("Retry-After", str(RETRY_AFTER_SECONDS)),
            ]
            start_response("503 Service Unavailable", headers)
            return [_BUSY]
        try:
            return app(environ, start_response)  # answers are made whole before this returns, none is streamed
        finally:
            slots.release()
