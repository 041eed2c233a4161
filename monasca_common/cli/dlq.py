# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq list | show | replay | purge``: manage dead letters, which no service could handle."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from cliff.lister import Lister
from cliff.show import ShowOne

from monasca_common.cli import messages, progress, services
from monasca_common.cli.command import (
    NOTHING_FOUND,
    PARTLY_DONE,
    ChangeLister,
    MonascaCommand,
    NothingFound,
    add_execute,
    add_since_and_until,
    add_topics,
    positive,
)
from monasca_common.kafka import FencedError, Message, TopicPartition, plugins
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.errors import ConfigurationError, TransactionError, UndeliveredError
from monasca_common.models import times
from monasca_common.operations.dead_letters import (
    MAX_REPLAYS,
    DeadLetter,
    DeadLetterTopic,
    SentMessages,
    dead_letter_topics,
)
from monasca_common.operations.settings import DLQ_GROUP

_LISTED = 20
_SHOWN_CHARACTERS = 100  # maximum number of characters of an error text
_REPORT_EVERY = 100  # dead letters
_REPLAYED, _REPLAYABLE, _NOT_REPLAYABLE, _REFUSED = "replayed", "replayable", "not replayable", "refused"
_OF_JOBS = "monasca_common.pipeline.errors."  # the prefix of errors in dead letters of jobs on Spark
_IGNORED_BY_JOBS = (
    "from jobs on Spark: a job whose duplicates_lookback includes the original ignores the copy; after a repair, "
    "recompute the aggregates of that period from the original with `monasca-common pipeline run backfill`"
)
_COLUMNS = ("dead_letter", "time", "origin", "group", "error", "replays", "action")
_REASON_COLUMNS = ("topic", "origin", "error", "dead_letters")
_OF_SERVICES = "the dead-letter topics of the configured services"
_NO_REASON = "without a reason"
_NO_MATCH = "no pending dead letter is selected: `monasca-common dlq list` shows pending dead letters"


class _DlqCommand(MonascaCommand):
    """Opens dead-letter topics."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--group",
            default=DLQ_GROUP,
            metavar="G",
            help="the consumer group whose offsets mark handled dead letters (default: %(default)s)",
        )

    def topics(
        self, parsed_args: argparse.Namespace, names: Sequence[str], *, with_others: bool = False
    ) -> list[DeadLetterTopic]:
        """Return the named topics, or the dead-letter topics of the services. ``with_others``: also return the other
        dead-letter topics of the brokers of ``[kafka]``. Raises `ConfigurationError` if there are none."""
        found: dict[tuple[str, str], DeadLetterTopic] = {}
        # Replayed messages of each cluster, because mirrored copies have the same ids.
        sent: defaultdict[str, SentMessages] = defaultdict(SentMessages)
        refusals = []
        for service in services.SERVICES:
            try:
                conf = services.read_service(service, parsed_args.config_file)
                for needed in services.topics(service, conf):
                    if needed.dead_letters and needed.name in (names or [needed.name]):
                        topic = DeadLetterTopic.of(conf, needed.name, needed.group, parsed_args.group, sent)
                        found.setdefault((topic.servers, topic.name), topic)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(services.SERVICES):
            raise refusals[0]
        conf = services.read_service("persister", parsed_args.config_file)
        others = set(names) - {topic.name for topic in found.values()}
        if with_others and not names:
            others.update(dead_letter_topics(plugins.load_admin(conf, KAFKA_GROUP).partition_counts()))
        for name in sorted(others):
            topic = DeadLetterTopic.of(conf, name, KAFKA_GROUP, parsed_args.group, sent)
            found.setdefault((topic.servers, topic.name), topic)
        if not found:
            where = "the brokers and the" if with_others else "the"
            raise ConfigurationError(f"{where} configured services have no dead-letter topics: name one with --topic")
        return list(found.values())

    def partitions(self, parsed_args: argparse.Namespace, topic: DeadLetterTopic) -> list[TopicPartition]:
        """Return the partitions, or none if the topic is missing. Raises `ConfigurationError` if --topic names it."""
        partitions = topic.partitions()
        if not partitions and topic.name in parsed_args.topic:
            raise ConfigurationError(f"--topic {topic.name}: this topic does not exist: correct its name")
        if not partitions:
            self.report(
                f"{topic.name}: this topic does not exist: `monasca-common init` creates the topics that services need"
            )
        return partitions


class _PendingCommand(_DlqCommand):
    """Selects pending dead letters, which the group has not handled, by topic, reason, origin and time."""

    default_topics: ClassVar[str] = _OF_SERVICES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_topics(parser, self.default_topics)
        parser.add_argument(
            "--reason",
            metavar="TEXT",
            help="only dead letters whose error contains this text, ignoring case (default: any reason)",
        )
        parser.add_argument(
            "--origin", metavar="T", help="only dead letters of this original topic (default: all topics)"
        )
        add_since_and_until(parser, "dead letters")
        parser.add_argument(
            "--max-replays",
            type=positive,
            default=MAX_REPLAYS,
            metavar="N",
            help="maximum number of replays of one message (default: %(default)s)",
        )

    def none_selected(self) -> None:
        self.report(_NO_MATCH)
        self._status = NOTHING_FOUND


class DlqList(_PendingCommand, Lister):
    """Show pending dead letters with their origin and error, and whether they can be replayed.

    For example, list the dead letters of one reason since a deployment, or count those of each reason:
    monasca-common dlq list --reason InvalidEnvelope --since 2026-01-31T06:00:00Z
    monasca-common dlq list --by-reason -f csv
    """

    default_topics = "the dead-letter topics of the configured services, and other topics whose names end in .dlq"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--limit",
            type=positive,
            default=_LISTED,
            metavar="N",
            help="maximum number of dead letters per topic (default: %(default)s)",
        )
        parser.add_argument(
            "--by-reason",
            action="store_true",
            help="count all pending dead letters by original topic and error class",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows: list[Sequence[Any]] = []
        for topic in self.topics(parsed_args, parsed_args.topic, with_others=True):
            partitions = self.partitions(parsed_args, topic)
            if partitions:
                rows += self._read(parsed_args, topic, partitions)
        if _is_selection(parsed_args) and not rows:
            self.none_selected()
        return _REASON_COLUMNS if parsed_args.by_reason else _COLUMNS, rows

    def _read(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> list[Sequence[Any]]:
        """Return the rows of a topic."""
        limit = None if parsed_args.by_reason else parsed_args.limit
        numbers = itertools.count()

        def is_chosen(letter: DeadLetter) -> bool:
            if next(numbers) % _REPORT_EVERY == 0:
                left = replay.offsets_left()
                shown.update(total - left, left)
            return _selects(parsed_args, letter)

        options = {"max_replays": parsed_args.max_replays, "chosen": is_chosen, "limit": limit}
        with (
            progress.Shown(topic.name) as shown,
            topic.replay(partitions, execute=False, **options) as (replay, letters),
        ):
            pending, total = replay.pending_count(), replay.offsets_left()
            if parsed_args.by_reason:
                counts = Counter((letter.origin_topic, letter.error.partition(":")[0]) for letter in letters)
                return [(topic.name, *reason, count) for reason, count in counts.most_common()]
            shown_letters = itertools.islice(letters, limit)  # the replay's own limit does not count refused ones
            rows = [_row(letter, is_cut=parsed_args.formatter == "table") for letter in shown_letters]
        is_limited = len(rows) == limit and len(rows) < pending
        remark = f"; {len(rows)} are shown: increase --limit to see more" if is_limited else ""
        self.report(f"{topic.name}: {_count(pending, 'pending ')}{remark}")
        return rows


class DlqShow(_DlqCommand, ShowOne):
    """Show one dead letter with its origin, error and first failure, and with --payload its key, headers and value.

    For example:
    monasca-common dlq show metrics.dlq/0/17 --payload
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "place",
            type=_place,
            metavar="T/P/O",
            help="topic, partition and offset, as in the output of `dlq list`",
        )
        messages.add_payload(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        partition, offset = parsed_args.place
        for topic in self.topics(parsed_args, (partition.topic,)):
            letter = topic.dead_letter(partition, offset)
            if letter is not None:
                decoder = messages.SchemaDecoder(self.read(parsed_args), self.report, parsed_args.message_type)
                return self.dict2columns(_facts(letter, decoder.decoded(letter.message), parsed_args))
        place = f"{partition.topic}/{partition.partition}/{offset}"
        raise NothingFound(f"there is no dead letter {place}: `monasca-common dlq list` shows pending dead letters")


class DlqReplay(_PendingCommand, ChangeLister):
    """Replay dead letters to their original topics; without --execute, only count them.

    Repair the consumer or the input first. A run stops where the topics ended when it started, so a message that fails
    again is left for the next run. Messages keep their ids, so that consumers can ignore repeats. If a topic refuses a
    message, its dead letter stays pending and the run continues with later dead letters. The next run continues an
    interrupted run; if two runs overlap, only the one that started later continues. For example, replay 100 messages
    per second:
    monasca-common dlq replay --origin metrics --rate 100 --execute
    """

    columns = ("topic", "outcome", "reason", "dead_letters")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--limit", type=positive, metavar="N", help="maximum number of dead letters per topic (default: all)"
        )
        parser.add_argument(
            "--rate",
            type=positive,
            metavar="N",
            help="maximum number of messages per second; too large: consumers fall behind (default: no limit)",
        )
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        self._of_jobs = 0
        failed = False
        found = [(topic, self.partitions(parsed_args, topic)) for topic in self.topics(parsed_args, parsed_args.topic)]
        for topic, partitions in found:  # report missing topics before the first message is sent
            counts: Counter[tuple[str, str]] = Counter()
            try:
                failed |= not self._send(parsed_args, topic, partitions, counts)
            finally:
                rows += [(topic.name, *outcome, count) for outcome, count in sorted(counts.items())]
        refused = sum(count for _, outcome, _, count in rows if outcome == _REFUSED)
        done = sum(count for _, outcome, _, count in rows if outcome != _REFUSED)
        if refused:
            self.report(f"{_count(refused)} left for the next run, because the original topic refused the message")
        if self._of_jobs:
            self.report(f"{_count(self._of_jobs)} {_IGNORED_BY_JOBS}")
        if failed or refused:
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
        """Return whether the brokers accepted the whole run."""
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
                progress.Shown(topic.name) as shown,
                topic.replay(partitions, execute=parsed_args.execute, **options) as (replay, letters),
            ):
                for letter in letters:
                    counts[_action(letter, parsed_args.execute)] += 1
                    self._of_jobs += letter.is_replayable and letter.error.startswith(_OF_JOBS)
                    if counts.total() % _REPORT_EVERY == 0:
                        shown.update(counts.total(), replay.offsets_left())
        except UndeliveredError as error:
            first = [*error.report.failed, *error.report.unknown][0]
            self.report(f"not delivered to {first.topic} and left for the next run: {first.error}")
        except TransactionError as error:
            self.report(f"{topic.name}: left for the next run: {error}")
        except FencedError:
            self.report(f"{topic.name}: a later run has taken over; no message was sent twice")
        else:
            return True
        return False


class DlqPurge(_DlqCommand, ChangeLister):
    """Delete handled or all dead letters; without --execute, only count them.

    Kafka deletes only from the beginning of a partition, so --dealt-with ends at the first pending dead letter. The
    counts are differences between offsets, so they include records about replays and transaction markers. For example:
    monasca-common dlq purge --dealt-with --execute
    """

    columns = ("topic", "offsets", "deleted")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_topics(parser, _OF_SERVICES)
        selected = parser.add_mutually_exclusive_group(required=True)
        selected.add_argument(
            "--dealt-with", action="store_true", help="the handled dead letters before the first pending one"
        )
        selected.add_argument("--all", action="store_true", help="all dead letters")
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        found = {}
        for topic in self.topics(parsed_args, parsed_args.topic):
            partitions = self.partitions(parsed_args, topic)
            if partitions:
                found[topic] = topic.deletable(partitions, handled=parsed_args.dealt_with)
        deleted: set[DeadLetterTopic] = set()
        try:
            for topic in found if parsed_args.execute else ():
                before = {partition: offsets.stop for partition, offsets in found[topic].items() if offsets}
                if before:
                    topic.delete(before)
                    deleted.add(topic)
                    topic.skip_deleted(before)
        finally:
            rows += [(each.name, sum(map(len, found[each].values())), each in deleted) for each in found]
        if any(count for _, count, _ in rows):
            self.note_dry_run(parsed_args)
        else:
            self._status = NOTHING_FOUND
            self.report("no dead letter is selected")


def _is_selection(parsed_args: argparse.Namespace) -> bool:
    """Return whether an option selects dead letters by content or time."""
    return any(getattr(parsed_args, name) is not None for name in ("reason", "origin", "since", "until"))


def _selects(parsed_args: argparse.Namespace, letter: DeadLetter) -> bool:
    return (
        (parsed_args.reason is None or parsed_args.reason.lower() in letter.error.lower())
        and (parsed_args.origin is None or letter.origin_topic == parsed_args.origin)
        and messages.is_in_time(letter.message, parsed_args)
    )


def _action(letter: DeadLetter, is_executed: bool = False) -> tuple[str, str]:
    """Return the action of a replay on a dead letter, and its reason."""
    if letter.refusal:
        return _REFUSED, letter.refusal
    if letter.obstacle:
        return _NOT_REPLAYABLE, letter.obstacle
    return (_REPLAYED if is_executed else _REPLAYABLE), ""


def _row(letter: DeadLetter, *, is_cut: bool) -> Sequence[Any]:
    error = letter.error or _NO_REASON
    return (
        letter.place,
        _shown(letter.message.timestamp_ms),
        letter.origin or "nowhere",
        letter.group,
        error[:_SHOWN_CHARACTERS] if is_cut else error,
        letter.replays,
        ": ".join(filter(None, _action(letter))),
    )


def _facts(letter: DeadLetter, decoded: Message, parsed_args: argparse.Namespace) -> dict[str, Any]:
    message = messages.message_facts(letter.message, decoded, parsed_args)
    facts = {
        "dead_letter": letter.place,
        "time": _shown(letter.message.timestamp_ms),
        "origin": letter.origin or "nowhere",
        "first_origin": letter.first_origin or "nowhere",
        "group": letter.group,
        "error": letter.error or _NO_REASON,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "first_failure": _shown(letter.first_failure_ms),
        "action": ": ".join(filter(None, _action(letter))),
        **{name: message[name] for name in ("message_id", "key_bytes", "value_bytes")},
    }
    if parsed_args.payload:
        headers = "\n".join(f"{name}: {value}" for name, value in message["headers"])
        facts |= {"key": message["key"], "headers": headers, "value": message["value"]}
    return facts


def _shown(time_ms: int | None) -> str | None:
    return None if time_ms is None else times.shown(time_ms)


def _place(text: str) -> tuple[TopicPartition, int]:
    """Parse the position of a dead letter."""
    name, _, numbers = text.partition("/")
    partition, _, offset = numbers.partition("/")
    if not name or not all(each.isascii() and each.isdigit() for each in (partition, offset)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a dead letter: use topic/partition/offset, as in the output of `dlq list`"
        )
    return TopicPartition(name, int(partition)), int(offset)


def _count(number: int, adjective: str = "") -> str:
    return f"{number:,} {adjective}dead letter{'' if number == 1 else 's'}"
