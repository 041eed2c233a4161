# SPDX-License-Identifier: Apache-2.0
"""The API under gunicorn: a service for each worker made after its fork, and an end in order."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import logging
import resource
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from oslo_config import cfg

from monasca_common.api import body
from monasca_common.api.auth import has_token
from monasca_common.api.connections import ConnectionLimits
from monasca_common.api.http_messages import HttpRules
from monasca_common.api.limits import WsgiApp
from monasca_common.api.own_metrics import workers_registry
from monasca_common.api.service import Service
from monasca_common.api.settings import API_GROUP, ApiSettings
from monasca_common.api.status import ApiStatus
from monasca_common.api.worker import ApiWorker
from monasca_common.kafka.config import producer_settings
from monasca_common.runtime import joined, shown_url, started, stopped
from monasca_common.runtime.health import WORKER_SILENT_SECONDS
from monasca_common.runtime.status_server import status_served
from monasca_common.storage.base import Capability
from monasca_common.storage.plugins import driver_of
from monasca_common.storage.settings import has_database, storage_settings

LOG = logging.getLogger(__name__)

_FINISH_SECONDS = 5.0  # beyond what a request in flight may take by itself
# Of a client, whatever it sends meanwhile.
_HEADER_SECONDS = 10.0  # also for the first byte of a new connection
_ANSWER_SECONDS = 60.0
_KEEP_ALIVE_SECONDS = 75
_CONNECTIONS = 4096
_WAITING_BYTES = 64 * 1024 * 1024  # of requests that are not complete, and of answers that are not taken; at least
_WAITING_BODIES = 2  # of the largest body
_OTHER_FILES = 256  # what a worker has open beside its clients' connections: logs, Kafka, databases
_LEAST_CONNECTIONS = 16
# A request of 100 metrics makes a thousand objects that are part of no cycle: with Python's own thresholds the
# collector comes by several times a request, which is a tenth of its time.
_GC_THRESHOLDS = (50_000, 20, 100)


def start_line(conf: cfg.ConfigOpts, settings: ApiSettings, listening: str) -> str:
    """``listening``: where. Raises `ConfigurationError`."""
    return started(
        "api",
        at=listening,
        status=settings.status.address,
        workers=settings.workers,
        authentication=settings.auth_strategy,
        writes=joined((settings.metrics_topic, settings.logs_topic, settings.events_topic)),
        to_brokers=producer_settings(conf).connection.bootstrap_servers,
        reads_database=_database_read(conf),
    )


def _database_read(conf: cfg.ConfigOpts) -> str:
    """The URL without secrets; empty: reads are not served."""
    if not has_database(conf):
        return ""
    settings = storage_settings(conf)
    return shown_url(settings.connection) if Capability.READS in driver_of(settings).capabilities else ""


class GunicornLog(glogging.Logger):  # type: ignore[misc]  # it has no annotations
    """What gunicorn says goes where the service's own lines go."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


class Server(BaseApplication):  # type: ignore[misc]  # it has no annotations
    """Runs until a signal. ``run()`` ends by `SystemExit`: 0 after a stop, 1 where the port is taken, 3 where a
    worker cannot start."""

    def __init__(self, conf: cfg.ConfigOpts, settings: ApiSettings) -> None:
        self._conf = conf
        self.settings = settings
        self._service: Service | None = None
        self._ready = False
        self._status = contextlib.ExitStack()  # of the parent
        self._connections = _CONNECTIONS
        super().__init__(prog="monasca-api")

    def load_config(self) -> None:
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        stop_seconds = settings.publish_timeout_seconds + settings.stop_timeout_seconds + _FINISH_SECONDS
        for name, value in {
            "bind": f"{host}:{settings.port}",
            "workers": settings.workers,
            "worker_class": ApiWorker,
            "graceful_timeout": round(stop_seconds),
            "timeout": max(WORKER_SILENT_SECONDS, round(stop_seconds) * 2),
            "proc_name": "monasca-api",
            "control_socket_disable": True,
            "logger_class": GunicornLog,
            "errorlog": None,
            "loglevel": "warning",  # what it says of a start and a stop is in the lines of `_when_ready` and `_on_exit`
            "when_ready": self._when_ready,
            "on_exit": self._on_exit,
            "worker_exit": self._worker_exit,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> WsgiApp:
        """Called by each worker, after the fork."""
        self._service = Service(self._conf)
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return self._service.app

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Of each worker."""
        return ConnectionLimits(
            header_seconds=_HEADER_SECONDS,
            body_seconds=body.BODY_SECONDS,
            answer_seconds=_ANSWER_SECONDS,
            idle_seconds=_KEEP_ALIVE_SECONDS,
            connections=self._connections,
            waiting_bytes=max(_WAITING_BYTES, _WAITING_BODIES * self.settings.max_body_bytes),
        )

    @property
    def http_rules(self) -> HttpRules:
        anybody = self.settings.auth_strategy == "noauth"
        return HttpRules(
            max_body_bytes=self.settings.max_body_bytes,
            # Who has no token is answered 401 whatever the body.
            body_wanted=lambda environ: anybody or has_token(environ),
            is_trusted_proxy=self._is_trusted_proxy,
        )

    def _is_trusted_proxy(self, address: str) -> bool:
        """As gunicorn has it: 127.0.0.1, or those in the environment variable FORWARDED_ALLOW_IPS."""
        trusted = self.cfg.forwarded_allow_ips
        return "*" in trusted or any(
            ipaddress.ip_address(address) in ipaddress.ip_network(each, strict=False) for each in trusted
        )

    def _when_ready(self, arbiter: Any) -> None:
        self._connections = allowed_connections(_CONNECTIONS)
        health = ApiStatus(self.settings, lambda: arbiter.WORKERS).health
        self._status.enter_context(status_served(API_GROUP, self.settings.status, health, workers_registry()))
        LOG.info("%s", start_line(self._conf, self.settings, joined(arbiter.LISTENERS)))
        self._ready = True

    def _on_exit(self, _arbiter: Any) -> None:
        """Called in the parent, when no worker is left."""
        self._status.close()
        if self._ready:
            LOG.info("%s", stopped("api"))

    def _worker_exit(self, _arbiter: Any, _worker: Any) -> None:
        """Runs in the worker, after its last request was answered."""
        service, self._service = self._service, None
        if service is not None:
            with contextlib.suppress(KeyboardInterrupt):
                service.close()


def allowed_connections(wanted: int) -> int:
    """As many connections as the limit of open files allows, which is raised for them where the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = max(_LEAST_CONNECTIONS, soft - _OTHER_FILES)
    LOG.warning(
        "a worker may have %d open files, which allows %d connections and not %d: raise the limit (ulimit -n, "
        "LimitNOFILE) to %d",
        soft,
        allowed,
        wanted,
        files,
    )
    return allowed
