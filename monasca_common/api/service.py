# SPDX-License-Identifier: Apache-2.0
"""The API of one process: producer, reader and application, made together and closed together.

Made after a fork, in the process that serves: clients of Kafka and pools of databases do not survive one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.api.app import make_app
from monasca_common.api.limits import WsgiApp
from monasca_common.api.options import ApiSettings, api_settings
from monasca_common.storage import options as storage_options
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.plugins import load_storage
from monasca_common.storage.reader import Reader

LOG = logging.getLogger(__name__)

_PROBE_SECONDS = 2.0
# So many requests at a time are each sent at once; of more, those of a few milliseconds go together.
_EAGER_CALLERS = 3


class Service:
    """``app`` serves until `close`."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.settings: ApiSettings = api_settings(conf)
        storage = storage_of(conf)
        self._reader: Reader | None = storage.open_reader() if storage is not None else None
        self._producer = kafka.load_producer(conf, eager_callers=_EAGER_CALLERS)
        self.app: WsgiApp = make_app(self.settings, self._producer, self._reader, conf=conf, probe=_probe(conf))

    def close(self) -> None:
        """Wait for what Kafka has not acknowledged yet, `stop_timeout_seconds` at most; tell of what is left."""
        report = self._producer.close(self.settings.stop_timeout_seconds)
        left = len(report.failed) + len(report.unknown)
        if left:
            LOG.error("%d messages are left undelivered by this stop; their clients were told 503", left)
        if self._reader is not None:
            self._reader.close()


def storage_of(conf: cfg.ConfigOpts) -> Storage | None:
    """The storage that reads are answered from; ``None``: posts are all that is served. Raises `ConfigurationError`."""
    for group, options in storage_options.list_opts():
        conf.register_opts(options, group=group)
    with contextlib.suppress(cfg.Error, ValueError):  # what cannot be read is for load_storage to tell of
        if not conf[storage_options.DATABASE_GROUP].connection:
            LOG.warning("[database] connection is not set: posts are served, and no reads")
            return None
    storage = load_storage(conf)
    if Capability.READS not in storage.capabilities:
        LOG.warning("[storage] driver cannot be read from: posts are served, and no reads")
        return None
    return storage


def _probe(conf: cfg.ConfigOpts) -> Callable[[], None] | None:
    if conf.kafka.driver != "kafka":
        return None
    admin = kafka.load_admin(conf)
    return lambda: admin.wait_for_brokers(1, timeout=_PROBE_SECONDS)
