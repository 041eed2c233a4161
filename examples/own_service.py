# SPDX-License-Identifier: Apache-2.0
"""A complete service in one file: it counts readings until SIGTERM, with probes, metrics, dead letters and the audit.

Its options are in ``[tally]``, in ``[kafka_readings]`` for its consumer, and in ``[kafka]`` and ``[audit]``.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from oslo_config import cfg

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka import DeadLetters, Output, Poison, Processor
from monasca_common.kafka.config import (
    GroupReader,
    OptionGroup,
    consumer_settings,
    made_of,
    option,
    options_of,
    producer_settings,
)
from monasca_common.kafka.message import Message
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.runtime.logs import joined, started, stopped
from monasca_common.runtime.member import Attempt, Member
from monasca_common.runtime.member_health import MemberStatus, members_health
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.settings import StatusSettings
from monasca_common.runtime.shutdown import stop_on_signals
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard, StatusReporter
from monasca_common.runtime.status_server import status_served

LOG = logging.getLogger(__name__)


# 1. The settings: options are declared next to their reader, and become a frozen value.


@dataclass(frozen=True, slots=True)
class TallySettings:
    consumer: ConsumerSettings
    producer: ProducerSettings
    audit: AuditSettings
    highest: float = option(1000.0, minimum=0.0, maximum=1e9, help="A reading above this value becomes a dead letter.")
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))


_TALLY = OptionGroup("tally", options_of(TallySettings))


def tally_settings(conf: cfg.ConfigOpts) -> TallySettings:
    """Return the settings. Raises `ConfigurationError` with the name of the option."""
    read = GroupReader(conf, _TALLY)
    return read.settings(
        TallySettings,
        consumer=consumer_settings(conf, "kafka_readings"),
        producer=producer_settings(conf, "kafka_readings"),
        audit=audit_settings(conf),
        status=read.settings(StatusSettings),
    )


# 2. The metrics.


class TallyMetrics(ServiceMetrics):
    def __init__(self) -> None:
        super().__init__("tally")
        self.readings = self.counter("readings", "Readings by outcome", "outcome", known=("counted", "refused"))


# 3. The handler, and the member of the consumer group that calls it.


class TallyMember(Member):
    def __init__(self, settings: TallySettings, metrics: TallyMetrics) -> None:
        audit = settings.audit if settings.audit.enabled else None
        tap = audit_tap(audit, "tally", settings.consumer.group_id)
        super().__init__(MemberStatus("readings"), settings.consumer, settings.producer, tap=tap)
        self._highest = settings.highest
        self._readings = metrics.readings

    def open(self, attempt: Attempt) -> Processor:
        consumer, producer, hooks = self.open_clients(attempt)
        return Processor(
            consumer, self.handle, per_message=True, producer=producer, dead_letters=DeadLetters(), hooks=hooks
        )

    def handle(self, message: Message) -> Iterable[Output]:
        try:
            value = float(message.value or b"")
        except ValueError as error:
            raise self._refused(str(error)) from error
        if value > self._highest:
            raise self._refused(f"{value:g} is above highest in group [tally] ({self._highest:g})")
        self._readings.labels("counted").inc()
        return ()

    def _refused(self, reason: str) -> Poison:
        self._readings.labels("refused").inc()
        return Poison(reason)


def run(conf: cfg.ConfigOpts, until: Callable[[TallyMember], object]) -> None:
    """Run the service. ``until`` receives the member before it starts, and can stop it later. Raises
    `ConfigurationError`."""
    settings, metrics = tally_settings(conf), TallyMetrics()
    member = TallyMember(settings, metrics)
    board = StatusBoard([ProcessStatus([MemberStatus(member.name)])])
    reporter = StatusReporter(board, 0, [member], metrics.registry)
    health = members_health("tally", board.members)
    with status_served("tally", settings.status, health, metrics.registry):
        until(member)
        LOG.info("%s", started("tally", reads=joined(settings.consumer.topics), status_at=settings.status.address))
        reporter.start()
        member.run()
        reporter.stop()
    LOG.info("%s", stopped("tally"))


def main() -> int:
    conf = cfg.ConfigOpts()
    conf(project="tally", default_config_files=[])
    run(conf, lambda member: stop_on_signals(member.stop))
    return 0


if __name__ == "__main__":
    sys.exit(main())
