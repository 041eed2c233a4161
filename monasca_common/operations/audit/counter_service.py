# SPDX-License-Identifier: Apache-2.0
"""The service that counts the records of topics for the audit, with its status and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oslo_config import cfg

from monasca_common.audit.settings import (
    AUDIT_COUNT_GROUP,
    PREFIX,
    AuditSettings,
    audit_settings,
    count_status_settings,
)
from monasca_common.kafka import Admin, KafkaProducer, load_admin, open_consumer, open_producer
from monasca_common.kafka.config import connection_settings, producer_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.plugins import producing_driver
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.operations.audit.log_counter import CounterStarts, LogCounter
from monasca_common.operations.loop_service import run_service
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS

_INTERNAL = "__"  # the prefix of Kafka's own topics
_REFRESH_SECONDS = 60.0


class CounterService(Loop):
    """Counts topics in the consumer group ``group``. After a failure or a change of topics, it continues at the group's
    offsets and rereads the messages that it has not reported."""

    def __init__(
        self,
        settings: AuditSettings,
        connection: ConnectionSettings,
        admin: Admin,
        producer: KafkaProducer,
        wanted: Sequence[str],
        group: str,
        tier: str,
    ) -> None:
        super().__init__("the audit counter")
        self._settings = settings
        self._connection = connection
        self._admin = admin
        self._producer = producer
        self._wanted = wanted
        self._group = group
        self._tier = tier
        self.metrics = ServiceMetrics(PREFIX)
        self._messages = self.metrics.counter("counted_messages", "Messages read by audit count")
        self._failures = self.metrics.counter("count_failures", "Restarts of audit count after a failure")
        self.health = LoopHealth("audit_count", self.clock, reason="no report has been sent yet")

    def failed(self, error: Exception) -> None:
        self._failures.inc()
        self.health.failed(error)

    def serve(self) -> None:
        if self._producer.health().finished:
            self._producer.reopen()
        topics, refresh_at = self.topics(), self.clock.monotonic() + _REFRESH_SECONDS
        report_at = self.clock.monotonic() + self._settings.report_seconds
        starts = CounterStarts(self._admin, self._group, self._settings, self.clock.time_ms())
        with open_consumer(ConsumerSettings(self._connection, topics, self._group), listener=starts) as consumer:
            counter = LogCounter(self._settings, consumer, self._producer, self._tier, since_ms=starts.since_ms)
            while not self.stopping.is_set():
                self._messages.inc(counter.poll())
                self.health.turned()
                if self.clock.monotonic() >= report_at:
                    counter.report()
                    self.health.turned("")
                    report_at = self.clock.monotonic() + self._settings.report_seconds
                if self.clock.monotonic() >= refresh_at:
                    if self.topics() != topics:
                        break
                    refresh_at = self.clock.monotonic() + _REFRESH_SECONDS
            counter.report()

    def topics(self) -> tuple[str, ...]:
        """Return the wanted topics, by default all except Kafka's internal topics and the topic of the reports.

        Raises `ConfigurationError` if a topic is missing or none exists, and `TransportError`.
        """
        existing = self._admin.partition_counts()
        missing = sorted(set(self._wanted) - existing.keys())
        if missing:
            raise ConfigurationError(f"--topic {missing[0]}: the topic does not exist: correct its name")
        others = (name for name in existing if not name.startswith(_INTERNAL) and name != self._settings.topic)
        topics = tuple(sorted(self._wanted or others))
        if not topics:
            raise ConfigurationError("there are no topics to count: create them with `monasca-common init`")
        return topics


def run(conf: cfg.ConfigOpts, *, section: str, wanted: Sequence[str], group: str, tier: str) -> None:
    """Count topics of the brokers in the option group ``section``. Raises `ConfigurationError` and `TransportError` if
    it cannot start."""
    settings, status = audit_settings(conf), count_status_settings(conf)
    admin = load_admin(conf, section)
    producer = open_producer(replace(producer_settings(conf), transactional_id=None))
    try:
        service = CounterService(settings, connection_settings(conf, section), admin, producer, wanted, group, tier)
        facts = {"reads": len(service.topics()), "group": group, "with_driver": producing_driver(producer.settings)}
        served = AUDIT_COUNT_GROUP, status, service.health, service.metrics.registry
        run_service("audit counter", service, *served, facts=facts)
    finally:
        producer.close(CLOSE_SECONDS)
