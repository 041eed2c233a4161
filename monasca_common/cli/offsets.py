# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets show | reset``: show and change the offsets of a consumer group."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.cli.command import (
    ChangeLister,
    MonascaCommand,
    add_execute,
    duration_seconds,
    moment_ms,
    partitions_of_topic,
)
from monasca_common.kafka import Admin, plugins
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import CONSUMER_GROUPS, KAFKA_GROUP, consumer_settings, register
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations import group_positions, offset_plan
from monasca_common.operations.group_positions import GroupOffsets
from monasca_common.operations.offset_plan import Move, PartitionOffsets
from monasca_common.storage import load_storage
from monasca_common.storage.settings import has_database, storage_settings

_MS = 1000


@dataclass(frozen=True, slots=True)
class _GroupState:
    """The stored offsets of a group. ``copies``: its offsets in Kafka."""

    admin: Admin
    kept: GroupOffsets
    partitions: Sequence[PartitionOffsets]
    copies: Mapping[TopicPartition, int]


class _OffsetsCommand(MonascaCommand):
    """Reads the offsets of a consumer group."""

    _database = ""  # its URL
    _members: Sequence[str] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--group", required=True, metavar="G", help="the consumer group (option group_id)")
        parser.add_argument(
            "--topic",
            action="append",
            type=partitions_of_topic,
            metavar="T[:P,P…]",
            help="a topic, or some of its partitions; can be repeated (default: the topics of the configured consumer "
            "with this group_id)",
        )
        parser.add_argument(
            "--kept-in",
            choices=("database", "kafka"),
            help="the authoritative store of the offsets (default: the configured database if it has offsets for this "
            "group, otherwise Kafka)",
        )

    def state(self, parsed_args: argparse.Namespace) -> _GroupState:
        """Return the stored offsets, and report the members of the group. Raises `ConfigurationError`."""
        conf, group = self.read(parsed_args), parsed_args.group
        section, topics = _consumer(conf, group)
        admin = plugins.load_admin(conf, section)
        self._database = storage_settings(conf).connection if has_database(conf) else ""
        kept = group_positions.find(load_storage(conf) if self._database else None, admin, group, parsed_args.kept_in)
        chosen: dict[str, tuple[int, ...]] = {}
        for topic, numbers in parsed_args.topic or [(topic, ()) for topic in topics]:
            earlier = chosen.get(topic, numbers)
            chosen[topic] = tuple(sorted({*earlier, *numbers})) if earlier and numbers else ()
        if not chosen:
            raise ConfigurationError("no configured consumer has this group_id: name its topics with --topic")
        partitions = offset_plan.read_partition_offsets(admin, kept.read(), chosen)
        self._members = _members(admin, group)
        copies = admin.group_offsets(group)
        where = "the database, with a copy in Kafka" if kept.place == "database" else "Kafka"
        self.report(f"group {group}, {_count(self._members)}; its offsets are kept in {where}")
        return _GroupState(admin, kept, partitions, copies)


class OffsetsShow(_OffsetsCommand, Lister):
    """Show the offsets of a consumer group, and whether it can resume.

    The exit status is 1 if a partition has a problem: use `offsets reset`. For example:
    monasca-common offsets show --group 1_metrics --topic metrics:0,3
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        state = self.state(parsed_args)
        self._status = int(any(each.problem for each in state.partitions))
        columns = ("topic", "partition", "kept_in", "stored", "in_kafka", "first", "end", "left", "problem")
        rows = (
            (*_place(each, state.kept), state.copies.get(each.partition), *_span(each), each.left, each.problem)
            for each in state.partitions
        )
        return columns, rows


class OffsetsReset(_OffsetsCommand, ChangeLister):
    """Change the offsets of a consumer group; without --execute, only show the effect.

    Use it after a topic was recreated, or after retention deleted unread messages. The command is refused while the
    group has members or a pipeline job reads as this group: stop them first. For example, read the last two hours
    again:
    monasca-common offsets reset --group 1_metrics --by-duration 2h --execute
    """

    columns = (
        *("topic", "partition", "kept_in", "stored", "target", "first", "end"),
        *("skipped", "read_again", "problem"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        target = parser.add_mutually_exclusive_group(required=True)
        target.add_argument("--to-earliest", action="store_true", help="the oldest message in the log")
        target.add_argument("--to-latest", action="store_true", help="the end of the log: skip all existing messages")
        target.add_argument(
            "--to-datetime",
            type=moment_ms,
            metavar="TIME",
            help="the first message at or after this time, such as 2026-01-31T06:00:00Z (default time zone: UTC); the "
            "end of the log if there is none",
        )
        target.add_argument(
            "--to-offset", type=_offset, metavar="N", help="this offset, which must exist in the log of each partition"
        )
        target.add_argument(
            "--by-duration",
            type=duration_seconds,
            metavar="D",
            help="the first message at most this old, such as 90m (s, m, h or d); the end of the log if there is none",
        )
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        state = self.state(parsed_args)
        kept, partitions = state.kept, state.partitions
        targets = _targets(parsed_args, state.admin, partitions)
        # Offsets of missing partitions would stop consumers once the partitions are recreated.
        moves = [Move(each, targets.get(each.partition)) for each in partitions if each.log or kept.place == "database"]
        if self._members:
            self._status = self.report(
                f"group {parsed_args.group!r} has {_count(self._members)}, which would continue at the old offsets "
                f"({', '.join(self._members[:3])}): stop them first; a killed consumer stays a member until its "
                "session times out"
            )
        else:
            if parsed_args.execute:
                if kept.place == "database":
                    self._refuse_if_a_job_runs(parsed_args.group, {each.partition.topic for each in partitions})
                ids = {each.partition: each.log.topic_id for each in partitions if each.log}
                kept.write({move.offsets.partition: move.target for move in moves}, ids)
            self.note_dry_run(parsed_args)
        rows += (
            (
                *(*_place(each.offsets, kept), each.target, *_span(each.offsets)),
                *(each.skipped, each.read_again, each.offsets.problem),
            )
            for each in moves
        )
        former = _left_behind(kept, moves)
        if former:
            self.report(former)

    def _refuse_if_a_job_runs(self, group: str, topics: Iterable[str]) -> None:
        """Refuse if, according to the database, a job is running, because Spark jobs are not members of their group."""
        from monasca_common.pipeline.jobs import activity  # requires a database extra

        for topic in sorted(topics):
            found = activity.of_job(self._database, group, topic)
            now_ms = SystemClock().time_ms()
            if found is not None and found.state(now_ms) is activity.JobState.RUNNING:
                raise ConfigurationError(
                    f"a pipeline job reads topic {topic!r} as group {group!r}, and last reported that it runs "
                    f"{max(0, now_ms - found.seen_ms) // _MS} s ago: stop it first; a killed job counts as running "
                    f"until it has not reported for {activity.SILENT_SECONDS:.0f} s"
                )


def _place(standing: PartitionOffsets, kept: GroupOffsets) -> tuple[Any, ...]:
    return (*standing.partition, kept.place, None if standing.kept is None else standing.kept.next_offset)


def _span(standing: PartitionOffsets) -> tuple[int | None, int | None]:
    return (None, None) if standing.log is None else (standing.log.first, standing.log.end)


def _count(members: Sequence[str]) -> str:
    return "no members" if not members else "1 member" if len(members) == 1 else f"{len(members)} members"


def _members(admin: Admin, group: str) -> list[str]:
    return [f"{client_id} at {host.lstrip('/')}" for client_id, host in admin.group_members(group)]


def _targets(
    parsed_args: argparse.Namespace, admin: Admin, standings: Iterable[PartitionOffsets]
) -> dict[TopicPartition, int]:
    logs = {each.partition: each.log for each in standings if each.log is not None}
    ends = {partition: log.end for partition, log in logs.items()}
    if parsed_args.to_earliest:
        return {partition: log.first for partition, log in logs.items()}
    if parsed_args.to_latest:
        return ends
    if parsed_args.to_offset is not None:
        return offset_plan.targets_at_offset(logs, parsed_args.to_offset)
    since_ms = parsed_args.to_datetime
    if since_ms is None:
        since_ms = max(0, SystemClock().time_ms() - parsed_args.by_duration * _MS)
    return offset_plan.targets_at_time(admin, ends, since_ms)


def _left_behind(kept: GroupOffsets, moves: Sequence[Move]) -> str:
    """Return a remark about other partitions of recreated topics, because their offsets still stop consumers."""
    topics = {move.offsets.partition.topic for move in moves if move.offsets.is_recreated}
    moved = {move.offsets.partition for move in moves}
    rest = sorted(each for each in kept.read() if each.topic in topics and each not in moved)
    named = ", ".join(f"{topic}/{number}" for topic, number in rest)
    return f"also check these partitions, which still have offsets of the former topic: {named}" if rest else ""


def _consumer(conf: cfg.ConfigOpts, group_id: str) -> tuple[str, tuple[str, ...]]:
    """Return the option group and the topics of the consumer with this group id, or ``[kafka]`` and no topics."""
    in_files = sorted(name for name in conf.list_all_sections() if name.startswith(f"{KAFKA_GROUP}_"))
    for name in dict.fromkeys((*CONSUMER_GROUPS, *in_files)):
        register(conf, name)
        if conf[name].group_id == group_id:
            return name, consumer_settings(conf, name).topics
    return KAFKA_GROUP, ()


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset: use a whole number of 0 or more")
    return int(text)
