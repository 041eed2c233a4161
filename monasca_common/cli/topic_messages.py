# SPDX-License-Identifier: Apache-2.0
"""``monasca-common topic tail | sample``: follow the messages of a topic, or show random messages."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence

from monasca_common.cli import messages
from monasca_common.cli.command import (
    NOTHING_FOUND,
    ClusterCommand,
    add_line_format,
    add_since_and_until,
    partitions_of_topic,
    positive,
    until_interrupted,
)
from monasca_common.cli.topic import known_topic
from monasca_common.kafka import Admin, ConfigurationError, Message, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.offset_plan import targets_at_time

_SAMPLE = 10
_MAX_SAMPLE = 1000


class _MessagesCommand(ClusterCommand):
    """Shows messages of some partitions of a topic."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "topic", type=partitions_of_topic, metavar="TOPIC[:P,P…]", help="a topic, or some of its partitions"
        )
        messages.add_payload(parser)
        add_line_format(parser)

    def cluster(self, parsed_args: argparse.Namespace) -> tuple[Admin, ConnectionSettings]:
        self._decoder = messages.SchemaDecoder(self.read(parsed_args), self.report, parsed_args.message_type)
        return super().cluster(parsed_args)

    def show(self, message: Message, parsed_args: argparse.Namespace) -> None:
        decoded = self._decoder.decoded(message) if parsed_args.payload else message
        if parsed_args.formatter == "json":
            self.print(json.dumps(messages.message_facts(message, decoded, parsed_args)))
        else:
            self.print(*messages.message_lines(message, decoded, parsed_args))

    def nothing(self) -> int:
        self.report("no message is selected")
        return NOTHING_FOUND


class TopicTail(_MessagesCommand):
    """Follow a topic: print new messages, or the messages after a position, until Ctrl-C or a limit.

    Key, headers and value are shown only with --payload. The exit status is 0 after Ctrl-C or SIGTERM, and 3 if a
    limit was reached and no message was selected. For example:
    monasca-common topic tail metrics:0 --last 10 --field metric.name=cpu.idle --payload
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        messages.add_selection(parser)
        start = parser.add_mutually_exclusive_group()
        start.add_argument("--from-beginning", action="store_true", help="start at the oldest message")
        start.add_argument(
            "--last", type=positive, metavar="N", help="start N offsets before the end of each partition"
        )
        parser.add_argument(
            "--no-follow",
            action="store_true",
            help="stop at the current end of the topic (default: wait for messages)",
        )
        parser.add_argument("--count", type=positive, metavar="N", help="stop after N messages (default: never)")
        parser.add_argument("--seconds", type=positive, metavar="N", help="stop after N seconds (default: never)")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        shown = 0
        deadline = None if parsed_args.seconds is None else time.monotonic() + parsed_args.seconds
        with until_interrupted():
            for message in self._messages(parsed_args, deadline):
                decoded = self._decoder.decoded(message) if parsed_args.field else message
                if messages.is_selected(decoded, parsed_args):
                    self.show(message, parsed_args)
                    shown += 1
                if shown == parsed_args.count or (deadline is not None and time.monotonic() >= deadline):
                    break
            if not shown:
                return self.nothing()
        return 0

    def _messages(self, parsed_args: argparse.Namespace, deadline: float | None) -> Iterator[Message]:
        admin, connection = self.cluster(parsed_args)
        ends = admin.end_offsets(_partitions(admin, parsed_args.topic))
        starts = self._starts(parsed_args, admin, ends)
        reader = LogReader(connection)
        if parsed_args.no_follow:
            return reader.messages(starts, ends)
        return reader.follow(starts, lambda: deadline is not None and time.monotonic() >= deadline)

    def _starts(
        self, parsed_args: argparse.Namespace, admin: Admin, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if not parsed_args.from_beginning and parsed_args.last is None:
            return dict(ends) if parsed_args.since is None else targets_at_time(admin, ends, parsed_args.since)
        firsts = admin.first_offsets(ends)
        if parsed_args.from_beginning:
            return firsts
        return {partition: max(firsts[partition], end - parsed_args.last) for partition, end in ends.items()}


class TopicSample(_MessagesCommand):
    """Show random messages of a topic.

    Only the shown messages are read, so the size of the topic does not matter. The exit status is 3 if there is no
    message. For example:
    monasca-common topic sample metrics --count 5 --since 2026-01-31T06:00:00Z --payload
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--count",
            type=_sample_size,
            default=_SAMPLE,
            metavar="N",
            help=f"number of messages, at most {_MAX_SAMPLE} (default: %(default)s)",
        )
        add_since_and_until(parser, "messages")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        admin, connection = self.cluster(parsed_args)
        ends = admin.end_offsets(_partitions(admin, parsed_args.topic))
        starts = admin.first_offsets(ends)
        if parsed_args.since is not None:
            starts = targets_at_time(admin, ends, parsed_args.since)
        if parsed_args.until is not None:
            ends = targets_at_time(admin, ends, parsed_args.until)
        drawn = list(LogReader(connection).at(draw_offsets(starts, ends, parsed_args.count), ends))
        for message in sorted(drawn, key=lambda message: (message.partition, message.offset)):
            self.show(message, parsed_args)
        return 0 if drawn else self.nothing()


def draw_offsets(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], count: int
) -> dict[TopicPartition, list[int]]:
    """Draw ``count`` offsets with equal probability."""
    sizes = {partition: max(0, end - starts[partition]) for partition, end in sorted(ends.items())}
    total = sum(sizes.values())
    indexes = sorted(random.sample(range(total), min(count, total)))
    drawn: dict[TopicPartition, list[int]] = {}
    before = 0
    for partition, size in sizes.items():
        here = [starts[partition] + index - before for index in indexes if before <= index < before + size]
        if here:
            drawn[partition] = here
        before += size
    return drawn


def _partitions(admin: Admin, topic: tuple[str, Sequence[int]]) -> list[TopicPartition]:
    name, numbers = topic
    count = known_topic(admin, name)
    missing = [number for number in numbers if number >= count]
    if missing:
        raise ConfigurationError(
            f"topic {name!r} has {count} partitions, but no partition {missing[0]}: partition numbers start at 0"
        )
    return [TopicPartition(name, number) for number in numbers or range(count)]


def _sample_size(text: str) -> int:
    count = positive(text)
    if count > _MAX_SAMPLE:
        raise argparse.ArgumentTypeError(
            f"{count} messages are too many: draw at most {_MAX_SAMPLE}, or read all with `topic tail --no-follow`"
        )
    return count
