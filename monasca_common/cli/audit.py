# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit show | serve | count``: check that every sent message arrived at every tier."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.audit.reconciliation import AuditTotals, Reconciliation
from monasca_common.audit.reports import COPIES, LOG
from monasca_common.audit.settings import audit_settings
from monasca_common.cli.command import (
    NOTHING_FOUND,
    ClusterCommand,
    add_name_pattern,
    add_section,
    add_topics,
    check_section,
    positive,
)
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import MessagingError
from monasca_common.models import times
from monasca_common.operations.audit.report_log import ReportLog

_COLUMNS = (
    *("topic", "bucket", "tier", "application", "verdict", "completeness", "expected", "messages"),
    *("lost", "late", "duplicates", "surplus"),
)
_COUNTER_GROUP = "monasca-audit"
_READ_SECONDS = 60.0


class AuditShow(ClusterCommand, Lister):
    """Show how many messages arrived, were lost, arrived late or were duplicated, by topic, time bucket and tier.

    Verdict OK: all messages arrived. OPEN: messages are missing, but the grace period has not ended. INCOMPLETE:
    messages are missing after the grace period. UNCOUNTED: no `audit count` process reads the topic, so it is unknown
    which messages arrived. RECREATED: the topic was deleted and recreated, so it is unknown which messages arrived. The
    exit status is 1 if a verdict is INCOMPLETE or UNCOUNTED, 2 if the brokers do not respond, and 3 if there are no
    reports. For example, show the missing messages of the last hour:
    monasca-common audit show --topic metrics --last-seconds 3600 --missing
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_name_pattern(parser, "--topic", "topics")
        parser.add_argument(
            "--last-seconds",
            type=positive,
            metavar="N",
            help="length of the time window in seconds; too small: older buckets are not shown; too large: reading "
            "takes a long time (default: window_seconds in group [audit])",
        )
        parser.add_argument("--missing", action="store_true", help="show only rows with lost or late messages")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        settings = audit_settings(self.read(parsed_args))
        admin, connection = self.cluster(parsed_args)
        since_ms = settings.window_start(SystemClock().time_ms(), parsed_args.last_seconds)
        totals = ReportLog(admin, connection, settings).since(settings.before(since_ms), _READ_SECONDS)
        self._report_excluded(totals)
        found = [
            each
            for each in totals.reconciliations(SystemClock().time_ms(), since_ms)
            if fnmatch.fnmatchcase(each.topic, parsed_args.topic)
        ]
        self._status = self._exit_status(found, parsed_args.topic)
        return _COLUMNS, (_row(each) for each in found if each.lost or each.late or not parsed_args.missing)

    def _report_excluded(self, totals: AuditTotals) -> None:
        if totals.foreign:
            self.report(
                f"{totals.foreign} reports have a different bucket length and are excluded: set the same "
                "bucket_seconds in group [audit] of all services"
            )
        if totals.early:
            self.report(
                f"{totals.early} messages have timestamps more than a day in the future and are excluded: correct the "
                "clocks of their senders"
            )

    def _exit_status(self, found: Sequence[Reconciliation], pattern: str) -> int:
        """Return the exit status."""
        if found:
            return int(any(each.verdict.is_final for each in found))
        self.report(
            f"--topic {pattern}: this window has no reports for this topic, so its completeness is unknown: correct "
            "the name, increase --last-seconds, or enable the audit in the services that write and read the topic"
        )
        return NOTHING_FOUND


class AuditServe(ServiceCommand):
    """Run the audit service until SIGTERM: reconcile all reports periodically, and log and export missing messages.

    The options are in [audit] and [kafka]. For example:
    monasca-common audit serve --config-file /etc/monasca/monitoring.conf
    """

    extra = "monitoring"
    service = "monasca_common.operations.audit.service"
    checked = "audit"


class AuditCounting(ServiceCommand):
    """Run the audit counter until SIGTERM: count the messages in topics, and report the counts.

    The counter provides the audit's tier broker, against which the counts of consumers are checked. With --tier mirror,
    it counts the copies in another cluster, whose option group --section names; reports are always sent to the brokers
    of [kafka]. One process counts all topics; if a second process has the same group, each detects only the duplicates
    within its own partitions. For example, count the copies of a mirror:
    monasca-common audit count --tier mirror --section mirror_target --topic metrics
    """

    extra = "monitoring"  # required by the status server
    service = "monasca_common.operations.audit.counter_service"
    checked = "audit counter"
    any_file = True
    reported = (MessagingError, cfg.Error)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_section(parser)
        add_topics(parser, "all topics, including new ones, except the report topic and Kafka's internal topics")
        parser.add_argument(
            "--tier",
            choices=(LOG, *sorted(COPIES)),
            default=LOG,
            help="broker: the cluster that services use; mirror: a copy of it (default: %(default)s)",
        )
        parser.add_argument(
            "--group",
            default=_COUNTER_GROUP,
            metavar="G",
            help="the consumer group and the application in reports; use one per cluster (default: %(default)s)",
        )

    def serve(self, run: Callable[..., None], conf: cfg.ConfigOpts, parsed_args: argparse.Namespace) -> None:
        check_section(conf, parsed_args.section)
        names = {"section": parsed_args.section, "group": parsed_args.group, "tier": parsed_args.tier}
        run(conf, wanted=parsed_args.topic, **names)


def _row(each: Reconciliation) -> tuple[Any, ...]:
    """Return the values of `_COLUMNS`."""
    return (
        *(each.topic, times.shown(each.bucket_ms), each.tier, each.application, each.verdict.name),
        *(_completeness(each), each.expected, each.messages, each.lost, each.late, each.duplicates, each.surplus),
    )


def _completeness(each: Reconciliation) -> float:
    """Return the rounded completeness, which is below 1 if even one message in a million is missing."""
    rounded = round(each.completeness, 4)
    return rounded if rounded < 1 or each.completeness == 1 else 0.9999
