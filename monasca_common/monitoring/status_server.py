# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck`` for probes, as JSON, and ``/metrics`` for Prometheus, of a service that has no other HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PROMETHEUS_TEXT

_REQUEST_SECONDS = 5.0

#: Whether the service works, and the body of ``/healthcheck``, whose status is 503 while it does not.
Health = Callable[[], tuple[bool, dict[str, Any]]]


class StatusServer(ThreadingHTTPServer):
    """An HTTP server on a socket that is bound and listening already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, health: Health, registry: CollectorRegistry) -> None:
        super().__init__(listener.getsockname()[:2], _StatusHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.health = health
        self.registry = registry


class _StatusHandler(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthcheck":
            healthy, body = self.server.health()
            code = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(code, "application/json", msgspec.json.encode(body))
        elif path == "/metrics":
            self._answer(HTTPStatus.OK, PROMETHEUS_TEXT, generate_latest(self.server.registry))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthcheck and /metrics\n")

    def _answer(self, code: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes come every few seconds."""
