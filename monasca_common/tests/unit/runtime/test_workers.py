# SPDX-License-Identifier: Apache-2.0
"""The distribution of a service's work over workers, and the threads of a worker."""

import pathlib
import threading
import types
from unittest import mock

import cotyledon
import fixtures
from oslo_config import cfg
from prometheus_client import CollectorRegistry

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.settings import StatusSettings
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.workers import Worker, WorkersPlan, run_workers
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class SizePlan(WorkersPlan):
    service = "test"
    settings = types.SimpleNamespace(
        status=StatusSettings(), consumers=[types.SimpleNamespace(stop_timeout_seconds=60)]
    )

    def names(self):
        return []

    def open_parts(self, slot, statuses, stack):
        raise NotImplementedError

    def read(self, conf):
        if conf.size > 100:
            raise ConfigurationError("size is at most 100")
        self.size = conf.size


class PlanTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.path = self.path_of("[DEFAULT]\nsize = 1\n")
        conf = cfg.ConfigOpts()
        conf.register_opt(cfg.IntOpt("size"))
        conf(["--config-file", self.path])
        self.plan = SizePlan(conf)
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.runtime.workers"))

    def reload(self, text):
        pathlib.Path(self.path).write_text(f"[DEFAULT]\n{text}\n")
        self.plan.reload()

    def test_a_reload_changes_the_next_worker(self):
        self.reload("size = 2")
        self.assertEqual((2, ""), (self.plan.size, self.log.output))

    def test_a_refused_configuration_changes_nothing_and_is_logged(self):
        self.reload("size = 101")
        self.assertEqual(1, self.plan.size)
        self.assertEqual("reload failed; keeping the current configuration: size is at most 100\n", self.log.output)


class Part:
    def __init__(self):
        self.stopping = threading.Event()

    def run(self):
        self.stopping.wait()

    def stop(self):
        self.stopping.set()


class HangingPart(Part):
    def stop(self):
        threading.Event().wait()


class PartsPlan(SizePlan):
    """The plan of one worker with these parts."""

    def __init__(self, *parts):
        self.parts = parts
        self.board = StatusBoard([ProcessStatus([])])

    def names(self):
        return [[]]

    def open_parts(self, slot, statuses, stack):
        return self.parts, CollectorRegistry()


class WorkerTest(ConfigurationTestCase):
    def worker(self, *parts):
        worker = Worker(0, PartsPlan(*parts), 0)
        for thread in worker._threads:
            thread.start()
        return worker

    def test_a_stop_returns_when_all_parts_have_ended(self):
        worker = self.worker(Part(), Part())
        worker.terminate()
        self.assertEqual([False, False], [thread.is_alive() for thread in worker._threads])

    def test_a_stop_waits_for_a_hanging_part_only_until_its_deadline(self):
        prompt, hanging = Part(), HangingPart()
        worker = self.worker(hanging, prompt)
        worker._stop_seconds = 0.1
        worker.terminate()
        self.assertTrue(prompt.stopping.is_set())
        hanging.stopping.set()

    def test_a_stop_before_the_start_returns(self):
        Worker(0, PartsPlan(Part()), 0).terminate()


class EndedWorkerPlan(PartsPlan):
    """The plan of a worker with one member."""

    listener = None

    def __init__(self):
        super().__init__()
        self.board = StatusBoard([ProcessStatus([MemberStatus("metrics-0")])])

    def start_line(self):
        return "started"


class EndedWorkerManager:
    """A manager whose only worker ends with this status."""

    def __init__(self, exit_code):
        self.exit_code = exit_code

    def add(self, service, *, args):
        return service

    def register_hooks(self, *, on_terminate, on_reload, on_dead_worker):
        self.on_dead_worker = on_dead_worker

    def run(self):
        self.on_dead_worker(Worker, 0, self.exit_code)


class ReloadedManager(EndedWorkerManager):
    """A manager that is terminated after a reload has doubled the stop time-out."""

    def __init__(self, plan):
        self.plan = plan

    def register_hooks(self, *, on_terminate, on_reload, on_dead_worker):
        self.on_terminate = on_terminate

    def run(self):
        self.plan.settings = types.SimpleNamespace(consumers=[types.SimpleNamespace(stop_timeout_seconds=120)])
        with mock.patch("signal.alarm") as self.alarm:
            self.on_terminate()
        self.worker = Worker(0, self.plan, 0)


class EndedWorkerTest(ConfigurationTestCase):
    def test_a_reload_changes_the_time_after_which_processes_are_killed(self):
        plan = EndedWorkerPlan()
        plan.names, plan.parts = (lambda: [["metrics-0"]]), [Part()]
        manager = ReloadedManager(plan)
        with mock.patch.object(cotyledon, "ServiceManager", lambda **_: manager):
            run_workers(plan)
        manager.alarm.assert_called_once_with(125)
        self.assertEqual(125, manager.worker.graceful_shutdown_timeout)

    def test_only_a_failed_worker_counts_as_restarted(self):
        """A worker that drains, for example before a reload, ends with status 0."""
        for exit_code, restarts in ((0, 0), (1, 1), (-9, 1)):
            plan = EndedWorkerPlan()
            with mock.patch.object(cotyledon, "ServiceManager", lambda code=exit_code, **_: EndedWorkerManager(code)):
                run_workers(plan)
            self.assertEqual([restarts], [member.restarts for member in plan.board.members()], exit_code)
