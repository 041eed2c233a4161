# SPDX-License-Identifier: Apache-2.0
"""Worker processes of a service, each with several members or other loops: their plan, their replacement, and the
process for probes.

SIGTERM: each member finishes and commits its work in flight and leaves its group; the process exits with status 0.
SIGHUP: the configuration is read again, and each worker drains and is replaced. SIGINT: the process exits immediately;
no message is lost or stored twice, but the group waits until the session expires.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.kafka.plugins import consuming_driver
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.runtime.logs import joined, shown_url, started, stopped
from monasca_common.runtime.member import WorkerPart
from monasca_common.runtime.member_health import MemberState, MemberStatus, members_health
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard, StatusReporter
from monasca_common.runtime.status_server import StatusServer, listen_for_status
from monasca_common.runtime.worker_metrics import WorkersMetrics

LOG = logging.getLogger(__name__)

# Added to the time-out of the members, so that their clients can close and the parent can detect the end.
_LEAVE_SECONDS = 5
_MARGIN_SECONDS = 1  # the process exits this long before it would be killed


def grace_seconds(consumers: Iterable[ConsumerSettings]) -> int:
    """Return the time after which the stopping process of these consumers is killed."""
    return math.ceil(max(each.stop_timeout_seconds for each in consumers)) + _LEAVE_SECONDS


class WorkersPlan(ABC):
    """The configuration of the next workers, with a status board and a listener. Only the parent changes it; a worker
    keeps the configuration from its fork.

    ``service``: the name of the service and of its option group. ``gc_thresholds``: those of the garbage collector.
    ``settings``: an object with the fields ``storage``, ``status`` and ``consumers``.
    """

    service: str
    # Messages and rows live for a batch and are not in reference cycles. With Python's own thresholds (700, 10, 10) the
    # collector scans all of them repeatedly, which takes two fifths of a worker's time.
    gc_thresholds = (100_000, 20, 100)
    settings: Any

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raises the errors of `read`, and `OSError`."""
        self._conf = conf
        self.read(conf)
        self.board = StatusBoard([ProcessStatus([MemberStatus(name) for name in members]) for members in self.names()])
        self.listener = listen_for_status(self.service, self.settings.status)

    @abstractmethod
    def read(self, conf: cfg.ConfigOpts) -> None:
        """Read all options of ``conf``. If this raises an error, no option changes."""

    def reload(self) -> None:
        """Reload the configuration. A refused configuration changes nothing."""
        try:
            if self._conf.reload_config_files():
                self.read(self._conf)
        except Exception as error:
            LOG.error("reload failed; keeping the current configuration: %s", error)

    @abstractmethod
    def names(self) -> Sequence[Sequence[str]]:
        """Return the names of the members and other loops of each worker."""

    @abstractmethod
    def open_parts(
        self, slot: int, statuses: Sequence[MemberStatus], stack: ExitStack
    ) -> tuple[Sequence[WorkerPart], CollectorRegistry]:
        """Create the members and other loops of a worker, with these statuses, and the registry of their metrics.
        Called after the fork. ``stack`` is closed after they have stopped."""

    def serve_more(self, metrics: ServiceMetrics) -> None:  # noqa: B027 - most services have no more
        """Declare metrics that the process for probes computes."""

    def facts(self) -> Mapping[str, object]:
        """Return facts for the start message."""
        return {"into_database": shown_url(self.settings.storage.connection)}

    def start_line(self) -> str:
        consumers = self.settings.consumers
        return started(
            self.service,
            reads=joined(f"{','.join(each.topics)} as {each.group_id}" for each in consumers),
            from_brokers=joined(each.connection.bootstrap_servers for each in consumers),
            with_driver=joined(consuming_driver(each.connection) for each in consumers),
            **self.facts(),
            status_at=self.settings.status.address,
        )

    def stop_line(self) -> str:
        members = self.board.members()
        return stopped(
            self.service,
            dead_letters=sum(member.dead_letters for member in members),
            restarts=sum(member.restarts for member in members),
        )


class Worker(cotyledon.Service):
    """A process with members and other loops, each in its own thread. ``slot``: its index among the workers, and on the
    board."""

    def __init__(self, worker_id: WorkerId, plan: WorkersPlan, slot: int) -> None:
        super().__init__(worker_id)
        self.name = plan.service  # type: ignore[misc] # all workers of a process have one plan
        self._plan = plan
        kill_seconds = grace_seconds(plan.settings.consumers)
        self.graceful_shutdown_timeout = kill_seconds  # type: ignore[misc] # a reload does not change the manager's
        self._stop_seconds = kill_seconds - _MARGIN_SECONDS
        former = plan.board.read(slot)
        for status, name in zip(former.members, plan.names()[slot], strict=True):
            status.name, status.pid, status.state, status.reason = name, os.getpid(), MemberState.STARTING, ""
        self._resources = ExitStack()
        self._parts, registry = plan.open_parts(slot, former.members, self._resources)
        self._threads = [threading.Thread(target=part.run, daemon=True) for part in self._parts]
        self._reporter = StatusReporter(plan.board, slot, self._parts, registry)

    def run(self) -> None:
        gc.freeze()
        gc.set_threshold(*self._plan.gc_thresholds)
        for thread in self._threads:
            thread.start()
        self._reporter.start()

    def terminate(self) -> None:
        """Stop all parts concurrently, and return before cotyledon kills the process. A member that still waits, for
        example for a database, has no unfinished work."""
        deadline = time.monotonic() + self._stop_seconds
        stoppers = [threading.Thread(target=part.stop, daemon=True) for part in self._parts]
        for thread in stoppers:
            thread.start()
        for thread in (*stoppers, *self._threads):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._reporter.stop()
        self._resources.close()


class StatusWorker(cotyledon.Service):
    """The process that serves probes and metrics, so that they do not delay the workers."""

    name = "status"

    def __init__(self, worker_id: WorkerId, plan: WorkersPlan) -> None:
        super().__init__(worker_id)
        assert plan.listener is not None
        health = members_health(plan.service, plan.board.members)
        metrics = WorkersMetrics(f"monasca_{plan.service}", plan.board)
        plan.serve_more(metrics)
        self._server = StatusServer(plan.listener, health, metrics.registry)

    def run(self) -> None:
        self._server.serve_forever()

    def terminate(self) -> None:
        self._server.shutdown()


def run_workers(plan: WorkersPlan) -> None:
    """Run the workers, replace those that exit, and then exit, with status 0 after SIGTERM. If workers exit repeatedly,
    cotyledon waits five seconds before the next start."""
    # The children inherit the board and the listening socket. The parent has neither connections nor threads.
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=grace_seconds(plan.settings.consumers), mp_context=multiprocessing.get_context("fork")
    )
    if plan.listener is not None:
        manager.add(StatusWorker, args=(plan,))
    slots: dict[object, int] = {manager.add(Worker, args=(plan, slot)): slot for slot in range(len(plan.names()))}

    def on_dead_worker(service: object, _worker: int, exit_code: int) -> None:
        slot = slots.get(service)
        if slot is None:
            return
        status = plan.board.read(slot)
        for member in status.members:
            member.pid, member.state, member.lag = 0, MemberState.FAILED, {}
            member.reason = f"its process exited with status {exit_code}"
            member.restarts += bool(exit_code)  # a reload and SIGTERM end it with status 0
        plan.board.write(slot, status)
        if exit_code:
            names = joined(member.name for member in status.members)
            LOG.error("worker %s exited with status %d and is replaced", names, exit_code)

    def on_terminate() -> None:
        signal.alarm(grace_seconds(plan.settings.consumers))  # the manager's alarm has the time-out before a reload

    manager.register_hooks(on_terminate=on_terminate, on_reload=plan.reload, on_dead_worker=on_dead_worker)
    LOG.info("%s", plan.start_line())
    try:
        manager.run()
    finally:
        LOG.info("%s", plan.stop_line())
