# SPDX-License-Identifier: Apache-2.0
"""Builds the dashboard from its configuration, and serves it until a signal."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from oslo_config import cfg

from monasca_common.audit.settings import audit_settings
from monasca_common.kafka import plugins
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings
from monasca_common.operations.dashboard.app import login_of
from monasca_common.operations.dashboard.panels import kafka_panels
from monasca_common.operations.dashboard.server import DashboardServer
from monasca_common.operations.dashboard.settings import DASHBOARD_GROUP, dashboard_settings
from monasca_common.operations.settings import history_topic, lag_window
from monasca_common.runtime.listener import check_listener


def run(conf: cfg.ConfigOpts, dead_letter_topics: Iterable[str]) -> None:
    """Raises `ConfigurationError`."""
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
