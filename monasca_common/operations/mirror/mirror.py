# SPDX-License-Identifier: Apache-2.0
"""Copies topics from one cluster to another, each message once, with its key, value, headers, timestamp and partition.

Each attempt opens the producer, which fences an earlier process of the same mirror name and ends its transaction, reads
the positions from the target, and copies from there. After an error, the next attempt does the same, so start and
recovery use the same procedure.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from oslo_config import cfg

from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import MIRRORED
from monasca_common.audit.settings import audit_settings
from monasca_common.kafka import (
    Batch,
    Clock,
    ConfigurationError,
    FencedError,
    GivenStarts,
    Hook,
    KafkaConsumer,
    KafkaProducer,
    Message,
    MessagingError,
    OffsetOutOfRange,
    Record,
    RetriableError,
    TopicPartition,
    open_admin,
    open_consumer,
    open_producer,
)
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.config import producer_settings
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.plugins import consuming_driver
from monasca_common.kafka.settings import MIB, ConsumerSettings, ProducerSettings
from monasca_common.operations.loop_service import run_service
from monasca_common.operations.mirror import positions
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC, TRANSACTION_SECONDS, MirrorPosition, Positions
from monasca_common.operations.mirror.settings import MIRROR_GROUP, MirrorSettings, mirror_settings
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.operations.mirror.topics import MirrorPlan, check_clusters, plan_topics
from monasca_common.runtime.logs import joined
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS, POLL_SECONDS

LOG = logging.getLogger(__name__)

_NAME = "monasca-mirror"  # a consumer requires a group name; no offsets are committed to this group
_BATCH_MESSAGES = 5000  # messages per transaction; the target's consumers wait for its end
_TOPIC_REFRESH_SECONDS = 60.0
_IDLE_SECONDS = 10.0
_BUFFER_BYTES = 64 * MIB


class Mirror(Loop):
    """Copies topics to another cluster. A second mirror of the same name stops the first. ``audit``: receives the
    counts of copied messages; its owner opens and closes it."""

    def __init__(
        self, settings: MirrorSettings, status: MirrorStatus, clock: Clock, *, audit: AuditReporter | None = None
    ) -> None:
        """The constructor opens no connection. Raises `ConfigurationError` for a driver without clusters."""
        super().__init__("the mirror", clock)
        self._settings = settings
        self._status = status
        self._source, self._target = open_admin(settings.source), open_admin(settings.target)
        self._began = False
        self._audit = audit
        self._hook = Hook()

    def explained(self, error: Exception) -> str:
        if isinstance(error, FencedError):
            raise FencedError(
                f"another process copies as mirror {self._settings.name!r}, so this process stops: run only one mirror "
                "of this name, or give each mirror its own name and topics"
            ) from error
        if isinstance(error, ConfigurationError):  # an operator must act
            raise error
        return super().explained(error)

    def failed(self, error: Exception) -> None:
        self._status.health.failed(error)

    def serve(self) -> None:
        """Open the clients, copy, and close the clients. Return when the partitions to copy have changed."""
        settings, status = self._settings, self._status
        status.health.turned()
        check_clusters(self._source, self._target)
        plan = plan_topics(settings, self._source, self._target, self.stopping)
        if self.stopping.is_set():
            return
        self._report(plan)
        positions.prepare(self._target)
        if not plan.topics:
            status.health.turned("no topic of the source matches topics in group [mirror]")
            self.stopping.wait(_IDLE_SECONDS)
            return
        with ExitStack() as stack:
            producer = open_producer(_producer_settings(settings, plan))
            stack.callback(producer.close, CLOSE_SECONDS)
            producer.init_transactions()
            at = self._claim(producer, plan)
            waiting = [each for topic in plan.topics for each in topic.all_partitions() if each not in at]
            reasons = {each.topic: f"partition {each.partition} has no leader in the source" for each in waiting}
            status.refused = {**plan.refused, **reasons}
            if not at:
                raise RetriableError("no partition of the topics to copy has a leader in the source")
            starts = {partition: position.next_offset for partition, position in at.items()}
            if self._audit is not None:
                self._hook = ReaderAudit(self._audit, positions=starts)
            consumer = _open_reader(settings, starts)
            stack.callback(consumer.close, CLOSE_SECONDS)
            status.begins(topic.name for topic in plan.topics)
            status.lag = lambda: _lag_by_topic(consumer)
            stack.callback(setattr, status, "lag", dict)
            status.health.turned("")
            LOG.info("mirror %r copies %d topics", settings.name, len(plan.topics))
            self._copy(producer, consumer, dict(at), plan)

    def _report(self, plan: MirrorPlan) -> None:
        """Log the plan. Raises `ConfigurationError` if a topic cannot be copied at the first attempt."""
        refused = [f"topic {name}: {reason}" for name, reason in plan.refused.items()]
        if refused and not self._began:
            raise ConfigurationError("; ".join(refused))
        self._began = True
        for reason in refused:
            LOG.error("not copied: %s", reason)
        self._status.refused = plan.refused

    def _claim(self, producer: KafkaProducer, plan: MirrorPlan) -> dict[TopicPartition, MirrorPosition]:
        """Return the position of each partition. Positions of new partitions are written before the first copy, so that
        other mirrors see them and a crash does not change where the copy starts.

        Raises `ConfigurationError` for a topic that another mirror copies, or that was recreated in the source.
        """
        known = self._read_positions()
        self._refuse_others(known, plan)
        at = self._own(known, plan)
        new = self._new(plan, at)
        if new:
            with producer.transaction() as transaction:
                for position in new.values():
                    transaction.send(POSITIONS_TOPIC, position.record())
            try:  # both mirrors may have read before either wrote
                self._refuse_others(self._read_positions(), plan)
            except ConfigurationError:
                with producer.transaction() as transaction:
                    for position in new.values():
                        transaction.send(POSITIONS_TOPIC, position.withdrawn())
                raise
        return at | new

    def _read_positions(self) -> Positions:
        return positions.read_positions(self._target, self._settings.target)

    def _own(self, known: Positions, plan: MirrorPlan) -> dict[TopicPartition, MirrorPosition]:
        """Return the positions of this mirror, except in topics that were recreated in the target and contain no
        copies."""
        own = {}
        for topic in plan.topics:
            for partition in topic.all_partitions():
                position = known.get((self._settings.name, partition))
                if position is None or position.target_id != topic.target_id:
                    continue
                if position.source_id != topic.source_id:
                    raise ConfigurationError(
                        f"topic {topic.name} was deleted and recreated in the source, so its offsets belong to other "
                        "messages: delete the topic in the target to copy it from its beginning"
                    )
                own[partition] = position
        return own

    def _refuse_others(self, known: Positions, plan: MirrorPlan) -> None:
        ids = {topic.name: topic.target_id for topic in plan.topics}
        for (name, partition), position in known.items():
            if name != self._settings.name and ids.get(partition.topic) == position.target_id:
                raise ConfigurationError(
                    f"topic {partition.topic} is copied by mirror {name!r}, and a second mirror would duplicate it: "
                    "remove it from topics in group [mirror], or use that name"
                )

    def _new(
        self, plan: MirrorPlan, at: Mapping[TopicPartition, MirrorPosition]
    ) -> dict[TopicPartition, MirrorPosition]:
        """Return the positions of partitions that are not in ``at``, except those without a leader."""
        ids = {partition: topic for topic in plan.topics for partition in topic.all_partitions() if partition not in at}
        leaders = self._source.leaders() if ids else {}
        led = [each for each in ids if leaders.get(each.topic, {}).get(each.partition) is not None]
        return {
            partition: MirrorPosition(
                self._settings.name, partition, start, start, ids[partition].source_id, ids[partition].target_id
            )
            for partition, start in self._source.first_offsets(led).items()
        }

    def _copy(
        self,
        producer: KafkaProducer,
        consumer: KafkaConsumer,
        at: dict[TopicPartition, MirrorPosition],
        plan: MirrorPlan,
    ) -> None:
        """Copy messages. ``at``: the position of each partition, updated after each transaction."""
        look_at = self.clock.monotonic() + _TOPIC_REFRESH_SECONDS
        while not self.stopping.is_set():
            self._status.health.turned()
            if self.clock.monotonic() >= look_at:
                plan_now = plan_topics(self._settings, self._source, self._target, self.stopping)
                if plan_now != plan or self._new(plan, at):
                    return
                look_at = self.clock.monotonic() + _TOPIC_REFRESH_SECONDS
                LOG.info("%d messages copied, %d left", self._status.copied, sum(self._status.lag().values()))
            batch = self._poll(consumer, at)
            self._hook.after_poll(batch)
            moved = _moved(at, batch, consumer)
            if moved:
                self._copy_batch(producer, batch, moved)
                at |= moved
            else:
                self._status.polled_nothing()

    def _poll(self, consumer: KafkaConsumer, at: Mapping[TopicPartition, MirrorPosition]) -> Batch:
        """Return messages, including those of a failed poll, because the consumer does not return them again."""
        batch = consumer.poll(_BATCH_MESSAGES, POLL_SECONDS)
        for error in batch.errors:
            if isinstance(error, OffsetOutOfRange):
                self._skip_deleted(error, consumer, at[error.partition].next_offset)
            elif not isinstance(error, RetriableError):
                raise error
        return batch

    def _skip_deleted(self, error: OffsetOutOfRange, consumer: KafkaConsumer, copied: int) -> None:
        partition = error.partition
        first = self._source.first_offsets([partition])[partition]
        deleted, place = first - copied, f"{partition.topic}/{partition.partition} was copied to offset {copied}"
        if deleted <= 0:
            raise ConfigurationError(
                f"{place}, which is after the end of the source: the topic was recreated, or lost messages in an "
                "unclean election. Delete the topic in the target to copy it from its beginning"
            ) from error
        if not self._settings.skip_deleted:
            raise ConfigurationError(
                f"{place}, but the source starts at {first}: retention deleted messages before they were copied. To "
                "continue without them, set skip_deleted in group [mirror]"
            ) from error
        LOG.error("%d offsets of %s/%d were deleted by retention before they were copied", deleted, *partition)
        self._status.skipped(partition.topic, deleted)
        consumer.seek(partition, first)

    def _copy_batch(
        self, producer: KafkaProducer, batch: Batch, moved: Mapping[TopicPartition, MirrorPosition]
    ) -> None:
        """Write the copies and the positions after these messages in one transaction."""
        try:
            with producer.transaction() as transaction:
                for message in batch:
                    transaction.send(message.topic, copy_of(message))
                for position in moved.values():
                    transaction.send(POSITIONS_TOPIC, position.record())
                self._hook.before_commit({partition: position.next_offset for partition, position in moved.items()})
                fail_point("mirror.before_commit")
        except MessagingError as error:
            self._hook.after_commit(dict.fromkeys(moved, error))
            self._status.ended("failed")
            raise
        fail_point("mirror.after_commit")
        self._hook.after_commit(dict.fromkeys(moved))
        self._status.ended("committed")
        for part in batch.partitions:
            topic = part.topic_partition.topic
            self._status.committed(topic, len(part), sum(map(_size, part)), part.timestamps[-1])


def _open_reader(settings: MirrorSettings, starts: Mapping[TopicPartition, int]) -> KafkaConsumer:
    topics = tuple(sorted({partition.topic for partition in starts}))
    consumer = ConsumerSettings(settings.source, topics, _NAME, buffer_bytes=_BUFFER_BYTES)
    return open_consumer(consumer, partitions=starts, listener=GivenStarts(starts))


def copy_of(message: Message) -> Record:
    """Return the record to send. Kafka producers reject timestamps of 0 or less, so a message with such a timestamp
    gets the current time."""
    timestamp_ms = message.timestamp_ms if (message.timestamp_ms or 0) > 0 else None
    return Record(message.value, message.key, message.headers, timestamp_ms, message.partition)


def _moved(
    at: Mapping[TopicPartition, MirrorPosition], batch: Batch, consumer: KafkaConsumer
) -> dict[TopicPartition, MirrorPosition]:
    """Return the positions after a batch. At the end of a log, positions also skip control records, so that retention
    does not overtake the positions."""
    reached = {part.topic_partition: part.next_offset for part in batch.partitions}
    for partition, end in consumer.take_ends().items():
        reached[partition] = max(end.next_offset, reached.get(partition, 0))
    return {
        partition: replace(at[partition], next_offset=offset)
        for partition, offset in reached.items()
        if offset > at[partition].next_offset
    }


def _producer_settings(settings: MirrorSettings, plan: MirrorPlan) -> ProducerSettings:
    limits = [topic.max_message_bytes for topic in plan.topics]
    return ProducerSettings(
        settings.target,
        transactional_id=f"monasca-mirror-{settings.name}",
        transaction_timeout_seconds=TRANSACTION_SECONDS,
        max_message_bytes=min([*limits, 1_000_000]),
        verbatim=True,
    )


def _size(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers


def _lag_by_topic(consumer: KafkaConsumer) -> Mapping[str, int]:
    lags: Counter[str] = Counter()
    for partition, lag in consumer.lag(0.0).items():
        lags[partition.topic] += lag
    return lags


def run(conf: cfg.ConfigOpts) -> None:
    """Run the mirror of ``conf`` as a service. A signal stops it after the open transaction. Raises
    `ConfigurationError`, and `FencedError` if another process copies as this mirror."""
    settings = mirror_settings(conf)
    status = MirrorStatus(SystemClock())
    audit = audit_settings(conf)
    with ExitStack() as stack:
        reporter = None
        if audit.enabled:
            reporter = stack.enter_context(AuditReporter(audit, producer_settings(conf), MIRRORED, settings.name))
        mirror = Mirror(settings, status, SystemClock(), audit=reporter)
        facts = {
            "name": settings.name,
            "topics": joined(settings.topics),
            "source": settings.source.bootstrap_servers,
            "target": settings.target.bootstrap_servers,
            "with_driver": consuming_driver(settings.source),
        }
        served = MIRROR_GROUP, settings.status, status.health, status.registry
        run_service("mirror", mirror, *served, facts=facts)
