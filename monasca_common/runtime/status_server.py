# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a service's status: ``/healthz``, ``/readyz`` and ``/healthcheck`` (JSON), and ``/metrics``."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PROMETHEUS_TEXT

from monasca_common.runtime.health import ServiceHealth
from monasca_common.runtime.listener import listen
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.settings import StatusSettings

_REQUEST_SECONDS = 5.0
_POLL_SECONDS = 0.1
_PREFIX = "monasca_service"
_PROBES = ("/healthcheck", "/healthz", "/readyz")
_METRICS = "/metrics"
STATUS_PATHS = frozenset((*_PROBES, _METRICS))


class StatusServer(ThreadingHTTPServer):
    """An HTTP server on a listening socket, with a thread per connection."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, health: ServiceHealth, registry: CollectorRegistry) -> None:
        super().__init__(listener.getsockname()[:2], _StatusHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.probes = dict(zip(_PROBES, (health.health, health.live, health.ready), strict=True))
        self.registry = registry
        declare_health(health, registry)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, such as a load balancer that only connects."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def declare_health(health: ServiceHealth, registry: CollectorRegistry) -> None:
    """Serve the results of the probes as metrics."""
    metrics, labels = ServiceMetrics(_PREFIX, registry), (health.service,)
    live, ready = "1 while /healthz returns 200", "1 while /readyz returns 200"
    metrics.computed_gauge("live", live, "service", samples=lambda: [(labels, health.live()[0])])
    metrics.computed_gauge("ready", ready, "service", samples=lambda: [(labels, health.ready()[0])])


def listen_for_status(group: str, status: StatusSettings) -> socket.socket | None:
    """Open the socket before the service starts, so that a port in use is reported immediately. Return ``None`` if the
    status is not served.

    ``group``: the option group. Raises `ConfigurationError`.
    """
    return None if status.port is None else listen(group, status.host, status.port, prefix="status_")


@contextlib.contextmanager
def status_served(
    group: str, status: StatusSettings, health: ServiceHealth, registry: CollectorRegistry
) -> Iterator[None]:
    """Serve the status in a thread while the block runs. Raises `ConfigurationError`."""
    listener = listen_for_status(group, status)
    if listener is None:
        yield
        return
    server = StatusServer(listener, health, registry)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _StatusHandler(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.server.probes:
            succeeds, body = self.server.probes[path]()
            code = HTTPStatus.OK if succeeds else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(code, "application/json", msgspec.json.encode(body))
        elif path == _METRICS:
            self._answer(HTTPStatus.OK, PROMETHEUS_TEXT, generate_latest(self.server.registry))
        else:
            text = f"not found; use {', '.join(_PROBES)} or {_METRICS}\n"
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", text.encode())

    def _answer(self, code: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes come every few seconds."""
