# SPDX-License-Identifier: Apache-2.0
import json
import math
import struct
import time

from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from oslotest import base

from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.metric import MetricDecoder, envelopes
from monasca_common.models.otlp import requests
from monasca_common.models.otlp.attributes import text
from monasca_common.models.otlp.logs import parse_logs
from monasca_common.models.otlp.metrics import MOST_BUCKETS, MOST_EXPONENTIAL_BUCKETS, TEMPORALITY, add_samples
from monasca_common.models.otlp.requests import from_json, from_protobuf
from monasca_common.models.post import PostRules
from monasca_common.models.samples import Samples
from monasca_common.models.times import Window
from monasca_common.tests.unit.models.write_request import part

NOW_MS = 1_790_000_000_123
NOW_NS = NOW_MS * 1_000_000 + 999_999
CUMULATIVE = otlp.AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = otlp.AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
NESTED = 60  # levels of a value; each has several levels of messages


def attributes(**values):
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]


def request(*metrics, resource=()):
    message = ExportMetricsServiceRequest()
    of_resource = message.resource_metrics.add()
    of_resource.resource.attributes.extend(resource)
    of_resource.scope_metrics.add().metrics.extend(metrics)
    return message


def gauge(*points, name="cpu"):
    return otlp.Metric(name=name, gauge=otlp.Gauge(data_points=points))


def point(value=1.5, **fields):
    return otlp.NumberDataPoint(as_double=value, **{"time_unix_nano": NOW_NS, **fields})


def parsed(message, *allowed, **rules):
    samples = Samples(PostRules(**rules))
    add_samples(message, frozenset(allowed or {"service.name"}), samples)
    return samples.post()


def converted(message, *allowed, **rules):
    """Return the metrics."""
    return [json.loads(metric) for metric in parsed(message, *allowed, **rules).valid]


def refused(message, **rules):
    """Return the violations of a request without valid metrics."""
    post = parsed(message, **rules)
    assert not post.valid, post.valid
    return list(map(str, post.violations))


def series(message):
    """Return the values by name and dimensions."""
    metrics = converted(message)
    return {(metric["name"], *sorted(metric["dimensions"].items())): metric["value"] for metric in metrics}


class TestNumbers(base.BaseTestCase):
    def test_a_gauge_is_a_series_of_its_name_and_attributes(self):
        message = request(
            gauge(point(attributes=attributes(host="é<>{}"), start_time_unix_nano=NOW_NS), name="système.load 1"),
            resource=attributes(**{"service.name": "nova", "process.pid": "5"}),
        )
        self.assertEqual(
            [
                {
                    "name": "système.load 1",
                    "dimensions": {"host": "é<>{}", "service.name": "nova"},
                    "timestamp": NOW_MS,
                    "value": 1.5,
                    "value_meta": None,
                }
            ],
            converted(message),
        )

    def test_an_attribute_of_the_point_overrides_one_of_the_resource(self):
        message = request(
            gauge(point(attributes=attributes(**{"service.name": "own"}))),
            resource=attributes(**{"service.name": "nova"}),
        )
        self.assertEqual({("cpu", ("service.name", "own")): 1.5}, series(message))

    def test_name_and_version_of_the_scope_are_dimensions_if_allowed(self):
        message = request(gauge(point()))
        scope = message.resource_metrics[0].scope_metrics[0].scope
        scope.name, scope.version = "lib", "1.2"
        scope.attributes.extend(attributes(zone="z"))
        [metric] = converted(message, "otel.scope.name", "otel.scope.version", "zone")
        self.assertEqual({"otel.scope.name": "lib", "otel.scope.version": "1.2", "zone": "z"}, metric["dimensions"])

    def test_a_sum_has_its_start_time_and_a_delta_has_its_own_series(self):
        for temporality, dimensions in ((CUMULATIVE, {}), (DELTA, {TEMPORALITY: "delta"})):
            points = [point(start_time_unix_nano=NOW_NS - 5_000_000)]
            total = otlp.Metric(name="n", sum=otlp.Sum(data_points=points, aggregation_temporality=temporality))
            [metric] = converted(request(total))
            self.assertEqual(dimensions, metric["dimensions"])
            self.assertEqual({"start_time_ms": str(NOW_MS - 5)}, metric["value_meta"])

    def test_an_integer_is_a_number(self):
        [metric] = converted(request(gauge(otlp.NumberDataPoint(as_int=-7, time_unix_nano=NOW_NS))))
        self.assertEqual(-7.0, metric["value"])

    def test_values_that_are_not_finite_are_text_that_the_persister_reads(self):
        for value, written in ((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (-0.0, 0.0)):
            [metric] = parsed(request(gauge(point(value)))).valid
            self.assertEqual(written, json.loads(metric)["value"])
            [row] = MetricDecoder().decode_all(envelopes([metric], "t", "r", 1)).rows
            self.assertEqual(struct.pack("d", value + 0.0), struct.pack("d", row.value))

    def test_a_point_without_recorded_value_ends_its_series_like_a_staleness_marker(self):
        missing = otlp.NumberDataPoint(time_unix_nano=NOW_NS, flags=1)
        [metric] = converted(request(gauge(missing)))
        self.assertEqual(("NaN", {"prometheus": "stale"}), (metric["value"], metric["value_meta"]))


class TestDistributions(base.BaseTestCase):
    def histogram(self, temporality=CUMULATIVE, **fields):
        fields = {"time_unix_nano": NOW_NS, "count": 6, "sum": 9.5, "bucket_counts": [1, 2, 3], **fields}
        points = [otlp.HistogramDataPoint(**{"explicit_bounds": [0.5, 10], **fields})]
        histogram = otlp.Histogram(data_points=points, aggregation_temporality=temporality)
        return request(otlp.Metric(name="h", histogram=histogram))

    def exponential(self, **fields):
        points = [otlp.ExponentialHistogramDataPoint(**{"time_unix_nano": NOW_NS, **fields})]
        histogram = otlp.ExponentialHistogram(data_points=points, aggregation_temporality=CUMULATIVE)
        return request(otlp.Metric(name="e", exponential_histogram=histogram))

    def test_a_histogram_has_cumulative_buckets_count_and_sum(self):
        self.assertEqual(
            {
                ("h_bucket", ("le", "0.5")): 1.0,
                ("h_bucket", ("le", "10")): 3.0,
                ("h_bucket", ("le", "+Inf")): 6.0,
                ("h_count",): 6.0,
                ("h_sum",): 9.5,
            },
            series(self.histogram()),
        )

    def test_a_histogram_without_buckets_or_sum_has_only_its_count(self):
        message = self.histogram(bucket_counts=[], explicit_bounds=[])
        message.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points[0].ClearField("sum")
        self.assertEqual({("h_bucket", ("le", "+Inf")): 6.0, ("h_count",): 6.0}, series(message))

    def test_buckets_that_do_not_match_their_bounds_are_refused(self):
        for fields, rule in (
            ({"bucket_counts": [1, 2]}, "bucket_counts has 2 entries for 2 bounds: send one more entry than bounds"),
            ({"explicit_bounds": [10, 0.5]}, "explicit_bounds must be finite and ascending"),
            ({"explicit_bounds": [1, math.inf]}, "explicit_bounds must be finite and ascending"),
            ({"explicit_bounds": [math.nan, 1]}, "explicit_bounds must be finite and ascending"),
            ({"temporality": 0}, "aggregation_temporality is required: cumulative or delta"),
            (
                {"explicit_bounds": range(MOST_BUCKETS), "bucket_counts": [0] * (MOST_BUCKETS + 1)},
                f"bucket_counts has {MOST_BUCKETS + 1} entries: at most {MOST_BUCKETS} are allowed",
            ),
        ):
            self.assertEqual([f"metric 'h' {rule}"], refused(self.histogram(**fields)))

    def test_buckets_of_an_exponential_histogram_are_merged_to_fixed_bounds(self):
        # With scale 4, each bound is 2 ** (1 / 16) times the previous bound: two buckets become one bucket of scale 3.
        message = self.exponential(
            scale=4,
            count=11,
            zero_count=1,
            positive={"offset": 0, "bucket_counts": [1, 2, 3]},
            negative={"offset": 0, "bucket_counts": [4]},
        )
        eighth = 2 ** (1 / 8)
        self.assertEqual(
            {
                ("e_bucket", ("le", "-1")): 4.0,
                ("e_bucket", ("le", "0")): 5.0,
                ("e_bucket", ("le", repr(eighth))): 8.0,
                ("e_bucket", ("le", repr(eighth**2))): 11.0,
                ("e_bucket", ("le", "+Inf")): 11.0,
                ("e_count",): 11.0,
            },
            series(message),
        )

    def test_negative_values_too_small_for_a_bound_are_in_the_bucket_of_zero(self):
        tiny = {"offset": -2, "bucket_counts": [2]}
        found = series(self.exponential(scale=-10, count=3, zero_count=1, negative=tiny))
        self.assertEqual({("e_bucket", ("le", "0")), ("e_bucket", ("le", "+Inf")), ("e_count",)}, found.keys())
        self.assertEqual(3.0, found["e_bucket", ("le", "0")])

    def test_the_buckets_of_an_exponential_histogram_are_few(self):
        for scale, offset in ((20, 0), (3, -600), (-10, 2**31 - 1), (0, -(2**31))):
            wide = {"offset": offset, "bucket_counts": [1] * (1000 if offset < 2**30 else 1)}
            found = series(self.exponential(scale=scale, count=2000, positive=wide, negative=wide))
            buckets = [key for key in found if key[0] == "e_bucket"]
            self.assertLessEqual(len(buckets), MOST_EXPONENTIAL_BUCKETS + 2)
            self.assertEqual(2000.0, found["e_bucket", ("le", "+Inf")])

    def test_buckets_of_the_sdk_contain_the_values_that_it_recorded(self):
        reader = InMemoryMetricReader()
        view = View(instrument_name="e", aggregation=ExponentialBucketHistogramAggregation())
        meters = MeterProvider([reader], Resource({"service.name": "s"}), views=[view])
        recorded = [0.0, 0.001, 0.5, 1.0, 1.5, 70.0, 3000.0]
        histogram = meters.get_meter("m").create_histogram("e")
        for value in recorded:
            histogram.record(value)
        found = series(encode_metrics(reader.get_metrics_data()))
        for (name, *labels), count in found.items():
            if name == "e_bucket":
                bound = float(dict(labels)["le"])
                self.assertEqual(len([value for value in recorded if value <= bound]), count, bound)
        self.assertEqual(7.0, found["e_count", ("service.name", "s")])

    def test_a_summary_has_quantiles_count_and_sum(self):
        quantiles = [otlp.SummaryDataPoint.ValueAtQuantile(quantile=q, value=v) for q, v in ((0.5, 2), (1, 8))]
        points = [otlp.SummaryDataPoint(time_unix_nano=NOW_NS, count=3, sum=12, quantile_values=quantiles)]
        self.assertEqual(
            {("s", ("quantile", "0.5")): 2.0, ("s", ("quantile", "1")): 8.0, ("s_count",): 3.0, ("s_sum",): 12.0},
            series(request(otlp.Metric(name="s", summary=otlp.Summary(data_points=points)))),
        )


class TestRefusals(base.BaseTestCase):
    def test_a_point_that_breaks_a_rule_is_refused_without_its_siblings(self):
        too_many = [KeyValue(key=str(n), value=AnyValue(int_value=n)) for n in range(101)]
        for bad, rule in (
            (point(attributes=attributes(a="v" * 256)), "the value of 'a' has 256 characters: at most 255 are allowed"),
            (point(attributes=attributes(a="\0")), "the value of 'a' has a NUL character, which databases"),
            (point(attributes=attributes(**{"": "v"})), "the label name '' must not be empty"),
            (point(attributes=too_many), "the attributes: has 101 entries: at most 100 are allowed"),
            (point(time_unix_nano=0), "time_unix_nano is required"),
            (otlp.NumberDataPoint(time_unix_nano=NOW_NS), "value is required: as_double or as_int"),
        ):
            post = parsed(request(gauge(point(), bad, point())))
            self.assertEqual((2, [0, 2], 3), (len(post.valid), post.indices, post.total))
            self.assertIn(f"metric 'cpu' {rule}", str(post.violations[0]))

    def test_a_histogram_of_which_one_series_breaks_a_rule_is_refused_as_a_whole(self):
        points = [otlp.HistogramDataPoint(time_unix_nano=NOW_NS, bucket_counts=[1, 2], explicit_bounds=[1])]
        histogram = otlp.Histogram(data_points=points, aggregation_temporality=CUMULATIVE)
        post = parsed(request(otlp.Metric(name="h" * 249, histogram=histogram)))
        self.assertEqual(([], 1, 1), (post.valid, post.total, len(post.violations)))

    def test_a_time_outside_the_limits_of_storage_is_refused(self):
        [violation] = refused(request(gauge(point())), allowed=Window(NOW_MS + 1, NOW_MS + 2))
        self.assertIn("metric 'cpu' time_unix_nano is older than the retention", violation)

    def test_a_reserved_name_and_an_invalid_name_are_refused(self):
        own, long, empty = refused(
            request(gauge(point(), name="own"), gauge(point(), name="n" * 256), gauge(point(), name="")),
            reserved_names=frozenset({"own"}),
        )
        self.assertIn("reserves for its own rows", own)
        self.assertIn("the name has 256 characters", long)
        self.assertIn("the name must not be empty", empty)

    def test_the_last_of_repeated_keys_is_used_and_an_empty_value_is_omitted(self):
        repeated = [*attributes(a="1", b=""), *attributes(a="2")]
        self.assertEqual({("cpu", ("a", "2")): 1.5}, series(request(gauge(point(attributes=repeated)))))

    def test_a_request_with_too_many_items_is_too_large(self):
        message = ExportMetricsServiceRequest.FromString(b"\x0a\x00" * (requests.MOST_ITEMS + 1))
        error = self.assertRaises(InvalidEnvelope, parsed, message)
        self.assertTrue(error.violations[0].too_large)

    def test_the_time_of_a_long_text_does_not_grow_with_the_items(self):
        size = 1_000_000
        for message in (
            request(gauge(*[point()] * 2000), resource=attributes(**{"service.name": "x" * size})),
            request(gauge(*[point()] * 2000, name="x" * size)),
            request(*[gauge(point())] * 2000, resource=attributes(**{"service.name": "x" * size})),
        ):
            began = time.process_time()
            self.assertEqual((2000, []), (parsed(message).total, parsed(message).valid))
            self.assertLess(time.process_time() - began, 5)


class TestAttributes(base.BaseTestCase):
    def test_a_value_that_is_not_a_string_becomes_its_json(self):
        values = [AnyValue(int_value=2**63 - 1), AnyValue(string_value="é"), AnyValue(double_value=math.nan)]
        members = [KeyValue(key="k", value=AnyValue(bytes_value=b"\xff"))]
        for value, written in (
            (AnyValue(string_value="a"), "a"),
            (AnyValue(), ""),
            (AnyValue(bool_value=True), "true"),
            (AnyValue(int_value=-5), "-5"),
            (AnyValue(double_value=0.5), "0.5"),
            (AnyValue(double_value=-math.inf), "-Infinity"),
            (AnyValue(bytes_value=b"\xff"), "/w=="),
            (AnyValue(array_value={"values": values}), '[9223372036854775807,"é","NaN"]'),
            (AnyValue(kvlist_value={"values": members}), '{"k":"/w=="}'),
        ):
            self.assertEqual(written, text(value))


def log_request(**record):
    message = ExportLogsServiceRequest()
    of_resource = message.resource_logs.add()
    of_resource.resource.attributes.extend(attributes(**{"service.name": "nova", "pid": "5"}))
    of_resource.scope_logs.add().log_records.add(**record)
    return message


def logs(message):
    post = parse_logs(message, frozenset({"service.name"}))
    return [json.loads(text) for text in post.valid] + list(map(str, post.violations))


class TestLogs(base.BaseTestCase):
    def test_a_log_record_is_a_log_with_its_severity_ids_and_attributes(self):
        message = log_request(
            time_unix_nano=NOW_NS,
            severity_number=17,
            severity_text="ERROR",
            body=AnyValue(string_value="failed"),
            attributes=[*attributes(line="x" * 300), KeyValue(key="n", value=AnyValue(int_value=1))],
            trace_id=bytes(range(16)),
            span_id=bytes(range(8)),
        )
        self.assertEqual(
            [
                {
                    "message": "failed",
                    "dimensions": {"service.name": "nova"},
                    "timestamp": NOW_MS,
                    "attributes": {"line": "x" * 300, "n": 1},
                    "severity_number": 17,
                    "severity_text": "ERROR",
                    "span_id": "0001020304050607",
                    "trace_id": "000102030405060708090a0b0c0d0e0f",
                }
            ],
            logs(message),
        )

    def test_a_body_that_is_not_text_is_json_and_the_observed_time_replaces_a_missing_one(self):
        structured = {"values": [KeyValue(key="a", value=AnyValue(bool_value=False))]}
        [log] = logs(log_request(body=AnyValue(kvlist_value=structured), observed_time_unix_nano=NOW_NS))
        self.assertEqual(('{"a":false}', NOW_MS), (log["message"], log["timestamp"]))

    def test_an_id_of_another_length_is_omitted(self):
        [log] = logs(log_request(trace_id=b"1", span_id=b"123456789"))
        self.assertEqual({"message", "dimensions"}, log.keys())

    def test_a_record_that_cannot_be_stored_is_refused(self):
        [violation] = logs(log_request(body=AnyValue(string_value="\0")))
        self.assertIn("log 0.message has a NUL character", violation)
        [violation] = logs(log_request(attributes=attributes(a="\0")))
        self.assertIn("has a NUL character", violation)
        [violation] = logs(log_request(body=AnyValue(string_value="x" * (1024 * 1024 + 1))))
        self.assertIn("message has 1048577 bytes", violation)

    def test_logs_that_repeat_many_bytes_of_their_resource_are_too_large(self):
        message = log_request()
        of_resource = message.resource_logs[0]
        of_resource.resource.attributes[0].value.string_value = "🌡" * 255
        of_resource.scope_logs[0].log_records.extend([LogRecord()] * 20_000)
        error = self.assertRaises(InvalidEnvelope, logs, message)
        self.assertTrue(error.violations[0].too_large)
        self.assertIn("has more than 16777216 bytes of envelopes: send it in parts", str(error))

    def test_the_violations_of_many_logs_are_few(self):
        message = log_request()
        message.resource_logs[0].scope_logs[0].log_records.extend([LogRecord(body=AnyValue(string_value="\0"))] * 5000)
        post = parse_logs(message, frozenset())
        self.assertEqual((5001, 1, 100), (post.total, len(post.valid), len(post.violations)))


class TestRequests(base.BaseTestCase):
    def test_json_is_the_same_request_as_protobuf(self):
        record = {"trace_id": bytes(range(16)), "span_id": bytes(8), "body": AnyValue(bytes_value=b"\xff")}
        message = log_request(time_unix_nano=NOW_NS, **record)
        document = json.loads(json_format.MessageToJson(message))
        [found] = document["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        self.assertEqual(str(NOW_NS), found["timeUnixNano"])
        found |= {"traceId": record["trace_id"].hex().upper(), "spanId": record["span_id"].hex(), "unknown": [1]}
        self.assertEqual(message, from_json(json.dumps(document).encode(), ExportLogsServiceRequest()))

    def test_a_body_that_is_not_a_request_is_refused_without_quoting_it(self):
        deep = b'{"arrayValue":{"values":[' * NESTED + b"{}" + b"]}}" * NESTED
        huge = b'{"doubleValue":1%b}' % (b"0" * 400)
        for read, body in (
            (from_protobuf, b"\xff"),
            (from_protobuf, ExportLogsServiceRequest().SerializeToString() + b"\x0a\x05a"),
            (from_json, b"secret"),
            (from_json, b"[]"),
            (from_json, b"null"),
            (from_json, b'{"resourceLogs":"secret"}'),
            (from_json, b'{"resourceLogs":[5]}'),
            (from_json, b'{"resourceLogs":null,"resource_logs":[{"scopeLogs":{"a":1}}]}'),
            (from_json, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"secret"}]}]}]}'),
            (from_json, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"-1"}]}]}]}'),
            (from_json, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % deep),
            (from_json, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % huge),
            (from_json, b'{"resourceLogs":[{"schemaUrl":"\\ud800"}]}'),
            (from_json, b'{"resourceLogs":[{"schemaUrl":"\xff"}]}'),
            (from_json, b"[" * 100_000),
            (from_json, b"{" * (requests.MOST_JSON_OBJECTS + 1)),
        ):
            error = self.assertRaises(InvalidEnvelope, read, body, ExportLogsServiceRequest())
            self.assertNotIn("secret", str(error))

    def test_text_that_is_not_utf8_and_values_that_are_too_deep_are_no_protobuf(self):
        message = log_request(severity_text="SECRET")
        damaged = message.SerializeToString().replace(b"SECRET", b"\xff\xfe\xfd\xfc\xfb\xfa")
        self.assertRaises(InvalidEnvelope, from_protobuf, damaged, ExportLogsServiceRequest())
        value = part(1, b"x")
        for _ in range(200):
            value = part(5, part(1, value))  # an array of one value
        body = part(1, part(2, part(2, part(5, value))))
        self.assertRaises(InvalidEnvelope, from_protobuf, body, ExportLogsServiceRequest())

    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_request_or_refused(self, body):
        for read in (from_protobuf, from_json):
            try:
                message = read(body, ExportMetricsServiceRequest())
            except InvalidEnvelope:
                continue
            parsed(message)

    @given(st.data())
    def test_any_document_is_a_request_or_refused(self, data):
        names = st.sampled_from(("resourceMetrics", "scopeMetrics", "metrics", "gauge", "dataPoints", "asInt", "name"))
        document = data.draw(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
                lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
            )
        )
        try:
            converted(from_json(json.dumps(document).encode(), ExportMetricsServiceRequest()))
        except InvalidEnvelope:
            return
