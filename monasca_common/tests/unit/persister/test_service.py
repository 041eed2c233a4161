# SPDX-License-Identifier: Apache-2.0
import pathlib
import socket
import threading

import fixtures

from monasca_common.persister.service import PersisterPlan, worker_groups
from monasca_common.persister.settings import persister_settings
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.status_server import listen_for_status
from monasca_common.runtime.workers import Worker
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.base import Capability, Kind
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.plugins import check_storage
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage


class OneWriter(MemoryStorage):
    capabilities = frozenset(Capability) - {Capability.MANY_WRITERS}


class MetricsOnly(MemoryStorage):
    kinds = frozenset({Kind.METRICS})


class ServiceCase(ConfigurationTestCase):
    def settings(self, *lines, **groups):
        groups.setdefault("database", "connection = sqlite:////tmp/nowhere.sqlite")
        return persister_settings(self.with_kafka(*lines, **groups))


class JobsTest(ServiceCase):
    def test_each_process_has_one_group_with_many_writers(self):
        settings = self.settings(kafka_metrics="num_processors = 2")
        self.assertEqual(
            [["metrics-0"], ["metrics-1"], ["alarm_history-0"]],
            list(map(list, worker_groups(settings, MemoryStorage()))),
        )

    def test_one_process_has_all_groups_if_only_one_writer_is_allowed(self):
        (groups,) = worker_groups(self.settings(kafka_logs="enabled = true"), OneWriter())
        self.assertEqual(["metrics-0", "alarm_history-0", "logs-0"], list(groups))

    def test_more_processes_than_writers_are_refused_with_the_option(self):
        settings = self.settings(kafka_metrics="num_processors = 2")
        self.assertIn("num_processors in group [kafka_metrics]", self.refused(worker_groups, settings, OneWriter()))

    def test_a_kind_that_the_storage_does_not_support_is_refused_with_its_group(self):
        self.assertIn("[kafka_alarm_history]", self.refused(worker_groups, self.settings(), MetricsOnly()))

    def test_each_process_has_its_own_instance_id(self):
        settings = self.settings(kafka_metrics="group_instance_id = here\nnum_processors = 2")
        *metrics, _ = worker_groups(settings, MemoryStorage())
        ids = [group.consumer.group_instance_id for groups in metrics for group in groups.values()]
        self.assertEqual(["here-0", "here-1"], ids)


class HangingMember:
    """A service that ends with the test."""

    ended = threading.Event()

    def __init__(self, *_arguments):
        self.ended.clear()
        self.run = self.ended.wait

    def stop(self):
        self.ended.wait()


class StopTest(ServiceCase):
    def worker(self):
        self.addCleanup(HangingMember.ended.set)
        self.useFixture(fixtures.MonkeyPatch("monasca_common.persister.service.persister_member", HangingMember))
        settings = self.settings(kafka_alarm_history="enabled = false", kafka_metrics="stop_timeout_seconds = 0.1")
        workers = worker_groups(settings, MemoryStorage())
        board = StatusBoard([ProcessStatus([MemberStatus("metrics-0")])])
        plan = PersisterPlan.__new__(PersisterPlan)
        plan.settings, plan.workers, plan.storage, plan.board = settings, workers, None, board
        self.useFixture(fixtures.MonkeyPatch("monasca_common.runtime.workers._LEAVE_SECONDS", 0))
        return Worker(0, plan, 0)

    def test_a_worker_that_waits_for_its_start_can_be_stopped(self):
        worker = self.worker()
        HangingMember.ended.set()
        worker.terminate()
        self.assertEqual("starting", worker._reporter._board.members()[0].state)

    def test_a_hanging_member_does_not_delay_a_stop(self):
        worker = self.worker()
        for thread in worker._threads:
            thread.start()
        stopper = threading.Thread(target=worker.terminate, daemon=True)
        stopper.start()
        stopper.join(10.0)
        self.assertFalse(stopper.is_alive())


class StartTest(ServiceCase):
    def test_permanent_errors_of_storage_prevent_the_start(self):
        error = SchemaMismatch("run db upgrade")
        storage = MemoryStorage()
        storage.faults.append(error)
        self.assertIs(error, self.assertRaises(SchemaMismatch, check_storage, storage))

    def test_an_unavailable_database_does_not_prevent_the_start(self):
        storage = MemoryStorage()
        storage.away(1)
        check_storage(storage)

    def test_no_connection_is_open_at_the_fork(self):
        storage = MemoryStorage()
        check_storage(storage)
        self.assertEqual((1, 1), (storage.opened, storage.closed))

    def test_a_port_in_use_is_refused_with_the_option(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = self.settings(persister=f"status_port = {taken.getsockname()[1]}")
            refusal = self.refused(listen_for_status, "persister", settings.status)
            self.assertIn("change status_port or status_host in group [persister]", refusal)


class LineTest(ServiceCase):
    def test_the_start_line_has_topics_groups_brokers_database_and_port_without_secrets(self):
        settings = self.settings(
            database="connection = postgresql://me:hush@db/monasca", persister="status_port = 8099"
        )
        plan = PersisterPlan.__new__(PersisterPlan)
        plan.settings = settings
        self.assertRegex(
            plan.start_line(),
            r"^persister \S+ started: reads metrics as 1_metrics, "
            r"alarm-state-transitions as 1_alarm-state-transitions; "
            r"from brokers kafka\.example\.org:9092; with driver native; into database postgresql://db/monasca; "
            r"status at 127\.0\.0\.1:8099$",
        )

    def test_the_stop_line_has_the_counts_of_all_workers(self):
        plan = PersisterPlan.__new__(PersisterPlan)
        members = [MemberStatus(name, restarts=1, dead_letters=2) for name in ("metrics-0", "logs-0")]
        plan.board = StatusBoard([ProcessStatus([member]) for member in members])
        self.assertRegex(plan.stop_line(), r"stopped: dead letters 4; restarts 2$")


class ReloadTest(ServiceCase):
    def setUp(self):
        super().setUp()
        database = f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/monasca.sqlite"
        open_storage(StorageSettings("sqlite", database)).upgrade()
        self.text = f"[database]\nconnection = {database}\n[kafka]\nbootstrap_servers = b:9092\n"
        self.path = self.path_of(self.text)
        self.plan = PersisterPlan(self.read(self.path))

    def reload(self, more):
        pathlib.Path(self.path).write_text(self.text + more)
        self.plan.reload()
        return self.plan.settings.groups[0].consumer.batch_size

    def test_a_changed_configuration_applies_to_new_workers(self):
        self.assertEqual(77, self.reload("batch_size = 77"))
        self.assertEqual(77, self.plan.workers[0]["metrics-0"].consumer.batch_size)

    def test_a_refused_configuration_changes_nothing(self):
        self.assertEqual(20_000, self.reload("batch_size = 77\nbatch_sise = 3"))

    def test_an_unreadable_configuration_changes_nothing(self):
        self.assertEqual(20_000, self.reload("batch_size = 77\n[kafka"))

    def test_other_processes_require_a_restart(self):
        self.assertEqual(20_000, self.reload("batch_size = 77\n[kafka_logs]\nenabled = true"))
