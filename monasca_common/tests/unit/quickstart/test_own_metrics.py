# SPDX-License-Identifier: Apache-2.0
import json

from oslotest import base

from monasca_common.models import metric
from monasca_common.quickstart.own_metrics import OwnMetrics


class OwnMetricsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.sample = OwnMetrics().sample(1_700_000_000_000)

    def test_the_api_takes_all_of_it(self):
        parsed = metric.parse_post(json.dumps(self.sample).encode())
        self.assertEqual((), tuple(parsed.violations))
        self.assertEqual(len(self.sample), len(parsed.valid))

    def test_no_series_is_there_twice(self):
        series = [(reading["name"], tuple(sorted(reading["dimensions"].items()))) for reading in self.sample]
        self.assertEqual(len(series), len(set(series)))

    def test_it_tells_of_the_machine_and_of_every_process(self):
        names = {reading["name"] for reading in self.sample}
        self.assertLessEqual({"cpu.percent", "mem.usable_mb", "load.avg_1_min", "process.mem_rss_mb"}, names)
