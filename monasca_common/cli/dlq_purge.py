# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq purge``: deletes dead letters that nobody needs.

Kafka deletes the beginning of a partition, and nothing from its middle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from monasca_common.cli import progress
from monasca_common.cli.command import NOTHING_FOUND, add_execute
from monasca_common.cli.dead_letter_topics import DeadLetterCommand, DeadLetterTopic, is_selection, selects
from monasca_common.cli.dlq import count_letters
from monasca_common.kafka import Message, TopicPartition
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.operations.dead_letters import Letter, is_note
from monasca_common.operations.log_reading import LogReader

_TELL_EVERY = 1000


@dataclass(slots=True)
class _Beginning:
    """What of a partition can be deleted. ``before``: the first offset that stays."""

    before: int
    letters: int = 0
    ended: bool = False
    behind: int = 0  # letters that are meant too, behind one that is not


_Found = Mapping[DeadLetterTopic, Mapping[TopicPartition, _Beginning]]


class DlqPurge(DeadLetterCommand):
    """Delete the selected dead letters at the beginning of their partition; without --execute, only count them.

    Kafka deletes only from the beginning: selected dead letters after one that is not selected stay, and are counted.
    For example, dead letters that were replayed, or are older than a month:
    monasca-common dlq purge --dealt-with
    monasca-common dlq purge --until 2026-01-01T00:00:00Z --execute
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--dealt-with",
            action="store_true",
            help="letters that the group has dealt with: sent back, or found unable to go; with a selection also those "
            "that match it",
        )
        parser.add_argument("--all", action="store_true", help="all letters that are there now")
        add_execute(parser)
        progress.add_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if not (parsed_args.all or parsed_args.dealt_with or is_selection(parsed_args)):
            raise ConfigurationError(
                "which letters? Select some (--until, --reason, --origin, --letter), or say --dealt-with or --all"
            )
        found = {}
        for topic in self.topics(parsed_args):
            partitions = topic.partitions()
            if partitions:
                found[topic] = self._beginnings(parsed_args, topic, partitions)
        deletable = sum(each.letters for beginnings in found.values() for each in beginnings.values())
        behind = sum(each.behind for beginnings in found.values() for each in beginnings.values())
        execute = bool(deletable) and parsed_args.execute
        deleted: set[DeadLetterTopic] = set()
        try:
            if execute:
                _delete(found, deleted)
        finally:  # what was deleted is said, also when something interrupts it
            self._report(parsed_args, found, deleted, execute=execute)
        if not deletable:
            self.complain("no letter is selected" if not behind else "none of the letters selected can be deleted")
            return NOTHING_FOUND
        return 0

    def _beginnings(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, _Beginning]:
        with topic.reader(partitions) as consumer:
            firsts, ends = consumer.seek_to_beginning(), consumer.seek_to_end()
        found = {partition: _Beginning(first) for partition, first in firsts.items()}
        selecting = parsed_args.all or is_selection(parsed_args)
        total, count = sum(ends[each] - firsts[each] for each in partitions), 0
        with (
            topic.replay(partitions, execute=False) as (replay, _),
            progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown,
        ):
            dealt_with = replay.dealt_with() if parsed_args.dealt_with else _nothing
            for message in LogReader(topic.connection).messages(firsts, ends):
                letter = None if is_note(message) else Letter.of(message)
                wanted = (
                    letter is None
                    or (selecting and selects(parsed_args, letter))
                    or dealt_with(TopicPartition(message.topic, message.partition), message.offset)
                )
                _count(found[TopicPartition(message.topic, message.partition)], message, letter, wanted=wanted)
                count += 1
                if count % _TELL_EVERY == 0:
                    shown.tell(count, total - count)
        return found

    def _report(
        self,
        parsed_args: argparse.Namespace,
        found: _Found,
        deleted: Set[DeadLetterTopic],
        *,
        execute: bool,
    ) -> None:
        told = []
        for topic, beginnings in found.items():
            letters = sum(each.letters for each in beginnings.values())
            behind = sum(each.behind for each in beginnings.values())
            before = {str(partition.partition): each.before for partition, each in beginnings.items() if each.letters}
            is_done = topic in deleted or bool(deleted and not letters)
            facts = {"letters": letters, "cannot": behind, "before": before, "deleted": is_done}
            told.append({"topic": topic.name, **facts})
            if not parsed_args.json:
                self.print(f"{topic.name}: {count_letters(letters)} {'deleted' if is_done else 'to be deleted'}")
            if behind and not parsed_args.json:
                self.print(
                    f"  {count_letters(behind)} selected as well cannot be deleted: before them are letters that are "
                    "not selected, and Kafka deletes from the beginning only"
                )
        if parsed_args.json:
            self.print(json.dumps({"group": parsed_args.group, "topics": told, "executed": execute}))
        elif not execute:
            self.print("Nothing was deleted. --execute deletes them.")


def _nothing(partition: TopicPartition, offset: int) -> bool:
    return False


def _count(beginning: _Beginning, message: Message, letter: Letter | None, *, wanted: bool) -> None:
    if not wanted:
        beginning.ended = True
    elif not beginning.ended:
        beginning.before = message.offset + 1
        beginning.letters += letter is not None
    elif letter is not None:
        beginning.behind += 1


def _delete(found: _Found, deleted: set[DeadLetterTopic]) -> None:
    """Adds to ``deleted``, topic by topic. The group goes on behind what was deleted."""
    for topic, beginnings in found.items():
        before = {partition: each.before for partition, each in beginnings.items() if each.letters}
        if not before:
            continue
        topic.admin().delete_records(before)
        deleted.add(topic)
        with topic.reader(list(before)) as consumer:
            behind = {each: offset for each, offset in before.items() if (consumer.position(each) or 0) < offset}
            consumer.commit(behind)
