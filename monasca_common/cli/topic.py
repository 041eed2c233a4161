# SPDX-License-Identifier: Apache-2.0
"""``monasca-common topic list | show | create``: show and create topics."""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cliff.lister import Lister

from monasca_common.cli.command import NOTHING_FOUND, ClusterCommand, add_execute, add_name_pattern, positive
from monasca_common.kafka import Admin, ConfigurationError, RetriableError, TopicPartition, TransportError
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name

_INTERNAL = "__"
_AS_BROKERS_SAY = -1
_SETTLE_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.2


class TopicList(ClusterCommand, Lister):
    """Show the topics of the cluster with their partition, replica and message counts, and their state.

    The exit status is 1 if a partition has no leader, and 3 if no topic has the requested name. For example:
    monasca-common topic list --name "metrics*" --sort-column messages -f csv
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_name_pattern(parser, "--name", "topics")
        parser.add_argument(
            "--internal", action="store_true", help="also show internal topics, whose names begin with __"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        admin, _ = self.cluster(parsed_args)
        names = fnmatch.filter(admin.partition_counts(), parsed_args.name)
        wanted = [name for name in names if parsed_args.internal or not name.startswith(_INTERNAL)]
        if not wanted and parsed_args.name != "*":
            self.report(f"--name {parsed_args.name}: this topic does not exist")
            self._status = NOTHING_FOUND
        topics = _Topics(admin, wanted)
        self._status = self._status or int(any(topics.is_without_leader(name) for name in wanted))
        return ("topic", "partitions", "replicas", "messages", "state"), map(topics.row, sorted(wanted))


class TopicShow(ClusterCommand, Lister):
    """Show the partitions of a topic with leader, replicas, first offset and end; or the settings of the topic.

    The exit status is 1 if a partition has no leader. For example:
    monasca-common topic show metrics --settings
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name", metavar="TOPIC", help="the name of the topic")
        parser.add_argument("--settings", action="store_true", help="show the settings instead of the partitions")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        admin, _ = self.cluster(parsed_args)
        known_topic(admin, parsed_args.name)
        if parsed_args.settings:
            return ("setting", "value"), sorted(admin.topic_configs([parsed_args.name])[parsed_args.name].items())
        topics = _Topics(admin, [parsed_args.name])
        self._status = int(topics.is_without_leader(parsed_args.name))
        columns = ("partition", "leader", "replicas", "in_sync", "first", "end", "messages")
        return columns, topics.partition_rows(parsed_args.name)


class TopicCreate(ClusterCommand):
    """Create a topic and wait until its partitions have leaders; without --execute, only check the request.

    The exit status is 1 if the topic already exists or the brokers refuse the request. For example:
    monasca-common topic create metrics --partitions 12 --replication-factor 3 --execute
    monasca-common topic create metrics --partitions 12 --setting retention.ms=86400000
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name", metavar="TOPIC", help="the name of the new topic")
        parser.add_argument(
            "--partitions",
            type=positive,
            required=True,
            metavar="N",
            help="number of partitions; too small: limits the consumers of a group; too large: loads the brokers",
        )
        parser.add_argument(
            "--replication-factor",
            type=positive,
            default=_AS_BROKERS_SAY,
            metavar="N",
            help="replicas of each partition; with 1, a failed disk loses messages (default: the brokers' setting)",
        )
        parser.add_argument(
            "--setting",
            action="append",
            default=[],
            type=_setting,
            metavar="NAME=VALUE",
            help="a setting of the topic, such as retention.ms=86400000; can be repeated",
        )
        add_execute(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        name = parsed_args.name
        if not is_topic_name(name):
            raise ConfigurationError(f"{name!r} is not the name of a topic: {TOPIC_NAME_RULE}")
        admin, _ = self.cluster(parsed_args)
        try:
            admin.create_topic(
                name,
                parsed_args.partitions,
                replication_factor=parsed_args.replication_factor,
                config=dict(parsed_args.setting),
                validate_only=not parsed_args.execute,
            )
        except TransportError as error:
            if isinstance(error, RetriableError):
                raise
            return self.report(f"{name} was not created: {error}")
        self.print(f"{name}: {'created' if parsed_args.execute else 'can be created'}")
        self.note_dry_run(parsed_args)
        return 0


def known_topic(admin: Admin, name: str) -> int:
    """Return the topic's number of partitions. Raises `ConfigurationError` if the topic does not exist."""
    count = admin.partition_counts().get(name)
    if count is None:
        raise ConfigurationError(f"{name}: this topic does not exist: `monasca-common topic list` lists topics")
    return count


class _Topics:
    """The descriptions and offsets of topics, read with three requests."""

    def __init__(self, admin: Admin, names: Sequence[str]) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                return self._ask(admin, names)
            except RetriableError:  # the leader of a partition may change at this moment
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_AGAIN_SECONDS)

    def _ask(self, admin: Admin, names: Sequence[str]) -> None:
        self._descriptions = admin.describe_topics(names) if names else {}
        led = [
            TopicPartition(name, number)
            for name, topic in self._descriptions.items()
            for number, leader in enumerate(topic.leaders)
            if leader is not None
        ]
        self._firsts = admin.first_offsets(led)
        self._ends = admin.end_offsets(led)

    def is_without_leader(self, name: str) -> bool:
        return None in self._descriptions[name].leaders

    def row(self, name: str) -> tuple[str, int, int, int, str]:
        topic = self._descriptions[name]
        spans = [self._span(TopicPartition(name, number)) for number in range(topic.partitions)]
        replicas = max(map(len, topic.replicas))
        return name, topic.partitions, replicas, sum(each or 0 for each in spans), self._state(name)

    def partition_rows(self, name: str) -> Iterator[tuple[Any, ...]]:
        topic = self._descriptions[name]
        for number in range(topic.partitions):
            partition = TopicPartition(name, number)
            copies, in_sync = (",".join(map(str, each[number])) for each in (topic.replicas, topic.in_sync))
            span = self._firsts.get(partition), self._ends.get(partition), self._span(partition)
            yield number, topic.leaders[number], copies, in_sync, *span

    def _span(self, partition: TopicPartition) -> int | None:
        first, end = self._firsts.get(partition), self._ends.get(partition)
        return None if first is None or end is None else end - first

    def _state(self, name: str) -> str:
        topic = self._descriptions[name]
        without = topic.leaders.count(None)
        lacking = sum(len(now) < len(all_) for now, all_ in zip(topic.in_sync, topic.replicas, strict=True))
        states = [f"{without} without a leader"] if without else []
        return "; ".join([*states, *([f"{lacking} with a copy behind"] if lacking else [])]) or "fine"


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a setting: use name=value, such as retention.ms=3600000")
    return name, value
