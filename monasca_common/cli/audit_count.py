# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit count``: counts what is in the log, for audits, until SIGTERM."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.audit.reports import COPIES, LOG
from monasca_common.cli.command import check_section, stop_on_signals
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.errors import MessagingError

_GROUP = "monasca-audit"


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
        from monasca_common.audit import counter_service

        def run(conf: cfg.ConfigOpts) -> None:
            check_section(conf, parsed_args.section)
            counter_service.run(
                conf,
                lambda service: stop_on_signals(service.stop),
                section=parsed_args.section,
                wanted=parsed_args.topic or (),
                group=parsed_args.group,
                tier=parsed_args.tier,
            )

        return run
