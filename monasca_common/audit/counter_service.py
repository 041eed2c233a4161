# SPDX-License-Identifier: Apache-2.0
"""The service that counts the records of topics for the audit: topics, status and restarts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

from oslo_config import cfg

from monasca_common.audit.log_counter import CounterStarts, LogCounter
from monasca_common.audit.settings import (
    AUDIT_COUNT_GROUP,
    PREFIX,
    AuditSettings,
    audit_settings,
    count_status_settings,
)
from monasca_common.kafka import Admin, KafkaProducer, load_admin, open_consumer, open_producer
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.config import connection_settings, producer_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.runtime import started, stopped
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)

_INTERNAL = "__"  # the prefix of Kafka's own topics
_REFRESH_SECONDS = 60.0


class CounterStatus(ServiceMetrics):
    """The metrics and the health of a counter, whose thread calls `turned`, `reported` and `failed`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(PREFIX)
        self.messages = 0
        self._messages = self.counter("counted_messages", "Messages that the counter has read")
        self._failures = self.counter("count_failures", "Restarts of the counter after a failure")
        self._state = LoopHealth(
            "audit_count",
            clock,
            trouble="no report has been sent yet",
            facts=lambda: {"counted_messages": self.messages},
        )
        self.health = self._state.probes

    def turned(self, messages: int) -> None:
        """Note the number of messages of one poll."""
        self._state.turned()
        self.messages += messages
        self._messages.inc(messages)

    def reported(self) -> None:
        self._state.turned("")

    def failed(self, error: Exception) -> None:
        self._failures.inc()
        self._state.failed(error)


class TopicChoice:
    """The counted topics: ``wanted``, by default all."""

    def __init__(
        self, admin: Admin, wanted: Sequence[str], settings: AuditSettings, clock: Clock | None = None
    ) -> None:
        self._admin = admin
        self._wanted = wanted
        self._reports = settings.topic
        self._clock = clock or SystemClock()
        self._chosen: tuple[str, ...] = ()
        self._refresh_at = 0.0

    def choose(self) -> tuple[str, ...]:
        """Return the topics. Raises `ConfigurationError` if one is missing or none exists, and `TransportError`."""
        existing = self._admin.partition_counts()
        missing = sorted(set(self._wanted) - existing.keys())
        if missing:
            raise ConfigurationError(f"--topic {missing[0]}: the topic does not exist: correct its name")
        self._chosen = tuple(sorted(self._wanted)) or self._countable(existing)
        if not self._chosen:
            raise ConfigurationError("there are no topics to count: create them with `monasca-common init`")
        self._refresh_at = self._clock.monotonic() + _REFRESH_SECONDS
        return self._chosen

    def has_changed(self) -> bool:
        """Return whether other topics must be counted, which is checked once a minute. Raises `TransportError`."""
        if self._wanted or self._clock.monotonic() < self._refresh_at:
            return False
        self._refresh_at = self._clock.monotonic() + _REFRESH_SECONDS
        return self._countable(self._admin.partition_counts()) != self._chosen

    def _countable(self, topics: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(name for name in topics if not name.startswith(_INTERNAL) and name != self._reports))


class CounterService(Loop):
    """Counts the topics of ``choice`` in the consumer group ``group``. After a failure, or if the topics change, it
    continues at the group's offsets and reads unreported messages again."""

    def __init__(
        self,
        settings: AuditSettings,
        connection: ConnectionSettings,
        admin: Admin,
        producer: KafkaProducer,
        choice: TopicChoice,
        group: str,
        tier: str,
    ) -> None:
        super().__init__("the audit counter")
        self._settings = settings
        self._connection = connection
        self._admin = admin
        self._producer = producer
        self._choice = choice
        self._group = group
        self._tier = tier
        self.status = CounterStatus(self.clock)

    def failed(self, error: Exception) -> None:
        self.status.failed(error)

    def serve(self) -> None:
        consumer_settings = ConsumerSettings(self._connection, self._choice.choose(), self._group)
        starts = CounterStarts(self._admin, self._group, self._settings, self.clock.time_ms())
        with open_consumer(consumer_settings, listener=starts) as consumer:
            counter = LogCounter(
                self._settings,
                consumer,
                self._producer,
                self._tier,
                since_ms=starts.since_ms,
                turned=self.status.turned,
                reported=self.status.reported,
            )
            counter.run(lambda: self.stopping.is_set() or self._choice.has_changed())


def run(
    conf: cfg.ConfigOpts,
    until: Callable[[CounterService], object],
    *,
    section: str,
    wanted: Sequence[str],
    group: str,
    tier: str,
) -> None:
    """Count topics of the brokers in the options group ``section``. ``until`` gets the service before it starts, in
    order to stop it later.

    Raises `ConfigurationError` and `TransportError` if it cannot start.
    """
    settings, status = audit_settings(conf), count_status_settings(conf)
    admin = load_admin(conf, section)
    choice = TopicChoice(admin, wanted, settings)
    topics = choice.choose()
    with contextlib.ExitStack() as stack:
        producer = open_producer(producer_settings(conf))
        stack.callback(producer.close, CLOSE_SECONDS)
        connection = connection_settings(conf, section)
        service = CounterService(settings, connection, admin, producer, choice, group, tier)
        stack.enter_context(status_served(AUDIT_COUNT_GROUP, status, service.status.health, service.status.registry))
        until(service)
        LOG.info("%s", started("audit counter", reads=len(topics), group=group, status_at=status.address))
        service.run()
    LOG.info("%s", stopped("audit counter", counted=service.status.messages))
