# SPDX-License-Identifier: Apache-2.0
"""The lag service: surveys every group periodically, and stores the results in a topic and as metrics.

It reads the history from the topic when it starts. After SIGTERM, it completes the current survey and exits with status
0. Several instances can run concurrently; the newest results replace older results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from oslo_config import cfg

from monasca_common.kafka import (
    Admin,
    ConfigurationError,
    KafkaProducer,
    load_admin,
    open_producer,
    portions,
)
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.plugins import producing_driver
from monasca_common.operations.lag.history import (
    LagHistory,
    PartitionHistory,
    following,
    offline_partitions,
    read_history,
    records,
    to_keep,
)
from monasca_common.operations.lag.metrics import LagMetrics
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict, group_lag, lost_and_hidden
from monasca_common.operations.loop_service import run_service
from monasca_common.operations.settings import LAG_GROUP, LagSettings, lag_settings
from monasca_common.runtime.health import LIVE_SECONDS, LoopHealth
from monasca_common.runtime.logs import joined
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS

LOG = logging.getLogger(__name__)

_LATE_INTERVALS = 3  # a survey is late after this number of intervals since the last complete survey
READ_SECONDS = 60.0  # the time-out of a survey's reads: committed offsets and the oldest unread messages


class LagService(Loop):
    """Surveys the groups of a cluster periodically. ``admin``: the admin client of the cluster."""

    def __init__(self, settings: LagSettings, admin: Admin, *, clock: Clock | None = None) -> None:
        super().__init__("the lag survey", clock)
        self.longest_seconds = settings.interval_seconds
        self._settings = settings
        self._admin = admin
        self._window = settings.limits.window
        self._survey = LagSurvey(admin, settings.connection, self._window, timeout_seconds=READ_SECONDS)
        self._history: LagHistory | None = None
        self._kept = LagHistory()
        self.metrics = LagMetrics()
        live_seconds = LIVE_SECONDS + settings.interval_seconds
        reason = "no survey is complete yet"
        self.health = LoopHealth("lag", self.clock, reason=reason, more=self._late, live_seconds=live_seconds)

    def serve(self) -> None:
        producer = open_producer(self._settings.producer)
        try:
            while not self.stopping.is_set():
                began = self.clock.monotonic()
                self.survey(producer)
                took_seconds = self.clock.monotonic() - began
                self.stopping.wait(max(0.0, self._settings.interval_seconds - took_seconds))
        finally:
            producer.close(CLOSE_SECONDS)

    def failed(self, error: Exception) -> None:
        self.health.failed(error)
        self.metrics.failed()

    def survey(self, producer: KafkaProducer) -> LagHistory:
        """Survey all groups once, and store the results. Raises `MessagingError`."""
        began = self.clock.monotonic()
        before = self._history if self._history is not None else self._read()
        now_ms = self.clock.time_ms()
        groups = [group for group in self._survey.groups() if self._settings.watches(group)]
        found = following(self._survey.scan(groups, now_ms, history=before), now_ms, self._window)
        self._history = found
        self.metrics.completed(found, self.clock.monotonic() - began)
        self._report(before, found)
        self._keep(producer, found)
        self.health.turned("")
        return found

    def _read(self) -> LagHistory:
        kept = read_history(
            self._admin,
            self._settings.connection,
            self._settings.topic,
            timeout_seconds=READ_SECONDS,
        )
        if kept is None:
            raise ConfigurationError(
                f"topic {self._settings.topic}, which stores the lag history, does not exist: create it with "
                "`monasca-common init --execute`"
            )
        self._kept = kept
        return kept

    def _keep(self, producer: KafkaProducer, found: LagHistory) -> None:
        wanted = to_keep(self._kept, found)
        for portion in portions(list(records(self._kept, wanted)), self._settings.producer):
            producer.publish(self._settings.topic, portion).raise_for_undelivered()
        self._kept = wanted

    def _report(self, before: LagHistory, found: LagHistory) -> None:
        """Log each group whose status has changed, or that starts or stops losing messages."""
        for group, partitions in found.groups.items():
            lag, earlier = group_lag(known.lag for known in partitions.values()), before.groups.get(group)
            was = None if earlier is None else _concern(group_lag(known.lag for known in earlier.values()))
            if _concern(lag) != was and (was is not None or lag.is_error):
                log = LOG.warning if lag.is_error else LOG.info
                log("group %s is %s: it %s; %s", group, lag.status.name, lag.status.meaning, _facts(lag, partitions))

    def _late(self) -> Iterator[str]:
        surveyed_ms = self._history.surveyed_ms if self._history is not None else None
        late_seconds = _LATE_INTERVALS * self._settings.interval_seconds + READ_SECONDS
        if surveyed_ms is not None and self.clock.time_ms() - surveyed_ms > late_seconds * 1000:
            yield f"the last complete survey ended {(self.clock.time_ms() - surveyed_ms) // 1000} s ago"


def _concern(lag: LagVerdict) -> tuple[LagStatus, bool]:
    return lag.status, lag.is_error


def _facts(lag: LagVerdict, partitions: Mapping[TopicPartition, PartitionHistory]) -> str:
    facts = [f"{lag.messages:,} unread", *lost_and_hidden(lag)]
    facts += ["messages expire soon"] if lag.expires_soon else []
    facts += [f"partitions without a leader: {joined(offline)}"] if (offline := offline_partitions(partitions)) else []
    return ", ".join(facts)


def run(conf: cfg.ConfigOpts) -> None:
    """Run the service of ``conf``. Raises `ConfigurationError` if it cannot start."""
    settings = lag_settings(conf)
    service = LagService(settings, load_admin(conf))
    facts = {
        "watches": joined(settings.groups),
        "of_brokers": settings.connection.bootstrap_servers,
        "with_driver": producing_driver(settings.producer),
        "keeps_history_in": settings.topic,
    }
    status = LAG_GROUP, settings.status, service.health, service.metrics.registry
    run_service("lag", service, *status, facts=facts)
