# SPDX-License-Identifier: Apache-2.0
"""The persister's processes: what each process runs, how an ended process is replaced, and what signals do.

SIGTERM: each member finishes and commits its work in flight and leaves its group; the process ends with status 0.
SIGHUP: the configuration is read again, and each worker drains and is replaced. SIGINT: the process ends immediately;
no message is lost or stored twice, but the group waits until the session expires.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, MessagingError, Processor
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.persister.handler import RowsHandler, decoder
from monasca_common.persister.metrics import PersisterMetrics, WorkerMetrics, rows_stored
from monasca_common.persister.settings import PERSISTER_GROUP, GroupSettings, PersisterSettings, persister_settings
from monasca_common.persister.start_offsets import StartOffsets
from monasca_common.persister.writer_pool import WriterPool
from monasca_common.runtime import joined, shown_url, started, stopped
from monasca_common.runtime.member import DATABASE_RETRY, Member
from monasca_common.runtime.member_health import MemberState, MemberStatus, members_health
from monasca_common.runtime.restarts import failures_in_a_row, restart_delay_seconds
from monasca_common.runtime.service import Plan, ServiceThreads, service_manager
from monasca_common.runtime.shutdown import grace_seconds
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard, StatusReporter
from monasca_common.runtime.status_server import StatusServer, listen_for_status
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.errors import StorageError, StorageUnavailable
from monasca_common.storage.plugins import open_storage

LOG = logging.getLogger(__name__)

# Of one partition; the next one stops its consumer until a restart, because the configured topic is probably wrong.
_MAX_CONSECUTIVE_DEAD_LETTERS = 10_000
_MARGIN_SECONDS = 1  # the process ends itself before it is killed
# Messages and rows live for a batch and are not in reference cycles. With Python's own thresholds (700, 10, 10) the
# collector scans all of them again and again, which takes two fifths of a worker's time.
_GC_THRESHOLDS = (100_000, 20, 100)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process with a member of each of these groups. ``number``: its index among those of its group."""

    groups: tuple[GroupSettings, ...]
    number: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{group.kind}-{self.number}" for group in self.groups)


def worker_specs(settings: PersisterSettings, storage: Storage) -> list[WorkerSpec]:
    """Return the worker processes; one process, with a thread per group, if the database permits only one writer.
    Raises `ConfigurationError` for settings that the storage does not support."""
    for group in settings.groups:
        if group.kind not in storage.kinds:
            raise ConfigurationError(
                f"enabled in group [{group.name}] is true, but storage driver {settings.storage.driver!r} does not "
                f"store {group.kind.replace('_', ' ')}: set it to false, or use another driver"
            )
        if group.num_processors > 1 and Capability.MANY_WRITERS not in storage.capabilities:
            raise ConfigurationError(
                f"num_processors in group [{group.name}] is {group.num_processors}, but storage driver "
                f"{settings.storage.driver!r} permits one writing process: set it to 1, whose threads share the work, "
                "or use another driver"
            )
    if Capability.MANY_WRITERS not in storage.capabilities:
        return [WorkerSpec(settings.groups)]
    return [
        WorkerSpec((_own_member(group, number),), number)
        for group in settings.groups
        for number in range(group.num_processors)
    ]


def _own_member(group: GroupSettings, number: int) -> GroupSettings:
    """Return the group with an instance id per process, because equal ids would fence each other repeatedly."""
    instance = group.consumer.group_instance_id
    if instance is None or group.num_processors == 1:
        return group
    return replace(group, consumer=replace(group.consumer, group_instance_id=f"{instance}-{number}"))


def check_storage(storage: Storage) -> None:
    """Raise `StorageError`, for example `SchemaMismatch`, unless the database is only unavailable."""
    try:
        storage.open_writer().close()
    except StorageUnavailable as error:
        LOG.warning("the database is unavailable; waiting for it: %s", error)


class PersisterMember(Member):
    """Stores the messages that one consumer of ``group`` reads."""

    expected = (MessagingError, StorageError)

    def __init__(
        self,
        group: GroupSettings,
        storage: Storage,
        dead_letters: DeadLetters,
        metrics: WorkerMetrics,
        status: MemberStatus,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            status.name,
            group.consumer,
            group.producer,
            tap=audit_tap(group.audit, "database", group.consumer.group_id),
            clock=clock,
            status=status,
        )
        self._group = group
        self._storage = storage
        self._dead_letters = dead_letters
        self._metrics = metrics

    def open(self, stack: contextlib.ExitStack) -> Processor:
        writers = WriterPool(self._storage)
        stack.callback(writers.close)
        fail = partial(self.fail, stack)
        starts = StartOffsets(writers, self.health, fail)
        consumer, producer, hooks = self.open_clients(stack, starts.positions)
        # Without offsets in the database, those in Kafka are used: rows are stored at least once, and overwrite by key.
        if Capability.TRANSACTIONAL_OFFSETS in self._storage.capabilities:
            starts.attach(consumer)
        handler = RowsHandler(
            self._group.kind,
            consumer.settings.group_id,
            decoder(self._group),
            writers,
            starts,
            self.health,
            partial(self._metrics.wrote, self.name),
            fail,
        )
        return Processor(
            consumer,
            handler,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=self._dead_letters,
            threads=self._group.threads,
            max_wait_seconds=consumer.settings.max_wait_time_seconds,
            accounted=handler.accounted,
            hooks=hooks,
        )


class PersisterPlan(Plan):
    """The storage and the worker processes."""

    workers: Sequence[WorkerSpec] = ()

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        check_storage(self.storage)
        self.board = StatusBoard([ProcessStatus([MemberStatus(name) for name in spec.names]) for spec in self.workers])
        self.listener = listen_for_status(PERSISTER_GROUP, self.settings.status)

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings = persister_settings(conf)
        storage = open_storage(settings.storage)
        workers = worker_specs(settings, storage)
        if self.workers and [spec.names for spec in workers] != [spec.names for spec in self.workers]:
            raise ConfigurationError("other groups or processes are enabled: restart the persister")
        self.settings, self.storage, self.workers = settings, storage, workers


class Respawns:
    """The back-off of workers that exit repeatedly. The parent has it, because it outlives them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deaths: dict[int, int] = {}
        self._started: dict[int, float] = {}

    def ended(self, slot: int, *, failed: bool) -> None:
        now = self._clock.monotonic()
        lived = now - self._started.get(slot, now)
        self._deaths[slot] = failures_in_a_row(self._deaths.get(slot, 0), lived) if failed else 0
        self._started[slot] = now + self.rest_seconds(slot)

    def rest_seconds(self, slot: int) -> float:
        """Return the wait before the next start; 0 after the first exit, because its cause may have ended."""
        deaths = self._deaths.get(slot, 0)
        return restart_delay_seconds(deaths - 1) if deaths > 1 else 0.0


class PersisterWorker(cotyledon.Service):
    """A process of members, each in its own thread. ``slot``: its index among the workers, and on the board."""

    name = "persister"

    def __init__(self, worker_id: WorkerId, plan: PersisterPlan, slot: int, respawns: Respawns) -> None:
        super().__init__(worker_id)
        limits = DeadLetters(max_consecutive=_MAX_CONSECUTIVE_DEAD_LETTERS)
        self._rest_seconds = respawns.rest_seconds(slot)
        self._stop_seconds = grace_seconds(plan.settings.consumers) - _MARGIN_SECONDS
        self._stopping = threading.Event()
        former = plan.board.read(slot)
        metrics = WorkerMetrics([member.name for member in former.members])
        members = []
        for group, status in zip(plan.workers[slot].groups, former.members, strict=True):
            status.pid, status.state, status.reason = os.getpid(), MemberState.STARTING, ""
            members.append(PersisterMember(group, plan.storage, limits, metrics, status))
        self._threads = ServiceThreads(members)
        self._reporter = StatusReporter(plan.board, slot, members, metrics.registry)

    def run(self) -> None:
        if self._stopping.wait(self._rest_seconds):
            return
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._threads.start()
        self._reporter.start()

    def terminate(self) -> None:
        """Return before cotyledon kills the process. A member that still waits, for example for a database, has no
        unfinished work."""
        self._stopping.set()
        self._threads.stop(self._stop_seconds)
        self._reporter.stop()


class StatusWorker(cotyledon.Service):
    """The process that answers probes and Prometheus, so that they do not delay the workers."""

    name = "persister-status"

    def __init__(self, worker_id: WorkerId, plan: PersisterPlan) -> None:
        super().__init__(worker_id)
        assert plan.listener is not None
        health = members_health("persister", plan.board.members, noun="workers")
        self._server = StatusServer(plan.listener, health, PersisterMetrics(plan.board).registry)

    def run(self) -> None:
        self._server.serve_forever()

    def terminate(self) -> None:
        self._server.shutdown()


def run(conf: cfg.ConfigOpts) -> None:
    """Run the persister, and end the process, with status 0 after SIGTERM.

    Raises `ConfigurationError`, `StorageError` and `OSError` if it cannot start.
    """
    plan = PersisterPlan(conf)
    respawns = Respawns(SystemClock())
    # The children inherit the board and the listening socket. The parent has no connections and no threads.
    manager = service_manager(plan, plan.settings.consumers)
    if plan.listener is not None:
        manager.add(StatusWorker, args=(plan,))
    slots: dict[object, int] = {
        manager.add(PersisterWorker, args=(plan, slot, respawns)): slot for slot in range(len(plan.workers))
    }

    def on_dead_worker(service: object, _worker: int, exit_code: int) -> None:
        slot = slots.get(service)
        if slot is None:
            return
        status = plan.board.read(slot)
        for member in status.members:
            member.pid, member.state, member.lag = 0, MemberState.FAILED, {}
            member.reason, member.restarts = f"its process ended with status {exit_code}", member.restarts + 1
        plan.board.write(slot, status)
        respawns.ended(slot, failed=exit_code != 0)
        if exit_code:
            names, rest = joined(member.name for member in status.members), respawns.rest_seconds(slot)
            LOG.error("worker %s ended with status %d; it is replaced in %.1f s", names, exit_code, rest)

    manager.register_hooks(on_dead_worker=on_dead_worker)
    LOG.info("%s", start_line(plan.settings))
    try:
        manager.run()
    finally:
        LOG.info("%s", stop_line(plan.board))


def start_line(settings: PersisterSettings) -> str:
    consumers = settings.consumers
    return started(
        "persister",
        reads=joined(f"{','.join(each.topics)} as {each.group_id}" for each in consumers),
        from_brokers=joined(each.connection.bootstrap_servers for each in consumers),
        into_database=shown_url(settings.storage.connection),
        status_at=settings.status.address,
    )


def stop_line(board: StatusBoard) -> str:
    return stopped(
        "persister",
        rows_stored=rows_stored(board),
        dead_letters=sum(member.dead_letters for member in board.members()),
        restarts=sum(member.restarts for member in board.members()),
    )
