# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus writes through the API, Kafka and the persister, while the API and the broker are killed and
responses are lost: the rows are exactly Prometheus' own samples."""

import json
import time
from collections import Counter
from pathlib import Path

import sqlalchemy as sa
import yaml

from monasca_common.devbroker.ports import free_ports
from monasca_common.models.numbers import STALE
from monasca_common.tests.checker import each_once
from monasca_common.tests.example_case import EXAMPLES
from monasca_common.tests.functional import go_programs
from monasca_common.tests.functional.persister.persister_case import PersisterCase
from monasca_common.tests.functional.processes import attach_file
from monasca_common.tests.functional.prometheus_server import MISSING, PrometheusServer, samples_of
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import http_server, respond, serve
from monasca_common.tests.web import fetch

_PENDING = "prometheus_remote_storage_samples_pending"
_PAGE = """\
value{of="NaN"} NaN
value{of="+Inf"} +Inf
value{of="-Inf"} -Inf
value{of="-0"} -0
value{of="least"} 5e-324
value{of="greatest"} 1.7976931348623157e308
label{text="größe 温度 🌡 \\\\ \\" <>={},;&()",empty="",__reserved="x"} 1
"""


class PrometheusTest(PersisterCase):
    cluster_settings = {"proxied": True}  # noqa: RUF012  # as in its base

    missing = MISSING

    def setUp(self):
        if self.missing:
            self.skipTest(self.missing)
        super().setUp()
        self.scrapes = 0
        exporter = http_server(self.export)
        self.addCleanup(serve(exporter))
        (self.port,) = free_ports(1)
        self.api = self.start_prometheus_api()
        self.persister = self.start()
        self.prometheus = self.useFixture(PrometheusServer({}, program=self.program()))
        attach_file(self, "prometheus", self.prometheus.log)
        self.prometheus.configure(
            self.configuration([f"127.0.0.1:{port}" for port in (self.prometheus.port, exporter.server_port)])
        )
        self.prometheus.reload()

    def program(self):
        return "prometheus"

    def export(self, handler):
        body = f'{_PAGE}counter {self.scrapes}\nchanging{{turn="{self.scrapes // 3}"}} 1\n'.encode()
        self.scrapes += 1
        respond(handler, 200, body, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def start_prometheus_api(self):
        topic = f"metrics_topic = {self.topic}"
        return self.start_api("publish_timeout_seconds = 2", topic, port=self.port).wait_until_ready()

    def configuration(self, targets):
        """Return the documented configuration with these targets, and with times that suit a test."""
        configuration = yaml.safe_load((EXAMPLES / "prometheus" / "prometheus.yml").read_text())
        configuration["global"]["scrape_interval"] = "1s"
        configuration["scrape_configs"][0]["static_configs"][0]["targets"] = targets
        write = configuration["remote_write"][0]
        write["url"] = f"http://127.0.0.1:{self.port}/api/v1/write"
        write["queue_config"] |= {"batch_send_deadline": "500ms", "min_shards": 4, "max_samples_per_send": 100}
        password = self.folder / write["basic_auth"]["password_file"]
        password.write_text("a-secret")
        write["basic_auth"]["password_file"] = str(password)
        return configuration

    def samples(self):
        """Return Prometheus' own samples, without the ends of series, which it does not show."""
        found = Counter()
        for (labels, time_ms, value), count in samples_of(self.prometheus.url).items():
            (name,) = (text for label, text in labels if label == "__name__")
            others = tuple(each for each in labels if each[0] != "__name__")
            found[name, others, time_ms, repr(value + 0.0)] += count
        return found

    def rows(self):
        statement = "SELECT s.name, s.dimensions, m.time, m.value, m.value_meta FROM measurements m JOIN series s"
        with self.engine.connect() as connection:
            found = connection.execute(sa.text(f"{statement} ON s.id = m.series_id")).all()
        self.ends = [row for row in found if row.value_meta is not None]
        self.assertEqual([STALE] * len(self.ends), [json.loads(row.value_meta) for row in self.ends])
        return Counter(
            (row.name, tuple(sorted(json.loads(row.dimensions).items())), row.time, repr(float(row.value)))
            for row in found
            if row.value_meta is None
        )

    def metric(self, name):
        lines = fetch(f"{self.prometheus.url}/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def test_the_rows_are_the_samples_of_prometheus(self):
        self.wait_until(self.rows)
        for _ in range(3):
            self.fixture.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, probability=0.5, seed=3, times=3))
            time.sleep(2)
            self.api.kill()
            time.sleep(1)
            self.api = self.start_prometheus_api()
        self.fixture.proxy.clear()
        node = self.cluster.node(1)
        node.kill()
        time.sleep(4)
        node.restart()
        time.sleep(2)
        self.prometheus.configure(self.configuration([]))
        self.prometheus.reload()
        targets = f"{self.prometheus.url}/api/v1/targets"
        self.wait_until(lambda: not json.loads(fetch(targets)[1])["data"]["activeTargets"])
        samples = self.samples()
        self.wait_until(lambda: self.rows().total() >= samples.total() and self.metric(_PENDING) == 0)

        rows, samples = self.rows(), self.samples()
        with each_once():
            self.assertEqual(({}, {}), (dict(samples - rows), dict(rows - samples)))
        self.assertGreater(samples.total(), 1000)
        self.assertLessEqual({"nan", "inf", "-inf"}, {value for _, _, _, value in samples})
        self.assertGreater(len(self.ends), 5)
        self.assertEqual(0, self.metric("prometheus_remote_storage_samples_failed_total"))
        self.assertGreater(self.metric("prometheus_remote_storage_samples_retried_total"), 0)
        messages = len(read_topic(self.cluster, self.topic, 2))
        self.assertGreater(messages, rows.total() + len(self.ends))  # repeats reached Kafka
        self.assertEqual([], read_topic(self.cluster, self.dlq))
        self.assertEqual(0, self.persister.counter("rows_total", outcome="conflicting"))
        self.assert_ends_in_order(self.persister)


@periodic("builds Prometheus 3; PrometheusTest sends version 1, and unit tests compare the versions")
class PrometheusVersion2Test(PrometheusTest):
    """Prometheus 3 sends remote write 2.0."""

    missing = go_programs.MISSING

    def program(self):
        sources = Path(__file__).with_name("prometheus_3")
        return go_programs.built(sources, "github.com/prometheus/prometheus/cmd/prometheus")

    def configuration(self, targets):
        configuration = super().configuration(targets)
        configuration["remote_write"][0]["protobuf_message"] = "io.prometheus.write.v2.Request"
        return configuration

    def test_the_rows_are_the_samples_of_prometheus(self):
        super().test_the_rows_are_the_samples_of_prometheus()
        loaded = json.loads(fetch(f"{self.prometheus.url}/api/v1/status/config")[1])["data"]["yaml"]
        self.assertIn("protobuf_message: io.prometheus.write.v2.Request", loaded)
