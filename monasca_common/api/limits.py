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

from monasca_common.api.log_fields import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.api.settings import ApiSettings

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

# Threads in addition to those that wait: they answer health, and 503, within some milliseconds.
_SPARE_THREADS = 12

#: Paths that are served without a token, whatever else is in flight.
PUBLIC_PATHS = frozenset(
    {"/healthcheck", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v2.0", "/v2.0/", "/", ""}
)

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
class RequestSlots:
    """How many requests of each kind are in flight at most.

    ``posts`` go to Kafka, ``others`` to the database, which takes no slot of a post. Of the posts' slots,
    ``own_of_topic`` are each topic's own and the rest is common, so that however many topics are stuck, another has
    slots.
    """

    posts: int
    others: int
    of_topic: int
    own_of_topic: int

    @property
    def common(self) -> int:
        return self.of_topic - self.own_of_topic


def request_slots(settings: ApiSettings) -> RequestSlots:
    of_topic = settings.max_in_flight
    own = max(1, of_topic // 4)
    return RequestSlots(of_topic + own * (len(settings.posted_topics) - 1), of_topic // 2, of_topic, own)


def threads_of(settings: ApiSettings) -> int:
    """How many threads a worker needs: for the requests in flight, for those that wait for Keystone, and to spare."""
    slots = request_slots(settings)
    waiting = settings.max_in_flight if settings.auth_strategy == "keystone" else 0
    return slots.posts + slots.others + waiting + _SPARE_THREADS


class InFlightLimit:
    """Serves as many posts and as many other requests as there are slots; one more is answered 503 immediately.

    ``authenticated``: wraps `app` in what validates tokens, which has slots of its own. It gets no request without a
    slot: what is refused costs neither a token's validation nor its body.
    """

    def __init__(
        self, app: WsgiApp, slots: RequestSlots, authenticated: Callable[[WsgiApp], WsgiApp] = lambda app: app
    ) -> None:
        self._app = app
        self._validated = authenticated(self._admitted)
        # Free slots. A semaphore takes 7 us for a request, of the 60 that one metric's post takes in all.
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
            return self._app(environ, start_response)  # answers are made whole before this returns, none is streamed
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
