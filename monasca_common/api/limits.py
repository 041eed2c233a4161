# SPDX-License-Identifier: Apache-2.0
"""How much at once: requests in flight, and nothing queued behind them.

The server has more threads than requests may be in flight (`threads_of`). One request too many finds a thread that
refuses it, and health a thread that answers it, while all others wait for Kafka or a database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from monasca_common.api.notes import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.api.settings import ApiSettings

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

# Threads in addition to those that wait: they answer health, and 503, within some milliseconds.
_SPARE_THREADS = 12

#: Paths that are served whatever else is in flight.
ALWAYS_SERVED = frozenset({"/healthcheck", "/healthz", "/readyz", "/metrics", "/v2.0", "/v2.0/", "/", ""})

RETRY_AFTER_SECONDS = 1
_TO_KAFKA = frozenset({"/v2.0/metrics", "/v2.0/logs", "/v1.0/events"})

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


@dataclass(frozen=True, slots=True)
class Places:
    """How many requests of each kind are in flight at most.

    ``posts`` go to Kafka, ``others`` to the database, which takes no place of a post. Of the posts' places,
    ``own_of_topic`` are each topic's own and the rest is common, so that however many topics are stuck, another has
    places.
    """

    posts: int
    others: int
    of_topic: int
    own_of_topic: int

    @property
    def common(self) -> int:
        return self.of_topic - self.own_of_topic


def places_of(settings: ApiSettings) -> Places:
    of_topic = settings.max_in_flight
    own = max(1, of_topic // 4)
    return Places(of_topic + own * (len(settings.posted_topics) - 1), of_topic // 2, of_topic, own)


def threads_of(settings: ApiSettings) -> int:
    """How many threads a worker needs: for the requests in flight, for those that wait for Keystone, and to spare."""
    places = places_of(settings)
    waiting = settings.max_in_flight if settings.auth_strategy == "keystone" else 0
    return places.posts + places.others + waiting + _SPARE_THREADS


class InFlightLimit:
    """Serves as many posts and as many other requests as there are places; one more is answered at once."""

    def __init__(self, app: WsgiApp, places: Places) -> None:
        self._app = app
        # Places that are free. A semaphore takes 7 us for a request, of the 60 that one metric's post takes in all.
        self._posts = deque([None] * places.posts)
        self._others = deque([None] * places.others)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in ALWAYS_SERVED:
            return self._app(environ, start_response)
        free = self._free(environ)
        try:
            free.pop()
        except IndexError:
            return _refuse(environ, start_response)
        try:
            return self._app(environ, start_response)  # answers are made whole before this returns, none is streamed
        finally:
            free.append(None)

    def guarded(self, app: WsgiApp) -> WsgiApp:
        """``app``, which comes before this limit (authentication), asked only while there is a place: what is refused
        costs neither a token's validation nor its body."""

        def guard(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            if environ.get("PATH_INFO") not in ALWAYS_SERVED and not self._free(environ):
                return _refuse(environ, start_response)
            return app(environ, start_response)

        return guard

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
