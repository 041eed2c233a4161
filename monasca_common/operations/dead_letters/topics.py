# SPDX-License-Identifier: Apache-2.0
"""Reads, replays and purges a dead-letter topic in an operator's consumer group."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from oslo_config import cfg

from monasca_common.audit.reporter import audited_source
from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka import (
    Admin,
    KafkaConsumer,
    TopicPartition,
    open_consumer,
    open_producer,
    plugins,
)
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings, consumer_settings, producer_settings
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.operations.dead_letters.replay import DeadLetterReplay
from monasca_common.operations.dead_letters.replay_log import DeadLetter, SentMessages, is_note
from monasca_common.operations.log_reading import LogReader

_NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_SUFFIX = ".dlq"
_TRANSACTIONAL_DRIVER = "confluent"  # the native client has no transactions


def dead_letter_topics(partition_counts: Mapping[str, int], names: Iterable[str] = ()) -> list[str]:
    """Return the topics whose names end in ``.dlq``, and the existing topics of ``names``."""
    wanted = frozenset(names)
    return sorted(topic for topic in partition_counts if topic in wanted or topic.endswith(_SUFFIX))


@dataclass(frozen=True, slots=True, eq=False)
class DeadLetterTopic:
    """A dead-letter topic. ``consumer``, ``producer``: settings for the operator's group. ``sent``: replayed messages,
    shared by the topics of a cluster."""

    name: str
    consumer: ConsumerSettings
    producer: ProducerSettings
    load_admin: Callable[[], Admin]
    audit: AuditSettings
    sent: SentMessages

    @classmethod
    def of(cls, conf: cfg.ConfigOpts, name: str, group: str, group_id: str, sent: Mapping[str, SentMessages]) -> Self:
        """Return the topic with the settings of ``conf``. ``group``: the option group of the topic's cluster.
        ``group_id``: the operator's consumer group. ``sent``: replayed messages by bootstrap servers. Raises
        `ConfigurationError`."""
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
        # One id per topic and group, so that a replay fences an earlier replay.
        producer = replace(producer_settings(conf, group), transactional_id=None)
        if producer.connection.has_cluster:
            connection = replace(producer.connection, driver=_TRANSACTIONAL_DRIVER)
            producer = replace(producer, connection=connection, transactional_id=f"{group_id}/{name}")
        load_admin = functools.partial(plugins.load_admin, conf, group)
        return cls(
            name, consumer, producer, load_admin, audit_settings(conf), sent[consumer.connection.bootstrap_servers]
        )

    @property
    def servers(self) -> str:
        return self.consumer.connection.bootstrap_servers

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions, or an empty list if the topic does not exist. Raises `TransportError`."""
        with open_consumer(self.consumer, partitions=[]) as consumer:
            try:
                count = consumer.partition_count(self.name)
            except TransportError as error:
                if error.name != _NO_SUCH_TOPIC:
                    raise
                count = 0
        return [TopicPartition(self.name, number) for number in range(count)]

    def reader(self, partitions: Sequence[TopicPartition]) -> KafkaConsumer:
        """Return a consumer that has the group's offsets but does not join the group, so that crashed members do not
        delay it."""
        return open_consumer(self.consumer, partitions=partitions)

    def dead_letter(self, partition: TopicPartition, offset: int) -> DeadLetter | None:
        """Return the dead letter at this offset, or ``None``. Raises `TransportError`."""
        if partition not in self.partitions():
            return None
        with self.reader([partition]) as consumer:
            first, end = consumer.seek_to_beginning()[partition], consumer.seek_to_end()[partition]
        if first <= offset < end:
            for message in LogReader(self.consumer.connection).messages({partition: offset}, {partition: offset + 1}):
                return None if is_note(message) else DeadLetter.of(message)
        return None

    @contextlib.contextmanager
    def replay(
        self, partitions: Sequence[TopicPartition], *, execute: bool, **arguments: Any
    ) -> Iterator[tuple[DeadLetterReplay, Iterator[DeadLetter]]]:
        """Open and yield a replay. ``arguments``: the arguments of `DeadLetterReplay`."""
        with contextlib.ExitStack() as stack:
            audited = audited_source(self.producer, self.audit if execute else None, self.consumer.group_id)
            producer = stack.enter_context(open_producer(stack.enter_context(audited))) if execute else None
            replay = DeadLetterReplay(stack.enter_context(self.reader(partitions)), sent=self.sent, **arguments)
            yield replay, replay.dead_letters() if producer is None else replay.send(producer)

    def deletable(self, partitions: Sequence[TopicPartition], *, handled: bool) -> dict[TopicPartition, range]:
        """Return the offsets to delete: all offsets, or those before the group's offset if ``handled``."""
        with self.reader(partitions) as consumer:
            passed = {each: consumer.position(each) or 0 for each in partitions}
            firsts, ends = consumer.seek_to_beginning(), consumer.seek_to_end()
        return {each: range(first, passed[each] if handled else ends[each]) for each, first in firsts.items()}

    def delete(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete all messages before these offsets."""
        self.load_admin().delete_records(before)

    def skip_deleted(self, before: Mapping[TopicPartition, int]) -> None:
        """Move the group's offsets forward to these offsets."""
        with self.reader(list(before)) as consumer:
            outdated = {each: offset for each, offset in before.items() if (consumer.position(each) or 0) < offset}
            consumer.commit(outdated)
