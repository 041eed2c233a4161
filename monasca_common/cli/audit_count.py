# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit count``: counts what is in the log, for audits, until SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from oslo_config import cfg

from monasca_common.audit.counter_status import CounterStatus
from monasca_common.audit.log_counter import CounterStarts, LogCounter
from monasca_common.audit.reports import COPIES, LOG
from monasca_common.audit.settings import (
    AUDIT_COUNT_GROUP,
    AuditSettings,
    audit_settings,
    count_status_settings,
)
from monasca_common.cli.command import stop_on_signals
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka import Admin, open_consumer, open_producer, plugins
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings, producer_settings
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.runtime import started, stopped
from monasca_common.runtime.restarts import run_with_restarts
from monasca_common.runtime.settings import StatusSettings
from monasca_common.runtime.shutdown import CLOSE_SECONDS

LOGGER = logging.getLogger(__name__)

_GROUP = "monasca-audit"
_OWN = "__"  # topics of Kafka itself
_LOOK_SECONDS = 60.0


class AuditCounting(ServiceCommand):
    """Read topics for no other purpose than to count what is in them, and report it, until SIGTERM.

    It is the tier broker of audits, which its readers are balanced against. With --tier mirror it counts a copy in
    another cluster, whose brokers --section names; reports go to those of [kafka] in either case. What it counts twice,
    after a crash, is one set of offsets. One process counts all; a second one of the same group shares the partitions,
    and finds only the duplicates in its own. For example, what a mirror has written:
    monasca-common audit count --tier mirror --section mirror_target --topic metrics
    """

    extra = "monitoring"  # where the status is served
    checked = "audit counter"
    any_file = True
    reported = (MessagingError, cfg.Error)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--section",
            default=KAFKA_GROUP,
            metavar="S",
            help="the group of options in the configuration whose brokers have the topics (default: %(default)s)",
        )
        parser.add_argument(
            "--topic",
            action="append",
            metavar="T",
            help="a topic; may be given several times (default: all, those included that are made later, "
            "without that of the reports and those of Kafka itself)",
        )
        parser.add_argument(
            "--tier",
            choices=(LOG, *sorted(COPIES)),
            default=LOG,
            help="broker: this is the log that services write and read; mirror: it is a copy (default: %(default)s)",
        )
        parser.add_argument(
            "--group",
            default=_GROUP,
            metavar="G",
            help="the consumer group, and the application in the reports: one for each cluster (default: %(default)s)",
        )
        return parser

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        return lambda conf: self._count(conf, parsed_args)

    def _count(self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace) -> None:
        settings = audit_settings(conf)
        admin = plugins.load_admin(conf, parsed_args.section)
        choice = TopicChoice(admin, parsed_args.topic or (), settings)
        topics = choice.choose()
        connection = connection_settings(conf, parsed_args.section)
        producer = open_producer(producer_settings(conf))
        stopping = threading.Event()
        at = count_status_settings(conf)
        status = CounterStatus(SystemClock())

        def serve() -> None:
            """After a failure, or with other topics, it begins again where the group's offsets are: what was not
            reported is read again."""
            consumer_settings = ConsumerSettings(connection, choice.choose(), parsed_args.group)
            starts = CounterStarts(admin, parsed_args.group, settings, round(time.time() * 1000))
            with open_consumer(consumer_settings, listener=starts) as consumer:
                counter = LogCounter(
                    settings,
                    consumer,
                    producer,
                    parsed_args.tier,
                    since_ms=starts.since_ms,
                    counted=starts.counted,
                    status=status,
                )
                counter.run(lambda: stopping.is_set() or choice.has_changed())

        stop_on_signals(stopping.set)
        with contextlib.ExitStack() as stack:
            stack.callback(producer.close, CLOSE_SECONDS)
            stack.enter_context(_status_served(at, status))
            LOGGER.info(
                "%s", started("audit counter", reads=len(topics), group=parsed_args.group, status_at=at.address)
            )
            run_with_restarts(serve, "the audit counter", stopping, SystemClock(), failed=status.failed)
        LOGGER.info("%s", stopped("audit counter", counted=status.messages))


def _status_served(at: StatusSettings, status: CounterStatus) -> contextlib.AbstractContextManager[None]:
    """Without a port nothing is served, and nothing that Prometheus needs is to be installed."""
    if at.port is None:
        return contextlib.nullcontext()
    from monasca_common.audit.metrics import CounterMetrics
    from monasca_common.runtime.status_server import status_served

    return status_served(AUDIT_COUNT_GROUP, at, status.health, CounterMetrics(status).registry)


class TopicChoice:
    """Which topics are counted: ``wanted``, or else all that there are."""

    def __init__(
        self, admin: Admin, wanted: Sequence[str], settings: AuditSettings, clock: Clock | None = None
    ) -> None:
        self._admin = admin
        self._wanted = wanted
        self._reports = settings.topic
        self._clock = clock or SystemClock()
        self._chosen: tuple[str, ...] = ()
        self._look_at = 0.0

    def choose(self) -> tuple[str, ...]:
        """Raises `ConfigurationError` if one of them, or any, is missing, and `TransportError`."""
        there = self._admin.partition_counts()
        missing = sorted(set(self._wanted) - there.keys())
        if missing:
            raise ConfigurationError(f"--topic {missing[0]}: there is no such topic: correct its name")
        self._chosen = tuple(sorted(self._wanted)) or self._countable(there)
        if not self._chosen:
            raise ConfigurationError("there are no topics to count: `monasca-common init` makes those of the services")
        self._look_at = self._clock.monotonic() + _LOOK_SECONDS
        return self._chosen

    def has_changed(self) -> bool:
        """Whether others are to be counted than were chosen; it asks once a minute. Raises `TransportError`."""
        if self._wanted or self._clock.monotonic() < self._look_at:
            return False
        self._look_at = self._clock.monotonic() + _LOOK_SECONDS
        return self._countable(self._admin.partition_counts()) != self._chosen

    def _countable(self, there: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(name for name in there if not name.startswith(_OWN) and name != self._reports))
