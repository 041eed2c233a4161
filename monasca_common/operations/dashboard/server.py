# SPDX-License-Identifier: Apache-2.0
"""Serves the dashboard under gunicorn: one worker with threads, because sessions and figures are stored in memory."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.audit.settings import audit_settings
from monasca_common.kafka import plugins
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings
from monasca_common.operations.dashboard.app import DashboardLogin, login_of, make_app
from monasca_common.operations.dashboard.panels import Panels, kafka_panels
from monasca_common.operations.dashboard.settings import DASHBOARD_GROUP, DashboardSettings, dashboard_settings
from monasca_common.operations.settings import history_topic, lag_window
from monasca_common.runtime.listener import check_listener
from monasca_common.runtime.logs import joined, started
from monasca_common.runtime.status_server import status_served
from monasca_common.runtime.web_server import WebServer

LOG = logging.getLogger(__name__)

_THREADS = 16
_KEEP_ALIVE_SECONDS = 10
_STOP_SECONDS = 4


class DashboardServer(WebServer):
    """Serves the dashboard until a signal. ``make_panels``: called after the fork, because Kafka clients do not survive
    a fork."""

    def __init__(self, settings: DashboardSettings, make_panels: Any, login: DashboardLogin | None) -> None:
        self._settings = settings
        self._make_panels = make_panels
        self._login = login
        self._panels: Panels | None = None
        self._status = contextlib.ExitStack()
        super().__init__(
            "dashboard",
            settings.host,
            settings.port,
            threads=_THREADS,
            stop_seconds=_STOP_SECONDS,
            keepalive=_KEEP_ALIVE_SECONDS,
            certfile=settings.tls_certificate,
            keyfile=settings.tls_key,
            do_handshake_on_connect=False,
        )

    def load(self) -> Any:
        self._panels = self._make_panels()
        self._panels.start()
        status = self._settings.status
        health = self._panels.health()
        self._status.enter_context(status_served(DASHBOARD_GROUP, status, health, CollectorRegistry()))
        return make_app(self._settings, self._panels, self._login)

    def ready(self, arbiter: Any) -> None:
        LOG.info(
            "%s",
            started(
                "dashboard",
                at=joined(arbiter.LISTENERS),
                login=self._settings.login,
                tls=self._settings.has_tls,
            ),
        )

    def worker_ended(self) -> None:
        self._status.close()
        if self._panels is not None:
            self._panels.stop()


def run(conf: cfg.ConfigOpts, dead_letter_topics: Iterable[str]) -> None:
    """Serve the configured dashboard until a signal. Raises `ConfigurationError`."""
    settings = dashboard_settings(conf)
    connection = connection_settings(conf, KAFKA_GROUP)
    check_listener(DASHBOARD_GROUP, settings.host, settings.port)
    if settings.status.port is not None:
        check_listener(DASHBOARD_GROUP, settings.status.host, settings.status.port, prefix="status_")
    login = login_of(settings, conf)
    admin = functools.partial(plugins.load_admin, conf)
    facts = (settings, admin, connection, audit_settings(conf), dead_letter_topics, lag_window(conf))
    panels = functools.partial(kafka_panels, *facts, SystemClock().time_ms, history_topic=history_topic(conf))
    DashboardServer(settings, panels, login).run()
