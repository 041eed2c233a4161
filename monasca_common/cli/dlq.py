# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq list | show | replay | purge``: the messages that no service could handle."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from monasca_common.cli import message_view, progress, services
from monasca_common.cli.command import (
    NOTHING_FOUND,
    PARTLY_DONE,
    ChangeLister,
    MonascaCommand,
    NothingFound,
    add_execute,
    moment_ms,
    positive,
)
from monasca_common.kafka import FencedError, TopicPartition
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.errors import ConfigurationError, TransactionError, UndeliveredError
from monasca_common.models import times
from monasca_common.operations.dead_letters import MAX_REPLAYS, DeadLetterTopic, Letter, SentMessages
from monasca_common.operations.settings import DLQ_GROUP

_LISTED = 20
_SHOWN_CHARACTERS = 100  # of an error's text
_REPORT_EVERY = 100  # letters
_SENT, _GOES, _STAYS, _WAITS = "sent back", "goes back", "stays", "waits"
_OF_JOBS = "monasca_common.pipeline.errors."  # how the error of a letter begins that a job on Spark wrote
_LEFT_OUT = (
    "of jobs on Spark: a job whose duplicates_lookback reaches back to the original leaves the copy out; after a "
    "repair `monasca-common pipeline run backfill` computes aggregates of that time from the original"
)
_LETTER_COLUMNS = ("letter", "time", "origin", "group", "error", "replays", "fate")
_REASON_COLUMNS = ("topic", "origin", "error", "letters")
_NO_MATCH = "no letter that waits is selected: `monasca-common dlq list` shows those that do"


class _DlqCommand(MonascaCommand):
    """The topics of dead letters of the configuration's services."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--group",
            default=DLQ_GROUP,
            metavar="G",
            help="the consumer group that remembers which letters were dealt with (default: %(default)s)",
        )
        return parser

    def topics(self, parsed_args: argparse.Namespace, names: Sequence[str]) -> list[DeadLetterTopic]:
        """Return those with these names, or all that the services write. Raises `ConfigurationError`."""
        found: dict[tuple[str, str], DeadLetterTopic] = {}
        sent: defaultdict[str, SentMessages] = defaultdict(SentMessages)  # by servers: a mirror's copies keep their ids
        refusals = []
        for service in services.SERVICES:
            try:
                conf = services.read_service(service, parsed_args.config_file)
                for each in services.topics(service, conf):
                    if each.dead_letters and each.name in (names or [each.name]):
                        topic = DeadLetterTopic.of(conf, each.name, each.group, parsed_args.group, sent)
                        found.setdefault((topic.servers, topic.name), topic)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(services.SERVICES):
            raise refusals[0]
        conf = services.read_service("persister", parsed_args.config_file)
        others = [name for name in names if name not in {topic.name for topic in found.values()}]
        named = [DeadLetterTopic.of(conf, name, KAFKA_GROUP, parsed_args.group, sent) for name in others]
        return [*found.values(), *named]


class _SelectingCommand(_DlqCommand):
    """Some letters of some topics."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--topic",
            action="append",
            default=[],
            metavar="T",
            help="a topic of dead letters; may be given several times (default: those of the services that the "
            "configuration describes)",
        )
        parser.add_argument(
            "--reason",
            metavar="TEXT",
            help="only letters whose error's class or text contains this, in capitals or not (default: any reason)",
        )
        parser.add_argument(
            "--origin", metavar="T", help="only letters of messages of this topic (default: of any topic)"
        )
        parser.add_argument(
            "--since",
            type=moment_ms,
            metavar="TIME",
            help="only letters written at this time or later, such as 2026-01-31T06:00:00Z (UTC if it names no zone)",
        )
        parser.add_argument("--until", type=moment_ms, metavar="TIME", help="only letters written before this time")
        progress.add_argument(parser)
        return parser

    def partitions(self, parsed_args: argparse.Namespace, topic: DeadLetterTopic) -> list[TopicPartition]:
        """Return none for a topic that is missing, which is reported. Raises `ConfigurationError` for a named one."""
        partitions = topic.partitions()
        if not partitions and topic.name in parsed_args.topic:
            raise ConfigurationError(f"--topic {topic.name}: there is no such topic: correct its name")
        if not partitions:
            self.complain(f"{topic.name}: there is no such topic: `monasca-common init` makes those that services need")
        return partitions


class _UnreplayedLettersCommand(_SelectingCommand):
    """The letters that wait: those that the group has not dealt with."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--max-replays",
            type=positive,
            default=MAX_REPLAYS,
            metavar="N",
            help="how often one message is sent back at most; then it stays (default: %(default)s)",
        )
        return parser

    def none_selected(self) -> None:
        self.complain(_NO_MATCH)
        self._status = NOTHING_FOUND


class DlqList(_UnreplayedLettersCommand, Lister):
    """Show the dead letters that were not sent back yet: where each came from, why it is dead, whether it can go back.

    Nothing is changed. For example, the letters of one reason since a deployment, or how many have the same reason:
    monasca-common dlq list --reason InvalidEnvelope --since 2026-01-31T06:00:00Z
    monasca-common dlq list --by-reason -f csv
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

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows: list[Sequence[Any]] = []
        for topic in self.topics(parsed_args, parsed_args.topic):
            partitions = self.partitions(parsed_args, topic)
            if partitions:
                rows += self._read(parsed_args, topic, partitions)
        if _is_selection(parsed_args) and not rows:
            self.none_selected()
        return _REASON_COLUMNS if parsed_args.by_reason else _LETTER_COLUMNS, rows

    def _read(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> list[Sequence[Any]]:
        """Return the rows of a topic."""
        limit = None if parsed_args.by_reason else parsed_args.limit
        numbers = itertools.count()

        def is_chosen(letter: Letter) -> bool:
            if next(numbers) % _REPORT_EVERY == 0:
                left = replay.offsets_left()
                shown.tell(total - left, left)
            return _selects(parsed_args, letter)

        options = {"max_replays": parsed_args.max_replays, "chosen": is_chosen, "limit": limit}
        with (
            progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown,
            topic.replay(partitions, execute=False, **options) as (replay, letters),
        ):
            waiting, total = replay.waiting(), replay.offsets_left()
            if parsed_args.by_reason:
                counts = Counter((letter.origin_topic, letter.error.partition(":")[0]) for letter in letters)
                return [(topic.name, *reason, count) for reason, count in counts.most_common()]
            rows = [_letter_row(letter, is_cut=parsed_args.formatter == "table") for letter in letters]
        is_limited = len(rows) == limit and len(rows) < waiting
        which = "of those selected" if _is_selection(parsed_args) else "of them"
        remark = f", shown: the first {len(rows)} {which}" if is_limited else ""
        self.complain(f"{topic.name}: {_letters(waiting)} {'waits' if waiting == 1 else 'wait'}{remark}")
        return rows


class DlqShow(_DlqCommand, ShowOne):
    """Show one dead letter: where it came from, why it is dead, when it failed first.

    Key, headers and value are shown only with --payload. For example:
    monasca-common dlq show metrics.dlq/0/17 --payload
    """

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

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        partition, offset = parsed_args.place
        for topic in self.topics(parsed_args, (partition.topic,)):
            letter = topic.letter(partition, offset)
            if letter is not None:
                return self.dict2columns(_letter_facts(letter, parsed_args))
        place = f"{partition.topic}/{partition.partition}/{offset}"
        raise NothingFound(f"there is no letter {place}: `monasca-common dlq list` shows those that wait")


class DlqReplay(_UnreplayedLettersCommand, ChangeLister):
    """Send dead letters back to the topics that they came from; without --execute, only count them.

    Repair the reader or the input first. It reads what the topics hold when it starts, and no more: a letter that
    comes back is left to the next run. Messages keep their ids, so that readers drop what they have seen. A letter that
    its topic does not take waits, and is reported; those behind it go. The next run continues one that was interrupted;
    of two at once the later one goes on alone. For example, 100 a second of one topic:
    monasca-common dlq replay --origin metrics --rate 100 --execute
    """

    columns = ("topic", "outcome", "reason", "letters")

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

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        self._of_jobs = 0
        failed = False
        found = [(topic, self.partitions(parsed_args, topic)) for topic in self.topics(parsed_args, parsed_args.topic)]
        for topic, partitions in found:  # a missing one is an error before the first is sent
            counts: Counter[tuple[str, str]] = Counter()
            try:
                failed |= not self._send(parsed_args, topic, partitions, counts)
            finally:
                rows += [(topic.name, *outcome, count) for outcome, count in sorted(counts.items())]
        waiting = sum(count for _, outcome, _, count in rows if outcome == _WAITS)
        done = sum(count for _, outcome, _, count in rows if outcome != _WAITS)
        if waiting:
            verb = "waits" if waiting == 1 else "wait"
            self.complain(f"{_letters(waiting)} {verb} for another run, refused where sent back to")
        if self._of_jobs:
            self.complain(f"{_letters(self._of_jobs)} {_LEFT_OUT}")
        if failed or waiting:
            self._status = PARTLY_DONE if done else 1
        elif _is_selection(parsed_args) and not done:
            self.none_selected()
        if rows:
            self.note_dry_run(parsed_args)

    def _send(
        self,
        parsed_args: argparse.Namespace,
        topic: DeadLetterTopic,
        partitions: Sequence[TopicPartition],
        counts: Counter[tuple[str, str]],
    ) -> bool:
        """Return whether the brokers let it come to its end."""
        if not partitions:
            return True
        options = {
            "chosen": partial(_selects, parsed_args),
            "max_replays": parsed_args.max_replays,
            "limit": parsed_args.limit,
            "rate": parsed_args.rate if parsed_args.execute else None,
        }
        try:
            with (
                progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown,
                topic.replay(partitions, execute=parsed_args.execute, **options) as (replay, letters),
            ):
                for letter in letters:
                    counts[_fate(letter, sent=_SENT if parsed_args.execute else _GOES)] += 1
                    self._of_jobs += letter.goes and letter.error.startswith(_OF_JOBS)
                    if counts.total() % _REPORT_EVERY == 0:
                        shown.tell(counts.total(), replay.offsets_left())
        except UndeliveredError as error:
            first = [*error.report.failed, *error.report.unknown][0]
            self.complain(f"not delivered to {first.topic}, and left for the next run: {first.error}")
        except TransactionError as error:
            self.complain(f"{topic.name}: left for the next run: {error}")
        except FencedError:
            self.complain(f"{topic.name}: another process sends these letters back since; nothing was sent twice")
        else:
            return True
        return False


class DlqPurge(_SelectingCommand, ChangeLister):
    """Delete the selected dead letters at the beginning of their partition; without --execute, only count them.

    Kafka deletes only from the beginning: selected dead letters after one that is not selected stay, and are counted.
    For example, dead letters that were replayed, or are older than a month:
    monasca-common dlq purge --dealt-with
    monasca-common dlq purge --until 2026-01-01T00:00:00Z --execute
    """

    columns = ("topic", "letters", "deleted", "selected_behind")

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
        return parser

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        if not (parsed_args.all or parsed_args.dealt_with or _is_selection(parsed_args)):
            raise ConfigurationError(
                "which letters? Select some (--until, --reason, --origin), or say --dealt-with or --all"
            )
        selects = partial(_selects, parsed_args) if parsed_args.all or _is_selection(parsed_args) else None
        found = {}
        for topic in self.topics(parsed_args, parsed_args.topic):
            partitions = self.partitions(parsed_args, topic)
            if partitions:
                with progress.Shown(topic.name, bounded=True, lines=parsed_args.progress) as shown:
                    found[topic] = topic.deletable(
                        partitions, selects, dealt_with=parsed_args.dealt_with, progress=shown.tell
                    )
        deleted: set[DeadLetterTopic] = set()
        try:
            for topic in found if parsed_args.execute else ():
                before = {partition: each.before for partition, each in found[topic].items() if each.letters}
                if before:
                    topic.delete(before)
                    deleted.add(topic)
                    topic.pass_deleted(before)
        finally:
            for topic, deletable in found.items():
                letters = sum(each.letters for each in deletable.values())
                behind = sum(each.behind for each in deletable.values())
                rows.append((topic.name, letters, topic in deleted, behind))
        letters, behind = (sum(row[column] for row in rows) for column in (1, 3))
        if behind:
            self.complain(
                f"{_letters(behind)} selected as well cannot be deleted: Kafka deletes from the beginning only"
            )
        if not letters:
            self._status = NOTHING_FOUND
            self.complain("no letter is selected" if not behind else "none of the letters selected can be deleted")
        else:
            self.note_dry_run(parsed_args)


def _is_selection(parsed_args: argparse.Namespace) -> bool:
    """Return whether some letters are meant, and not all."""
    return any(getattr(parsed_args, name) is not None for name in ("reason", "origin", "since", "until"))


def _selects(parsed_args: argparse.Namespace, letter: Letter) -> bool:
    time_ms = letter.message.timestamp_ms or 0
    return (
        (parsed_args.reason is None or parsed_args.reason.lower() in letter.error.lower())
        and (parsed_args.origin is None or letter.origin_topic == parsed_args.origin)
        and (parsed_args.since is None or time_ms >= parsed_args.since)
        and (parsed_args.until is None or time_ms < parsed_args.until)
    )


def _fate(letter: Letter, sent: str = _GOES) -> tuple[str, str]:
    """Return what becomes of it, and why."""
    if letter.refusal:
        return _WAITS, letter.refusal
    return (_STAYS, letter.stays) if letter.stays else (sent, "")


def _letter_row(letter: Letter, *, is_cut: bool) -> Sequence[Any]:
    error = _reason(letter)
    return (
        letter.place,
        _shown(letter.message.timestamp_ms),
        letter.origin or "nowhere",
        letter.group,
        error[:_SHOWN_CHARACTERS] if is_cut else error,
        letter.replays,
        ": ".join(filter(None, _fate(letter))),
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
        "fate": ": ".join(filter(None, _fate(letter))),
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


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"
