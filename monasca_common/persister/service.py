# SPDX-License-Identifier: Apache-2.0
"""The processes of the persister: their members and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.persister.decoder import decoder
from monasca_common.persister.settings import GroupSettings, PersisterSettings, persister_settings
from monasca_common.runtime.member import WorkerPart
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.workers import WorkersPlan, run_workers
from monasca_common.storage.base import Capability, Rows, Storage
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts, store_rows
from monasca_common.storage.batch_member import BatchMember, own_consumer
from monasca_common.storage.plugins import check_processes, check_storage, open_storage
from monasca_common.storage.write_metrics import WriteMetrics

PREFIX = "monasca_persister"
OUTCOMES = ("stored", "repeated", "conflicting", "skipped")


def worker_groups(settings: PersisterSettings, storage: Storage) -> list[dict[str, GroupSettings]]:
    """Return the group of each member, by its name, for each worker process; if only one process can write to the
    database, return one process with a member per group. Raises `ConfigurationError` for settings that the storage does
    not support."""
    for group in settings.groups:
        if group.kind not in storage.kinds:
            raise ConfigurationError(
                f"enabled in group [{group.name}] is true, but storage driver {settings.storage.driver!r} does not "
                f"store {group.kind.replace('_', ' ')}: set it to false, or use another driver"
            )
        check_processes(group.name, group.num_processors, settings.storage, storage)
    if Capability.MANY_WRITERS not in storage.capabilities:
        return [{f"{group.kind}-0": group for group in settings.groups}]
    return [
        {f"{group.kind}-{number}": replace(group, consumer=own_consumer(group.consumer, number, group.num_processors))}
        for group in settings.groups
        for number in range(group.num_processors)
    ]


def persister_member(
    group: GroupSettings, storage: Storage, metrics: WriteMetrics, status: MemberStatus
) -> BatchMember:
    """Return a member that stores the messages that one consumer of ``group`` reads."""

    def handler(parts: HandlerParts) -> BatchHandler[Rows]:
        decoders = dict.fromkeys(group.consumer.topics, decoder(group))
        return BatchHandler(parts, decoders, store_rows, partial(metrics.wrote, status.name))

    tap = audit_tap(group.audit, "database", group.consumer.group_id)
    return BatchMember(group.consumer, group.producer, storage, status, handler, threads=group.threads, tap=tap)


class PersisterPlan(WorkersPlan):
    """The storage and the worker processes."""

    service = "persister"
    settings: PersisterSettings
    workers: Sequence[Mapping[str, GroupSettings]] = ()

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings = persister_settings(conf)
        storage = open_storage(settings.storage)
        workers = worker_groups(settings, storage)
        if self.workers and list(map(list, workers)) != self.names():
            raise ConfigurationError("the enabled groups or processes have changed: restart the persister")
        self.settings, self.storage, self.workers = settings, storage, workers

    def names(self) -> Sequence[Sequence[str]]:
        return list(map(list, self.workers))

    def open_parts(
        self, slot: int, statuses: Sequence[MemberStatus], stack: ExitStack
    ) -> tuple[Sequence[WorkerPart], CollectorRegistry]:
        metrics = WriteMetrics(PREFIX, [status.name for status in statuses], OUTCOMES)
        members = [
            persister_member(group, self.storage, metrics, status)
            for group, status in zip(self.workers[slot].values(), statuses, strict=True)
        ]
        return members, metrics.registry


def run(conf: cfg.ConfigOpts) -> None:
    """Run the persister, and then exit, with status 0 after SIGTERM.

    Raises `ConfigurationError`, `StorageError` and `OSError` if it cannot start.
    """
    plan = PersisterPlan(conf)
    check_storage(plan.storage)
    run_workers(plan)
