# SPDX-License-Identifier: Apache-2.0
"""``monasca-common mirror run | verify``: topics copied from one cluster to another, and whether they are the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from cliff.lister import Lister
from oslo_config import cfg
from rich.console import Console
from rich.progress import Progress

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, moment_ms
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka import open_admin
from monasca_common.kafka.errors import FencedError, MessagingError
from monasca_common.monitoring.mirror.comparison import (
    ComparedRange,
    MessageDifference,
    MirrorComparison,
    PartitionComparison,
)
from monasca_common.monitoring.mirror.settings import mirror_settings

_OF_MESSAGES = ("topic", "partition", "kind", "source_offset", "target_offset", "message_id", "fields")
_OF_PARTITIONS = (
    *("topic", "partition", "status", "source", "target", "equal"),
    *("missing", "extra", "altered", "expired", "behind"),
)
_SAME, _DIFFERENT, _NOT_COMPARED = "SAME", "DIFFERENT", "NOT COMPARED"


class MirrorRun(ServiceCommand):
    """Copy topics from one cluster to another until SIGTERM, each message once.

    Keys, values, headers, ids, timestamps and partitions stay as they are. The options are in [mirror],
    [mirror_source], [mirror_target] and [kafka]. Example: monasca-common mirror run --config-file mirror.conf
    """

    extra = "mirror"
    checked = "mirror"
    refusals = (*ServiceCommand.refusals, FencedError)

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        from monasca_common.monitoring.mirror import service

        return service.run


class MirrorVerify(MonascaCommand, Lister):
    """Compare what a mirror has copied with its source, message by message, and say what is not the same.

    It changes nothing, and may run beside the mirror. The exit status is 0 where everything is the same, 1 where
    something differs, 2 where it could not be compared. Example: monasca-common mirror verify --config-file
    mirror.conf --topic metrics --since 2026-01-31T06:00:00Z -f json
    """

    _status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument(
            "--topic",
            action="append",
            default=[],
            metavar="T",
            help="a topic; may be given several times (default: every topic that the mirror has copied)",
        )
        parser.add_argument(
            "--since",
            type=moment_ms,
            metavar="TIME",
            help="only messages whose timestamps are not older than this, as 2026-01-31T06:00:00Z (default: all, "
            "which reads both logs from their beginnings)",
        )
        parser.add_argument(
            "--messages",
            action="store_true",
            help="a row for each message that differs in place of a row for each partition",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """2, and the reason on standard error, where the clusters cannot be asked."""
        try:
            return super().run(parsed_args) or self._status
        except MessagingError as error:
            self.complain(str(error))
            return 2

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        settings = mirror_settings(configuration.read(parsed_args))
        comparison = MirrorComparison(settings, open_admin(settings.source), open_admin(settings.target))
        ranges = comparison.ranges(parsed_args.topic, parsed_args.since)
        compared = list(_compared(comparison, ranges, parsed_args.since))
        self._status = max(map(_exit_status, compared), default=0)
        for each in compared:
            if each.not_compared:
                self.complain(f"{_place(each)} was not compared: {each.not_compared}")
        if parsed_args.messages:
            return _OF_MESSAGES, (_message_row(each, one) for each in compared for one in each.differences)
        return _OF_PARTITIONS, map(_partition_row, compared)


def _compared(
    comparison: MirrorComparison, ranges: list[ComparedRange], since_ms: int | None
) -> Iterator[PartitionComparison]:
    """One partition after the other, with a bar on a terminal."""
    compacted = comparison.compacted(each.partition.topic for each in ranges)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        for each in progress.track(ranges, description="partitions"):
            if each.partition.topic in compacted:
                yield PartitionComparison(each.partition, not_compared="it is compacted, in each cluster apart")
            else:
                yield comparison.compare(each, since_ms)


def _exit_status(compared: PartitionComparison) -> int:
    return 2 if compared.not_compared else int(bool(compared.differences))


def _partition_row(compared: PartitionComparison) -> tuple[Any, ...]:
    status = (_SAME, _DIFFERENT, _NOT_COMPARED)[_exit_status(compared)]
    kinds = (compared.count(kind) for kind in ("missing", "extra", "altered"))
    counts = (compared.source, compared.target, compared.equal, *kinds, compared.expired, compared.behind)
    return (*compared.partition, status, *counts)


def _message_row(compared: PartitionComparison, difference: MessageDifference) -> tuple[Any, ...]:
    shown_id = None if difference.message_id is None else _shown(difference.message_id)
    offsets = difference.source_offset, difference.target_offset
    return (*compared.partition, difference.kind, *offsets, shown_id, ", ".join(difference.fields))


def _shown(message_id: bytes) -> str:
    """As text where it is printable, else in hexadecimal digits."""
    text = message_id.decode("ascii", errors="replace")
    return text if text.isascii() and text.isprintable() else message_id.hex()


def _place(compared: PartitionComparison) -> str:
    return f"{compared.partition.topic}/{compared.partition.partition}"
