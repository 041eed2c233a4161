# SPDX-License-Identifier: Apache-2.0
import os
from unittest import mock

from oslotest import base
from prometheus_client import CollectorRegistry, generate_latest

from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.runtime.metrics import ComputedMetrics, ServiceMetrics
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard, StatusReporter

ONE, TWO = ProcessStatus([MemberStatus("metrics-0")]), ProcessStatus([MemberStatus("logs-0")])
FAILED = ProcessStatus([MemberStatus("logs-0", 7, MemberState.FAILED, "why", 1, 2, 3, lag={"log/0": 4})])


class Orders(ServiceMetrics):
    """The metrics of one process."""

    def __init__(self):
        super().__init__("monasca_orders")
        self.sold = self.counter("sold", "Orders", "worker")
        self.seconds = self.histogram("seconds", "Time", buckets=(1.0,))
        self.last = self.gauge("last_timestamp_seconds", "The last order", "worker")


class StatusBoardTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.board = StatusBoard([ONE, TWO])

    def report(self, slot, metrics, *members):
        members = [mock.Mock(status=mock.Mock(return_value=member)) for member in members]
        reporter = StatusReporter(self.board, slot, members, metrics.registry)
        reporter.start()
        reporter.stop()

    def served(self):
        registry = CollectorRegistry()
        registry.register(ComputedMetrics(self.board.families))
        return generate_latest(registry).decode()

    def test_a_written_status_is_read(self):
        self.board.write(1, FAILED)
        self.assertEqual([*ONE.members, *FAILED.members], self.board.members())

    def test_a_child_writes_and_its_parent_reads(self):
        pid = os.fork()
        if pid == 0:
            self.board.write(1, FAILED)
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertEqual(FAILED, self.board.read(1))

    def test_a_reader_ignores_an_unfinished_write(self):
        self.board.write(1, FAILED)
        self.board.read(1)
        self.board._memory[self.board._memory.find(b"why")] ^= 1
        self.assertEqual(FAILED, self.board.read(1))

    def test_a_status_that_does_not_fit_is_refused(self):
        self.board.write(1, FAILED)
        members = [MemberStatus(f"metrics-{number}", reason="x" * 500) for number in range(2500)]
        self.assertRaises(ValueError, self.board.write, 0, ProcessStatus(members))
        self.assertEqual([ONE, FAILED], [self.board.read(slot) for slot in (0, 1)])

    def test_a_reporter_writes_the_last_status_and_the_metrics_of_its_process(self):
        orders = Orders()
        orders.sold.labels("logs-0").inc(3)
        self.report(1, orders, *FAILED.members)
        self.assertEqual(FAILED.members, self.board.read(1).members)
        self.assertIn('monasca_orders_sold_total{worker="logs-0"} 3.0', self.served())

    def test_the_metrics_of_all_processes_form_one_family(self):
        for slot in (0, 1):
            orders = Orders()
            orders.sold.labels(f"worker-{slot}").inc(slot)
            self.report(slot, orders)
        text = self.served()
        self.assertEqual(1, text.count("# TYPE monasca_orders_sold_total counter"))
        for line in ('{worker="worker-0"} 0.0', '{worker="worker-1"} 1.0'):
            self.assertIn(f"monasca_orders_sold_total{line}", text)
        self.assertNotIn("_created", text)
