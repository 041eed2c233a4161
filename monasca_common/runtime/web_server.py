# SPDX-License-Identifier: Apache-2.0
"""gunicorn with its own threads (gthread): the HTTP server of the services that answer clients.

A thread reads a whole request from its connection, so clients that are not trusted need a reverse proxy that buffers
requests: ``deploy/nginx``. gunicorn starts, watches, stops and replaces the worker processes.
"""

from __future__ import annotations

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

from monasca_common.runtime.announcement import stopped
from monasca_common.runtime.health import WORKER_SILENT_SECONDS

LOG = logging.getLogger(__name__)

_SILENT_SECONDS = 10  # a client that sends nothing, or takes nothing, for this time is disconnected
_MOST_REQUEST_LINE_BYTES = 8190  # gunicorn allows no larger limit
_MOST_HEADER_BYTES = 16 * 1024  # of one header: a token of Keystone may have some KiB
_IDLE_CONNECTIONS = 1024  # of proxies that keep them open, in addition to those that have a thread
_OTHER_FILES = 256  # a worker's open files besides its connections: logs, Kafka, databases
_LEAST_IDLE_CONNECTIONS = 16
_CLIENTS_ERRORS = (BlockingIOError, ConnectionError, TimeoutError)  # it is silent or gone
_UNLOGGED = (
    "Invalid request from ip=",  # each client could fill the log
    "No keepalived connections",  # gunicorn compares with its own default, before the open files are counted
)


class WebServerLog(glogging.Logger):  # type: ignore[misc]  # it has no annotations
    """Sends gunicorn's lines to the log of the service."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True

    def warning(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        if not str(msg).startswith(_UNLOGGED):
            super().warning(msg, *args, **kwargs)

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log no client that is silent or gone."""
        if not isinstance(sys.exception(), _CLIENTS_ERRORS):
            super().exception(msg, *args, **kwargs)


class WebServer(BaseApplication):  # type: ignore[misc]  # it has no annotations
    """Runs until a signal. ``run()`` ends by `SystemExit`: 0 after a stop, 1 if the port is taken, 3 if a worker cannot
    start. A subclass has `load`, which each worker calls after its fork and which returns the WSGI application.

    ``stop_seconds``: how long a stop may take; then the parent kills its workers. Of this time, requests in flight get
    what ``close_seconds`` leaves, and `worker_ended` gets ``close_seconds``. ``options``: of gunicorn.
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
        self._is_ready = False
        self._options = {
            "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "proc_name": f"monasca-{name}",
            "worker_class": "gthread",
            "threads": threads,
            "graceful_timeout": round(stop_seconds),
            "timeout": max(WORKER_SILENT_SECONDS, round(stop_seconds) * 2),
            "limit_request_line": _MOST_REQUEST_LINE_BYTES,
            "limit_request_field_size": _MOST_HEADER_BYTES,
            # A client's header must not change the path, nor any but the proxy's own one the scheme.
            "forwarder_headers": "",
            "secure_scheme_headers": {"X-FORWARDED-PROTO": "https"},
            "control_socket_disable": True,
            "logger_class": WebServerLog,
            "errorlog": None,
            "loglevel": "warning",  # starts and stops have lines of the service's own
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
        """Called in the parent, when it listens and before it forks."""

    def ended(self) -> None:
        """Called in the parent, when no worker is left."""

    def worker_ended(self) -> None:
        """Called in each worker, after its last request is answered."""

    def _when_ready(self, arbiter: Any) -> None:
        for listener in arbiter.LISTENERS:
            _bound_silence(listener.sock)
        threads = self.cfg.threads
        self._options["worker_connections"] = threads + allowed_idle_connections(threads)
        self.load_config()  # as a reload does
        self.ready(arbiter)
        self._is_ready = True

    def _post_fork(self, _arbiter: Any, worker: Any) -> None:
        """Let a worker end before the parent kills it, also if a connection stays open."""
        worker.cfg.set("graceful_timeout", self._request_seconds)

    def _on_exit(self, _arbiter: Any) -> None:
        self.ended()
        if self._is_ready:
            LOG.info("%s", stopped(self._name))

    def _worker_exit(self, _arbiter: Any, worker: Any) -> None:
        if worker.pid != os.getpid():
            return  # the parent, which gunicorn lets call it for a worker that is gone
        for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)  # Ctrl-C reaches a worker twice: from the terminal and the parent
        self.worker_ended()


def allowed_idle_connections(threads: int) -> int:
    """Return how many idle connections the limit of open files allows; raise that limit as far as they need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = threads + _IDLE_CONNECTIONS + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= files:
        return _IDLE_CONNECTIONS
    allowed = max(_LEAST_IDLE_CONNECTIONS, soft - threads - _OTHER_FILES)
    LOG.warning(
        "a worker may have %d open files, which allows %d idle connections instead of %d: raise the limit (ulimit -n, "
        "LimitNOFILE) to %d",
        soft,
        allowed,
        _IDLE_CONNECTIONS,
        files,
    )
    return allowed


def _bound_silence(listener: socket.socket) -> None:
    """Let the kernel end each read and write of accepted connections; gunicorn waits indefinitely for half a
    request."""
    limit = struct.pack("ll", _SILENT_SECONDS, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
