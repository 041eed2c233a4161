# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq list | replay``: what no service could handle, and how it is sent back after a repair."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from monasca_common.cli import configuration, services
from monasca_common.cli.command import MonascaCommand, positive
from monasca_common.kafka import DeadLetterReplay, KafkaConsumer, Letter, TopicPartition, open_consumer, open_producer
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings, consumer_settings, producer_settings
from monasca_common.kafka.errors import ConfigurationError, MessagingError, TransportError, UndeliveredError
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings

_GROUP_ID = "monasca-dlq-replay"
_MAX_REPLAYS = 3
_LISTED = 20
_SHOWN_CHARACTERS = 100  # of an error's text
_NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PART"


class DeadLetterTopic:
    """One topic of dead letters, as the group of the operator reads it and as messages are sent back from it.

    ``named``: the operator named it, so that it has to be there.
    """

    def __init__(self, name: str, consumer: ConsumerSettings, producer: ProducerSettings, *, named: bool) -> None:
        self.name = name
        self._named = named
        self.servers = consumer.connection.bootstrap_servers
        self._consumer = consumer
        self._producer = producer

    def partitions(self) -> list[TopicPartition]:
        """None where there is no such topic. Raises `TransportError`; `ConfigurationError` for one that was named."""
        with open_consumer(self._consumer, partitions=[]) as consumer:
            try:
                partitions = consumer.partition_count(self.name)
            except TransportError as error:
                if error.name != _NO_SUCH_TOPIC:
                    raise
                if self._named:
                    raise ConfigurationError(f"--topic {self.name}: there is no such topic: correct its name") from None
                partitions = 0
        return [TopicPartition(self.name, number) for number in range(partitions)]

    def reader(self, partitions: Sequence[TopicPartition]) -> KafkaConsumer:
        """One that looks, and leaves the group to those that send back."""
        return open_consumer(self._consumer, partitions=partitions)

    def send_back(self, max_replays: int, limit: int | None) -> Iterator[Letter]:
        with open_producer(self._producer) as producer, open_consumer(self._consumer) as consumer:
            yield from DeadLetterReplay(consumer, max_replays=max_replays, limit=limit).send(producer)


class _DeadLetterCommand(MonascaCommand):
    """The topics of dead letters of the configuration's services."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument(
            "--topic",
            action="append",
            metavar="T",
            help="a topic of dead letters; may be given several times (default: those of the services that the "
            "configuration describes)",
        )
        parser.add_argument(
            "--group",
            default=_GROUP_ID,
            metavar="G",
            help="the consumer group that remembers which letters were dealt with (default: %(default)s)",
        )
        parser.add_argument(
            "--max-replays",
            type=positive,
            default=_MAX_REPLAYS,
            metavar="N",
            help="how often one message is sent back at most; then it stays (default: %(default)s)",
        )
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of text")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: done. 1: not, and the reason on standard error."""
        try:
            return self.act(parsed_args, self._topics(parsed_args))
        except UndeliveredError as error:
            first = [*error.report.failed, *error.report.unknown][0]
            return self.complain(f"not delivered to {first.topic}, and left for the next run: {first.error}")
        except MessagingError as error:
            return self.complain(str(error))

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        raise NotImplementedError

    def _topics(self, parsed_args: argparse.Namespace) -> list[DeadLetterTopic]:
        """Those that are named, or all that the services write. Raises `ConfigurationError`."""
        found: dict[tuple[str, str], DeadLetterTopic] = {}
        refusals = []
        for service in services.SERVICES:
            try:
                conf = services.read_service(service, parsed_args.config_file)
                for each in services.topics(service, conf):
                    if each.dead_letters and each.name in (parsed_args.topic or [each.name]):
                        topic = _topic(conf, each.name, each.group, parsed_args)
                        found.setdefault((topic.servers, topic.name), topic)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(services.SERVICES):
            raise refusals[0]
        conf = services.read_service("persister", parsed_args.config_file)
        known = {topic.name for topic in found.values()}
        others = [name for name in parsed_args.topic or () if name not in known]
        return [*found.values(), *(_topic(conf, name, KAFKA_GROUP, parsed_args) for name in others)]


def _topic(conf: cfg.ConfigOpts, name: str, group: str, parsed_args: argparse.Namespace) -> DeadLetterTopic:
    """``group``: the option group whose servers have the topic."""
    group_id: str = parsed_args.group
    if group == KAFKA_GROUP:
        consumer = ConsumerSettings(connection_settings(conf), (name,), group_id)
    else:
        consumer = replace(
            consumer_settings(conf, group),
            topics=(name,),
            group_id=group_id,
            group_instance_id=None,
            dead_letter_topic=None,
            start="earliest",
        )
    producer = replace(producer_settings(conf, group), transactional_id=None)
    return DeadLetterTopic(name, consumer, producer, named=bool(parsed_args.topic))


class DlqList(_DeadLetterCommand):
    """Show the dead letters that were not sent back yet: where each came from, why it is dead, whether it can go back.

    Nothing is changed.
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
        return parser

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        told = []
        for topic in topics:
            partitions = topic.partitions()
            waiting, letters = self._look(parsed_args, topic, partitions) if partitions else (0, [])
            facts = {"topic": topic.name, "exists": bool(partitions), "waiting": waiting}
            told.append({**facts, "letters": list(map(describe, letters))})
            if not parsed_args.json:
                self.print(*_lines(topic.name, letters, waiting) if partitions else [_nowhere(topic.name)])
        if parsed_args.json:
            self.print(json.dumps({"group": parsed_args.group, "topics": told}))
        return 0

    def _look(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> tuple[int, list[Letter]]:
        with topic.reader(partitions) as consumer:
            replay = DeadLetterReplay(consumer, max_replays=parsed_args.max_replays, limit=parsed_args.limit)
            return replay.waiting(), list(replay.letters())


class DlqReplay(_DeadLetterCommand):
    """Send dead letters back to the topics that they came from; without --execute, only count them.

    Repair the reader or the input first. It reads what the topics hold when it starts, and no more: a letter that
    comes back is left to the next run. Messages keep their ids, so that readers drop what they have seen.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--limit", type=positive, metavar="N", help="how many letters of each topic are dealt with (default: all)"
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--dry-run", action="store_true", help="send nothing (the default)")
        how.add_argument("--execute", action="store_true", help="do it")
        return parser

    def act(self, parsed_args: argparse.Namespace, topics: Sequence[DeadLetterTopic]) -> int:
        told = []
        for topic in topics:
            partitions = topic.partitions()
            counts: Counter[str] = Counter()
            try:
                for letter in self._letters(parsed_args, topic, partitions) if partitions else ():
                    counts[letter.stays] += 1
            finally:  # what was done is said, also when something interrupts it
                told.append({**_outcome(topic.name, counts), "exists": bool(partitions)})
                if not parsed_args.json:
                    lines = _outcome_lines(topic.name, counts, execute=parsed_args.execute)
                    self.print(*lines if partitions else [_nowhere(topic.name)])
        if parsed_args.json:
            self.print(json.dumps({"group": parsed_args.group, "topics": told, "executed": parsed_args.execute}))
        elif not parsed_args.execute:
            self.print("Nothing was sent. With --execute it would be.")
        return 0

    def _letters(
        self, parsed_args: argparse.Namespace, topic: DeadLetterTopic, partitions: Sequence[TopicPartition]
    ) -> Iterator[Letter]:
        if parsed_args.execute:
            yield from topic.send_back(parsed_args.max_replays, parsed_args.limit)
            return
        with topic.reader(partitions) as consumer:
            replay = DeadLetterReplay(consumer, max_replays=parsed_args.max_replays, limit=parsed_args.limit)
            yield from replay.letters()


def describe(letter: Letter) -> dict[str, Any]:
    """What ``--json`` prints of one letter."""
    return {
        "letter": letter.place,
        "time_ms": letter.message.timestamp_ms,
        "origin": letter.origin,
        "group": letter.group,
        "error": letter.error,
        "attempts": letter.attempts,
        "replays": letter.replays,
        "stays": letter.stays,
    }


def _lines(topic: str, letters: Sequence[Letter], waiting: int) -> Iterator[str]:
    shown = f", the first {len(letters)} of them:" if len(letters) < waiting else ":" if letters else ""
    yield f"{topic}: {_letters(waiting)} to be looked at{shown}"
    for letter in letters:
        text = " ".join(letter.error.split())[:_SHOWN_CHARACTERS]
        stays = f"; stays, {letter.stays}" if letter.stays else ""
        yield f"  {letter.place} from {letter.origin or 'nowhere'}: {text or 'without a reason'}{stays}"


def _nowhere(topic: str) -> str:
    return f"{topic}: there is no such topic: `monasca-common init` makes those that services need"


def _outcome(topic: str, counts: Counter[str]) -> dict[str, Any]:
    stay = {reason: count for reason, count in counts.items() if reason}
    return {"topic": topic, "sent": counts[""], "stay": sum(stay.values()), "reasons": stay}


def _outcome_lines(topic: str, counts: Counter[str], *, execute: bool) -> Iterator[str]:
    yield f"{topic}: {_letters(counts[''])} {'sent back' if execute else 'to be sent back'}"
    for reason, count in sorted(counts.items()):
        if reason:
            yield f"  {_letters(count)} {'stay' if count > 1 else 'stays'}: {reason}"


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"
