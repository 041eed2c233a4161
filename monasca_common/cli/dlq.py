# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq list | show | replay``: what no service could handle, and how it is sent back after a repair."""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from monasca_common.cli import message_view, progress
from monasca_common.cli.command import NOTHING_FOUND, PARTLY_DONE, add_execute, positive
from monasca_common.cli.dead_letter_topics import DeadLetterCommand, DeadLetterTopic, is_selection, selects
from monasca_common.kafka import FencedError, TopicPartition
from monasca_common.kafka.errors import TransactionError, UndeliveredError
from monasca_common.models import times
from monasca_common.operations.dead_letters import Letter
from monasca_common.operations.log_reading import LogReader

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
_LETTER_COLUMNS = ("letter", "time", "origin", "group", "error", "replays", "fate")
_REASON_COLUMNS = ("topic", "origin", "error", "letters")
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


class DlqList(_WaitingLettersCommand, Lister):
    """Show the dead letters that were not sent back yet: where each came from, why it is dead, whether it can go back.

    Nothing is changed. For example, the letters of one reason since a deployment, or how many have the same reason:
    monasca-common dlq list --reason InvalidEnvelope --since 2026-01-31T06:00:00Z
    monasca-common dlq list --by-reason -f csv
    """

    _status = 0

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

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or self._status

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        self._told: list[dict[str, Any]] = []
        rows: list[Sequence[Any]] = []
        for topic in self.topics(parsed_args):
            partitions = topic.partitions()
            if partitions:
                rows += self._look(parsed_args, topic, partitions)
            else:
                none = {"count": 0, "reasons": []} if parsed_args.by_reason else {"letters": []}
                self._told.append({"topic": topic.name, "exists": False, "waiting": 0, **none})
                self._remark(parsed_args, _nowhere(topic.name))
        if is_selection(parsed_args) and not rows:
            self.complain(_NO_MATCH)
            self._status = NOTHING_FOUND
        return _REASON_COLUMNS if parsed_args.by_reason else _LETTER_COLUMNS, rows

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        if not parsed_args.json:
            return super().produce_output(parsed_args, column_names, data)
        self.print(json.dumps({"group": parsed_args.group, "topics": self._told}))
        return 0

    def _look(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> list[Sequence[Any]]:
        """The rows of a topic."""
        limit = None if parsed_args.by_reason else parsed_args.limit
        numbers = itertools.count()

        def is_chosen(letter: Letter) -> bool:
            if next(numbers) % _TELL_EVERY == 0:
                left = replay.offsets_left()
                shown.tell(total - left, left)
            return selects(parsed_args, letter)

        options = {"max_replays": parsed_args.max_replays, "chosen": is_chosen, "limit": limit}
        with (
            progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown,
            topic.replay(partitions, execute=False, **options) as (replay, letters),
        ):
            waiting, total = replay.waiting(), replay.offsets_left()
            if parsed_args.by_reason:
                found, rows = _by_reason(topic.name, letters)
            else:
                found, rows = _by_letter(list(letters), is_cut=parsed_args.formatter == "table")
        self._told.append({"topic": topic.name, "exists": True, "waiting": waiting, **found})
        which = "of those selected" if is_selection(parsed_args) else "of them"
        is_limited = len(rows) == limit and len(rows) < waiting
        remark = f", shown: the first {len(rows)} {which}" if is_limited else ""
        self._remark(parsed_args, f"{topic.name}: {_count_waiting(waiting)}{remark}")
        return rows

    def _remark(self, parsed_args: argparse.Namespace, text: str) -> None:
        """On standard error, so that what is printed is rows alone."""
        if not parsed_args.json:
            self.complain(text)


class _NoLetter(Exception):
    """There is none at this place."""


class DlqShow(DeadLetterCommand, ShowOne):
    """Show one dead letter: where it came from, why it is dead, when it failed first.

    What is in it is shown with --payload alone. For example:
    monasca-common dlq show metrics.dlq/0/17 --payload
    """

    selects_letters = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "place",
            type=_place,
            metavar="T/P/O",
            help="the letter's topic, partition and offset, as `dlq list` shows it",
        )
        message_view.add_arguments(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        except _NoLetter as error:
            self.complain(f"there is no letter {error}: `monasca-common dlq list` shows those that wait")
            return NOTHING_FOUND

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        partition, offset = parsed_args.place
        self._letter = self._read(self.topic_of_letter(parsed_args, partition.topic), partition, offset)
        return self.dict2columns(_letter_facts(self._letter, parsed_args))

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[Any]) -> int:
        if not parsed_args.json:
            return super().produce_output(parsed_args, column_names, data)
        letter = self._letter
        facts = {**describe(letter), "first_failure_ms": letter.first_failure_ms}
        self.print(json.dumps(facts | {"message": message_view.message_facts(letter.message, parsed_args)}))
        return 0

    def _read(self, topics: Sequence[DeadLetterTopic], partition: TopicPartition, offset: int) -> Letter:
        """Raises `_NoLetter`."""
        for topic in topics:
            if partition not in topic.partitions():
                continue
            with topic.reader([partition]) as consumer:
                first, end = consumer.seek_to_beginning()[partition], consumer.seek_to_end()[partition]
            if first <= offset < end:
                for message in LogReader(topic.connection).messages({partition: offset}, {partition: offset + 1}):
                    return Letter.of(message)
        raise _NoLetter(f"{partition.topic}/{partition.partition}/{offset}")


class DlqReplay(_WaitingLettersCommand):
    """Send dead letters back to the topics that they came from; without --execute, only count them.

    Repair the reader or the input first. It reads what the topics hold when it starts, and no more: a letter that
    comes back is left to the next run. Messages keep their ids, so that readers drop what they have seen. A letter that
    its topic does not take waits, and is reported; those behind it go. The next run continues one that was interrupted;
    of two at once the later one goes on alone. For example, 100 a second of one topic:
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
        add_execute(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        topics = self.topics(parsed_args)
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


def _by_letter(letters: Sequence[Letter], *, is_cut: bool) -> tuple[dict[str, Any], list[Sequence[Any]]]:
    """What ``--json`` prints of them, and the rows."""
    rows = [_letter_row(letter, is_cut=is_cut) for letter in letters]
    return {"letters": list(map(describe, letters))}, rows


def _by_reason(topic: str, letters: Iterable[Letter]) -> tuple[dict[str, Any], list[Sequence[Any]]]:
    """What ``--json`` prints of them, and the rows."""
    counts = Counter((letter.origin_topic, letter.error.partition(":")[0]) for letter in letters)
    rows = [(topic, origin, error, count) for (origin, error), count in counts.most_common()]
    reasons = [dict(zip(_REASON_COLUMNS[1:], row[1:], strict=True)) for row in rows]
    return {"count": counts.total(), "reasons": reasons}, list(rows)


def _letter_row(letter: Letter, *, is_cut: bool) -> Sequence[Any]:
    error = _reason(letter)
    fate, why = _fate(letter)
    return (
        letter.place,
        _shown(letter.message.timestamp_ms),
        letter.origin or "nowhere",
        letter.group,
        error[:_SHOWN_CHARACTERS] if is_cut else error,
        letter.replays,
        f"{fate}s: {why}" if why else "goes back",
    )


def _letter_facts(letter: Letter, parsed_args: argparse.Namespace) -> dict[str, Any]:
    message = message_view.message_facts(letter.message, parsed_args)
    facts = {
        "letter": letter.place,
        "time": _shown(letter.message.timestamp_ms),
        "origin": letter.origin or "nowhere",
        "first_origin": letter.first_origin or "nowhere",
        "group": letter.group,
        "error": _reason(letter),
        "attempts": letter.attempts,
        "replays": letter.replays,
        "first_failure": _shown(letter.first_failure_ms),
        "fate": f"stays: {letter.stays}" if letter.stays else "goes back",
        **{name: message[name] for name in ("message_id", "key_bytes", "value_bytes")},
    }
    if parsed_args.payload:
        headers = "\n".join(f"{name}: {value}" for name, value in message["headers"])
        facts |= {"key": message["key"], "headers": headers, "value": message["value"]}
    return facts


def _reason(letter: Letter) -> str:
    return " ".join(letter.error.split()) or "without a reason"


def _shown(time_ms: int | None) -> str | None:
    return None if time_ms is None else times.shown(time_ms)


def _place(text: str) -> tuple[TopicPartition, int]:
    """The type of an argument that names a letter."""
    name, _, numbers = text.partition("/")
    partition, _, offset = numbers.partition("/")
    if not name or not all(each.isascii() and each.isdigit() for each in (partition, offset)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a letter: write topic/partition/offset, as `dlq list` does")
    return TopicPartition(name, int(partition)), int(offset)


def _count_waiting(waiting: int) -> str:
    return f"{count_letters(waiting)} {'waits' if waiting == 1 else 'wait'}"


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
