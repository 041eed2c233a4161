# SPDX-License-Identifier: Apache-2.0
"""A topic of an OpenTelemetry Collector, with requests of the SDK's encoder: jobs count each data point once."""

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from monasca_common.kafka.message import Record
from monasca_common.kafka.processor.dead_letters import ERROR_TEXT
from monasca_common.runtime.otlp_settings import OTLP, OtlpTopicSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline.pipeline_case import (
    CPU_PRE_ROWS,
    CPU_ROWS,
    MINUTE_MS,
    NOON_MS,
    CpuCase,
    cpu,
    expected,
)
from monasca_common.tests.functional.pipeline.test_evaluate import EvaluateCase
from monasca_common.tests.periodic import periodic

TENANT = "X-Scope-OrgID"
HOSTS = ("a", "b", "c")
NS_PER_MS = 1_000_000


class Requests:
    """Requests of the SDK's encoder for one gauge, ``cpu``."""

    def __init__(self):
        self._reader = InMemoryMetricReader()
        meter = MeterProvider([self._reader], Resource({"service.name": "shop"})).get_meter("m")
        self._cpu = meter.create_gauge("cpu")

    def encode(self, time_ms, values):
        """Return a request with a data point for each host."""
        for host, value in values.items():
            self._cpu.set(value, {"hostname": host})
        request = encode_metrics(self._reader.get_metrics_data())
        for point in points_of(request):
            point.time_unix_nano = time_ms * NS_PER_MS
        return request


def points_of(request):
    return request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points


@periodic("the unit tests map data points to records, and the normal run reads JSON")
class OtlpTest(CpuCase):
    def setUp(self):
        super().setUp()
        self.requests = Requests()
        self.output_topic = self.fixture.topic(self.partitions)

    def send_minutes(self, minutes):
        """Publish a message for each minute, and remember its data points as envelopes. Return the messages."""
        records = []
        for minute in minutes:
            values = {host: float(minute * number) for number, host in enumerate(HOSTS, 1)}
            request = self.requests.encode(NOON_MS + minute * MINUTE_MS, values)
            records.append(Record(request.SerializeToString(), message_id=b"m%d" % minute, partition=minute % 2))
            ((_, partition, offset),) = self.publish(records[-1:])
            self.sent += [(cpu(minute, value, host), partition, offset) for host, value in values.items()]
        return records

    def check(self, **changes):
        otlp = OtlpTopicSettings(OTLP, otlp_tenant="t", otlp_tenant_header=TENANT)
        job = self.job(otlp=otlp, output_topic=self.output_topic, duplicates_lookback=100, **changes)
        records = self.send_minutes(range(20))
        total = self.until_quiet(job)
        records += self.send_minutes(range(20, 40))
        self.publish([records[3], records[30]])  # repeated deliveries
        bad = self.requests.encode(NOON_MS, dict.fromkeys(HOSTS, 1.0))
        points_of(bad)[0].time_unix_nano = 0
        points_of(bad)[1].time_unix_nano = (NOON_MS + 600 * MINUTE_MS) * NS_PER_MS
        ((_, partition, offset),) = self.publish([Record(bad.SerializeToString(), partition=0)])
        host = points_of(bad)[2].attributes[0].value.string_value
        self.sent.append((cpu(0, 1.0, host), partition, offset))
        self.publish([b"\xff\xff"])
        for name, count in self.until_quiet(job).items():
            total[name] += count
        with each_once():
            self.assertEqual(expected(CPU_PRE_ROWS, CPU_ROWS, self.sent), self.stored(self.specs, self.output_topic))
        # Two specifications select each point.
        self.assertEqual((2 * (40 * 3 + 1), 2, 2), tuple(total[name] for name in ("records", "rejected", "duplicates")))
        texts = sorted(dict(message.headers())[ERROR_TEXT].decode() for message in self.read(self.dlq, 1))
        self.assertIn("is not a protobuf", texts[0])
        self.assertIn("metric 'cpu' time_unix_nano is required", texts[1])
        self.assertEqual(2, len(texts))

    def test_executors_count_each_data_point_once(self):
        self.check(one_task_offsets=0)

    def test_the_driver_counts_each_data_point_of_a_small_batch_once(self):
        self.check()


@periodic("OtlpTest reads the same columns")
class OtlpEvaluateTest(EvaluateCase):
    def test_executors_evaluate_the_measurements_of_each_tenant(self):
        self.define("max(cpu) > 5", "hostname")
        otlp = OtlpTopicSettings(OTLP, otlp_tenant="other", otlp_tenant_header=TENANT)
        job = self.evaluation(otlp=otlp, one_task_offsets=0)
        job.step()
        values = Requests().encode(self.event_ms, {"a": 9.0, "b": 1.0}).SerializeToString()
        others = Requests().encode(self.event_ms, {"c": 9.0}).SerializeToString()
        records = [Record(values, headers=((TENANT, b"t"),), partition=0), Record(others, partition=1)]
        self.publish(records)
        report = job.step()
        self.assertEqual((2, 0), (report.results["records"], report.results["rejected"]))
        self.assertEqual([("UNDETERMINED", "ALARM", "a")], self.changes())
