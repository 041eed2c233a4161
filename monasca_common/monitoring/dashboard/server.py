# SPDX-License-Identifier: Apache-2.0
"""The dashboard under gunicorn: one process with threads, because sessions and figures are in its memory."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import struct
import threading
from functools import partial
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from monasca_common.kafka.config import joined, started, stopped
from monasca_common.monitoring.dashboard.app import DashboardLogin, make_app
from monasca_common.monitoring.dashboard.panels import Panels
from monasca_common.monitoring.dashboard.settings import DashboardSettings

LOG = logging.getLogger(__name__)

_THREADS = 16
_CONNECTIONS = 200
_SILENT_SECONDS = 10  # a client that sends nothing, or takes nothing, for so long is dropped
_REQUEST_SECONDS = 10.0  # within which a request has to come, however many pieces it comes in
_MOST_BODY_BYTES = 8193  # one more than a form may have
_STOP_SECONDS = 3
_WORKER_SILENT_SECONDS = 60
_MAX_LINE, _MAX_HEADERS, _MAX_HEADER_BYTES = 8190, 50, 8190


class DashboardLog(glogging.Logger):  # type: ignore[misc]  # it has no annotations
    """What gunicorn says goes where the service's own lines go."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


class DashboardWorker(ThreadWorker):  # type: ignore[misc]  # it has no annotations
    """Drops a client whose request does not come in time: drop by drop, a few would have all threads for days."""

    request_seconds = _REQUEST_SECONDS
    _here = threading.local()

    def handle(self, conn: Any) -> Any:
        """Called in a thread, for each request."""
        limit = self._here.limit = threading.Timer(self.request_seconds, _cut, (conn,))
        limit.daemon = True
        limit.start()
        try:
            return super().handle(conn)
        finally:
            limit.cancel()

    @classmethod
    def read_first(cls, app: Any, environ: dict[str, Any], start_response: Any) -> Any:
        """The application ``app`` of WSGI, once its request is here: what it does then may take longer."""
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(_MOST_BODY_BYTES))
        cls._here.limit.cancel()
        return app(environ, start_response)


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
        self._panels: Panels | None = None
        super().__init__(prog="monasca-dashboard")

    def load_config(self) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        for name, value in {
            "bind": f"{host}:{settings.port}",
            "workers": 1,
            "threads": _THREADS,
            "worker_class": DashboardWorker,
            "worker_connections": _CONNECTIONS,
            "keepalive": _SILENT_SECONDS,
            "graceful_timeout": _STOP_SECONDS,
            "timeout": _WORKER_SILENT_SECONDS,
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
        self._panels = self._make_panels()
        self._panels.start()
        return partial(DashboardWorker.read_first, make_app(self._settings, self._panels, self._login))

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
        if self._panels is not None:
            self._panels.stop()


def _bound_silence(listener: socket.socket) -> None:
    """The kernel ends reads and writes of connections that are accepted here; gunicorn's threads would wait for ever
    for a client that sends half a request."""
    limit = struct.pack("ll", _SILENT_SECONDS, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
