# SPDX-License-Identifier: Apache-2.0
"""The persister's processes: what each runs, how a dead one is replaced, and what signals do.

SIGTERM: every member finishes and commits its work in flight, leaves its group, and the process ends with status 0.
SIGHUP: the configuration is read again, and every worker drains and is replaced. SIGINT: the process ends at once;
nothing is lost or stored twice, but the group waits for the session to expire.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cotyledon
from cotyledon.types import WorkerId
from msgspec import structs
from oslo_config import cfg

from monasca_common.kafka import DeadLetters
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.persister.member import PersisterMember
from monasca_common.persister.settings import PERSISTER_GROUP, GroupSettings, PersisterSettings, persister_settings
from monasca_common.persister.status import MemberState, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.persister.status_server import status_server
from monasca_common.runtime import joined, shown_url, started, stopped
from monasca_common.runtime.restarts import failures_in_a_row, restart_delay_seconds
from monasca_common.runtime.service import Plan, ServiceThreads, service_manager
from monasca_common.runtime.shutdown import grace_seconds
from monasca_common.runtime.status_server import listen_for_status
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.plugins import open_storage

LOG = logging.getLogger(__name__)

# Of one partition; the next one stops its consumer until a restart, because the topic is probably the wrong one.
_MAX_CONSECUTIVE_DEAD_LETTERS = 10_000
_MARGIN_SECONDS = 1  # the process ends itself before it is killed
# Messages and rows live for a batch and are not in reference cycles. With Python's own thresholds (700, 10, 10) the
# collector scans all of them again and again, which takes two fifths of a worker's time.
_GC_THRESHOLDS = (100_000, 20, 100)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What one worker process runs: members of these groups. ``number``: its index among the equal workers."""

    groups: tuple[GroupSettings, ...]
    number: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{group.kind}-{self.number}" for group in self.groups)


def worker_specs(settings: PersisterSettings, storage: Storage) -> list[list[WorkerSpec]]:
    """The worker processes, with equal ones together. Raises `ConfigurationError` for what the storage does not
    support.

    A database that allows one writing process gets one, with a thread for each group.
    """
    for group in settings.groups:
        if group.kind not in storage.kinds:
            raise ConfigurationError(
                f"enabled in group [{group.name}]: storage driver {settings.storage.driver!r} keeps no "
                f"{group.kind.replace('_', ' ')}; set it to false, or use another driver"
            )
        if group.num_processors > 1 and Capability.MANY_WRITERS not in storage.capabilities:
            raise ConfigurationError(
                f"num_processors in group [{group.name}] is {group.num_processors}, but storage driver "
                f"{settings.storage.driver!r} lets one process write: set it to 1 (threads share the work within it), "
                "or use another driver"
            )
    if Capability.MANY_WRITERS not in storage.capabilities:
        return [[WorkerSpec(settings.groups)]]
    return [
        [WorkerSpec((_own_member(group, number),), number) for number in range(group.num_processors)]
        for group in settings.groups
    ]


def _own_member(group: GroupSettings, number: int) -> GroupSettings:
    """Two processes with one instance id would throw each other out of the group without end."""
    instance = group.consumer.group_instance_id
    if instance is None or group.num_processors == 1:
        return group
    return replace(group, consumer=replace(group.consumer, group_instance_id=f"{instance}-{number}"))


def check_storage(storage: Storage) -> None:
    """Raises `SchemaMismatch`, `WriterAlreadyRuns` and their like; an unavailable database is waited for."""
    try:
        storage.open_writer().close()
    except StorageUnavailable as error:
        LOG.warning("the database is unavailable; it is waited for: %s", error)


class PersisterPlan(Plan):
    """The storage, and the worker processes over it."""

    workers: Sequence[Sequence[WorkerSpec]] = ()

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        check_storage(self.storage)
        statuses = [
            Status(name, group.kind)
            for alike in self.workers
            for spec in alike
            for name, group in zip(spec.names, spec.groups, strict=True)
        ]
        self.board = StatusBoard(statuses)
        self.listener = listen_for_status(PERSISTER_GROUP, self.settings.status)

    def read(self, conf: cfg.ConfigOpts) -> None:
        settings = persister_settings(conf)
        storage = open_storage(settings.storage)
        workers = worker_specs(settings, storage)
        if self.workers and _names(workers) != _names(self.workers):
            raise ConfigurationError("it enables other groups or processes: restart the persister")
        self.settings, self.storage, self.workers = settings, storage, workers


def _names(workers: Sequence[Sequence[WorkerSpec]]) -> list[list[tuple[str, ...]]]:
    return [[spec.names for spec in alike] for alike in workers]


class Respawns:
    """How long a worker that dies repeatedly waits before its next start. The parent keeps it, because it outlives
    them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deaths: dict[str, int] = {}
        self._started: dict[str, float] = {}

    def died(self, name: str, exit_code: int) -> None:
        """Status 0 is not a death: it was asked to end, by a reload."""
        now = self._clock.monotonic()
        lived = now - self._started.get(name, now)
        self._deaths[name] = 0 if exit_code == 0 else failures_in_a_row(self._deaths.get(name, 0), lived)
        self._started[name] = now + self.rest_seconds(name)

    def rest_seconds(self, name: str) -> float:
        """The wait before the next start; 0 after the first death, because its cause may be gone."""
        deaths = self._deaths.get(name, 0)
        return restart_delay_seconds(deaths - 1) if deaths > 1 else 0.0


class PersisterWorker(cotyledon.Service):
    """One process of members, each in a thread of its own."""

    name = "persister"

    def __init__(self, worker_id: WorkerId, plan: PersisterPlan, index: int, respawns: Respawns) -> None:
        super().__init__(worker_id)
        spec = plan.workers[index][worker_id]
        limits = DeadLetters(max_consecutive=_MAX_CONSECUTIVE_DEAD_LETTERS)
        self._rest_seconds = respawns.rest_seconds(spec.names[0])
        self._stop_seconds = grace_seconds(plan.settings.consumers) - _MARGIN_SECONDS
        self._stopping = threading.Event()
        members = []
        for name, group in zip(spec.names, spec.groups, strict=True):
            status = structs.replace(plan.board.read(name), pid=os.getpid(), state=MemberState.STARTING, reason="")
            members.append(PersisterMember(group, plan.storage, limits, plan.board, status))
        self._threads = ServiceThreads(members)

    def run(self) -> None:
        if self._stopping.wait(self._rest_seconds):
            return
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._threads.start()

    def terminate(self) -> None:
        """Return before the time to stop is over, after which cotyledon kills the process: a member that still waits,
        for example for a database, has nothing to lose."""
        self._stopping.set()
        self._threads.stop(self._stop_seconds)


class StatusWorker(cotyledon.Service):
    """The process that answers probes and Prometheus, so that the workers are not disturbed."""

    name = "persister-status"

    def __init__(self, worker_id: WorkerId, plan: PersisterPlan) -> None:
        super().__init__(worker_id)
        assert plan.listener is not None
        self._server = status_server(plan.listener, plan.board)

    def run(self) -> None:
        self._server.serve_forever()

    def terminate(self) -> None:
        self._server.shutdown()


def run(conf: cfg.ConfigOpts) -> None:
    """Run the persister that ``conf`` describes, and end the process, with status 0 after SIGTERM.

    Raises `ConfigurationError`, `StorageError` and `OSError` if it cannot start.
    """
    plan = PersisterPlan(conf)
    respawns = Respawns(SystemClock())
    # The children inherit the board and the listening socket. Before the fork nothing connects and no thread runs.
    manager = service_manager(plan, plan.settings.consumers)
    names: dict[tuple[object, int], tuple[str, ...]] = {}
    if plan.listener is not None:
        manager.add(StatusWorker, args=(plan,))
    for index, alike in enumerate(plan.workers):
        service = manager.add(PersisterWorker, len(alike), args=(plan, index, respawns))
        names |= {(service, number): spec.names for number, spec in enumerate(alike)}

    def on_dead_worker(service: object, number: int, exit_code: int) -> None:
        died = names.get((service, number), ())
        for name in died:
            respawns.died(name, exit_code)
            status = plan.board.read(name)
            status.pid, status.state, status.reason = (
                0,
                MemberState.FAILED,
                f"its process ended with status {exit_code}",
            )
            status.lag, status.restarts = {}, status.restarts + 1
            plan.board.write(status)
        if exit_code and died:
            rest = respawns.rest_seconds(died[0])
            LOG.error("worker %s ended with status %d and is replaced in %.1f s", ", ".join(died), exit_code, rest)

    manager.register_hooks(on_dead_worker=on_dead_worker)
    LOG.info("%s", start_line(plan.settings))
    try:
        manager.run()
    finally:
        LOG.info("%s", stop_line(plan.board.statuses()))


def start_line(settings: PersisterSettings) -> str:
    consumers = settings.consumers
    return started(
        "persister",
        reads=joined(f"{','.join(each.topics)} as {each.group_id}" for each in consumers),
        from_brokers=joined(each.connection.bootstrap_servers for each in consumers),
        into_database=shown_url(settings.storage.connection),
        status_at=settings.status.address,
    )


def stop_line(statuses: Sequence[Status]) -> str:
    return stopped(
        "persister",
        rows_stored=sum(each.stored for each in statuses),
        dead_letters=sum(each.dead_letters for each in statuses),
        restarts=sum(each.restarts for each in statuses),
    )
