# SPDX-License-Identifier: Apache-2.0
"""Messages of OTLP in the columns that executors receive: each data point counts like an envelope."""

import pickle
from unittest import mock

import pyarrow as pa
from oslotest import base

from monasca_common.alarms.expression import parse
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.metric import MetricDecoder
from monasca_common.persister.otlp import OtlpDecoder
from monasca_common.pipeline import TimeBounds
from monasca_common.pipeline.aggregate.batch import RecordDecoder, partials_of
from monasca_common.pipeline.errors import MALFORMED, TOO_NEW, TOO_OLD
from monasca_common.pipeline.evaluate.batch import RecordFold, portable_definitions
from monasca_common.pipeline.evaluate.definitions import IndexedSubExpression
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.spark import schemas
from monasca_common.pipeline.spark.schemas import BatchSchemas, envelope_parts
from monasca_common.runtime.otlp import OtlpReader
from monasca_common.runtime.otlp_settings import OTLP, OtlpTopicSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.batch_handler import Faults
from monasca_common.tests.unit.models import test_otlp as requests
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row, specifications

NOW_MS = requests.NOW_MS
PARTITION, FIRST_OFFSET = 3, 70
DAY_NS = 86_400 * 10**9


def message(*points, name="cpu"):
    return requests.request(requests.gauge(*points, name=name)).SerializeToString()


def point(value, host="a", *, shift_ns=0):
    time_ns = requests.NOW_NS + shift_ns
    return requests.point(value, attributes=requests.attributes(hostname=host), time_unix_nano=time_ns)


def histogram(count, sum_):
    one = requests.otlp.HistogramDataPoint(
        time_unix_nano=requests.NOW_NS,
        count=count,
        sum=sum_,
        explicit_bounds=(1.0, 2.0),
        bucket_counts=(1, 1, count - 2),
    )
    data = requests.otlp.Histogram(data_points=[one], aggregation_temporality=requests.CUMULATIVE)
    return requests.request(requests.otlp.Metric(name="h", histogram=data)).SerializeToString()


def stream(**settings):
    otlp = OtlpTopicSettings(**{"format": OTLP, "otlp_tenant": "t1", "otlp_region": "r", **settings})
    return StreamSettings(None, None, "", otlp=otlp, max_dimensions=3)


class OtlpCase(base.BaseTestCase):
    def batch(self, *values, tenants=None):
        count = len(values)
        return pa.record_batch(
            {
                "partition": pa.array([PARTITION] * count, pa.int32()),
                "offset": pa.array(range(FIRST_OFFSET, FIRST_OFFSET + count), pa.int64()),
                "kafka_ms": pa.array([NOW_MS] * count, pa.int64()),
                "value": pa.array(values, pa.binary()),
                "tenant": pa.array(tenants or [None] * count, pa.binary()),
            }
        )

    def reader(self, **settings):
        """Return the reader of an executor."""
        return pickle.loads(pickle.dumps(BatchSchemas(None, stream(**settings)).run(lambda reader: reader)))


class EnvelopesTest(OtlpCase):
    def rows(self, *values, tenants=None, **settings):
        """Return the decoded rows of all parts, each with the offset of its message."""
        found = []
        for part in envelope_parts(self.batch(*values, tenants=tenants), self.reader(**settings)):
            decoded = MetricDecoder(max_dimensions=3).decode_all(part.values)
            offsets = part.numbers("offset")
            rows = zip(decoded.indices, decoded.rows, strict=True)
            found += [(offsets[index], row.series, row.time_ms, row.value) for index, row in rows]
        return found

    def test_the_rows_are_those_of_the_persister(self):
        values = message(point(1.5), point(2.5, "b")), histogram(5, 2.5), message(), message(point(3.5))
        part = mock.Mock(
            topic_partition=TopicPartition("otlp", PARTITION),
            values=values,
            offsets=list(range(FIRST_OFFSET, FIRST_OFFSET + len(values))),
            timestamps=[NOW_MS] * len(values),
            headers=[()] * len(values),
        )
        decode = MetricDecoder(max_dimensions=3).decode_all
        stored = OtlpDecoder(Kind.METRICS, OtlpReader(stream().otlp, 3), decode)(part, Faults())
        places = zip(stored.offsets, stored.values, strict=True)
        wanted = [(offset, row.series, row.time_ms, row.value) for offset, row in places]
        self.assertEqual(2 + 5 + 1, len(wanted))
        self.assertEqual(wanted, self.rows(*values))

    def test_parts_are_limited_and_contain_whole_messages(self):
        values = [message(*(point(float(number), f"h{number}") for number in range(3)))] * 4
        with mock.patch.object(schemas, "_MOST_ENVELOPES", 5):
            parts = list(envelope_parts(self.batch(*values), self.reader()))
        self.assertEqual([[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]], [part.messages for part in parts])
        self.assertEqual([70] * 3 + [71] * 3, parts[0].numbers("offset"))

    def test_the_tenant_is_in_the_header_or_configured(self):
        values = message(point(1.0)), message(point(2.0))
        rows = self.rows(*values, tenants=[b"t2", None], otlp_tenant_header="X-Scope-OrgID")
        self.assertEqual(["t2", "t1"], [series.tenant for _, series, _, _ in rows])
        rows = self.rows(*values, tenants=[b"t2", None])
        self.assertEqual(["t1", "t1"], [series.tenant for _, series, _, _ in rows])
        (part,) = envelope_parts(self.batch(values[0]), self.reader(otlp_tenant=None, otlp_tenant_header="T"))
        self.assertEqual({0: "has no header T with its tenant"}, {at: str(error) for at, error in part.errors.items()})


class AggregateTest(OtlpCase):
    def counted(self, *values, **settings):
        """Return the count and the sum of each host, the rejections by offset, and the reported counts."""
        specs = specifications([pre_row("cpu", "mem_total_all")], [shipped_row("mem_total_all")])
        rejected, counts = {}, []
        bounds = TimeBounds(NOW_MS - 60_000, NOW_MS + 60_000)
        decoder = RecordDecoder(
            pickle.dumps(specs),
            bounds,
            lambda partition, found: rejected.update({(partition, offset): each for offset, each in found.items()}),
            lambda *given: counts.append(given),
            self.reader(**settings),
        )
        found = {
            key.group: (partial.count, partial.sum) for key, partial in partials_of(decoder([self.batch(*values)]))
        }
        return found, rejected, counts

    def test_each_data_point_is_a_record(self):
        found, rejected, counts = self.counted(
            message(point(1.0), point(2.0, "b")), message(point(4.0, shift_ns=10**6)), message(point(9.0), name="other")
        )
        self.assertEqual([(1, 2.0), (2, 5.0)], sorted(found.values()))
        self.assertEqual({}, rejected)
        self.assertEqual([(3, 0, {PARTITION: NOW_MS + 1.0}, 0)], counts)

    def test_a_rejected_point_makes_its_message_a_dead_letter_and_the_others_count(self):
        many = requests.attributes(hostname="a", b="2", c="3", d="4")
        found, rejected, counts = self.counted(
            message(point(1.0), point(2.0, shift_ns=-DAY_NS), point(3.0, shift_ns=-DAY_NS)),
            message(point(4.0, shift_ns=DAY_NS), point(8.0)),
            message(requests.point(attributes=many), point(16.0)),
            message(point(1e300), point(32.0)),
            b"\xff",
            None,
            message(point(64.0), point(float("nan"))),
        )
        self.assertEqual([(5, 121.0)], list(found.values()))
        kinds = {offset - FIRST_OFFSET: each.kind for (_, offset), each in rejected.items()}
        self.assertEqual(
            {0: TOO_OLD, 1: TOO_NEW, 2: MALFORMED, 3: MALFORMED, 4: MALFORMED, 5: MALFORMED},
            kinds,
        )
        reasons = {offset - FIRST_OFFSET: each.reason for (_, offset), each in rejected.items()}
        self.assertIn("metric 'cpu' the attributes: has 4 entries: at most 3 are allowed", reasons[2])
        self.assertIn("is not a protobuf", reasons[4])
        self.assertEqual("has no value", reasons[5])
        self.assertEqual([(5, 6, {PARTITION: float(NOW_MS)}, 1)], counts)


class EvaluateTest(OtlpCase):
    def test_data_points_are_measurements_and_empty_messages_arrive(self):
        rejected, counts, arrivals = {}, [], []
        sub = parse("max(cpu) > 1").sub_expressions[0]
        fold = RecordFold(
            portable_definitions([IndexedSubExpression("cpu", 0, "t1", (), 0, sub)], 100),
            NOW_MS + 60_000,
            lambda _, found: rejected.update(found),
            lambda *given: counts.append(given),
            lambda *given: arrivals.append(given),
            self.reader(),
        )
        values = message(point(1.0), point(5.0, "b"), point(9.0, shift_ns=DAY_NS)), b"\xff", message()
        (folded,) = fold([self.batch(*values)])
        (window,) = (each for each in folded.to_pylist() if each["record_count"])
        self.assertEqual((2, 1.0, 5.0), (window["record_count"], window["least"], window["greatest"]))
        kinds = {offset: each.kind for offset, each in rejected.items()}
        self.assertEqual({FIRST_OFFSET: TOO_NEW, FIRST_OFFSET + 1: MALFORMED}, kinds)
        self.assertEqual([(2, 2, {PARTITION: float(NOW_MS)}, 0)], counts)
        self.assertEqual({PARTITION: (FIRST_OFFSET + 2, NOW_MS)}, arrivals[0][0])
