# SPDX-License-Identifier: Apache-2.0
"""An OpenTelemetry Collector, built from its Go modules, writes to Kafka and to the API, while the persister or the API
is killed: each data point is one row, and no log is lost."""

import http.client
import time
from http import HTTPStatus
from pathlib import Path

import yaml
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.go_programs import MISSING, built
from monasca_common.tests.functional.persister.persister_case import NO_ALARMS, SECONDS
from monasca_common.tests.functional.persister.test_otlp import LOGS, POINTS, OtlpApiCase, OtlpCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.periodic import periodic

_SOURCES = Path(__file__).with_name("otel_collector")


class Collector:
    """A Collector that receives OTLP over HTTP. ``exporters``: the configuration of each exporter of all signals."""

    def __init__(self, test, exporters):
        (self._port,) = free_ports(1)
        configuration, log = test.folder / "collector.yaml", test.folder / "collector.log"
        receivers = {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{self._port}"}}}}
        pipeline = {"receivers": list(receivers), "exporters": list(exporters)}
        service = {
            "pipelines": {"metrics": pipeline, "logs": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        }
        whole = {"receivers": receivers, "exporters": exporters, "service": service}
        configuration.write_text(yaml.safe_dump(whole))
        self.process = start_process(test, [built(_SOURCES), f"--config={configuration}"], log)
        test.wait_until(lambda: self.process.poll() is not None or self.post("/v1/metrics", b"") == HTTPStatus.OK)
        test.assertIsNone(self.process.poll())

    def post(self, path, body):
        """Return the status of the response; None without a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/x-protobuf"})
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()


class CollectorCase(OtlpCase):
    def setUp(self):
        if MISSING:
            self.skipTest(MISSING)
        super().setUp()

    def points(self):
        """Yield requests of the SDK, each with one data point, and its row."""
        reader = InMemoryMetricReader()
        orders = MeterProvider([reader], Resource({"service.name": "shop"})).get_meter("m").create_counter("orders")
        while True:
            orders.add(1)
            data = reader.get_metrics_data()
            [point] = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
            yield encode_metrics(data).SerializeToString(), (point.time_unix_nano // 1_000_000, float(point.value))
            time.sleep(0.002)  # each data point has its own millisecond


@periodic("builds a Collector; OtlpTopicTest reads the same messages from the encoder of the SDK")
class CollectorTopicTest(CollectorCase):
    def test_each_item_of_the_kafka_exporter_is_a_row_although_the_persister_is_killed(self):
        logs_topic = self.fixture.topic(1)
        self.cluster.create_topic(f"{logs_topic}.dlq", 1)
        topics = {"metrics": {"topic": self.topic}, "logs": {"topic": logs_topic}}
        collector = Collector(self, {"kafka": {"brokers": self.servers.split(","), **topics}})
        points = [point for point, _ in zip(self.points(), range(50), strict=False)]
        for request, _ in points:
            self.assertEqual(HTTPStatus.OK, collector.post("/v1/metrics", request))
        record = LogRecord(body="a log", observed_timestamp=time.time_ns())
        logs = encode_logs([ReadableLogRecord(record, Resource({}))] * 2).SerializeToString()
        self.assertEqual(HTTPStatus.OK, collector.post("/v1/logs", logs))
        otlp = "format = otlp_proto\notlp_tenant = t1"
        persister = self.start(
            metrics=otlp,
            others=f"{NO_ALARMS}\n[kafka_logs]\nenabled = true\ntopic = {logs_topic}\ngroup_id = {self.group}-l\n"
            f"{otlp}",
            batch_size=3,
            fail_points="storage.in_transaction=kill@2;storage.after_commit=kill@4",
        )
        self.wait_until(lambda: len(self.stored(POINTS)) >= len(points) and len(self.stored(LOGS)) >= 2)
        with each_once():
            self.assertEqual(sorted(row for _, row in points), self.stored(POINTS))
            self.assertEqual([("a log", "t1")] * 2, self.stored(LOGS))
        self.assertEqual([], read_topic(self.cluster, self.dlq))
        self.assert_ends_in_order(persister)


@periodic("builds a Collector; OtlpTest sends the requests of the SDK")
class CollectorHttpTest(OtlpApiCase, CollectorCase):
    def test_each_data_point_of_the_http_exporter_is_a_row_although_the_api_is_killed(self):
        retry = {"initial_interval": "100ms", "max_interval": "1s"}
        exporter = {"endpoint": self.url_of_api, "retry_on_failure": retry}
        collector = Collector(self, {"otlp_http": exporter})
        points, wanted = self.points(), []

        def send(_):
            request, row = next(points)
            wanted.append(row)
            self.assertEqual(HTTPStatus.OK, collector.post("/v1/metrics", request))

        self.disturbed(send)
        self.wait_until(lambda: len(self.stored(POINTS)) >= len(wanted))
        with each_once():
            self.assertEqual(wanted, self.stored(POINTS))
        self.assert_ends_in_order(self.persister)
