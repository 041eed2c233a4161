# SPDX-License-Identifier: Apache-2.0
"""The metrics of a service: counters, and samples computed at a scrape."""

from oslotest import base
from prometheus_client import generate_latest

from monasca_common.runtime.metrics import ServiceMetrics


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
