# SPDX-License-Identifier: Apache-2.0
"""The metrics of a service: counters, samples computed at a scrape, and the statuses of its workers."""

from oslotest import base
from prometheus_client import generate_latest

from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.worker_metrics import WorkersMetrics


class ServiceMetricsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.metrics = ServiceMetrics("monasca_orders")

    def lines(self):
        return [line for line in generate_latest(self.metrics.registry).decode().splitlines() if "_created" not in line]

    def test_a_counter_serves_its_known_values_from_0(self):
        self.metrics.counter("orders", "Orders", "outcome", known=("sold", "refused")).labels("sold").inc()
        for line in ('monasca_orders_orders_total{outcome="sold"} 1.0', '{outcome="refused"} 0.0'):
            self.assertIn(line, "\n".join(self.lines()))

    def test_samples_are_computed_at_each_scrape(self):
        waiting = {"big": 2, "small": 3}
        self.metrics.computed_gauge("waiting", "W", "size", samples=lambda: (((k,), v) for k, v in waiting.items()))
        self.assertIn('monasca_orders_waiting{size="small"} 3.0', self.lines())
        waiting["small"] = 4
        self.assertIn('monasca_orders_waiting{size="small"} 4.0', self.lines())

    def test_a_sample_without_a_value_is_omitted(self):
        self.metrics.computed_gauge("sold", "S", "of", samples=lambda: [(("a",), None), (("b",), 1)])
        found = [line for line in self.lines() if line.startswith("monasca_orders_sold{")]
        self.assertEqual(['monasca_orders_sold{of="b"} 1.0'], found)


class WorkersMetricsTest(base.BaseTestCase):
    def test_states_lags_and_counts_are_those_of_each_member(self):
        counts = {"dead_letters": 2, "restarts": 3, "database_unavailable_seconds": 4.5}
        busy = MemberStatus("logs-0", state=MemberState.RUNNING, lag={"log/7": 9}, **counts)
        board = StatusBoard([ProcessStatus([busy]), ProcessStatus([MemberStatus("events-0")])])
        value = WorkersMetrics("m", board).registry.get_sample_value

        for worker, expected in (("logs-0", [2, 3, 4.5]), ("events-0", [0, 0, 0])):
            self.assertEqual(expected, [value(f"m_{name}_total", {"worker": worker}) for name in counts])
        self.assertEqual(9, value("m_lag", {"worker": "logs-0", "topic": "log", "partition": "7"}))
        states = [value("m_worker_state", {"worker": "logs-0", "state": state}) for state in ("running", "starting")]
        self.assertEqual([1, 0], states)
