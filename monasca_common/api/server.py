# SPDX-License-Identifier: Apache-2.0
"""The API under gunicorn: each worker opens a service after the fork, and closes it before the worker exits."""

from __future__ import annotations

import contextlib
import gc
import logging
from typing import Any

from oslo_config import cfg

from monasca_common.api.limits import WsgiApp, threads_of
from monasca_common.api.own_metrics import workers_registry
from monasca_common.api.service import Service, own_producer
from monasca_common.api.settings import API_GROUP, ApiSettings
from monasca_common.api.status import ApiStatus
from monasca_common.kafka.plugins import producing_driver
from monasca_common.runtime.logs import joined, shown_url, started
from monasca_common.runtime.status_server import status_served
from monasca_common.runtime.web_server import WebServer
from monasca_common.storage.base import Capability
from monasca_common.storage.plugins import driver_of
from monasca_common.storage.settings import has_database, storage_settings

LOG = logging.getLogger(__name__)

_REQUEST_SECONDS = 3.0  # seconds added to publish_timeout_seconds for a request in flight
_CLOSE_SECONDS = 2.0  # seconds added to stop_timeout_seconds
_KEEP_ALIVE_SECONDS = 75
# A request of 100 metrics creates a thousand objects, none of which is in a reference cycle. With Python's default
# thresholds, the garbage collector runs several times per request and takes a tenth of its time.
_GC_THRESHOLDS = (50_000, 20, 100)


def start_line(conf: cfg.ConfigOpts, settings: ApiSettings, listening: str) -> str:
    """Return the line to log after the start. ``listening``: the API's addresses. Raises `ConfigurationError`."""
    producer = own_producer(conf, settings)
    return started(
        "api",
        at=listening,
        status=settings.status.address,
        workers=settings.workers,
        authentication=settings.auth_strategy,
        writes=joined((settings.metrics_topic, settings.logs_topic, settings.events_topic)),
        to_brokers=producer.connection.bootstrap_servers,
        with_driver=producing_driver(producer),
        reads_database=_database_read(conf),
    )


def _database_read(conf: cfg.ConfigOpts) -> str:
    """Return the database's URL without secrets, or an empty string if reads are not served."""
    if not has_database(conf):
        return ""
    settings = storage_settings(conf)
    return shown_url(settings.connection) if Capability.READS in driver_of(settings).capabilities else ""


class Server(WebServer):
    """Serves the API until a signal stops it."""

    def __init__(self, conf: cfg.ConfigOpts, settings: ApiSettings) -> None:
        self._conf = conf
        self._settings = settings
        self._service: Service | None = None
        self._status = contextlib.ExitStack()  # this runs in the parent process
        close_seconds = settings.stop_timeout_seconds + _CLOSE_SECONDS
        super().__init__(
            "api",
            settings.host,
            settings.port,
            workers=settings.workers,
            threads=threads_of(settings),
            keepalive=_KEEP_ALIVE_SECONDS,
            stop_seconds=settings.publish_timeout_seconds + _REQUEST_SECONDS + close_seconds,
            close_seconds=close_seconds,
        )

    def load(self) -> WsgiApp:
        self._service = Service(self._conf)
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return self._service.app

    def ready(self, arbiter: Any) -> None:
        health = ApiStatus(self._settings, lambda: arbiter.WORKERS)
        self._status.enter_context(status_served(API_GROUP, self._settings.status, health, workers_registry()))
        LOG.info("%s", start_line(self._conf, self._settings, joined(arbiter.LISTENERS)))

    def ended(self) -> None:
        self._status.close()

    def worker_ended(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()
