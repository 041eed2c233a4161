# SPDX-License-Identifier: Apache-2.0
"""The API under gunicorn: threads to spare, a service for each worker made after its fork, and an end in order."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import struct
from types import FrameType
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker
from oslo_config import cfg

from monasca_common.api.limits import SPARE_THREADS, WsgiApp
from monasca_common.api.options import ApiSettings
from monasca_common.api.service import Service

LOG = logging.getLogger(__name__)

_FINISH_SECONDS = 5.0  # beyond what a request in flight may take by itself
_KEEP_ALIVE_SECONDS = 75
_WORKER_SILENT_SECONDS = 60
# A request of 100 metrics makes a thousand objects that are part of no cycle: with Python's own thresholds the
# collector comes by several times a request, which is a tenth of its time.
_GC_THRESHOLDS = (50_000, 20, 100)


class Worker(ThreadWorker):  # type: ignore[misc]  # it has no annotations
    """Ends in its loop at every signal, never within a signal's handler."""

    def handle_quit(self, signum: int, frame: FrameType | None) -> None:
        """At Ctrl-C: end at once, without the time that requests in flight have at a stop."""
        # gunicorn's own takes the lock of the pool of threads, for which it waits for ever where the signal came
        # while this same thread held it: whenever a client sends something or hangs up.
        self.cfg.set("graceful_timeout", 0)
        self.handle_exit(signum, frame)


class Server(BaseApplication):  # type: ignore[misc]  # it has no annotations
    """Runs until a signal. ``run()`` ends by `SystemExit`: 0 after a stop, 1 where the port is taken, 3 where a
    worker cannot start."""

    def __init__(self, conf: cfg.ConfigOpts, settings: ApiSettings) -> None:
        self._conf = conf
        self._settings = settings
        self._service: Service | None = None
        super().__init__(prog="monasca-api")

    def load_config(self) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        threads = settings.max_in_flight + SPARE_THREADS
        stop_seconds = settings.publish_timeout_seconds + settings.stop_timeout_seconds + _FINISH_SECONDS
        for name, value in {
            "bind": f"{host}:{settings.port}",
            "workers": settings.workers,
            "worker_class": Worker,
            "threads": threads,
            # Connections that wait for a thread cost a socket each; those beyond are left to the listen queue.
            "worker_connections": max(1000, 20 * threads),
            "keepalive": _KEEP_ALIVE_SECONDS,
            "graceful_timeout": round(stop_seconds),
            "timeout": max(_WORKER_SILENT_SECONDS, round(stop_seconds) * 2),
            "proc_name": "monasca-api",
            "control_socket_disable": True,
            "when_ready": self._when_ready,
            "worker_exit": self._worker_exit,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> WsgiApp:
        """Called by each worker, after the fork."""
        self._service = Service(self._conf)
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return self._service.app

    def _when_ready(self, arbiter: Any) -> None:
        # Connections inherit it: a client that falls silent in the middle of a request must not keep its thread.
        seconds = self._settings.body_timeout_seconds
        patience = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        for listener in arbiter.LISTENERS:
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        if self._settings.port == 0:
            LOG.warning("Listening on %s", arbiter.LISTENERS[0])

    def _worker_exit(self, _arbiter: Any, _worker: Any) -> None:
        """In the worker, after its last request was answered."""
        service, self._service = self._service, None
        if service is not None:
            with contextlib.suppress(KeyboardInterrupt):
                service.close()
