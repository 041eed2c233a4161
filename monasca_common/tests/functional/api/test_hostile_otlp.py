# SPDX-License-Identifier: Apache-2.0
"""Hostile requests of OTLP: none causes a server error, and the memory of the worker stays bounded."""

import gzip
import random
import re
from pathlib import Path

import cramjam
import psutil
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from monasca_common.tests.functional.api.api_case import NOW_MS, ApiProcessCase
from monasca_common.tests.unit.models.write_request import number as varint
from monasca_common.tests.unit.models.write_request import part as field

METRICS, LOGS = "/v1/metrics", "/v1/logs"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
LIMIT = 5 * 1024 * 1024
MOST_GROWTH = 700_000_000  # bytes; empty messages need a hundred times their size in memory
MUTATIONS = 200
TIME_NS = NOW_MS * 1_000_000


def nested(levels):
    """Return an AnyValue of arrays in arrays."""
    value = field(1, b"x")
    for _ in range(levels):
        value = field(5, field(1, value))
        if len(value) > LIMIT // 2:
            return value
    return value


def point(content):
    """Return a request with one gauge, whose data point has this content."""
    number = b"\x19" + TIME_NS.to_bytes(8, "little") + content
    return field(1, field(2, field(2, field(1, b"cpu") + field(5, field(1, number)))))


def histogram(number, content):
    """Return a request with a histogram (9) or an exponential histogram (10)."""
    data = field(1, b"\x19" + TIME_NS.to_bytes(8, "little") + content) + b"\x10\x02"
    return field(1, field(2, field(2, field(1, b"h") + field(number, data))))


def log(content):
    return field(1, field(2, field(2, b"\x09" + TIME_NS.to_bytes(8, "little") + content)))


def attributes(count, key=lambda number: b"%d" % number):
    """Return attributes as field 7 of a data point, or 6 of a log record if the number of the field is replaced."""
    return [field(1, key(number)) + field(2, field(1, b"v")) for number in range(count)]


def in_protobuf():
    """Yield pairs of a path and a body."""
    for levels in (30, 60, 200, 20_000):
        yield METRICS, point(field(7, field(1, b"a") + field(2, nested(levels))))
        yield LOGS, log(field(5, nested(levels)))
        yield LOGS, log(field(6, field(1, b"a") + field(2, nested(levels))))
    many = attributes(LIMIT // 16)
    same = attributes(LIMIT // 16, lambda _: b"a")
    for found in (many, same):
        yield METRICS, point(b"".join(field(7, each) for each in found))
        yield LOGS, log(b"".join(field(6, each) for each in found))
        yield METRICS, field(1, field(1, b"".join(field(1, each) for each in found)))
        yield METRICS, field(1, field(2, field(1, b"".join(field(3, each) for each in found))))
        yield METRICS, point(field(7, field(1, b"a") + field(2, field(6, b"".join(field(1, each) for each in found)))))
    half = (LIMIT - 64) // 2
    for path in (METRICS, LOGS):
        yield path, b"\x0a\x00" * half
        yield path, field(1, b"\x12\x00" * half)
        yield path, field(1, field(2, b"\x12\x00" * half))
        yield path, b"\xff" * 1000
        yield path, b"\x0b" * LIMIT  # groups in groups
        yield path, b"\x0a\xff\xff\xff\xff\x07"  # a length of 2 GB
        yield path, b"\x80" * 1000
    for of_metric in (5, 7, 9, 10, 11):
        yield METRICS, field(1, field(2, field(2, field(1, b"m") + field(of_metric, b"\x0a\x00" * half))))
    yield METRICS, point(field(7, field(1, b"\xff\xfe") + field(2, field(1, b"v"))))
    yield LOGS, log(field(5, field(1, b"\xff")) + field(3, b"\xc0\xaf"))
    yield METRICS, histogram(9, field(6, bytes(LIMIT - 200)))
    yield METRICS, histogram(9, field(6, bytes(5)) + field(7, bytes(8 * 4)))
    counts = b"\x10" + varint(0) + field(2, b"\x01" * 900)
    for scale in (b"\x30\x13", b"\x30\x28", b"\x30\xff\xff\xff\xff\x0f", b"\x30\xfe\xff\xff\xff\x0f"):
        for offset in (b"\x08\x00", b"\x08\xfe\xff\xff\xff\x0f", b"\x08\xff\xff\xff\xff\x0f"):
            buckets = offset + field(2, b"\x01" * 900)
            yield METRICS, histogram(10, scale + field(8, buckets) + field(9, buckets))
    yield METRICS, histogram(10, field(8, b"\x08\x00" + field(2, bytes(LIMIT - 300))) + counts)


def repeated():
    """Yield pairs of a path and a body whose many items repeat a text of their resource or metric."""
    key, number = field(1, b"service.name"), b"\x19" + TIME_NS.to_bytes(8, "little") + b"\x31" + bytes(8)
    for size, count in ((255, 80_000), (LIMIT // 2, 15_000)):
        resource = field(1, field(1, key + field(2, field(1, b"x" * size))))
        points, records = field(5, field(1, number) * count), b"\x12\x00" * count
        yield METRICS, field(1, resource + field(2, field(2, field(1, b"cpu") + points)))
        yield METRICS, field(1, field(2, field(2, field(1, b"x" * size) + points)))
        yield METRICS, field(1, resource + b"\x12\x00" * count)
        yield LOGS, field(1, resource + field(2, records))
        yield LOGS, field(1, resource + b"\x12\x00" * count)


def in_json():
    """Yield pairs of a path and a body."""
    value = b'{"arrayValue":{"values":[' * 20_000 + b"]}}" * 20_000
    record = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{%b}]}]}]}'
    yield LOGS, record % b'"body":%b' % value
    yield LOGS, b"[" * LIMIT
    yield LOGS, b'{"a":' * (LIMIT // 5)
    yield LOGS, b"{" * LIMIT
    number = (
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"n","gauge":{"dataPoints":[{"asInt":"1",'
        b'"timeUnixNano":"%d","attributes":[%b]}]}}]}]}]}'
    )
    for key in (b"%d", b"a%.0d"):
        one = b'{"key":"%b","value":{"stringValue":"v"}}' % key
        found = b",".join([one % each for each in range(LIMIT // 50)])
        yield METRICS, number % (TIME_NS, found)
        yield LOGS, b'{"resourceLogs":[{"resource":{"attributes":[%b]}}]}' % found
    for each, count in ((b"{}", 249_000), (b"null", LIMIT // 6), (b"1", LIMIT // 3)):
        yield METRICS, b'{"resourceMetrics":[%b]}' % b",".join([each] * count)
    yield LOGS, record % b'"traceId":"%b"' % (b"zz" * 1000)
    yield LOGS, record % b'"timeUnixNano":%b' % (b"9" * 5000)
    yield LOGS, b'{"resourceLogs":[{"schemaUrl":"\\ud800\\u0000"}]}'
    yield LOGS, b'{"resourceLogs":{},"resourceLogs":[{"resource":5,"resource":null}]}'


def bombs():
    """Yield pairs of an encoding and a body."""
    zeros = bytes(64 * 1024 * 1024)
    yield "gzip", gzip.compress(zeros)
    yield "gzip", gzip.compress(gzip.compress(zeros))
    yield "gzip", gzip.compress(b"", mtime=0) * 50_000
    zstd = bytes(cramjam.zstd.compress(zeros))
    yield "zstd", zstd
    yield "zstd", bytes(cramjam.zstd.compress(zstd)) * 10_000
    yield "zstd", b"\x28\xb5\x2f\xfd\x00\xf0" + bytes(100)  # a window of more than a terabyte
    yield "zstd", b"\x50\x2a\x4d\x18\xff\xff\xff\xff"  # a frame to skip, of 4 GB
    yield "zstd", b"\x50\x2a\x4d\x18\x00\x00\x00\x00" * (LIMIT // 8)


def mutated(seed):
    """Yield valid requests with changed, removed and repeated bytes."""
    chance = random.Random(seed)
    metrics, logs = ExportMetricsServiceRequest(), ExportLogsServiceRequest()
    value = AnyValue(kvlist_value={"values": [KeyValue(key="k", value=AnyValue(double_value=1))]})
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.exponential_histogram.aggregation_temporality = 2
    metric.exponential_histogram.data_points.add(
        time_unix_nano=TIME_NS, scale=2, count=5, positive={"offset": 1, "bucket_counts": [1, 4]}
    )
    record = logs.resource_logs.add().scope_logs.add().log_records.add(body=value, time_unix_nano=TIME_NS)
    record.attributes.add(key="a", value=value)
    for _ in range(MUTATIONS):
        path, message = chance.choice(((METRICS, metrics), (LOGS, logs)))
        body = bytearray(message.SerializeToString())
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(body))
            body[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        yield path, bytes(body)


class HostileOtlpTest(ApiProcessCase):
    def setUp(self):
        super().setUp()
        logs = self.fixture.topic()
        self.served = self.api(api=[f"logs_topic = {logs}"])
        for path in (METRICS, LOGS):
            self.assertEqual(200, self.send(path, b"")[0])
        [self.worker] = [psutil.Process(worker.pid) for worker in self.served.workers()]
        self.before = self.peak()

    def send(self, path, body, content_type=PROTOBUF, encoding="identity"):
        headers = {"Content-Type": content_type, "Content-Encoding": encoding}
        status, _, text = self.served.fetch("POST", path, body, headers)
        return status, text

    def peak(self):
        """Return the peak memory of the worker in bytes."""
        [kibibytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.worker.pid}/status").read_text())
        return int(kibibytes) * 1024

    def check(self, statuses, requests):
        """Send all requests. Check that the statuses are among the given ones, and that the worker's memory is
        bounded."""
        found = set()
        for number, request in enumerate(requests):
            status, text = self.send(*request)
            self.assertIn(status, statuses, f"request {number}: {text[:300]!r}")
            found.add(status)
        self.assertEqual(found, statuses)
        self.assertTrue(self.worker.is_running())
        self.assertLess(self.peak() - self.before, MOST_GROWTH)
        self.assertEqual(200, self.send(METRICS, point(b"\x31" + bytes(8)))[0])

    def test_hostile_protobuf_causes_no_server_error(self):
        self.check({200, 400, 413}, in_protobuf())

    def test_texts_that_many_items_repeat_cause_no_server_error(self):
        self.check({200, 413}, repeated())

    def test_hostile_json_causes_no_server_error(self):
        self.check({200, 400, 413}, ((path, body, JSON) for path, body in in_json()))

    def test_compressed_bombs_cause_no_server_error(self):
        self.check({200, 400, 413}, ((METRICS, body, PROTOBUF, encoding) for encoding, body in bombs()))

    def test_changed_bytes_cause_no_server_error(self):
        self.check({200, 400}, mutated(seed=5))
