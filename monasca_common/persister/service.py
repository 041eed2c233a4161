# SPDX-License-Identifier: Apache-2.0
"""The persister's processes: who runs where, what replaces a dead one, and what signals do.

SIGTERM: every member finishes and commits what it has in hand, leaves its group, and the process ends with status 0.
SIGHUP: the configuration is read again, and every worker drains and is replaced. SIGINT: ends at once; nothing that was
stored is lost or stored again, but the group waits for the session to expire.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import socket
import threading
from dataclasses import dataclass, replace

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.dead_letter import DeadLetters
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.persister.account import State, Status
from monasca_common.persister.board import Board
from monasca_common.persister.member import HEALTHY_SECONDS, RESTARTS, Member
from monasca_common.persister.options import persister_settings
from monasca_common.persister.settings import GroupSettings, PersisterSettings
from monasca_common.persister.status_server import StatusServer
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.plugins import open_storage

LOG = logging.getLogger(__name__)

# Beyond the time in which members stop: for their clients to close, and for the parent to notice.
_CLOSE_SECONDS = 5
# Messages and rows live for a batch and are part of no cycle; with Python's own thresholds (700, 10, 10) the collector
# walks all that are in memory again and again, which is two fifths of a worker's time.
_GC_THRESHOLDS = (100_000, 20, 100)


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker process runs: members of these groups. ``number``: which of its like it is."""

    groups: tuple[GroupSettings, ...]
    number: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{group.kind}-{self.number}" for group in self.groups)


def jobs(settings: PersisterSettings, storage: Storage) -> list[list[Job]]:
    """The worker processes, those alike together. Raises `ConfigurationError` for what the storage cannot take.

    A database that one process may write to gets one, with a thread for each group.
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
        return [[Job(settings.groups)]]
    return [
        [Job((_own_member(group, number),), number) for number in range(group.num_processors)]
        for group in settings.groups
    ]


def _own_member(group: GroupSettings, number: int) -> GroupSettings:
    """Two processes with one instance id would throw each other out of the group for ever."""
    instance = group.consumer.group_instance_id
    if instance is None or group.num_processors == 1:
        return group
    return replace(group, consumer=replace(group.consumer, group_instance_id=f"{instance}-{number}"))


def check_storage(storage: Storage) -> None:
    """Raises `SchemaMismatch`, `WriterAlreadyRuns` and their like; a database that is away will be waited for."""
    try:
        storage.open_writer().close()
    except StorageUnavailable as error:
        LOG.warning("the database is away; it is waited for: %s", error)


class Plan:
    """What the next process that starts is to do. Changed in the parent alone; children have it as of their start."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self.settings = persister_settings(conf)
        self.storage = open_storage(self.settings.storage)
        self.jobs = jobs(self.settings, self.storage)
        check_storage(self.storage)
        statuses = [
            Status(name, group.kind)
            for alike in self.jobs
            for job in alike
            for name, group in zip(job.names, job.groups, strict=True)
        ]
        self.board = Board(statuses)
        self.listener = listen(self.settings)

    def reload(self) -> None:
        """Read the configuration again; one that is refused, or needs other processes, changes nothing."""
        try:
            if not self._conf.reload_config_files():
                return
            settings = persister_settings(self._conf)
            storage = open_storage(settings.storage)
            changed = jobs(settings, storage)
        except Exception as error:
            LOG.error("the configuration was not read again, the former one stays: %s", error)
            return
        if [[job.names for job in alike] for alike in changed] != [[job.names for job in alike] for alike in self.jobs]:
            LOG.error("the configuration enables other groups or processes: that takes a restart; the former one stays")
            return
        self.settings, self.storage, self.jobs = settings, storage, changed


class Respawns:
    """How long a worker that keeps dying rests before its next start. Kept by the parent, which outlives them all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deaths: dict[str, int] = {}
        self._started: dict[str, float] = {}

    def died(self, name: str, exit_code: int) -> None:
        """Status 0 is no death: it was asked to end, by a reload."""
        now = self._clock.monotonic()
        lived = now - self._started.get(name, now)
        self._deaths[name] = 0 if exit_code == 0 else 1 if lived > HEALTHY_SECONDS else self._deaths.get(name, 0) + 1
        self._started[name] = now + self.rest_seconds(name)

    def rest_seconds(self, name: str) -> float:
        """None after the first death: whatever it was, it may be over."""
        deaths = self._deaths.get(name, 0)
        return RESTARTS.delay(deaths - 1, 0.0) if deaths > 1 else 0.0


class Worker(cotyledon.Service):
    """One process of members, each in a thread of its own."""

    name = "persister"

    def __init__(self, worker_id: WorkerId, plan: Plan, index: int, respawns: Respawns) -> None:
        super().__init__(worker_id)
        job = plan.jobs[index][worker_id]
        limits = DeadLetters(max_consecutive=plan.settings.max_consecutive_dead_letters)
        self._rest_seconds = respawns.rest_seconds(job.names[0])
        self._stopping = threading.Event()
        self._members = []
        for name, group in zip(job.names, job.groups, strict=True):
            status = replace(plan.board.read(name), pid=os.getpid(), state=State.STARTING, reason="")
            self._members.append(Member(group, plan.storage, limits, plan.board, status))
        self._threads = [threading.Thread(target=member.run, daemon=True) for member in self._members]

    def run(self) -> None:
        if self._stopping.wait(self._rest_seconds):
            return
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        for thread in self._threads:
            thread.start()

    def terminate(self) -> None:
        self._stopping.set()
        stoppers = [threading.Thread(target=member.stop, daemon=True) for member in self._members]
        for thread in stoppers:
            thread.start()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


class StatusWorker(cotyledon.Service):
    """The process that answers /healthcheck and /metrics, so that those who store are not disturbed."""

    name = "persister-status"

    def __init__(self, worker_id: WorkerId, plan: Plan) -> None:
        super().__init__(worker_id)
        assert plan.listener is not None
        self._server = StatusServer(plan.listener, plan.board)

    def run(self) -> None:
        self._server.serve_forever()

    def terminate(self) -> None:
        self._server.shutdown()


def run(conf: cfg.ConfigOpts) -> None:
    """Run the persister that ``conf`` describes; ends the process, with status 0 after SIGTERM.

    Raises `ConfigurationError`, `StorageError` and `OSError` for what keeps it from starting.
    """
    plan = Plan(conf)
    respawns = Respawns(SystemClock())
    # Forked: the board and the listening socket are theirs as well. Nothing is connected and no thread runs by then.
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=_grace_seconds(plan.settings), mp_context=multiprocessing.get_context("fork")
    )
    names: dict[tuple[object, int], tuple[str, ...]] = {}
    if plan.listener is not None:
        manager.add(StatusWorker, args=(plan,))
    for index, alike in enumerate(plan.jobs):
        service = manager.add(Worker, len(alike), args=(plan, index, respawns))
        names |= {(service, number): job.names for number, job in enumerate(alike)}

    def on_dead_worker(service: object, number: int, exit_code: int) -> None:
        died = names.get((service, number), ())
        for name in died:
            respawns.died(name, exit_code)
            status = plan.board.read(name)
            counters = replace(status.counters, restarts=status.counters.restarts + 1)
            reason = f"its process ended with status {exit_code}"
            plan.board.write(replace(status, pid=0, state=State.FAILED, reason=reason, lag={}, counters=counters))
        if exit_code and died:
            rest = respawns.rest_seconds(died[0])
            LOG.error("worker %s ended with status %d and is replaced in %.1f s", ", ".join(died), exit_code, rest)

    manager.register_hooks(on_dead_worker=on_dead_worker, on_reload=plan.reload)
    manager.run()


def _grace_seconds(settings: PersisterSettings) -> int:
    """After so long a worker that does not end is ended."""
    return math.ceil(max(group.consumer.stop_timeout_seconds for group in settings.groups)) + _CLOSE_SECONDS


def listen(settings: PersisterSettings) -> socket.socket | None:
    """Bound before anything is started, so that a port in use is told at once."""
    if settings.status_port is None:
        return None
    try:
        return socket.create_server((settings.status_host, settings.status_port))
    except OSError as error:
        raise ConfigurationError(
            f"status_port in group [persister] is {settings.status_port}, at which {settings.status_host} cannot be "
            f"listened to ({error.strerror or error}): use another, or another status_host"
        ) from None
