# SPDX-License-Identifier: Apache-2.0
"""Metrics and logs of OpenTelemetry's Python SDK and of a Collector, built from its Go modules, through the API, Kafka
and the persister, while a service is killed and responses are lost: each data point is one row, and no log is lost."""

import http.client
import json
import logging
import subprocess
import sys
import threading
import time
from http import HTTPStatus
from pathlib import Path

import sqlalchemy as sa
import yaml
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from monasca_common.devbroker.ports import free_ports
from monasca_common.kafka.processor.dead_letters import ERROR_TEXT
from monasca_common.tests.checker import each_once
from monasca_common.tests.example_case import EXAMPLES
from monasca_common.tests.functional.go_programs import MISSING, built
from monasca_common.tests.functional.persister.persister_case import NO_ALARMS, SECONDS, PersisterCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

_KILLS = 3
LOGS = "SELECT message, tenant FROM logs"
POINTS = "SELECT m.time, m.value FROM measurements m JOIN series s ON s.id = m.series_id"
_SOURCES = Path(__file__).with_name("otel_collector")


class OtlpCase(PersisterCase):
    def stored(self, statement):
        with self.engine.connect() as connection:
            return sorted(tuple(row) for row in connection.execute(sa.text(statement)))


class OtlpApiCase(OtlpCase):
    """An API that the test can kill, and a persister."""

    cluster_settings = {"proxied": True}  # noqa: RUF012  # as in its base

    def setUp(self):
        super().setUp()
        self.logs_topic = self.fixture.topic(2)
        self.cluster.create_topic(f"{self.logs_topic}.dlq", 1)
        (self.port,) = free_ports(1)
        self.url_of_api = f"http://127.0.0.1:{self.port}"
        self.api = self.start_otlp_api()
        logs = f"[kafka_logs]\nenabled = true\ntopic = {self.logs_topic}\ngroup_id = {self.group}-logs"
        self.persister = self.start(others=f"{NO_ALARMS}\n{logs}")
        # The SDK logs each attempt that fails.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("opentelemetry").setLevel, logging.NOTSET)

    def start_otlp_api(self):
        topics = f"metrics_topic = {self.topic}", f"logs_topic = {self.logs_topic}"
        return self.start_api("publish_timeout_seconds = 2", *topics, port=self.port).wait_until_ready()

    def disturb(self):
        """Kill the API several times, and lose responses of Kafka."""
        for _ in range(_KILLS):
            self.fixture.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, probability=0.5, seed=3, times=3))
            time.sleep(1)
            self.api.kill()
            self.api = self.start_otlp_api()

    def disturbed(self, send):
        """Call ``send`` with 0, 1, … until the API has been killed and restarted several times. Return the number of
        calls."""
        disturbing = threading.Thread(target=self.disturb)
        disturbing.start()
        number = 0
        while disturbing.is_alive() or not number:
            send(number)
            number += 1
            time.sleep(0.2)
        self.fixture.proxy.clear()
        self.assertIsNone(self.api.process.poll())
        return number


class OtlpTest(OtlpApiCase):
    def test_each_data_point_of_the_sdk_is_one_row_although_requests_are_repeated(self):
        reader = InMemoryMetricReader()
        meter = MeterProvider([reader], Resource({"service.name": "shop"})).get_meter("m")
        orders, seconds = meter.create_counter("orders"), meter.create_histogram("seconds")
        exporter = OTLPMetricExporter(f"{self.url_of_api}/v1/metrics", timeout=SECONDS, compression=Compression.Gzip)
        self.addCleanup(exporter.shutdown)
        sent = []

        def export(number):
            orders.add(number, {"region": "north"})
            seconds.record(number)
            data = reader.get_metrics_data()
            sent.append(data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0])
            # The exporter repeats a request at most six times, and the application as often as it wants.
            self.wait_until(lambda: exporter.export(data) is MetricExportResult.SUCCESS)
            self.wait_until(lambda: exporter.export(data) is MetricExportResult.SUCCESS)  # as after a lost response

        series = 19  # series of both instruments: the histogram has 16 buckets, count and sum
        rows = series * self.disturbed(export)
        wanted = sorted((point.time_unix_nano // 1_000_000, point.value) for point in sent)
        counted = f"{POINTS} WHERE s.name = '{{}}'"
        self.wait_until(lambda: len(self.stored("SELECT time FROM measurements")) >= rows)
        with each_once():
            self.assertEqual(wanted, self.stored(counted.format("orders")))
            self.assertEqual(len(wanted), len(self.stored(counted.format("seconds_sum"))))
            self.assertEqual(rows, len(self.stored("SELECT time FROM measurements")))
        messages = read_topic(self.cluster, self.topic, 2)
        self.assertGreater(len(messages), rows)  # repeats reached Kafka
        self.assertEqual(0, self.persister.counter("rows_total", outcome="conflicting"))
        self.assertEqual([], read_topic(self.cluster, self.dlq))
        self.assert_ends_in_order(self.persister)

    def test_no_log_of_the_sdk_is_lost(self):
        exporter = OTLPLogExporter(f"{self.url_of_api}/v1/logs", timeout=SECONDS)
        wait_until = self.wait_until

        class Exporting(SimpleLogRecordProcessor):
            def on_emit(self, log_record):
                wait_until(lambda: exporter.export([log_record]) is LogRecordExportResult.SUCCESS)

        provider = LoggerProvider(Resource({"service.name": "shop"}))
        provider.add_log_record_processor(Exporting(exporter))
        logger = provider.get_logger("l")

        def emit(number):
            logger.emit(LogRecord(body=f"log {number}", attributes={"number": number}, severity_text="INFO"))

        emitted = self.disturbed(emit)
        statement = "SELECT DISTINCT message, dimensions, fields FROM logs"
        self.wait_until(lambda: len(self.stored(statement)) >= emitted)
        found = {message: (json.loads(own), json.loads(fields)) for message, own, fields in self.stored(statement)}
        with each_once():
            self.assertEqual({f"log {number}" for number in range(emitted)}, found.keys())
        dimensions, fields = found["log 0"]
        self.assertEqual({"service.name": "shop"}, dimensions)
        self.assertEqual({"attributes": {"number": 0}, "severity_text": "INFO"}, fields)

    def test_the_program_of_the_page_stores_its_metric_and_its_log(self):
        command = [sys.executable, EXAMPLES / "otlp.py", self.url_of_api, "id", "secret"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.wait_until(lambda: self.stored("SELECT value FROM measurements") and self.stored("SELECT time FROM logs"))
        self.assertEqual([(3.0,)], self.stored("SELECT value FROM measurements"))
        self.assertEqual([("three orders",)], self.stored("SELECT message FROM logs"))


class OtlpTopicTest(OtlpCase):
    """Requests of the SDK's encoder in the topics of a Collector, while the persister is killed."""

    def test_each_item_is_a_row_and_an_invalid_item_a_dead_letter(self):
        logs_topic = self.fixture.topic(1)
        self.cluster.create_topic(f"{logs_topic}.dlq", 1)
        requests, wanted = self.encoded()
        bad = ExportMetricsServiceRequest.FromString(requests[5])
        metric = bad.resource_metrics[0].scope_metrics[0].metrics[0]
        metric.sum.data_points.add(as_int=1)  # without a time
        requests[5] = bad.SerializeToString()
        self.producer.publish(self.topic, requests, timeout=SECONDS).raise_for_undelivered()
        record = ReadableLogRecord(
            LogRecord(body="a log", observed_timestamp=time.time_ns(), attributes={"n": 1}), Resource({})
        )
        records = encode_logs([record, record]).SerializeToString()
        self.producer.publish(logs_topic, [records], timeout=SECONDS).raise_for_undelivered()
        otlp = "format = otlp_proto\notlp_tenant = t1"
        logs = f"[kafka_logs]\nenabled = true\ntopic = {logs_topic}\ngroup_id = {self.group}-logs\n{otlp}"
        persister = self.start(
            metrics=otlp,
            others=f"{NO_ALARMS}\n{logs}",
            batch_size=3,
            fail_points="storage.in_transaction=kill@2;storage.after_commit=kill@4;processor.after_dead_letter=kill@1",
        )
        self.wait_until(lambda: len(self.stored(POINTS)) >= len(wanted) and len(self.stored(LOGS)) >= 2)
        self.wait_until(lambda: read_topic(self.cluster, self.dlq))
        with each_once():
            self.assertEqual(wanted, self.stored(POINTS))
            self.assertEqual([("a log", "t1")] * 2, self.stored(LOGS))
        letters = {message.value() for message in read_topic(self.cluster, self.dlq)}
        self.assertEqual({requests[5]}, letters)
        [letter, *_] = read_topic(self.cluster, self.dlq)
        self.assertIn(b"time_unix_nano is required", dict(letter.headers())[ERROR_TEXT])
        self.assert_ends_in_order(persister)

    def encoded(self):
        """Return requests of the SDK's encoder, and the time and value of each row."""
        reader = InMemoryMetricReader()
        orders = MeterProvider([reader], Resource({"service.name": "shop"})).get_meter("m").create_counter("orders")
        requests, wanted = [], []
        for number in range(20):
            orders.add(number, {"region": "north"})
            orders.add(1, {"region": "south"})
            data = reader.get_metrics_data()
            requests.append(encode_metrics(data).SerializeToString())
            points = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
            wanted += [(point.time_unix_nano // 1_000_000, float(point.value)) for point in points]
            time.sleep(0.002)  # each round has its own millisecond
        return requests, sorted(wanted)


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
