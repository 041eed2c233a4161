# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit count``: counts what is in the log, for audits, until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka import Admin, open_consumer, open_producer, plugins, run_with_restarts
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import (
    KAFKA_GROUP,
    connection_settings,
    producer_settings,
    started,
    stopped,
)
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.monitoring.audit.log_counter import CounterStarts, LogCounter
from monasca_common.monitoring.audit.reports import COPIES, LOG
from monasca_common.monitoring.audit.settings import AuditSettings, audit_settings

LOGGER = logging.getLogger(__name__)

_GROUP = "monasca-audit"
_CLOSE_SECONDS = 5.0
_OWN = "__"  # topics of Kafka itself


class AuditCounting(ServiceCommand):
    """Read topics for no other purpose than to count what is in them, and report it, until SIGTERM.

    It is the tier broker of audits, which its readers are balanced against. With --tier mirror it counts a copy in
    another cluster, whose brokers --section names; reports go to those of [kafka] in either case. What it counts twice,
    after a crash, is one set of offsets. One process counts all; a second one of the same group shares the partitions,
    and finds only the duplicates in its own.
    """

    refusals = (MessagingError, cfg.Error)

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
            help="a topic; may be given several times (default: those that are there at the start, without that of "
            "the reports and those of Kafka itself)",
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
        for option_group, options in configuration.own_options():
            conf.register_opts(options, group=option_group)
        settings = audit_settings(conf)
        admin = plugins.load_admin(conf, parsed_args.section)
        topics = _topics(admin, parsed_args.topic, settings)
        consumer_settings = ConsumerSettings(
            connection_settings(conf, parsed_args.section), topics, parsed_args.group, topic_check_seconds=0.0
        )
        producer = open_producer(producer_settings(conf))
        stopping = threading.Event()

        def stop(*_: Any) -> None:
            stopping.set()

        def serve() -> None:
            """After a failure it begins again where the group's offsets are: what was not reported is read again."""
            starts = CounterStarts(admin, parsed_args.group, settings, round(time.time() * 1000))
            with open_consumer(consumer_settings, listener=starts) as consumer:
                counter = LogCounter(settings, consumer, producer, parsed_args.tier, since_ms=starts.since_ms)
                counter.run(stopping)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        LOGGER.info("%s", started("audit counter", reads=len(topics), group=parsed_args.group))
        try:
            run_with_restarts(serve, "the audit counter", stopping, SystemClock(), expected=(MessagingError,))
        finally:
            producer.close(_CLOSE_SECONDS)
        LOGGER.info("%s", stopped("audit counter"))


def _topics(admin: Admin, wanted: Sequence[str] | None, settings: AuditSettings) -> tuple[str, ...]:
    there = admin.partition_counts()
    missing = sorted(set(wanted or ()) - there.keys())
    if missing:
        raise ConfigurationError(f"--topic {missing[0]}: there is no such topic: correct its name")
    found = wanted or [name for name in there if not name.startswith(_OWN) and name != settings.topic]
    if not found:
        raise ConfigurationError("there are no topics to count: `monasca-common init` makes those of the services")
    return tuple(sorted(found))
