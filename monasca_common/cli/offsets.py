# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets show | reset``: where a consumer group reads on, and how an operator moves it.

For a topic that was deleted and recreated, and for a position that retention has passed: there the services stop
instead of guessing, and this is how a person decides.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.cli import configuration, kept_offsets, offset_plan
from monasca_common.cli.command import (
    OperatorCommand,
    add_execute,
    duration_seconds,
    moment_ms,
    partitions_of_topic,
)
from monasca_common.cli.kept_offsets import KeptOffsets
from monasca_common.cli.offset_plan import LogSpan, Move, Standing
from monasca_common.kafka import Admin, plugins
from monasca_common.kafka.config import CONSUMER_GROUPS, KAFKA_GROUP, consumer_settings, register
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.kafka.message import TopicPartition
from monasca_common.storage import Storage, load_storage
from monasca_common.storage.base import Kind
from monasca_common.storage.errors import StorageError
from monasca_common.storage.settings import has_database, storage_settings

_MS = 1000
_PERSISTER_GROUPS = frozenset(f"{KAFKA_GROUP}_{kind}" for kind in Kind)


class _Refused(Exception):
    """What is asked for cannot be done, or should not."""


@dataclass(frozen=True, slots=True)
class _OffsetsTable:
    """What a command prints: ``before``, a table of ``columns`` of the partitions, and ``after``; with ``--json`` all
    of ``facts``. ``problem``: why the exit status is 1, which is empty where the partitions show it."""

    facts: Mapping[str, Any]
    columns: tuple[str, ...]
    before: Sequence[str]
    after: Sequence[str] = ()
    status: int = 0
    problem: str = ""


class _OffsetsCommand(OperatorCommand, Lister):
    """A consumer group, its topics, and where its offsets are kept."""

    _stores_rows = False  # the group is a persister's
    _database = ""  # its URL
    _report: _OffsetsTable

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument("--group", required=True, metavar="G", help="the consumer group: its option group_id")
        parser.add_argument(
            "--topic",
            action="append",
            type=partitions_of_topic,
            metavar="T[:P,P…]",
            help="a topic, or some of its partitions; may be given several times (default: the topics of the "
            "configuration's consumer with this group_id)",
        )
        parser.add_argument(
            "--kept-in",
            choices=("database", "kafka"),
            help="where the offsets are that count (default: the database of the configuration, if it has any of this "
            "group, else Kafka)",
        )
        parser.add_argument("--json", action="store_true", help="print all that is known as one line of JSON")
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """0: done, or to be done without objection. 1: not, and the reason on standard error."""
        try:
            status = super().run(parsed_args)
        except (ConfigurationError, StorageError, MessagingError, _Refused) as error:
            return self.complain(str(error))
        if status:
            return status
        return self.complain(self._report.problem) if self._report.problem else self._report.status

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        conf = configuration.read(parsed_args)
        section, topics = _consumer(conf, parsed_args.group)
        admin = plugins.load_admin(conf, section)
        self._stores_rows = section in _PERSISTER_GROUPS
        self._database = storage_settings(conf).connection if has_database(conf) else ""
        kept = kept_offsets.find(_storage(conf), admin, parsed_args.group, parsed_args.kept_in)
        chosen: dict[str, tuple[int, ...]] = dict(parsed_args.topic or [(topic, ()) for topic in topics])
        self._report = report = self.act(parsed_args, admin, kept, _standings(admin, kept, chosen))
        return report.columns, (tuple(each[column] for column in report.columns) for each in report.facts["partitions"])

    def act(
        self, parsed_args: argparse.Namespace, admin: Admin, kept: KeptOffsets, standings: Sequence[Standing]
    ) -> _OffsetsTable:
        raise NotImplementedError

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        if parsed_args.json:
            self.print(json.dumps(self._report.facts))
            return 0
        for_people = self.app.stdout if parsed_args.formatter == "table" else self.app.stderr
        for_people.write("".join(f"{line}\n" for line in self._report.before))
        status = super().produce_output(parsed_args, column_names, data)
        for_people.write("".join(f"{line}\n" for line in self._report.after))
        return status


class OffsetsShow(_OffsetsCommand):
    """Tell where a consumer group reads on, and whether it can.

    The exit status is 0 where every partition can be read on, else 1: then `offsets reset` is what helps. For example:
    monasca-common offsets show --group 1_metrics --topic metrics:0,3
    """

    def act(
        self, parsed_args: argparse.Namespace, admin: Admin, kept: KeptOffsets, standings: Sequence[Standing]
    ) -> _OffsetsTable:
        members = _members(admin, parsed_args.group)
        copies = admin.group_offsets(parsed_args.group)
        differing = kept_offsets.differing(kept, copies)
        partitions = [{**offset_plan.describe(each), "in_kafka": copies.get(each.partition)} for each in standings]
        facts = {"group": parsed_args.group, "kept_in": kept.place, "members": members, "partitions": partitions}
        return _OffsetsTable(
            {**facts, "copy_differs": bool(differing)},
            ("topic", "partition", "stored", "in_kafka", "first", "end", "left", "problem"),
            before=[_head(parsed_args.group, kept, members), *differing],
            status=int(any(each.problem for each in standings)),
        )


class OffsetsReset(_OffsetsCommand):
    """Move where a consumer group reads on; without --execute, only show what that would do.

    For a topic that was deleted and recreated, and for offsets that retention has passed. Refused while the group has
    members, or is that of a pipeline job that runs: stop them first. The exit status is 0 where it was done, or would
    be. For example, the last two hours again:
    monasca-common offsets reset --group 1_metrics --by-duration 2h --execute
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        target = parser.add_mutually_exclusive_group(required=True)
        target.add_argument("--to-earliest", action="store_true", help="the oldest message that the log still has")
        target.add_argument("--to-latest", action="store_true", help="the end: skip everything that is there now")
        target.add_argument(
            "--to-datetime",
            type=moment_ms,
            metavar="TIME",
            help="the first message of this time or later, such as 2026-01-31T06:00:00Z (UTC if it names no zone); the "
            "end where there is none",
        )
        target.add_argument("--to-offset", type=_offset, metavar="N", help="this offset, which the log must have")
        target.add_argument(
            "--by-duration",
            type=duration_seconds,
            metavar="D",
            help="the first message that is not older than this, such as 90m (s, m, h or d); the end if there is none",
        )
        target.add_argument(
            "--shift-by",
            type=int,
            metavar="N",
            help="so many offsets forward, or back where it is negative (--shift-by=-100), within what the log has",
        )
        add_execute(parser)
        return parser

    def act(
        self, parsed_args: argparse.Namespace, admin: Admin, kept: KeptOffsets, standings: Sequence[Standing]
    ) -> _OffsetsTable:
        there = [each for each in standings if each.log is not None]
        targets = _targets(parsed_args, admin, there)
        # What is kept of partitions that are no more would stop the first reader that comes when they are there again.
        moves = [Move(each, targets.get(each.partition)) for each in standings if each.log or kept.place == "database"]
        members = _members(admin, parsed_args.group)
        differing = kept_offsets.differing(kept, admin.group_offsets(parsed_args.group))
        if parsed_args.execute and not members and kept.place == "database":
            self._refuse_beside_a_job(parsed_args.group, {each.partition.topic for each in standings})
        execute = parsed_args.execute and not members
        if execute:
            ids = {each.partition: each.log.topic_id for each in there if each.log}
            kept.write({move.standing.partition: move.target for move in moves}, ids)
        partitions = [offset_plan.describe_move(each) for each in moves]
        facts = {"group": parsed_args.group, "kept_in": kept.place, "members": members, "partitions": partitions}
        text = offset_plan.summary(moves, rows=self._stores_rows) + _left_behind(kept, moves)
        done = "Done." if execute else "Nothing was changed."
        hint = "" if execute or members else " With --execute it would be."
        problem = (
            f"group {parsed_args.group!r} has {_count(members)}, and would go on from the old offsets "
            f"({', '.join(members[:3])}): stop them first; one that died is a member until its session times out"
        )
        return _OffsetsTable(
            {**facts, "copy_differs": bool(differing), "executed": execute},
            ("topic", "partition", "stored", "target", "first", "end", "skipped", "read_again", "problem"),
            before=[_head(parsed_args.group, kept, members), *differing],
            after=[*text, f"{done}{hint}"],
            problem=problem if members else "",
        )

    def _refuse_beside_a_job(self, group: str, topics: Iterable[str]) -> None:
        """A job on Spark is no member of its group; that it runs is in the database."""
        from monasca_common.pipeline.jobs import activity  # it needs the extra of a database

        for topic in sorted(topics):
            found = activity.of_job(self._database, group, topic)
            now_ms = round(time.time() * _MS)
            if found is not None and found.state(now_ms) is activity.JobState.RUNNING:
                raise _Refused(
                    f"a pipeline job reads topic {topic!r} as group {group!r}, and reported that it runs "
                    f"{max(0, now_ms - found.seen_ms) // _MS} s ago: stop it first; one that was killed counts as "
                    f"running until it has reported nothing for {activity.SILENT_SECONDS:.0f} s"
                )


def _head(group: str, kept: KeptOffsets, members: Sequence[str]) -> str:
    where = "the database, with a copy in Kafka" if kept.place == "database" else "Kafka"
    return f"Group {group}, {_count(members)}; its offsets are kept in {where}."


def _count(members: Sequence[str]) -> str:
    return "no members" if not members else "1 member" if len(members) == 1 else f"{len(members)} members"


def _members(admin: Admin, group: str) -> list[str]:
    return [f"{member.client_id} at {member.host.lstrip('/')}" for member in admin.group_members(group)]


def _standings(admin: Admin, kept: KeptOffsets, chosen: Mapping[str, tuple[int, ...]]) -> list[Standing]:
    """How each chosen partition stands; without a choice all of the topic's, and those that only the store has."""
    if not chosen:
        raise _Refused("no consumer in the configuration has this group_id: name its topics with --topic")
    known = kept.read()
    standings = []
    for topic, numbers in chosen.items():
        if topic not in admin.topic_ids([topic], timeout=10.0):
            raise _Refused(f"there is no topic {topic!r} to read on in: correct its name, or create it first")
        description = admin.describe_topic(topic)
        missing = [number for number in numbers if number >= description.partitions]
        if missing:
            raise _Refused(f"topic {topic!r} has {description.partitions} partitions, and no {missing[0]}")
        wanted = [TopicPartition(topic, number) for number in numbers or range(description.partitions)]
        firsts, ends = admin.first_offsets(wanted), admin.end_offsets(wanted)
        beyond = [each for each in wanted if each in known and known[each].next_offset > ends[each]]
        written = admin.end_offsets(beyond, open_transactions=True)
        logs = {each: LogSpan(description.topic_id, firsts[each], ends[each], written.get(each)) for each in wanted}
        standings += [Standing(each, known.get(each), logs[each]) for each in wanted]
        if not numbers:
            former = sorted(each for each in known if each.topic == topic and each not in firsts)
            standings += [Standing(each, known[each], None) for each in former]
    return standings


def _targets(parsed_args: argparse.Namespace, admin: Admin, standings: Iterable[Standing]) -> dict[TopicPartition, int]:
    logs = {each.partition: each.log for each in standings if each.log is not None}
    if parsed_args.to_earliest:
        return {partition: log.first for partition, log in logs.items()}
    if parsed_args.to_latest:
        return {partition: log.end for partition, log in logs.items()}
    if parsed_args.shift_by is not None:
        return _shifted(standings, parsed_args.shift_by)
    since_ms = parsed_args.to_datetime
    if parsed_args.by_duration is not None:
        since_ms = max(0, round(time.time() * _MS) - parsed_args.by_duration * _MS)
    if since_ms is not None:
        found = admin.offsets_for_times(dict.fromkeys(logs, since_ms))
        return {
            partition: log.end if found[partition] is None else found[partition]  # type: ignore[misc]
            for partition, log in logs.items()
        }
    for partition, log in logs.items():
        if not log.first <= parsed_args.to_offset <= log.end:
            raise _Refused(
                f"{partition.topic}/{partition.partition} has offsets from {log.first} to {log.end}, and no "
                f"{parsed_args.to_offset}: name one of them, for this partition alone (--topic {partition.topic}:"
                f"{partition.partition})"
            )
    return dict.fromkeys(logs, parsed_args.to_offset)


def _shifted(standings: Iterable[Standing], by: int) -> dict[TopicPartition, int]:
    """As far as the log goes."""
    targets = {}
    for each in standings:
        if each.log is None:
            continue
        if each.kept is None or each.made_again:
            raise _Refused(
                f"{each.partition.topic}/{each.partition.partition} has no offset of this topic to shift: say "
                "--to-earliest, --to-latest, --to-datetime, --by-duration or --to-offset"
            )
        targets[each.partition] = min(max(each.kept.next_offset + by, each.log.first), each.log.end)
    return targets


def _left_behind(kept: KeptOffsets, moves: Sequence[Move]) -> list[str]:
    """Partitions that still stop their reader, because what is kept belongs to the former topic."""
    topics = {move.standing.partition.topic for move in moves if move.standing.made_again}
    moved = {move.standing.partition for move in moves}
    rest = sorted(each for each in kept.read() if each.topic in topics and each not in moved)
    named = ", ".join(f"{topic}/{number}" for topic, number in rest)
    return [f"Still kept of former topics, and to be looked at as well: {named}."] if rest else []


def _consumer(conf: cfg.ConfigOpts, group_id: str) -> tuple[str, tuple[str, ...]]:
    """The option group of the consumer with this id, whose servers count, and its topics; ``[kafka]`` and none."""
    configuration.register_own_options(conf)
    in_files = sorted(name for name in conf.list_all_sections() if name.startswith(f"{KAFKA_GROUP}_"))
    for name in dict.fromkeys((*CONSUMER_GROUPS, *in_files)):
        register(conf, name)
        if conf[name].group_id == group_id:
            return name, consumer_settings(conf, name).topics
    return KAFKA_GROUP, ()


def _storage(conf: cfg.ConfigOpts) -> Storage | None:
    return load_storage(conf) if has_database(conf) else None


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset: write a number, 0 or greater")
    return int(text)
