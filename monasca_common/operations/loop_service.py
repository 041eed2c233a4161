# SPDX-License-Identifier: Apache-2.0
"""A service with one loop: its status, its signals, and its start and stop messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from monasca_common.runtime.health import ServiceHealth
from monasca_common.runtime.logs import started, stopped
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.settings import StatusSettings
from monasca_common.runtime.shutdown import stop_on_signals
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)


def run_service(
    name: str,
    loop: Loop,
    group: str,
    status: StatusSettings,
    health: ServiceHealth,
    registry: CollectorRegistry,
    *,
    facts: Mapping[str, object],
) -> None:
    """Run ``loop`` until SIGTERM, Ctrl-C, or an error that no restart can resolve, which is raised.

    ``group``: the option group of the status. ``facts``: the facts in the start message. Raises `ConfigurationError` if
    the status cannot be served.
    """
    with status_served(group, status, health, registry):
        stop_on_signals(loop.stop)  # before the start message, after which a caller may stop the service
        LOG.info("%s", started(name, **facts, status_at=status.address))
        loop.run()
    LOG.info("%s", stopped(name))
