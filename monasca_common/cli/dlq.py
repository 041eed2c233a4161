# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq list | show | replay``: what no service could handle, and how it is sent back after a repair."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from monasca_common.cli import message_view, progress
from monasca_common.cli.command import NOTHING_FOUND, PARTLY_DONE, positive
from monasca_common.cli.dead_letter_topics import DeadLetterCommand, DeadLetterTopic, is_selection, selects
from monasca_common.kafka import FencedError, Letter, TopicPartition
from monasca_common.kafka.errors import TransactionError, UndeliveredError
from monasca_common.models import times
from monasca_common.monitoring.log_reading import LogReader

_MAX_REPLAYS = 3
_LISTED = 20
_SHOWN_CHARACTERS = 100  # of an error's text
_TELL_EVERY = 100  # letters
_SENT, _STAY, _WAIT = "sent", "stay", "wait"
_OF_JOBS = "monasca_common.pipeline.errors."  # how the error of a letter begins that a job on Spark wrote
_LEFT_OUT = (
    "of jobs on Spark: a job whose duplicates_lookback reaches back to the original leaves the copy out; after a "
    "repair `monasca-common pipeline run backfill` computes aggregates of that time from the original"
)
_NO_MATCH = "no letter that waits is selected: `monasca-common dlq list` shows those that do"


class _WaitingLettersCommand(DeadLetterCommand):
    """The letters that wait: those that the group has not dealt with."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--max-replays",
            type=positive,
            default=_MAX_REPLAYS,
            metavar="N",
            help="how often one message is sent back at most; then it stays (default: %(default)s)",
        )
        progress.add_argument(parser)
        return parser


class DlqList(_WaitingLettersCommand):
    """Show the dead letters that were not sent back yet: where each came from, why it is dead, whether it can go back.

    Nothing is changed. For example, the letters of one reason since a deployment:
    monasca-common dlq list --reason InvalidEnvelope --since 2026-01-31T06:00:00Z
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--limit",
            type=positive,
            default=_LISTED,
            metavar="N",
            help="how many letters of each topic are shown (default: %(default)s)",
        )
        parser.add_argument(
            "--by-reason",
            action="store_true",
            help="read all letters, and show how many have the same topic of origin and class of error",
        )
        return parser

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        told, seen = [], 0
        for topic in topics:
            partitions = topic.partitions()
            waiting, letters, reasons = self._look(parsed_args, topic, partitions) if partitions else (0, [], None)
            seen += len(letters)
            facts = {"topic": topic.name, "exists": bool(partitions), "waiting": waiting}
            told.append({**facts, "letters": list(map(describe, letters))} if reasons is None else facts | reasons)
            if not parsed_args.json:
                selected = is_selection(parsed_args)
                lines = _lines(topic.name, letters, waiting, selected=selected)
                lines = lines if reasons is None else _reason_lines(topic.name, reasons)
                self.print(*lines if partitions else [_nowhere(topic.name)])
        if parsed_args.json:
            self.print(json.dumps({"group": parsed_args.group, "topics": told}))
        if is_selection(parsed_args) and not seen:
            self.complain(_NO_MATCH)
            return NOTHING_FOUND
        return 0

    def _look(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> tuple[int, list[Letter], dict[str, Any] | None]:
        limit = None if parsed_args.by_reason else parsed_args.limit
        options = {"max_replays": parsed_args.max_replays, "chosen": partial(selects, parsed_args), "limit": limit}
        with topic.replay(partitions, execute=False, **options) as (replay, letters):
            waiting = replay.waiting()
            if not parsed_args.by_reason:
                return waiting, list(letters), None
            total = replay.offsets_left()
            counts: Counter[tuple[str, str]] = Counter()
            first: list[Letter] = []
            with progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown:
                for count, letter in enumerate(letters):
                    first = first or [letter]
                    counts[letter.origin_topic, letter.error.partition(":")[0]] += 1
                    if count % _TELL_EVERY == 0:
                        shown.tell(total - replay.offsets_left(), replay.offsets_left())
            rows = [
                {"origin": origin, "error": error, "letters": count} for (origin, error), count in counts.most_common()
            ]
            return waiting, first, {"letters": counts.total(), "reasons": rows}


class DlqShow(DeadLetterCommand):
    """Show one dead letter: where it came from, why it is dead, when it failed first.

    What is in it is shown with --payload alone. For example:
    monasca-common dlq show metrics.dlq/0/17 --payload
    """

    selects_letters = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "place", metavar="T/P/O", help="the letter's topic, partition and offset, as `dlq list` shows it"
        )
        message_view.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        name, _, numbers = parsed_args.place.partition("/")
        partition, _, offset = numbers.partition("/")
        if not name or not all(each.isascii() and each.isdigit() for each in (partition, offset)):
            self.complain(f"{parsed_args.place!r} is not a letter: write topic/partition/offset, as `dlq list` does")
            return 2
        parsed_args.topic = [name]
        self._wanted = TopicPartition(name, int(partition)), int(offset)
        return super().take_action(parsed_args)

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        partition, offset = self._wanted
        for topic in topics:
            if partition not in topic.partitions():
                continue
            with topic.reader([partition]) as consumer:
                first, end = consumer.seek_to_beginning()[partition], consumer.seek_to_end()[partition]
            if not first <= offset < end:
                continue
            for message in LogReader(topic.connection).messages({partition: offset}, {partition: offset + 1}):
                letter = Letter.of(message)
                if parsed_args.json:
                    facts = {**describe(letter), "first_failure_ms": letter.first_failure_ms}
                    self.print(json.dumps(facts | {"message": message_view.message_facts(message, parsed_args)}))
                else:
                    self.print(*_letter_lines(letter), *message_view.message_lines(message, parsed_args))
                return 0
        self.complain(f"there is no letter {parsed_args.place}: `monasca-common dlq list` shows those that wait")
        return NOTHING_FOUND


class DlqReplay(_WaitingLettersCommand):
    """Send dead letters back to the topics that they came from; without --execute, only count them.

    Repair the reader or the input first. It reads what the topics hold when it starts, and no more: a letter that
    comes back is left to the next run. Messages keep their ids, so that readers drop what they have seen. A letter that
    its topic does not take waits, and is reported; those behind it go. A run that was interrupted is gone on with by
    the next one; of two at once the later one goes on alone. For example, 100 a second of one topic:
    monasca-common dlq replay --origin metrics --rate 100 --execute
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--limit", type=positive, metavar="N", help="how many letters of each topic are dealt with (default: all)"
        )
        parser.add_argument(
            "--rate",
            type=positive,
            metavar="N",
            help="how many letters a second are sent back at most; too large: readers fall behind (default: no limit)",
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--dry-run", action="store_true", help="send nothing (the default)")
        how.add_argument("--execute", action="store_true", help="do it")
        return parser

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        told: list[dict[str, Any]] = []
        failed = False
        self._of_jobs = 0
        try:
            for topic in topics:
                failed |= not self._deal_with(parsed_args, topic, told)
        finally:  # what was done is said, also when something interrupts it
            if parsed_args.json:
                self.print(json.dumps({"group": parsed_args.group, "topics": told, "executed": parsed_args.execute}))
        done = sum(each["sent"] + each["stay"] for each in told)
        for each in told:
            if each[_WAIT]:
                failed = True
                verb = "waits" if each[_WAIT] == 1 else "wait"
                self.complain(f"{each['topic']}: {count_letters(each[_WAIT])} {verb}, refused where sent back to")
        if self._of_jobs:
            self.complain(f"{count_letters(self._of_jobs)} {_LEFT_OUT}")
        if is_selection(parsed_args) and not done and not failed:
            self.complain(_NO_MATCH)
            return NOTHING_FOUND
        if not parsed_args.execute and not parsed_args.json:
            self.print("Nothing was sent. With --execute it would be.")
        return 0 if not failed else PARTLY_DONE if done else 1

    def _deal_with(self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, told: list[dict[str, Any]]) -> bool:
        """Whether the brokers let it come to its end."""
        partitions = topic.partitions()
        counts: Counter[tuple[str, str]] = Counter()
        try:
            if partitions:
                self._count(parsed_args, topic, partitions, counts)
        except UndeliveredError as error:
            first = [*error.report.failed, *error.report.unknown][0]
            self.complain(f"not delivered to {first.topic}, and left for the next run: {first.error}")
            return False
        except TransactionError as error:
            self.complain(f"{topic.name}: left for the next run: {error}")
            return False
        except FencedError:
            self.complain(f"{topic.name}: another process sends these letters back since; nothing was sent twice")
            return False
        finally:
            told.append({**_outcome(topic.name, counts), "exists": bool(partitions)})
            if not parsed_args.json:
                lines = _outcome_lines(topic.name, counts, execute=parsed_args.execute)
                self.print(*lines if partitions else [_nowhere(topic.name)])
        return True

    def _count(
        self,
        parsed_args: argparse.Namespace,
        topic: DeadLetterTopic,
        partitions: Sequence[TopicPartition],
        counts: Counter[tuple[str, str]],
    ) -> None:
        options = {
            "chosen": partial(selects, parsed_args),
            "max_replays": parsed_args.max_replays,
            "limit": parsed_args.limit,
            "rate": parsed_args.rate if parsed_args.execute else None,
        }
        with (
            progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown,
            topic.replay(partitions, execute=parsed_args.execute, **options) as (replay, letters),
        ):
            for letter in letters:
                counts[_fate(letter)] += 1
                self._of_jobs += letter.goes and letter.error.startswith(_OF_JOBS)
                if counts.total() % _TELL_EVERY == 0:
                    shown.tell(counts.total(), replay.offsets_left())


def describe(letter: Letter) -> dict[str, Any]:
    """What ``--json`` prints of one letter."""
    return {
        "letter": letter.place,
        "time_ms": letter.message.timestamp_ms,
        "origin": letter.origin,
        "first_origin": letter.first_origin,
        "group": letter.group,
        "error": letter.error,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "stays": letter.stays,
        "waits": letter.refusal,
    }


def _letter_lines(letter: Letter) -> Iterator[str]:
    yield f"origin    {letter.origin or 'nowhere'}"
    if letter.first_origin != letter.origin:
        yield f"first     {letter.first_origin}, before it was sent back"
    yield f"group     {letter.group or 'not said'}"
    yield f"error     {' '.join(letter.error.split()) or 'without a reason'}"
    yield f"attempts  {letter.attempts}, sent back {letter.replays} times before"
    if letter.first_failure_ms is not None:
        yield f"failed    first {times.shown(letter.first_failure_ms)}"
    yield f"can go    {'no: ' + letter.stays if letter.stays else 'back'}"


def _reason_lines(topic: str, reasons: dict[str, Any]) -> Iterator[str]:
    yield f"{topic}: {count_letters(reasons['letters'])} to be looked at{':' if reasons['letters'] else ''}"
    for row in reasons["reasons"]:
        why = row["error"] or "without a reason"
        yield f"  {count_letters(row['letters'])} from {row['origin'] or 'nowhere'}: {why}"


def _lines(topic: str, letters: Sequence[Letter], waiting: int, *, selected: bool) -> Iterator[str]:
    which = "of those selected" if selected else "of them"
    shown = f", the first {len(letters)} {which}:" if selected or len(letters) < waiting else ":" if letters else ""
    yield f"{topic}: {count_letters(waiting)} to be looked at{shown}"
    for letter in letters:
        text = " ".join(letter.error.split())[:_SHOWN_CHARACTERS]
        fate, why = _fate(letter)
        then = "" if fate == _SENT else f"; {fate}s, {why}"
        yield f"  {letter.place} from {letter.origin or 'nowhere'}: {text or 'without a reason'}{then}"


def _nowhere(topic: str) -> str:
    return f"{topic}: there is no such topic: `monasca-common init` makes those that services need"


def _fate(letter: Letter) -> tuple[str, str]:
    """What becomes of it, and why."""
    if letter.refusal:
        return _WAIT, letter.refusal
    return (_STAY, letter.stays) if letter.stays else (_SENT, "")


def _outcome(topic: str, counts: Counter[tuple[str, str]]) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    for (fate, _), count in counts.items():
        totals[fate] += count
    reasons = {reason: count for (_, reason), count in counts.items() if reason}
    return {"topic": topic, _SENT: totals[_SENT], _STAY: totals[_STAY], _WAIT: totals[_WAIT], "reasons": reasons}


def _outcome_lines(topic: str, counts: Counter[tuple[str, str]], *, execute: bool) -> Iterator[str]:
    yield f"{topic}: {count_letters(counts[_SENT, ''])} {'sent back' if execute else 'to be sent back'}"
    for (fate, reason), count in sorted(counts.items()):
        if fate != _SENT:
            verb = fate if count > 1 else f"{fate}s"
            yield f"  {count_letters(count)} {verb}{' for another run' if fate == _WAIT else ''}: {reason}"


def count_letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"
