# SPDX-License-Identifier: Apache-2.0
"""``monasca-common mirror run | verify``: copy topics to another cluster, and compare the copies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from cliff.lister import Lister

from monasca_common.cli import progress
from monasca_common.cli.command import NOT_ANSWERED, MonascaCommand, add_since, add_topics
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka import open_admin
from monasca_common.kafka.errors import FencedError, MessagingError
from monasca_common.operations.mirror.comparison import MessageDifference, PartitionComparison
from monasca_common.operations.mirror.settings import mirror_settings
from monasca_common.operations.mirror.verification import MirrorVerification

_OF_MESSAGES = ("topic", "partition", "kind", "source_offset", "target_offset", "message_id", "fields")
_OF_PARTITIONS = (
    *("topic", "partition", "status", "source", "target", "equal"),
    *("missing", "extra", "altered", "expired", "behind"),
)
_SAME, _DIFFERENT, _NOT_COMPARED = "SAME", "DIFFERENT", "NOT COMPARED"


class MirrorRun(ServiceCommand):
    """Copy topics from one cluster to another until SIGTERM; each message is copied once.

    Keys, values, headers, ids, timestamps and partitions are preserved. The options are in [mirror],
    [mirror_source], [mirror_target] and [kafka]. For example:
    monasca-common mirror run --config-file mirror.conf
    """

    extra = "mirror"
    service = "monasca_common.operations.mirror.mirror"
    checked = "mirror"
    reported = (*ServiceCommand.reported, FencedError)


class MirrorVerify(MonascaCommand, Lister):
    """Compare the copies of a mirror with their source, message by message.

    The command only reads, and can run while the mirror is running. The exit status is 0 if all compared messages are
    equal, 1 if messages differ, and 2 if partitions could not be compared. For example:
    monasca-common mirror verify --config-file mirror.conf --topic metrics --since 2026-01-31T06:00:00Z -f json
    """

    failed = NOT_ANSWERED

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_topics(parser, "every topic that the mirror has copied")
        add_since(parser, "messages")
        parser.add_argument(
            "--messages",
            action="store_true",
            help="print a row per differing message instead of a row per partition",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        settings = mirror_settings(self.read(parsed_args))
        verification = MirrorVerification(settings, open_admin(settings.source), open_admin(settings.target))
        compared = list(_compared(verification, parsed_args))
        self._status = max(map(_exit_status, compared), default=0)
        for each in compared:
            if each.not_compared:
                self.report(f"{each.partition.topic}/{each.partition.partition} was not compared: {each.not_compared}")
        if parsed_args.messages:
            return _OF_MESSAGES, (_message_row(each, one) for each in compared for one in each.differences)
        return _OF_PARTITIONS, map(_partition_row, compared)


def _compared(verification: MirrorVerification, parsed_args: argparse.Namespace) -> Iterator[PartitionComparison]:
    """Compare the partitions one after another. A partition that cannot be read does not affect the others."""
    since_ms = parsed_args.since
    positions = verification.positions(parsed_args.topic)
    compacted = verification.compacted(each.partition.topic for each in positions)
    with progress.Shown("mirror verify") as shown:
        shown.update(0, len(positions))
        for done, each in enumerate(positions, start=1):
            try:
                found = verification.compare(each, since_ms, is_compacted=each.partition.topic in compacted)
            except MessagingError as error:
                found = PartitionComparison(each.partition, not_compared=str(error))
            yield found
            shown.update(done, len(positions) - done)


def _exit_status(compared: PartitionComparison) -> int:
    return NOT_ANSWERED if compared.not_compared else int(bool(compared.differences))


def _partition_row(compared: PartitionComparison) -> tuple[Any, ...]:
    status = (_SAME, _DIFFERENT, _NOT_COMPARED)[_exit_status(compared)]
    kinds = (compared.count(kind) for kind in ("missing", "extra", "altered"))
    both = compared.source, compared.target, compared.equal
    return (*compared.partition, status, *both, *kinds, compared.expired, compared.behind)


def _message_row(compared: PartitionComparison, difference: MessageDifference) -> tuple[Any, ...]:
    shown_id = None if difference.message_id is None else difference.message_id.decode(errors="backslashreplace")
    offsets = difference.source_offset, difference.target_offset
    return (*compared.partition, difference.kind, *offsets, shown_id, ", ".join(difference.fields))
