# SPDX-License-Identifier: Apache-2.0
"""The processes of the sink, and the decoders of its mapping file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Literal

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import entry_point, load_serializer
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.serialization.base import Serializer
from monasca_common.runtime.member import WorkerPart
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.workers import WorkersPlan, run_workers
from monasca_common.sink.decoder import TopicDecoder
from monasca_common.sink.mapping import MESSAGE_TYPES, TableMapping
from monasca_common.sink.settings import SINK_GROUP, SinkSettings, sink_settings
from monasca_common.storage.base import Storage
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts
from monasca_common.storage.batch_member import BatchMember, own_consumer
from monasca_common.storage.plugins import check_processes, check_storage, open_storage
from monasca_common.storage.tables.rows import TopicChanges
from monasca_common.storage.tables.steps import misfit
from monasca_common.storage.tables.writer import TablesWriter, storing
from monasca_common.storage.write_metrics import WriteMetrics

PREFIX = "monasca_sink"
OUTCOMES = ("stored", "repeated", "replaced", "deleted", "skipped")
DATABASES = ("sqlite", "postgresql")


def decoders(tables: Sequence[TableMapping], conf: cfg.ConfigOpts) -> dict[str, TopicDecoder]:
    """Return the decoder of each topic. Raises `ConfigurationError` for a serializer that is unknown or refused."""

    def load(table: TableMapping, which: Literal["key", "value"]) -> Serializer:
        name, kind = table.key_serializer if which == "key" else table.serializer, None
        try:
            if which == "value" and table.message_type is not None:
                kind = entry_point(MESSAGE_TYPES, table.message_type, option="message_type")
            return load_serializer(name, conf=conf, type=kind)
        except ConfigurationError as error:
            raise ConfigurationError(f"[{table.name}] in mapping_file: {error}") from error

    by_topic = defaultdict(list)
    for table in tables:
        by_topic[table.topic].append(table)
    return {topic: TopicDecoder(each, load) for topic, each in by_topic.items()}


def sink_member(
    settings: SinkSettings,
    storage: Storage,
    by_topic: Mapping[str, TopicDecoder],
    metrics: WriteMetrics,
    status: MemberStatus,
) -> BatchMember:
    """Return a member that stores the messages that one consumer reads."""

    def handler(parts: HandlerParts) -> BatchHandler[TopicChanges]:
        tables = {
            topic: TablesWriter(each.tables, settings.storage.driver, partial(misfit, settings.storage, each.tables))
            for topic, each in by_topic.items()
        }
        return BatchHandler(parts, by_topic, storing(tables), partial(metrics.wrote, status.name))

    tap = audit_tap(settings.audit, "database", settings.consumer.group_id)
    clients = settings.consumer, settings.producer
    return BatchMember(*clients, storage, status, handler, threads=settings.threads, tap=tap)


class SinkPlan(WorkersPlan):
    """The settings, the storage and the decoders."""

    service = "sink"
    settings: SinkSettings

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings = sink_settings(conf)
        storage, by_topic = open_sink_storage(settings), decoders(settings.tables, conf)
        if settings.num_processors != getattr(self, "settings", settings).num_processors:
            raise ConfigurationError(f"num_processors in group [{SINK_GROUP}] has changed: restart the sink")
        self.settings, self.storage, self.decoders = settings, storage, by_topic

    def names(self) -> Sequence[Sequence[str]]:
        return [[f"{SINK_GROUP}-{number}"] for number in range(self.settings.num_processors)]

    def open_parts(
        self, slot: int, statuses: Sequence[MemberStatus], stack: ExitStack
    ) -> tuple[Sequence[WorkerPart], CollectorRegistry]:
        metrics = WriteMetrics(PREFIX, [status.name for status in statuses], OUTCOMES)
        consumer = own_consumer(self.settings.consumer, slot, self.settings.num_processors)
        settings = replace(self.settings, consumer=consumer)
        members = [sink_member(settings, self.storage, self.decoders, metrics, status) for status in statuses]
        return members, metrics.registry


def open_sink_storage(settings: SinkSettings) -> Storage:
    """Return the storage. Raises `ConfigurationError` for a database that the sink does not support."""
    driver = settings.storage.driver
    if driver not in DATABASES:
        raise ConfigurationError(f"driver in group [storage] is {driver!r}: a sink writes to {' or '.join(DATABASES)}")
    storage = open_storage(settings.storage)
    check_processes(SINK_GROUP, settings.num_processors, settings.storage, storage)
    return storage


def run(conf: cfg.ConfigOpts) -> None:
    """Run the sink, and then exit, with status 0 after SIGTERM.

    Raises `ConfigurationError`, `StorageError` and `OSError` if it cannot start.
    """
    plan = SinkPlan(conf)
    check_storage(plan.storage)
    run_workers(plan)
