# SPDX-License-Identifier: Apache-2.0
"""A member that writes batches to a database with their offsets, and the settings of its consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from monasca_common.kafka import DeadLetters, MessagingError, Processor, RetryPolicy
from monasca_common.kafka.config import KAFKA_GROUP, consumer_settings
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.runtime.member import Attempt, Member, Tap
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts
from monasca_common.storage.errors import StorageError
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.writer_pool import WriterPool

# Maximum number of consecutive dead letters of one partition; one more stops its consumer until a restart, because the
# topic or the mapping is probably wrong.
_MAX_CONSECUTIVE_DEAD_LETTERS = 10_000
# The back-off of a handler while the database is unavailable limits the load, and lets work resume within seconds.
DATABASE_RETRY = RetryPolicy(backoff_seconds=0.1, max_backoff_seconds=3.0)
# Defaults that differ from those of [kafka]. A transaction of 50 rows costs the database as much as one of 20,000 rows
# (SQLite writes each page that contains one of the rows). stop_timeout_seconds leaves the rest of the documented 10
# seconds for leaving the group and for the parent process.
_DEFAULTS_OF_KAFKA: Mapping[str, Any] = {
    "batch_size": 20_000,
    # room for two batches in progress and the next batches, with an overhead of 500 bytes per message
    "buffer_bytes": 128 * 1024 * 1024,
    "max_wait_time_seconds": 0.1,
    "stop_timeout_seconds": 5.0,
}
# A killed worker is replaced immediately, but its partitions wait until its session times out.
_SESSION_TIMEOUT_SECONDS = 10.0


def set_batch_defaults(conf: cfg.ConfigOpts) -> None:
    """Set the defaults of options in ``[kafka]``, which must already be registered."""
    for name, default in _DEFAULTS_OF_KAFKA.items():
        conf.set_default(name, default, group=KAFKA_GROUP)


def batch_consumer_settings(conf: cfg.ConfigOpts, group: str) -> ConsumerSettings:
    """Return the settings of a consumer with a short session time-out. Raises `ConfigurationError`."""
    consumer = consumer_settings(conf, group)
    if consumer.group_protocol == "classic" and consumer.session_timeout_seconds is None:
        quick = min(_SESSION_TIMEOUT_SECONDS, consumer.max_poll_interval_seconds)
        consumer = replace(consumer, session_timeout_seconds=quick)
    return consumer


def own_consumer(consumer: ConsumerSettings, number: int, processes: int) -> ConsumerSettings:
    """Return the settings of one of several processes, with its own instance id, because members with equal ids would
    fence each other repeatedly."""
    if (instance := consumer.group_instance_id) is None or processes == 1:
        return consumer
    return replace(consumer, group_instance_id=f"{instance}-{number}")


class BatchMember(Member):
    """Stores the messages that one consumer reads, in ``threads`` threads. ``handler``: creates the handler of one
    attempt."""

    expected = (MessagingError, StorageError)

    def __init__(
        self,
        consumer: ConsumerSettings,
        producer: ProducerSettings,
        storage: Storage,
        status: MemberStatus,
        handler: Callable[[HandlerParts], BatchHandler[Any]],
        *,
        threads: int,
        tap: Tap | None,
    ) -> None:
        super().__init__(status, consumer, producer, tap=tap)
        self._storage = storage
        self._handler = handler
        self._threads = threads

    def open(self, attempt: Attempt) -> Processor:
        writers = WriterPool(self._storage)
        attempt.callback(writers.close)
        starts = StartOffsets(writers, self.health, attempt.fail)
        consumer, producer, hooks = self.open_clients(attempt, starts.positions)
        # Without offsets in the database, the offsets in Kafka are used: rows are stored at least once, and overwrite
        # rows with the same key.
        if Capability.OFFSETS in self._storage.capabilities:
            starts.attach(consumer)
        handler = self._handler(HandlerParts(consumer.settings.group_id, writers, starts, self.health, attempt.fail))
        if consumer.settings.connection.tracing != "off":
            handler.trace()
        return Processor(
            consumer,
            handler,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=DeadLetters(max_consecutive=_MAX_CONSECUTIVE_DEAD_LETTERS),
            threads=self._threads,
            max_wait_seconds=consumer.settings.max_wait_time_seconds,
            accounted=handler.accounted,
            hooks=[*hooks, handler],
        )
