# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag list | show | serve``: check whether consumer groups keep up."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from cliff.lister import Lister

from monasca_common.cli.command import NOTHING_FOUND, ClusterCommand, add_name_pattern
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import AuthorizationError, ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.history import (
    LagHistory,
    PartitionHistory,
    following,
    offline_partitions,
    read_history,
)
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagVerdict, group_lag
from monasca_common.operations.settings import DLQ_GROUP, history_topic, lag_window

_VERDICT_COLUMNS = (
    *("status", "unread", "oldest_unread_seconds", "deleted_unread", "deleted_in_seconds", "lost_in_seconds"),
    *("expires_soon", "truncated", "hidden", "window"),
)
_READ_SECONDS = 30.0

_Surveyed = Mapping[str, Mapping[TopicPartition, PartitionHistory]]


class _LagCommand(ClusterCommand, Lister):
    """Surveys groups once, with the history of earlier surveys."""

    def survey(self, parsed_args: argparse.Namespace, *, is_pattern: bool) -> _Surveyed:
        """Return the verdicts, and report missing information on standard error. Raises `ConfigurationError`."""
        if parsed_args.group == DLQ_GROUP:
            raise ConfigurationError(
                f"--group {DLQ_GROUP}: this is the dead-letter replay group, which has no lag status: `monasca-common "
                "dlq list` shows pending dead letters"
            )
        conf = self.read(parsed_args)
        window, topic = lag_window(conf), history_topic(conf)
        admin, connection = self.cluster(parsed_args)
        cluster = LagSurvey(admin, connection, window, timeout_seconds=_READ_SECONDS)
        groups = fnmatch.filter(cluster.groups(), parsed_args.group) if is_pattern else [parsed_args.group]
        try:
            history = read_history(admin, connection, topic, timeout_seconds=_READ_SECONDS)
        except AuthorizationError as error:
            history = None
            self.report(f"topic {topic} cannot be read: {error}")
        if history is None or history.surveyed_ms is None:
            self.report(
                "no history from `monasca-common lag serve` was found: old timestamps can appear as STOP, and "
                "deletions by size cannot be predicted"
            )
        now_ms = SystemClock().time_ms()
        surveyed = following(cluster.scan(groups, now_ms, history=history or LagHistory()), now_ms, window).groups
        if offline := sorted({each for partitions in surveyed.values() for each in offline_partitions(partitions)}):
            self.report(f"these partitions have no status, because they have no leader: {', '.join(offline)}")
        return surveyed


class LagList(_LagCommand):
    """Show the lag status of each consumer group, which is the status of its worst partition.

    Status OK: the group keeps up or catches up. WARNING: it commits, but its lag never decreases. STALL: it commits the
    same offset repeatedly. STOP: it has unread messages and does not commit. REWIND: its offset decreased. OFFLINE: a
    partition has no leader. The exit status is 1 if a group has one of the last four statuses, loses unread messages to
    retention now or soon ([lag] least_headroom), or has offsets after the end of the log; 2 if the brokers do not
    respond; 3 if no group has the requested name. For example, print JSON for a program:
    monasca-common lag list --group 1_metrics -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_name_pattern(parser, "--group", "groups")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        surveyed = self.survey(parsed_args, is_pattern=True)
        if not surveyed and parsed_args.group != "*":
            self.report(f"--group {parsed_args.group}: this group does not exist: correct its name")
            self._status = NOTHING_FOUND
        groups = {group: group_lag(each.lag for each in partitions.values()) for group, partitions in surveyed.items()}
        self._status |= any(lag.is_error for lag in groups.values())
        rows = ((group, len(surveyed[group]), *_verdict_row(lag)) for group, lag in groups.items())
        return ("group", "partitions", *_VERDICT_COLUMNS), rows


class LagShow(_LagCommand):
    """Show the lag of one consumer group in each partition.

    See `lag list` for the statuses and the exit status. For example:
    monasca-common lag show --group 1_metrics
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--group", required=True, metavar="G", help="the consumer group (option group_id)")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        group = parsed_args.group
        partitions = self.survey(parsed_args, is_pattern=False)[group]
        if not partitions:
            raise ConfigurationError(
                f"--group {group}: this group has no offset in any topic: `monasca-common lag list` lists groups"
            )
        self._status = int(group_lag(each.lag for each in partitions.values()).is_error)
        rows = ((*partition, *_verdict_row(each.lag)) for partition, each in partitions.items())
        return ("topic", "partition", *_VERDICT_COLUMNS), rows


class LagServe(ServiceCommand):
    """Run the lag service until SIGTERM: survey all consumer groups periodically, and export and store the results.

    The options are in [lag] and [kafka]. SIGTERM and Ctrl-C stop the service after the current survey. For example:
    monasca-common lag serve --config-file /etc/monasca/monitoring.conf
    """

    extra = "monitoring"
    service = "monasca_common.operations.lag.service"
    checked = "lag"


def _verdict_row(lag: LagVerdict) -> tuple[Any, ...]:
    """Return the values of `_VERDICT_COLUMNS`."""
    headroom, lost = (None if each is None else round(each) for each in (lag.headroom_seconds, lag.lost_in_seconds))
    seconds, completeness = round(lag.seconds, 1), round(lag.completeness, 2)
    values = (lag.status.name, lag.messages, seconds, lag.deleted, headroom, lost, lag.expires_soon)
    return *values, lag.truncated, lag.hidden, completeness
