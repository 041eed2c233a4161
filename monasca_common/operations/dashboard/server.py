# SPDX-License-Identifier: Apache-2.0
"""The dashboard under gunicorn: one process with threads, because sessions and figures are in its memory."""

from __future__ import annotations

import contextlib
import io
import logging
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker
from prometheus_client import CollectorRegistry

from monasca_common.operations.dashboard.app import DashboardLogin, make_app
from monasca_common.operations.dashboard.lag_panel import kept_trends
from monasca_common.operations.dashboard.panels import Panels
from monasca_common.operations.dashboard.sessions import kept_sessions
from monasca_common.operations.dashboard.settings import DASHBOARD_GROUP, DashboardSettings
from monasca_common.runtime import joined, started, stopped
from monasca_common.runtime.health import WORKER_SILENT_SECONDS
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)

_THREADS = 16
_CONNECTIONS = 200
_SILENT_SECONDS = 10  # a client that sends nothing, or takes nothing, for so long is dropped
_REQUEST_SECONDS = 10.0  # within which a request has to come, and its answer has to go, in however many pieces
_WAITED_FOR_AT_AN_ADDRESS = 8  # a browser has six connections
_WAITED_FOR = _THREADS - 1
_IDLE_AT_AN_ADDRESS = 50  # as proxies keep
_MOST_BODY_BYTES = 8193  # one more than a form may have
_STOP_SECONDS = 3
_MAX_LINE, _MAX_HEADERS, _MAX_HEADER_BYTES = 8190, 50, 8190


class DashboardLog(glogging.Logger):  # type: ignore[misc]  # it has no annotations
    """What gunicorn says goes where the service's own lines go."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


class ClientWaits:
    """The connections whose clients are waited for by a thread. An address may have ``most``, and all addresses
    ``most_in_all``: one more ends the oldest connection of the same address, or of the address with the most. So slow
    addresses do not delay the others."""

    def __init__(self, most: int, most_in_all: int) -> None:
        self._most = most
        self._most_in_all = most_in_all
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Any]] = {}

    def begin(self, conn: Any) -> None:
        with self._lock:
            same = self._waiting.setdefault(_address(conn), [])
            if len(same) >= self._most:
                _cut(same.pop(0))
            elif sum(map(len, self._waiting.values())) >= self._most_in_all:
                _cut(max(self._waiting.values(), key=len).pop(0))
            same.append(conn)

    def end(self, conn: Any) -> None:
        with self._lock:
            same = self._waiting.get(_address(conn), [])
            if conn in same:
                same.remove(conn)
            if not same:
                self._waiting.pop(_address(conn), None)


class DashboardWorker(ThreadWorker):  # type: ignore[misc]  # it has no annotations
    """Drops a client that is too slow: drop by drop, a few would have all threads for days. A connection has no thread
    until its client has sent something."""

    request_seconds = _REQUEST_SECONDS
    waited_for_at_an_address = _WAITED_FOR_AT_AN_ADDRESS
    _here = threading.local()

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.waits = ClientWaits(self.waited_for_at_an_address, _WAITED_FOR)

    def enqueue_req(self, conn: Any) -> None:
        """Called by the thread that accepts."""
        if conn.initialized or conn.data_ready:
            super().enqueue_req(conn)
            return
        self._end_longest_idle(_address(conn))
        conn.set_timeout()
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def _end_longest_idle(self, address: str) -> None:
        """Where an address has as many connections without a request as it may."""
        idle = [(conn, own) for own in (self.pending_conns, self.keepalived_conns) for conn in own]
        same = [(conn, own) for conn, own in idle if _address(conn) == address]
        if len(same) < _IDLE_AT_AN_ADDRESS:
            return
        conn, own = min(same, key=lambda each: each[0].timeout)
        own.remove(conn)
        self.poller.unregister(conn.sock)
        self.nr_conns -= 1
        conn.close()

    def on_pending_socket_readable(self, conn: Any, client: Any) -> None:
        """A connection may be ended in the same round of events in which its client sends."""
        if conn in self.pending_conns:
            super().on_pending_socket_readable(conn, client)

    def on_client_socket_readable(self, conn: Any, client: Any) -> None:
        """As above, of one that had a request before."""
        if conn in self.keepalived_conns:
            super().on_client_socket_readable(conn, client)

    def handle(self, conn: Any) -> Any:
        """Called in a thread, for each request."""
        self._here.wait = partial(self._waited_for, conn)
        with contextlib.ExitStack() as waited:
            self._here.waited = waited
            waited.enter_context(self._waited_for(conn))
            return super().handle(conn)

    @contextlib.contextmanager
    def _waited_for(self, conn: Any) -> Iterator[None]:
        limit = threading.Timer(self.request_seconds, _cut, (conn,))
        limit.daemon = True
        limit.start()
        self.waits.begin(conn)
        try:
            yield
        finally:
            self.waits.end(conn)
            limit.cancel()

    @classmethod
    def read_first(cls, app: Any, environ: dict[str, Any], start_response: Any) -> Any:
        """The application ``app`` of WSGI, once its request is here: what it does then may take longer. Its answer is
        waited for as its request was."""
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(_MOST_BODY_BYTES))
        cls._here.waited.close()
        answer = app(environ, start_response)
        cls._here.waited.enter_context(cls._here.wait())
        return answer


class ProxiedWorker(DashboardWorker):
    """All clients have the proxy's address, and what it sends is seldom slow."""

    waited_for_at_an_address = _WAITED_FOR


def _address(conn: Any) -> str:
    return str(conn.client[0])


def _cut(conn: Any) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(conn.sock, socket.SHUT_RDWR)


class DashboardServer(BaseApplication):  # type: ignore[misc]  # it has no annotations
    """Runs until a signal; ``run()`` ends by `SystemExit`, 0 after a stop. ``make_panels`` is called after the fork,
    because clients of Kafka do not survive one."""

    def __init__(self, settings: DashboardSettings, make_panels: Any, login: DashboardLogin | None) -> None:
        self._settings = settings
        self._make_panels = make_panels
        self._login = login
        self._sessions = kept_sessions()
        self._trends = kept_trends()
        self._panels: Panels | None = None
        self._status = contextlib.ExitStack()
        super().__init__(prog="monasca-dashboard")

    def load_config(self) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        for name, value in {
            "bind": f"{host}:{settings.port}",
            "workers": 1,
            "threads": _THREADS,
            "worker_class": ProxiedWorker if settings.tls_at_proxy else DashboardWorker,
            "worker_connections": _CONNECTIONS,
            "keepalive": _SILENT_SECONDS,
            "graceful_timeout": _STOP_SECONDS,
            "timeout": WORKER_SILENT_SECONDS,
            "limit_request_line": _MAX_LINE,
            "limit_request_fields": _MAX_HEADERS,
            "limit_request_field_size": _MAX_HEADER_BYTES,
            "certfile": settings.tls_certificate,
            "keyfile": settings.tls_key,
            "do_handshake_on_connect": False,
            "proc_name": "monasca-dashboard",
            "control_socket_disable": True,
            "logger_class": DashboardLog,
            "errorlog": None,
            "loglevel": "warning",
            "when_ready": self._when_ready,
            "on_exit": self._on_exit,
            "worker_exit": self._worker_exit,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by the worker, after the fork."""
        self._panels = self._make_panels(self._trends)
        self._panels.start()
        status = self._settings.status
        health = self._panels.health()
        self._status.enter_context(status_served(DASHBOARD_GROUP, status, health, CollectorRegistry()))
        return partial(
            DashboardWorker.read_first, make_app(self._settings, self._panels, self._login, sessions=self._sessions)
        )

    def _when_ready(self, arbiter: Any) -> None:
        for listener in arbiter.LISTENERS:
            _bound_silence(listener.sock)
        LOG.info(
            "%s",
            started(
                "dashboard",
                at=joined(arbiter.LISTENERS),
                login=self._settings.login,
                tls=self._settings.has_tls,
                reads_api=self._settings.api_url or "",
            ),
        )

    def _on_exit(self, _arbiter: Any) -> None:
        LOG.info("%s", stopped("dashboard"))

    def _worker_exit(self, _arbiter: Any, _worker: Any) -> None:
        self._status.close()
        if self._panels is not None:
            self._panels.stop()


def _bound_silence(listener: socket.socket) -> None:
    """The kernel ends reads and writes of connections that are accepted here; gunicorn's threads would wait for ever
    for a client that sends half a request."""
    limit = struct.pack("ll", _SILENT_SECONDS, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
