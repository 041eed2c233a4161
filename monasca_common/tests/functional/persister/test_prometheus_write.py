# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus writes through the API, Kafka and the persister, while the API and the broker are killed and
responses are lost: the rows are exactly Prometheus' own samples."""

import http.server
import json
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter

import sqlalchemy as sa
import yaml

from monasca_common.devbroker.ports import free_ports
from monasca_common.models.numbers import STALE
from monasca_common.tests.checker import each_once
from monasca_common.tests.example_case import EXAMPLES
from monasca_common.tests.functional.api.api_case import ApiProcess
from monasca_common.tests.functional.attachments import attach_file
from monasca_common.tests.functional.persister.persister_case import SECONDS, PersisterCase
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_proxy import ApiKey, Fault

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


class _Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f'{_PAGE}counter {self.server.scrapes}\nchanging{{turn="{self.server.scrapes // 3}"}} 1\n'.encode()
        self.server.scrapes += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class PrometheusTest(PersisterCase):
    cluster_settings = {"proxied": True}  # noqa: RUF012  # as in its base

    def setUp(self):
        if shutil.which("prometheus") is None:
            self.skipTest("prometheus is missing: apt-get install prometheus")
        super().setUp()
        exporter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
        exporter.scrapes = 0
        threading.Thread(target=exporter.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(exporter.server_close)
        self.addCleanup(exporter.shutdown)
        self.port, self.prometheus_port = free_ports(2)
        self.api = self.start_api()
        self.persister = self.start()
        self.configure([f"127.0.0.1:{port}" for port in (self.prometheus_port, exporter.server_port)])
        self.start_prometheus()

    def start_api(self):
        lines = [
            "[kafka]",
            f"bootstrap_servers = {self.servers}",
            "producer_options = socket.timeout.ms=1000",
            "[api]",
            f"port = {self.port}",
            "auth_strategy = noauth",
            "publish_timeout_seconds = 2",
            f"metrics_topic = {self.topic}",
        ]
        api = ApiProcess(tempfile.gettempdir(), "\n".join(lines) + "\n")
        api.port = self.port
        self.addCleanup(api.end)
        return api.wait_until_ready()

    def configure(self, targets):
        """Write the documented configuration with these targets, and with times that suit a test."""
        configuration = yaml.safe_load((EXAMPLES / "prometheus" / "prometheus.yml").read_text())
        configuration["global"]["scrape_interval"] = "1s"
        configuration["scrape_configs"][0]["static_configs"][0]["targets"] = targets
        write = configuration["remote_write"][0]
        write["url"] = f"http://127.0.0.1:{self.port}/api/v1/write"
        write["queue_config"] |= {"batch_send_deadline": "500ms", "min_shards": 4, "max_samples_per_send": 100}
        (self.folder / write["basic_auth"]["password_file"]).write_text("a-secret")
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    def start_prometheus(self):
        log = self.folder / "prometheus.log"
        attach_file(self, "prometheus", log)
        command = [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            "--web.enable-lifecycle",
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self.addCleanup(process.wait, SECONDS)
        self.addCleanup(process.kill)

    def request(self, path, body=None):
        url = f"http://127.0.0.1:{self.prometheus_port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=SECONDS) as answer:
            return answer.read()

    def samples(self):
        """Return Prometheus' own samples, without the ends of series, which it does not show."""
        query = urllib.parse.urlencode({"query": '{__name__=~".+"}[1d]'})
        found = Counter()
        for series in json.loads(self.request(f"/api/v1/query?{query}"))["data"]["result"]:
            labels = dict(series["metric"])
            name = labels.pop("__name__")
            for seconds, value in series["values"]:
                found[(name, tuple(sorted(labels.items())), round(seconds * 1000), repr(float(value) + 0.0))] += 1
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
        lines = self.request("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def test_the_rows_are_the_samples_of_prometheus(self):
        self.wait_until(self.rows)
        for _ in range(3):
            self.fixture.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, probability=0.5, seed=3, times=3))
            time.sleep(2)
            for process in (self.api.process, *self.api.workers()):
                process.send_signal(signal.SIGKILL)
            self.api.process.wait(SECONDS)
            time.sleep(1)
            self.api = self.start_api()
        self.fixture.proxy.clear()
        node = self.cluster.node(1)
        node.kill()
        time.sleep(4)
        node.restart()
        time.sleep(2)
        self.configure([])
        self.request("/-/reload", b"")
        self.wait_until(lambda: not json.loads(self.request("/api/v1/targets"))["data"]["activeTargets"])
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
