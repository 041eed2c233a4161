# SPDX-License-Identifier: Apache-2.0
"""The API of one process: producer, reader and application, made together and closed together.

Made after a fork, in the process that serves: clients of Kafka and pools of databases do not survive one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.api.app import make_app
from monasca_common.api.limits import WsgiApp
from monasca_common.api.options import ApiSettings, api_settings
from monasca_common.storage.reader import Reader

LOG = logging.getLogger(__name__)

_PROBE_SECONDS = 2.0


class Service:
    """``app`` serves until `close`."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.settings: ApiSettings = api_settings(conf)
        self._reader = _open_reader(conf)
        self._producer = kafka.load_producer(conf)
        self.app: WsgiApp = make_app(self.settings, self._producer, self._reader, conf=conf, probe=_probe(conf))

    def close(self) -> None:
        """Wait for what Kafka has not acknowledged yet, `stop_timeout_seconds` at most; tell of what is left."""
        report = self._producer.close(self.settings.stop_timeout_seconds)
        left = len(report.failed) + len(report.unknown)
        if left:
            LOG.error("%d messages are left undelivered by this stop; their clients were told 503", left)
        if self._reader is not None:
            self._reader.close()


def _open_reader(conf: cfg.ConfigOpts) -> Reader | None:
    return None


def _probe(conf: cfg.ConfigOpts) -> Callable[[], None] | None:
    if conf.kafka.driver != "kafka":
        return None
    admin = kafka.load_admin(conf)
    return lambda: admin.wait_for_brokers(1, timeout=_PROBE_SECONDS)
