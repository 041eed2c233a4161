# SPDX-License-Identifier: Apache-2.0
"""gunicorn with threads (gthread), the HTTP server of the API and the dashboard.

A thread is busy while it reads a request, so untrusted clients need a reverse proxy that buffers requests:
``deploy/nginx``. gunicorn starts, watches, stops and replaces the worker processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication

from monasca_common.runtime.logs import stopped

LOG = logging.getLogger(__name__)

_WORKER_SILENT_SECONDS = 60  # the time without a heartbeat after which gunicorn replaces a worker
_SILENT_SECONDS = 10  # a client that sends or receives nothing for this time is disconnected
_MAX_REQUEST_LINE_BYTES = 8190  # the largest limit that gunicorn allows
_MAX_HEADER_BYTES = 16 * 1024  # limit of one header; a Keystone token may have several KiB
_IDLE_CONNECTIONS = 1024  # idle connections of proxies, in addition to those with a thread
_CLIENT_ERRORS = (BlockingIOError, ConnectionError, TimeoutError)  # silent or disconnected
_UNLOGGED = "Invalid request from ip="  # otherwise, clients could fill the log


class WebServerLog(glogging.Logger):  # type: ignore[misc]  # it has no annotations
    """Sends gunicorn's log to the log of the service."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True

    def warning(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        if not str(msg).startswith(_UNLOGGED):
            super().warning(msg, *args, **kwargs)

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Do not log clients that are silent or disconnected."""
        if not isinstance(sys.exception(), _CLIENT_ERRORS):
            super().exception(msg, *args, **kwargs)


class WebServer(BaseApplication):  # type: ignore[misc]  # it has no annotations
    """Runs until a signal. ``run()`` raises `SystemExit` with status 0 after a stop, 1 if the port is taken, or 3 if a
    worker cannot start. A subclass defines `load`, which each worker calls after its fork to get the WSGI application.

    The parent kills its workers ``stop_seconds`` after a signal. Of this time, the last ``close_seconds`` are for
    `worker_ended`; the rest is for requests in flight. ``options``: gunicorn options.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        threads: int,
        stop_seconds: float,
        close_seconds: float = 2.0,
        **options: Any,
    ) -> None:
        self._name = name
        self._request_seconds = round(stop_seconds - close_seconds)
        self._options = {
            "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "proc_name": f"monasca-{name}",
            "worker_class": "gthread",
            "threads": threads,
            "worker_connections": threads + _IDLE_CONNECTIONS,
            "graceful_timeout": round(stop_seconds),
            "timeout": max(_WORKER_SILENT_SECONDS, round(stop_seconds) * 2),
            "limit_request_line": _MAX_REQUEST_LINE_BYTES,
            "limit_request_field_size": _MAX_HEADER_BYTES,
            # A client's header must not change the path. Only the proxy's header may change the scheme.
            "forwarder_headers": "",
            "secure_scheme_headers": {"X-FORWARDED-PROTO": "https"},
            "control_socket_disable": True,
            "logger_class": WebServerLog,
            "errorlog": None,
            "loglevel": "warning",  # the service itself logs its start and stop
            "when_ready": self._when_ready,
            "post_fork": self._post_fork,
            "on_exit": self._on_exit,
            "worker_exit": self._worker_exit,
            **options,
        }
        super().__init__(prog=f"monasca-{name}")

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def ready(self, arbiter: Any) -> None:
        """Called in the parent, after it listens and before it forks."""

    def ended(self) -> None:
        """Called in the parent, after all workers have ended."""

    def worker_ended(self) -> None:
        """Called in each worker, after the response to its last request."""

    def _when_ready(self, arbiter: Any) -> None:
        for listener in arbiter.LISTENERS:
            _bound_silence(listener.sock)
        _allow_open_files()
        self.ready(arbiter)

    def _post_fork(self, _arbiter: Any, worker: Any) -> None:
        """Stop a worker before the parent kills it, even if a connection stays open."""
        worker.cfg.set("graceful_timeout", self._request_seconds)

    def _on_exit(self, _arbiter: Any) -> None:
        self.ended()
        LOG.info("%s", stopped(self._name))

    def _worker_exit(self, _arbiter: Any, worker: Any) -> None:
        if worker.pid != os.getpid():
            return  # gunicorn also calls this in the parent, for a worker that has ended
        for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)  # Ctrl-C reaches a worker twice: from the terminal and the parent
        self.worker_ended()


def _allow_open_files() -> None:
    """Raise the limit on open files to the permitted maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # a system without a limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bound_silence(listener: socket.socket) -> None:
    """Let the kernel time out reads and writes of accepted connections, because gunicorn waits indefinitely for the
    rest of a request."""
    limit = struct.pack("ll", _SILENT_SECONDS, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
