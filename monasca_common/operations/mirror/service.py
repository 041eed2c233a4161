# SPDX-License-Identifier: Apache-2.0
"""The mirror as a service: one process, until SIGTERM."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import MIRRORED
from monasca_common.audit.settings import audit_settings
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import producer_settings
from monasca_common.operations.mirror.mirror import Mirror
from monasca_common.operations.mirror.settings import MIRROR_GROUP, mirror_settings
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.runtime import joined, started, stopped
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)


def run(conf: cfg.ConfigOpts, until: Callable[[Callable[[], None]], object]) -> None:
    """Run the mirror of ``conf``. ``until``: receives the function that stops it after the open transaction.

    Raises the errors of `Mirror.run`.
    """
    settings = mirror_settings(conf)
    status = MirrorStatus(SystemClock())
    audit = audit_settings(conf)
    with contextlib.ExitStack() as stack:
        reporter = None
        if audit.enabled:
            reporter = stack.enter_context(AuditReporter(audit, producer_settings(conf), MIRRORED, settings.name))
        mirror = Mirror(settings, status, SystemClock(), audit=reporter)
        until(mirror.stop)
        stack.enter_context(status_served(MIRROR_GROUP, settings.status, status.probes, status.registry))
        LOG.info(
            "%s",
            started(
                "mirror",
                name=settings.name,
                topics=joined(settings.topics),
                source=settings.source.bootstrap_servers,
                target=settings.target.bootstrap_servers,
                status_at=settings.status.address,
            ),
        )
        mirror.run()
    LOG.info("%s", stopped("mirror", copied=f"{status.copied} messages"))
