# SPDX-License-Identifier: Apache-2.0
"""The API in one process, which opens and closes its producers, reader and application together.

Create it after a fork, because Kafka clients and database connections do not survive a fork.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from oslo_config import cfg

from monasca_common import kafka
from monasca_common.alarms.address_keys import PLAIN, address_keys
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings
from monasca_common.api import auth
from monasca_common.api.access import Access, log_handler
from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings, api_settings
from monasca_common.audit.reporter import AuditReporter, audited
from monasca_common.audit.settings import audit_settings
from monasca_common.kafka.config import connection_settings, producer_settings
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.plugins import driver_of, open_storage
from monasca_common.storage.settings import StorageSettings, has_database, row_limits, storage_settings
from monasca_common.storage.sql.reader import SqlReader

LOG = logging.getLogger(__name__)

_PROBE_SECONDS = 2.0
# A publish ends the linger early. Without a linger, messages that queue behind messages in flight would make librdkafka
# occupy a CPU core.
_LINGER_MS = 1000


class Service:
    """Provides ``app`` until `close`."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.settings: ApiSettings = api_settings(conf)
        limits = row_limits(conf)
        storage = storage_of(conf)
        self._reader: SqlReader | None = storage.open_reader() if storage is not None else None
        alarms_settings = alarms_settings_of(conf)
        self._alarms = AlarmsDatabase(alarms_settings) if alarms_settings is not None else None
        self._audit = _audit(conf)
        own = audited(own_producer(conf, self.settings), self._audit)
        self._producers = kafka.ProducerPool(lambda _topic: kafka.open_producer(own))
        self._producers.of(self.settings.metrics_topic)  # open a producer now, so that an error prevents the start
        self.app: Access = make_app(
            self.settings,
            self._producers,
            self._reader,
            conf=conf,
            probe=_probe(conf),
            limits=limits,
            alarms_database=self._alarms,
            keys=PLAIN if self._alarms is None else address_keys(conf),
            tracing=own.connection.tracing,
        )

    def close(self) -> None:
        """Wait at most `stop_timeout_seconds` for Kafka's acknowledgements, log how many are missing, and close."""
        reports = self._producers.close(self.settings.stop_timeout_seconds)
        left = sum(len(report.failed) + len(report.unknown) for report in reports)
        if left:
            LOG.error("stopped with undelivered messages, whose requests got status 503: %d", left)
        if self._audit is not None:
            self._audit.close()
        if self._reader is not None:
            self._reader.close()
        if self._alarms is not None:
            self._alarms.close()
        self.app.close()


def _audit(conf: cfg.ConfigOpts) -> AuditReporter | None:
    settings = audit_settings(conf)
    return AuditReporter(settings, producer_settings(conf), "api", "api").open() if settings.enabled else None


def own_producer(conf: cfg.ConfigOpts, settings: ApiSettings) -> ProducerSettings:
    """Return the settings of a topic's producer. Each producer gets an equal share of ``[kafka] budget_bytes``."""
    read = producer_settings(conf)
    share = read.budget_bytes // len({*settings.posted_topics, settings.alarm_transitions_topic})
    return replace(read, budget_bytes=share, linger_ms=_LINGER_MS, transactional_id=None)


def check(conf: cfg.ConfigOpts) -> ApiSettings:
    """Check all settings that `Service` reads, without opening a connection, and return those of the API.

    The parent process calls this, so that a `ConfigurationError` is raised once instead of in each worker.
    """
    settings = api_settings(conf)
    row_limits(conf)
    audit_settings(conf)
    storage_of(conf)
    if alarms_settings_of(conf) is not None:
        address_keys(conf)
    if (log := log_handler(settings.access_log)) is not None:
        log.close()
    if settings.auth_strategy == "keystone":
        auth.check(conf)
    return settings


def storage_of(conf: cfg.ConfigOpts) -> Storage | None:
    """Return the storage to read, or ``None`` if only posts are served. Raises `ConfigurationError`."""
    if not has_database(conf):
        LOG.warning("[database] connection is not set; only posts are served, reads get status 501")
        return None
    settings = storage_settings(conf)
    if Capability.READS not in driver_of(settings).capabilities:
        LOG.warning("[storage] driver does not support reads; only posts are served, reads get status 501")
        return None
    return open_storage(settings)


def alarms_settings_of(conf: cfg.ConfigOpts) -> StorageSettings | None:
    """Return the settings of the alarms database, or ``None`` if there is none. Raises `ConfigurationError`."""
    try:
        return database_settings(conf)
    except NoAlarmsDatabase as error:
        LOG.warning("requests for alarms get status 501: %s", error)
        return None


def _probe(conf: cfg.ConfigOpts) -> Callable[[], None] | None:
    if not connection_settings(conf).has_cluster:
        return None
    admin = kafka.load_admin(conf)
    return lambda: admin.wait_for_brokers(1, timeout=_PROBE_SECONDS)
