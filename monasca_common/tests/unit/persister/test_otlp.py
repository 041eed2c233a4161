# SPDX-License-Identifier: Apache-2.0
import sys
from unittest import mock

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from oslotest import base

from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, TopicPartition
from monasca_common.persister.decoder import decoder
from monasca_common.persister.settings import GroupSettings, persister_settings
from monasca_common.runtime.otlp_settings import ENVELOPES, OTLP, OTLP_BATCH_SIZE, OtlpTopicSettings
from monasca_common.storage.base import Claim, Kind
from monasca_common.storage.batch_handler import Faults
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.models import test_otlp as requests
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

NOW_MS = requests.NOW_MS
FIRST_OFFSET = 7


class Part:
    """A batch with these values and headers."""

    def __init__(self, *values, headers=()):
        self.topic_partition = TopicPartition("otlp", 0)
        self.values = [value if value is None else value.SerializeToString() for value in values]
        self.offsets = list(range(FIRST_OFFSET, FIRST_OFFSET + len(values)))
        self.timestamps = [NOW_MS] * len(values)
        self.headers = [headers] * len(values)


def decoded(kind, part, **settings):
    """Return the rows of a batch, and the reasons of its dead letters by offset."""
    otlp = OtlpTopicSettings(**{"otlp_tenant": "t1", **settings})
    group = GroupSettings("g", kind, 1, 1, 1000, consumer=None, producer=None, max_dimensions=3, otlp=otlp)
    faults = Faults()
    return decoder(group)(part, faults), faults


def logs(*bodies):
    message = ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    for body in bodies:
        records.add(body=AnyValue(string_value=body))
    return message


def metrics(*points):
    return requests.request(requests.gauge(*points))


class DecoderTest(base.BaseTestCase):
    def test_each_series_of_a_data_point_is_a_row(self):
        histogram = requests.otlp.HistogramDataPoint(time_unix_nano=requests.NOW_NS, count=5, sum=2.5)
        data = requests.otlp.Histogram(data_points=[histogram], aggregation_temporality=requests.CUMULATIVE)
        message = requests.request(requests.otlp.Metric(name="h", histogram=data))
        rows, faults = decoded(Kind.METRICS, Part(message, metrics(requests.point())), otlp_region="r")
        self.assertEqual({}, faults.reasons)
        self.assertEqual(["h_bucket", "h_count", "h_sum", "cpu"], [row.series.name for row in rows.values])
        self.assertEqual([5.0, 5.0, 2.5, 1.5], [row.value for row in rows.values])
        self.assertEqual({("t1", "r", NOW_MS, NOW_MS)}, {_facts(row) for row in rows.values})
        self.assertEqual(([7, 7, 7, 8], [0, 1, 2, 0]), (rows.offsets, rows.indexes))

    def test_a_bad_data_point_is_a_fault_without_its_siblings(self):
        many = requests.attributes(a="1", b="2", c="3", d="4")
        message = metrics(requests.point(), requests.point(attributes=many), requests.point(2.5))
        rows, faults = decoded(Kind.METRICS, Part(message))
        [reasons] = faults.reasons.values()
        self.assertEqual(["element 1: metric 'cpu' the attributes: has 4 entries: at most 3 are allowed"], reasons)
        self.assertEqual(([1.5, 2.5], [0, 2]), ([row.value for row in rows.values], rows.indexes))
        self.assertEqual(2, len(rows.without(faults)))

    def test_a_message_that_is_not_otlp_is_a_dead_letter(self):
        part = Part(metrics(requests.point()), None, metrics(requests.point(2.5)))
        part.values[0] = b"\xff"
        rows, faults = decoded(Kind.METRICS, part)
        self.assertEqual({7, 8}, faults.reasons.keys())
        self.assertIn("is not a protobuf", faults.reasons[7][0])
        self.assertEqual([2.5], [row.value for row in rows.values])

    def test_the_tenant_is_in_the_header_or_configured(self):
        part = Part(metrics(requests.point()), headers=(("X-Scope-OrgID", b"t2"),))
        for settings, tenant in (
            ({}, "t1"),
            ({"otlp_tenant_header": "X-Scope-OrgID"}, "t2"),
            ({"otlp_tenant_header": "other"}, "t1"),
        ):
            rows, _ = decoded(Kind.METRICS, part, **settings)
            self.assertEqual([tenant], [row.series.tenant for row in rows.values])
        _, faults = decoded(Kind.METRICS, part, otlp_tenant=None, otlp_tenant_header="other")
        self.assertEqual({7: ["has no header other with its tenant"]}, faults.reasons)
        part.headers = [(("X-Scope-OrgID", b""),)]
        _, faults = decoded(Kind.METRICS, part, otlp_tenant_header="X-Scope-OrgID")
        self.assertIn("meta.tenantId must not be empty", faults.reasons[7][0])

    def test_each_log_has_the_id_of_its_message_and_its_index(self):
        message = ExportLogsServiceRequest()
        records = message.resource_logs.add().scope_logs.add().log_records
        for body in ("a", "\0", "b"):
            records.add(body=AnyValue(string_value=body), observed_time_unix_nano=requests.NOW_NS)
        rows, faults = decoded(Kind.LOGS, Part(message))
        self.assertEqual(["a", "b"], [row.message for row in rows.values])
        self.assertEqual([0, 2], rows.indexes)
        self.assertEqual(2, len(set(rows.message_ids)))
        self.assertIn("element 1: log 1.message has a NUL character", faults.reasons[7][0])
        again, _ = decoded(Kind.LOGS, Part(message))
        self.assertEqual(rows.message_ids, again.message_ids)


class UntimedLogsTest(SqliteTestCase):
    """Logs without a time, whose message gets another time if it is replayed."""

    def write(self, message, offset, time_ms, headers=()):
        """Store the valid logs of one message."""
        part = Part(message, headers=headers)
        part.offsets, part.timestamps = [offset], [time_ms]
        rows, faults = decoded(Kind.LOGS, part)
        writer, claim = self.database.writer(), Claim("g", *part.topic_partition, None, offset, offset + 1)
        writer.reset_offsets("g", {part.topic_partition: offset}, {})
        writer.write(claim, rows.without(faults))

    def times(self):
        return [row.time_ms for _, row in self.database.rows(Kind.LOGS)]

    def test_a_replay_of_a_dead_letter_stores_no_log_twice(self):
        for first_id in (b"", b"x" * MADE_ID_BYTES):
            own_id = first_id or b"otlp/0/%d" % FIRST_OFFSET
            self.write(logs("good", "\0"), FIRST_OFFSET, NOW_MS, [(MESSAGE_ID_HEADER, first_id)])
            for offset, body in enumerate(("\0", "corrected"), FIRST_OFFSET + 1):
                self.write(logs("good", body), offset, NOW_MS + 60_000, [(MESSAGE_ID_HEADER, own_id)])
        self.assertEqual([NOW_MS, NOW_MS, NOW_MS + 60_000, NOW_MS + 60_000], sorted(self.times()))

    def test_logs_of_a_recreated_topic_are_stored_although_its_offsets_recur(self):
        for time_ms in (NOW_MS, NOW_MS + 60_000):
            self.write(logs("a", "b"), FIRST_OFFSET, time_ms)
        self.assertEqual([NOW_MS, NOW_MS, NOW_MS + 60_000, NOW_MS + 60_000], sorted(self.times()))


def _facts(row):
    return row.series.tenant, row.series.region, row.time_ms, row.version


class SettingsTest(ConfigurationTestCase):
    def groups(self, *lines):
        text = "\n".join(("enabled = true", *lines))
        database = "connection = sqlite:////tmp/nowhere.sqlite"
        return persister_settings(self.with_kafka(kafka_metrics=text, kafka_logs=text, database=database)).groups

    def test_topics_have_envelopes_by_default(self):
        self.assertEqual({None}, {group.otlp for group in self.groups()})

    def test_batches_of_otlp_are_small_unless_the_group_sets_their_size(self):
        own = [f"format = {OTLP}", "otlp_tenant = t"]
        sizes = {group.kind: group.consumer.batch_size for group in self.groups(*own)}
        self.assertEqual((OTLP_BATCH_SIZE, OTLP_BATCH_SIZE), (sizes[Kind.METRICS], sizes[Kind.LOGS]))
        self.assertEqual(20_000, sizes[Kind.ALARM_HISTORY])
        self.assertEqual(7, self.groups(*own, "batch_size = 7")[0].consumer.batch_size)

    def test_batches_of_envelopes_are_large_again_after_a_reload(self):
        text = f"enabled = true\nformat = {OTLP}\notlp_tenant = t"
        conf = self.with_kafka(kafka_metrics=text, database="connection = sqlite:////tmp/nowhere.sqlite")
        persister_settings(conf)
        conf.set_override("format", ENVELOPES, group="kafka_metrics")
        self.assertEqual(20_000, persister_settings(conf).groups[0].consumer.batch_size)

    def test_otlp_without_a_tenant_is_refused(self):
        text = self.refused(self.groups, f"format = {OTLP}")
        self.assertIn("otlp_tenant in group [kafka_metrics] is not set", text)

    def test_a_missing_extra_is_named(self):
        with mock.patch.dict(sys.modules, {"monasca_common.models.otlp.metrics": None, "opentelemetry": None}):
            text = self.refused(self.groups, f"format = {OTLP}", "otlp_tenant = t")
        self.assertIn("format in group [kafka_metrics] is otlp_proto, but", text)

    def test_other_topics_have_no_such_option(self):
        self.assertIn("format", self.refused(persister_settings, self.with_kafka(kafka_events=f"format = {OTLP}")))
