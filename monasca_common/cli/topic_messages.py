# SPDX-License-Identifier: Apache-2.0
"""``monasca-common topic tail | sample``: the messages of a topic, followed or drawn; nothing is changed by it."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monasca_common.cli import message_selection, message_view, progress
from monasca_common.cli.command import (
    NOTHING_FOUND,
    ClusterCommand,
    add_line_format,
    partitions_of_topic,
    positive,
    until_interrupted,
)
from monasca_common.cli.topic import known_topic
from monasca_common.kafka import Admin, ConfigurationError, Message, TopicPartition
from monasca_common.operations.log_reading import LogReader

_SAMPLE = 10
_MOST = 1000
_TELL_EVERY = 1000


class _MessagesCommand(ClusterCommand):
    """Messages of some partitions of a topic."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "topic", type=partitions_of_topic, metavar="TOPIC[:P,P…]", help="a topic, or some of its partitions"
        )
        message_selection.add_arguments(parser)
        message_view.add_arguments(parser)
        add_line_format(parser)
        return parser

    def show(self, message: Message, parsed_args: argparse.Namespace) -> None:
        if parsed_args.formatter == "json":
            self.print(json.dumps(message_view.message_facts(message, parsed_args)))
        else:
            self.print(*message_view.message_lines(message, parsed_args))

    def nothing(self) -> int:
        self.complain("no message is selected")
        return NOTHING_FOUND


class TopicTail(_MessagesCommand):
    """Follow a topic: print the messages that come, from its end or from the position that an option names, until
    Ctrl-C or a bound.

    Key, headers and value are shown with --payload alone. The exit status is 0 after Ctrl-C and SIGTERM, 3 where a
    bound was reached and no message was selected. For example:
    monasca-common topic tail metrics:0 --last 10 --field metric.name=cpu.idle --payload
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        start = parser.add_mutually_exclusive_group()
        start.add_argument("--from-beginning", action="store_true", help="from the oldest message on")
        start.add_argument(
            "--last", type=positive, metavar="N", help="from so many offsets before the end of each partition"
        )
        parser.add_argument(
            "--no-follow", action="store_true", help="end with what is there at the start (default: wait for more)"
        )
        parser.add_argument("--count", type=positive, metavar="N", help="end after so many messages (default: never)")
        parser.add_argument("--seconds", type=positive, metavar="N", help="end after so many seconds (default: never)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        shown = 0
        deadline = None if parsed_args.seconds is None else time.monotonic() + parsed_args.seconds
        with until_interrupted():
            for message in self._messages(parsed_args, deadline):
                if message_selection.is_meant(message, parsed_args):
                    self.show(message, parsed_args)
                    shown += 1
                if shown == parsed_args.count or (deadline is not None and time.monotonic() >= deadline):
                    break
            if not shown:
                return self.nothing()
        return 0

    def _messages(self, parsed_args: argparse.Namespace, deadline: float | None) -> Iterator[Message]:
        admin, connection = self.cluster(parsed_args)
        partitions = _partitions(admin, parsed_args.topic)
        ends = admin.end_offsets(partitions)
        starts = self._starts(parsed_args, admin, ends)
        reader = LogReader(connection)
        if parsed_args.no_follow:
            return reader.messages(starts, ends)
        return reader.follow(starts, lambda: deadline is not None and time.monotonic() >= deadline)

    def _starts(
        self, parsed_args: argparse.Namespace, admin: Admin, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        if parsed_args.since is not None and not (parsed_args.from_beginning or parsed_args.last):
            return _at_time(admin, ends, parsed_args.since)
        if not parsed_args.from_beginning and parsed_args.last is None:
            return dict(ends)
        firsts = admin.first_offsets(ends)
        if parsed_args.from_beginning:
            return firsts
        return {partition: max(firsts[partition], end - parsed_args.last) for partition, end in ends.items()}


class TopicSample(_MessagesCommand):
    """Show some messages of a topic, drawn at random or evenly from all that are there.

    Without a selection by key, header or field only the messages shown are read, however large the topic is. The exit
    status is 3 where no message is selected. For example:
    monasca-common topic sample metrics --count 5 --even --since 2026-01-31T06:00:00Z --payload
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--count",
            type=_few,
            default=_SAMPLE,
            metavar="N",
            help=f"how many messages, {_MOST} at most (default: %(default)s)",
        )
        parser.add_argument("--even", action="store_true", help="at equal distances (default: at random)")
        parser.add_argument("--seed", type=int, metavar="N", help="draw the same again (default: draw anew)")
        progress.add_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        admin, connection = self.cluster(parsed_args)
        ends = admin.end_offsets(_partitions(admin, parsed_args.topic))
        starts = admin.first_offsets(ends)
        if parsed_args.since is not None:
            starts = _at_time(admin, ends, parsed_args.since)
        if parsed_args.until is not None:
            ends = _at_time(admin, ends, parsed_args.until)
        draw = random.Random(parsed_args.seed)
        reader = LogReader(connection)
        if message_selection.looks_inside(parsed_args):
            messages = self._among_those_selected(parsed_args, reader, starts, ends, draw)
        else:
            chosen = chosen_offsets(starts, ends, parsed_args.count, None if parsed_args.even else draw)
            messages = list(reader.at(chosen, ends))
        for message in sorted(messages, key=lambda each: (each.partition, each.offset)):
            self.show(message, parsed_args)
        return 0 if messages else self.nothing()

    def _among_those_selected(
        self,
        parsed_args: argparse.Namespace,
        reader: LogReader,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        draw: random.Random,
    ) -> list[Message]:
        total = sum(max(0, end - starts[partition]) for partition, end in ends.items())

        def selected() -> Iterator[Message]:
            with progress.Shown(parsed_args.topic[0], bounded=True, lines=parsed_args.progress) as shown:
                for number, message in enumerate(reader.messages(starts, ends)):
                    if number % _TELL_EVERY == 0:
                        shown.tell(number, total - number)
                    if message_selection.is_meant(message, parsed_args):
                        yield message

        return drawn(selected(), parsed_args.count, None if parsed_args.even else draw)


def chosen_offsets(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], count: int, draw: random.Random | None
) -> dict[TopicPartition, list[int]]:
    """So many offsets of all these, each as likely as another; without ``draw`` at equal distances."""
    spans = [(partition, starts[partition], end) for partition, end in sorted(ends.items()) if starts[partition] < end]
    total = sum(end - start for _, start, end in spans)
    count = min(count, total)
    places = (
        draw.sample(range(total), count) if draw is not None else [number * total // count for number in range(count)]
    )
    chosen: dict[TopicPartition, list[int]] = {}
    before = 0
    for partition, start, end in spans:
        here = sorted(start + place - before for place in places if before <= place < before + end - start)
        if here:
            chosen[partition] = here
        before += end - start
    return chosen


def drawn(messages: Iterable[Message], count: int, draw: random.Random | None) -> list[Message]:
    """So many of these, each as likely as another; without ``draw`` at about equal distances. Few are kept at once."""
    kept: list[Message] = []
    distance = 1
    for number, message in enumerate(messages):
        if draw is None:
            if number % distance == 0:
                kept.append(message)
            if len(kept) == 2 * count:  # every second one is as evenly spread
                kept, distance = kept[::2], distance * 2
        elif len(kept) < count:
            kept.append(message)
        elif (place := draw.randrange(number + 1)) < count:
            kept[place] = message
    if len(kept) <= count:
        return kept
    return [kept[place * len(kept) // count] for place in range(count)]


def _partitions(admin: Admin, topic: tuple[str, Sequence[int]]) -> list[TopicPartition]:
    name, numbers = topic
    count = known_topic(admin, name)
    missing = [number for number in numbers if number >= count]
    if missing:
        raise ConfigurationError(f"topic {name!r} has {count} partitions, and no {missing[0]}: they begin with 0")
    return [TopicPartition(name, number) for number in numbers or range(count)]


def _at_time(admin: Admin, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """The first offset of this time or later; the end where there is none."""
    found = admin.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {partition: end if (at := found[partition]) is None else at for partition, end in ends.items()}


def _few(text: str) -> int:
    count = positive(text)
    if count > _MOST:
        raise argparse.ArgumentTypeError(f"{count} are too many: {_MOST} at most; `topic tail --no-follow` reads all")
    return count
