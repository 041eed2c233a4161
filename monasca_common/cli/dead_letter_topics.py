# SPDX-License-Identifier: Apache-2.0
"""The topics of dead letters, as the commands ``dlq`` see them, and which of their letters are meant."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from monasca_common.audit.reporter import audited_source
from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.cli import configuration, services
from monasca_common.cli.command import OperatorCommand, moment_ms, partitions_of_topic
from monasca_common.kafka import (
    Admin,
    KafkaConsumer,
    TopicPartition,
    open_consumer,
    open_producer,
    plugins,
)
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings, consumer_settings, producer_settings
from monasca_common.kafka.errors import ConfigurationError, MessagingError, TransportError
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.operations.dead_letters import DeadLetterReplay, Letter, SentMessages
from monasca_common.operations.settings import DLQ_GROUP

_NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_WITH_TRANSACTIONS = "kafka"


class DeadLetterTopic:
    """One topic of dead letters, as the group of the operator reads it and as messages are sent back from it.

    ``sent``: what goes back once, shared by the topics of a cluster. ``named``: the operator named it, so that it has
    to be there.
    """

    def __init__(
        self,
        name: str,
        consumer: ConsumerSettings,
        producer: ProducerSettings,
        load_admin: Callable[[], Admin],
        sent: SentMessages,
        *,
        named: bool,
        audit: AuditSettings,
    ) -> None:
        self.name = name
        self.admin = load_admin
        self.connection = consumer.connection
        self._sent = sent
        self._named = named
        self._consumer = consumer
        self._producer = producer
        self._audit = audit

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
        """It knows the group's offsets without being a member, so that it need not wait for one that died."""
        return open_consumer(self._consumer, partitions=partitions)

    @contextlib.contextmanager
    def replay(
        self, partitions: Sequence[TopicPartition], *, execute: bool, **arguments: Any
    ) -> Iterator[tuple[DeadLetterReplay, Iterator[Letter]]]:
        """``arguments``: of `DeadLetterReplay`."""
        with contextlib.ExitStack() as stack:
            audited = audited_source(self._producer, self._audit if execute else None, self._consumer.group_id)
            producer = stack.enter_context(open_producer(stack.enter_context(audited))) if execute else None
            replay = DeadLetterReplay(stack.enter_context(self.reader(partitions)), sent=self._sent, **arguments)
            yield replay, replay.letters() if producer is None else replay.send(producer)


class DeadLetterCommand(OperatorCommand):
    """The topics of dead letters of the configuration's services."""

    selects_letters = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument(
            "--group",
            default=DLQ_GROUP,
            metavar="G",
            help="the consumer group that remembers which letters were dealt with (default: %(default)s)",
        )
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of all else")
        if self.selects_letters:
            _add_selection(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """1, and the reason on standard error, where topics cannot be read."""
        try:
            return super().run(parsed_args)
        except MessagingError as error:
            return self.complain(str(error))

    def topics(self, parsed_args: argparse.Namespace) -> list[DeadLetterTopic]:
        """Those that are named, or all that the services write. Raises `ConfigurationError`."""
        return self._topics(parsed_args, parsed_args.topic or (), named=bool(parsed_args.topic))

    def topic_of_letter(self, parsed_args: argparse.Namespace, name: str) -> list[DeadLetterTopic]:
        """The topic, on each of the servers that have one of this name. Raises `ConfigurationError`."""
        return self._topics(parsed_args, (name,), named=False)

    def _topics(self, parsed_args: argparse.Namespace, names: Sequence[str], *, named: bool) -> list[DeadLetterTopic]:
        found: dict[tuple[str, str], DeadLetterTopic] = {}
        sent: defaultdict[str, SentMessages] = defaultdict(SentMessages)  # by servers: a mirror's copies keep their ids
        refusals = []
        for service in services.SERVICES:
            try:
                conf = services.read_service(service, parsed_args.config_file)
                for each in services.topics(service, conf):
                    if each.dead_letters and each.name in (names or [each.name]):
                        topic = _topic(conf, each.name, each.group, parsed_args.group, sent, named=named)
                        found.setdefault((topic.connection.bootstrap_servers, topic.name), topic)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(services.SERVICES):
            raise refusals[0]
        conf = services.read_service("persister", parsed_args.config_file)
        known = {topic.name for topic in found.values()}
        others = [name for name in names if name not in known]
        return [
            *found.values(),
            *(_topic(conf, name, KAFKA_GROUP, parsed_args.group, sent, named=named) for name in others),
        ]


def _topic(
    conf: cfg.ConfigOpts,
    name: str,
    group: str,
    group_id: str,
    sent: Mapping[str, SentMessages],
    *,
    named: bool,
) -> DeadLetterTopic:
    """``group``: the option group whose servers have the topic. ``group_id``: the consumer group of the operator."""
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
    # One for each topic and group, so that whoever begins to send back ends those that did so before.
    transactional_id = f"{group_id}/{name}" if consumer.connection.driver == _WITH_TRANSACTIONS else None
    producer = replace(producer_settings(conf, group), transactional_id=transactional_id)
    load = functools.partial(plugins.load_admin, conf, group)
    once = sent[consumer.connection.bootstrap_servers]
    return DeadLetterTopic(name, consumer, producer, load, once, named=named, audit=audit_settings(conf))


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic",
        action="append",
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
        "--origin",
        type=partitions_of_topic,
        metavar="T[:P,P…]",
        help="only letters of messages of this topic, or of these partitions of it (default: of any)",
    )
    parser.add_argument(
        "--since",
        type=moment_ms,
        metavar="TIME",
        help="only letters written at this time or later, such as 2026-01-31T06:00:00Z (UTC if it names no zone)",
    )
    parser.add_argument("--until", type=moment_ms, metavar="TIME", help="only letters written before this time")
    parser.add_argument(
        "--letter",
        action="append",
        metavar="T/P/O",
        help="only this letter: its topic, partition and offset, as `dlq list` shows it; may be given several times",
    )


def is_selection(parsed_args: argparse.Namespace) -> bool:
    """Whether some letters are meant, and not all."""
    return any(getattr(parsed_args, name) is not None for name in ("reason", "origin", "since", "until", "letter"))


def selects(parsed_args: argparse.Namespace, letter: Letter) -> bool:
    reason, origin, time_ms = parsed_args.reason, parsed_args.origin, letter.message.timestamp_ms or 0
    return (
        (reason is None or reason.lower() in letter.error.lower())
        and (origin is None or _is_of(letter, *origin))
        and (parsed_args.since is None or time_ms >= parsed_args.since)
        and (parsed_args.until is None or time_ms < parsed_args.until)
        and (parsed_args.letter is None or letter.place in parsed_args.letter)
    )


def _is_of(letter: Letter, topic: str, partitions: tuple[int, ...]) -> bool:
    if letter.origin_topic != topic:
        return False
    numbers = letter.origin.removeprefix(topic).split("/")
    return not partitions or (len(numbers) > 1 and numbers[1] in map(str, partitions))
