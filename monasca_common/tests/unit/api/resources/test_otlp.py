# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import cramjam
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from monasca_common.api import resources
from monasca_common.api.resources import otlp
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import producer_pool
from monasca_common.kafka.message import MESSAGE_ID_HEADER
from monasca_common.kafka.testing import Fail
from monasca_common.storage.settings import RowLimits
from monasca_common.tests.unit.api.api_case import NOW_MS, SECONDS, ApiCase
from monasca_common.tests.unit.models import test_otlp as requests

METRICS, LOGS = "/v1/metrics", "/v1/logs"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
LIMIT = ApiSettings().max_body_bytes
GAUGE = requests.request(requests.gauge(requests.point()))
LOG = requests.log_request(time_unix_nano=requests.NOW_NS)
IN_JSON = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a"}, "traceId": "0a" * 16}]}]}]}


def ids(records):
    return [dict(record.headers)[MESSAGE_ID_HEADER] for record in records]


class TestMetrics(ApiCase):
    def send(self, message=GAUGE, **headers):
        body = message if isinstance(message, bytes) else message.SerializeToString()
        return self.post(METRICS, body, {**PROTOBUF, **headers})

    def test_each_series_of_a_data_point_is_a_message(self):
        answer = self.send()
        self.assertEqual((200, b""), (answer.status_code, answer.content))
        self.assertEqual("application/x-protobuf", answer.headers["content-type"])
        [envelope] = self.values()
        self.assertEqual(("cpu", 1.5, NOW_MS), tuple(envelope["metric"][key] for key in ("name", "value", "timestamp")))
        self.assertEqual({"tenantId": "t1", "region": "RegionOne"}, envelope["meta"])

    def test_a_repeated_request_has_the_same_message_ids(self):
        other = requests.request(requests.gauge(requests.point(2.5)))
        for message in (GAUGE, GAUGE, other):
            self.assertEqual(200, self.send(message).status_code)
        self.assertEqual(2, len(set(ids(self.records()))))

    def test_refused_points_are_counted_and_the_others_are_accepted(self):
        points = requests.point(), requests.point(time_unix_nano=0), requests.point(time_unix_nano=1)
        answer = self.send(requests.request(requests.gauge(*points)))
        partial = ExportMetricsServiceResponse.FromString(answer.content).partial_success
        self.assertEqual((200, 2, 1), (answer.status_code, partial.rejected_data_points, len(self.records())))
        self.assertIn("2 items were refused: metric 'cpu' time_unix_nano is required", partial.error_message)
        self.assertIn("is older than the retention", partial.error_message)

    def test_a_point_too_large_for_kafka_is_refused_and_the_others_are_accepted(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        large = requests.point(attributes=requests.attributes(**{f"d{number}": "x" * 200 for number in range(9)}))
        message = requests.request(requests.gauge(requests.point(time_unix_nano=0), large, requests.point()))
        client = self.new_client(metrics_topic="small")
        answer = self.post(METRICS, message.SerializeToString(), PROTOBUF, client=client)
        partial = ExportMetricsServiceResponse.FromString(answer.content).partial_success
        self.assertEqual((200, 2, 1), (answer.status_code, partial.rejected_data_points, len(self.records("small"))))
        self.assertRegex(partial.error_message, r"item 1 has \d{4} bytes: at most 1000 are allowed$")

    def test_a_request_without_an_accepted_point_gets_status_200(self):
        for body in (b"", requests.request(requests.gauge(requests.point(time_unix_nano=0)))):
            self.assertEqual(200, self.send(body).status_code)
        self.assertEqual([], self.records())

    def test_attributes_of_the_option_are_dimensions(self):
        message = requests.request(requests.gauge(requests.point()), resource=requests.attributes(zone="z", pid="5"))
        client = self.new_client(otlp_attributes=("zone",))
        self.post(METRICS, message.SerializeToString(), PROTOBUF, client=client)
        [envelope] = self.values()
        self.assertEqual({"zone": "z"}, envelope["metric"]["dimensions"])

    def test_limits_of_storage_apply(self):
        client = self.new_client(limits=RowLimits(max_dimensions=1, reserved_names=frozenset({"cpu"})))
        answer = self.post(METRICS, GAUGE.SerializeToString(), PROTOBUF, client=client)
        self.assertIn(b"reserves for its own rows", answer.content)

    def test_series_beyond_the_limit_are_refused_with_429(self):
        client = self.new_client(max_series_per_tenant=1)
        two = requests.request(requests.gauge(requests.point()), requests.gauge(requests.point(), name="b"))
        answer = self.post(METRICS, two.SerializeToString(), PROTOBUF, client=client)
        self.assertEqual(429, answer.status_code)
        self.assertIn("retry-after", answer.headers)

    def test_a_compressed_body_is_read_up_to_the_limit(self):
        body = GAUGE.SerializeToString()
        for encoding, compress in (("gzip", gzip.compress), ("zstd", lambda text: bytes(cramjam.zstd.compress(text)))):
            header = {"Content-Encoding": encoding}
            self.assertEqual(200, self.send(compress(body), **header).status_code, encoding)
            self.assertEqual(413, self.send(compress(b"\0" * (LIMIT + 1)), **header).status_code, encoding)
            self.assertEqual(400, self.send(compress(body)[:-1], **header).status_code, encoding)
            self.assertEqual(400, self.send(body, **header).status_code, encoding)
        self.assertEqual(2, len(self.records()))

    def test_zstd_may_have_several_frames_and_exactly_the_limit(self):
        frames = bytes(cramjam.zstd.compress(GAUGE.SerializeToString())) * 2
        self.assertEqual(200, self.send(frames, **{"Content-Encoding": "zstd"}).status_code)
        client = self.new_client(max_body_bytes=1024)
        exact = bytes(cramjam.zstd.compress(b"\x1a\x00" * 512))  # a field that OTLP does not have
        header = {**PROTOBUF, "Content-Encoding": "zstd"}
        self.assertEqual(200, self.post(METRICS, exact, header, client=client).status_code)

    def test_another_type_or_encoding_is_refused(self):
        for headers in (
            {"Content-Type": ""},
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/json; charset=latin-1"},
            {"Content-Encoding": "br"},
        ):
            answer = self.post(METRICS, b"{}", {**PROTOBUF, **headers})
            self.assertEqual((415, "application/json"), (answer.status_code, answer.headers["content-type"]))

    def test_a_body_that_is_not_otlp_is_refused(self):
        for body, headers in ((b"\xff", PROTOBUF), (b"[]", {}), (b"", {}), (b"\xff", {})):
            answer = self.post(METRICS, body, headers)
            self.assertEqual(400, answer.status_code, answer.text)

    def test_a_request_with_too_many_items_is_refused(self):
        answer = self.send(b"\x0a\x00" * (LIMIT // 2))
        self.assertEqual(413, answer.status_code, answer.text)

    def test_a_small_body_does_not_wait_for_the_conversion_of_a_large_one(self):
        large = requests.request(requests.gauge(*[requests.point()] * 2000))
        with ThreadPoolExecutor() as pool, otlp._CONVERSION:
            waiting = pool.submit(self.send, large)
            self.assertEqual(200, pool.submit(self.send).result(30).status_code)
            self.assertFalse(waiting.done())
        self.assertEqual(200, waiting.result().status_code)

    def test_messages_that_kafka_does_not_acknowledge_get_status_503(self):
        self.patch(producer_pool, "_PROBE_AFTER_SECONDS", 3600.0)  # no probe on a slow machine
        client = self.new_client(publish_timeout_seconds=SECONDS)
        self.post(METRICS, GAUGE.SerializeToString(), PROTOBUF, client=client)
        self.kafka.broker.disconnect()
        answer = self.post(METRICS, GAUGE.SerializeToString(), PROTOBUF, client=client)
        self.assertEqual(503, answer.status_code)
        self.assertIn("retry-after", answer.headers)


class TestLogs(ApiCase):
    def test_a_log_record_is_a_message(self):
        answer = self.post(LOGS, LOG.SerializeToString(), PROTOBUF)
        self.assertEqual((200, b""), (answer.status_code, answer.content))
        [envelope] = self.values("log")
        self.assertEqual(
            (NOW_MS, {"service.name": "nova"}), (envelope["log"]["timestamp"], envelope["log"]["dimensions"])
        )

    def test_many_logs_with_the_same_traceback_are_accepted_in_gzip(self):
        traceback = "".join(f'  File "/opt/nova/{line * line}.py", line {line}, in call\n' for line in range(100))
        message = requests.log_request()
        message.resource_logs[0].scope_logs[0].log_records.extend(
            LogRecord(time_unix_nano=requests.NOW_NS + number * 1_234_567, body={"string_value": traceback})
            for number in range(1000)
        )
        whole = message.SerializeToString()
        body = gzip.compress(whole)
        self.assertGreater(len(whole), 100 * len(body))
        self.assertEqual(200, self.post(LOGS, body, {**PROTOBUF, "Content-Encoding": "gzip"}).status_code)

    def test_json_has_a_json_response(self):
        answer = self.post(LOGS, IN_JSON)
        self.assertEqual((200, {}), (answer.status_code, answer.json))
        [envelope] = self.values("log")
        self.assertEqual({"message": "a", "dimensions": {}, "trace_id": "0a" * 16}, envelope["log"])
        refused = json.dumps(IN_JSON).replace('"a"', '"\\u0000"')
        answer = self.post(LOGS, refused.encode())
        self.assertEqual("1", answer.json["partialSuccess"]["rejectedLogRecords"])
        self.assertIn("message has a NUL character", answer.json["partialSuccess"]["errorMessage"])

    def test_refused_records_are_counted_in_protobuf(self):
        answer = self.post(LOGS, requests.log_request(time_unix_nano=1_000_000).SerializeToString(), PROTOBUF)
        self.assertEqual(1, ExportLogsServiceResponse.FromString(answer.content).partial_success.rejected_log_records)

    def test_a_record_too_large_for_kafka_is_refused_and_counted_and_the_others_are_accepted(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        bodies = [{"body": {"stringValue": text}} for text in ("\0", "a", "b" * 2000, "c")]
        client = self.new_client(logs_topic="small")
        answer = self.post(LOGS, {"resourceLogs": [{"scopeLogs": [{"logRecords": bodies}]}]}, client=client)
        self.assertEqual((200, "2"), (answer.status_code, answer.json["partialSuccess"]["rejectedLogRecords"]))
        self.assertIn("item 2 has 2", answer.json["partialSuccess"]["errorMessage"])
        self.assertEqual(["a", "c"], sorted(envelope["log"]["message"] for envelope in self.values("small")))
        counted = client.simulate_get("/metrics").text
        for outcome in ("delivered", "rejected"):
            self.assertIn(f'monasca_api_messages_total{{kind="logs",outcome="{outcome}"}} 2.0', counted)

    def test_a_record_too_large_for_kafka_does_not_hide_that_another_is_not_acknowledged(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="small")
        bodies = [{"body": {"stringValue": text}} for text in ("a", "b" * 2000)]
        client = self.new_client(logs_topic="small")
        answer = self.post(LOGS, {"resourceLogs": [{"scopeLogs": [{"logRecords": bodies}]}]}, client=client)
        self.assertEqual((503, 2), (answer.status_code, answer.json["error"]["failed"]))

    def test_only_an_idempotency_key_identifies_a_repeated_request(self):
        for headers, different in (({}, 2), ({"Idempotency-Key": "k"}, 3)):
            for _ in range(2):
                self.assertEqual(200, self.post(LOGS, IN_JSON, headers).status_code)
            self.assertEqual(different, len(set(ids(self.records("log")))))


class TestNotInstalled(ApiCase):
    def test_the_response_names_the_missing_extra(self):
        self.addCleanup(setattr, resources, "otlp", resources.__dict__.pop("otlp"))
        missing = {name: None for name in sys.modules if name.startswith(("opentelemetry", otlp.__name__))}
        with mock.patch.dict(sys.modules, {**missing, otlp.__name__: otlp}):
            del sys.modules[otlp.__name__]
            client = self.new_client()
        answer = self.post(METRICS, ExportMetricsServiceRequest().SerializeToString(), PROTOBUF, client=client)
        self.assertEqual(501, answer.status_code)
        self.assertIn("opentelemetry is not installed: install monasca-common[otlp]", answer.json["error"]["message"])
