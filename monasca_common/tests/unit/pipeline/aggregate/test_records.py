# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

from oslotest import base

from monasca_common import pipeline
from monasca_common.pipeline.aggregate.records import RecordReader
from monasca_common.tests.unit.pipeline.pipeline_case import envelope, pre_row, shipped_row, specifications

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
BOUNDS = pipeline.TimeBounds.around(NOW_MS, retention_ms=DAY_MS)


class RecordCase(base.BaseTestCase):
    def reader(self, group_by=("host",), filters=(), required=(), **defaults):
        row = shipped_row("mem_total_all", aggregation_group_by_list=list(group_by), filter_by_list=list(filters))
        return RecordReader(specifications([pre_row("cpu", "mem_total_all", required=required, **defaults)], [row]))

    def read(self, reader, *values, bounds=BOUNDS):
        return reader.read(values, bounds)

    def envelope(self, timestamp=NOW_MS, **fields):
        return envelope(timestamp=timestamp, **fields)

    def group(self, column, reader=None, **fields):
        """Return the value of the column in the only record."""
        records = self.read(reader or self.reader([column]), self.envelope(**fields))
        self.assertEqual({}, records.rejected)
        ((value,),) = records.groups
        return value


class ColumnsTest(RecordCase):
    def test_the_first_name_with_a_value_is_used(self):
        for column, kind, keys in (
            ("tenant_id", "dimensions", ("tenantId", "tenant_id", "project_id")),
            ("project_id", "dimensions", ("tenantId", "tenant_id", "project_id")),
            ("resource_uuid", "dimensions", ("instanceId", "resource_id")),
            ("user_id", "meta", ("userId",)),
            ("region", "meta", ("region",)),
            ("zone", "meta", ("zone",)),
        ):
            for position, key in enumerate(keys):
                given = dict.fromkeys(keys[:position], "") | {other: f"the {other}" for other in keys[position:]}
                self.assertEqual(f"the {key}", self.group(column, **{kind: given}))
            self.assertEqual("NA", self.group(column, **{kind: dict.fromkeys(keys)}))

    def test_a_host_is_the_hostname_or_the_host_in_value_meta(self):
        self.assertEqual("a", self.group("host", dimensions={"hostname": "a"}, value_meta={"host": "b"}))
        self.assertEqual("b", self.group("host", value_meta={"host": "b"}))
        self.assertEqual("NA", self.group("host"))

    def test_defaults_of_the_specification_replace_missing_meta(self):
        for column, key in (("region", "set_default_region_to"), ("zone", "set_default_zone_to")):
            self.assertEqual("W", self.group(column, self.reader([column], **{key: "W"})))
            self.assertEqual("here", self.group(column, self.reader([column], **{key: "W"}), meta={column: "here"}))

    def test_any_key_of_a_map_is_a_column(self):
        self.assertEqual("/var", self.group("dimensions#mount", dimensions={"mount": "/var"}))
        self.assertEqual("t", self.group("meta#tenantId", meta={"tenantId": "t"}))
        self.assertEqual("7", self.group("value_meta#code", value_meta={"code": 7}))
        self.assertEqual("NA", self.group("value_meta#code"))

    def test_the_event_type_and_the_metric_id_are_columns(self):
        self.assertEqual("cpu", self.group("event_type"))
        self.assertEqual("mem_total_all", self.group("metric_id"))

    def test_missing_fields_are_accepted(self):
        message = self.envelope(without=["dimensions", "value_meta", "meta", "creation_time"])
        self.assertEqual([("NA",)], self.read(self.reader(), message).groups)

    # Rule 33
    def test_cached_columns_are_not_used_for_another_record(self):
        reader = self.reader(["host", "region"])
        values = [
            {"dimensions": {"hostname": "a"}},
            {"dimensions": {"hostname": "b"}},
            {"value_meta": {"host": "c"}},
            {"value_meta": {"host": "d"}},
            {"dimensions": {"hostname": "a"}, "meta": {"region": "r"}},
        ]
        expected = [("a", "NA"), ("b", "NA"), ("c", "NA"), ("d", "NA"), ("a", "r")]
        for _ in range(2):
            self.assertEqual(expected, self.read(reader, *(self.envelope(**one) for one in values)).groups)


class WantedTest(RecordCase):
    def is_wanted(self, reader, **fields):
        records = self.read(reader, self.envelope(**fields))
        self.assertEqual({}, records.rejected)
        self.assertLessEqual(len(records.groups), 1)
        return bool(records.groups)

    def test_a_required_column_must_not_be_missing_or_empty(self):
        for required, good, bad in (
            ("dimensions#x", {"dimensions": {"x": "1"}}, ({}, {"dimensions": {"x": ""}}, {"dimensions": {"x": None}})),
            ("meta#x", {"meta": {"x": "1"}}, ({}, {"meta": {"x": None}})),
            ("value_meta#x", {"value_meta": {"x": 0}}, ({}, {"value_meta": {"x": ""}})),
            ("creation_time", {}, ({"created": None}, {"created": ""}, {"without": ["creation_time"]})),
            ("meta", {"meta": {"x": "1"}}, ({}, {"without": ["meta"]})),
        ):
            reader = self.reader(required=[required])
            self.assertTrue(self.is_wanted(reader, **good), required)
            for fields in bad:
                self.assertFalse(self.is_wanted(reader, **fields), (required, fields))

    def test_a_filter_matches_its_expression_anywhere_in_the_value(self):
        one = {"field_to_filter": "dimensions#mount", "filter_expression": "var|^/$"}
        for operation in ("include", "exclude"):
            reader = self.reader(filters=[one | {"filter_operation": operation}])
            for mount, matches in (("/var/lib", True), ("/", True), ("/home", False), (None, False)):
                wanted = self.is_wanted(reader, dimensions={"mount": mount})
                self.assertEqual(matches == (operation == "include"), wanted, (operation, mount))

    def test_a_record_counts_for_each_matching_specification(self):
        rows = [shipped_row("mem_total_all"), shipped_row("mem_usable_all")]
        specs = specifications(
            [pre_row("cpu", "mem_total_all"), pre_row("cpu", "mem_usable_all", required=["dimensions#x"])], rows
        )
        records = self.read(
            RecordReader(specs),
            self.envelope(),
            self.envelope(dimensions={"x": "1"}),
            self.envelope(name="other"),
        )
        self.assertEqual([0, 1, 1], records.indices)
        both = [specs.transforms[metric_id].id for metric_id in ("mem_total_all", "mem_usable_all")]
        self.assertEqual([both[0], *both], records.specification_ids)

    def test_values_that_are_not_finite_are_skipped_and_counted(self):
        values = [self.envelope(value=value) for value in ("NaN", 1.0, "Infinity", "-Infinity")]
        records = self.read(self.reader(), *values, self.envelope(name="other", value="NaN"))
        self.assertEqual(([1], {}, 3), (records.indices, records.rejected, records.non_finite))

    # Rule 34
    def test_a_metric_with_the_name_of_an_output_is_ignored(self):
        row = shipped_row("mem_total_all", aggregated_metric_name="cpu")
        reader = RecordReader(specifications([pre_row("cpu", "mem_total_all")], [row]))
        records = self.read(reader, self.envelope())
        self.assertEqual(([], {}), (records.indices, records.rejected))


class RejectedTest(RecordCase):
    def rejection(self, value):
        records = self.read(self.reader(), self.envelope(), value, self.envelope())
        self.assertEqual([0, 2], records.indices)
        return records.rejected[1].kind, records.rejected[1].reason

    # Rule 32
    def test_a_malformed_record_is_reported_with_its_position_and_the_rule(self):
        for value, reason in (
            (None, "has no value"),
            (b"{", "is not JSON"),
            (b"[]", "must be an object"),
            (b"{}", "metric is required"),
            (self.envelope(without=["value"]), "metric.value is required"),
            (self.envelope(value=None), "metric.value must not be null"),
            (self.envelope(value="1"), "metric.value must be a number"),
            (self.envelope(value=1e300), "metric.value must be a number"),
            (self.envelope("soon"), "metric.timestamp must be milliseconds"),
            (self.envelope(-1), "metric.timestamp must be milliseconds"),
            (self.envelope(without=["timestamp"]), "metric.timestamp is required"),
            (self.envelope(dimensions={"hostname": 7}), "metric.dimensions.hostname must be a string"),
            (self.envelope(dimensions={"hostname": "x" * 256}), "host, by which mem_total_all is grouped, has 256"),
            (self.envelope(dimensions={"hostname": "\0"}), "host, by which mem_total_all is grouped, has a NUL"),
        ):
            kind, reported = self.rejection(value)
            self.assertEqual("malformed", kind)
            self.assertIn(reason, reported)

    # Rule 31
    def test_event_times_are_limited_in_both_directions(self):
        for timestamp, kind in (
            (NOW_MS + 600_000, None),
            (NOW_MS + 600_001, "too_new"),
            (10**18, "too_new"),
            (NOW_MS - DAY_MS, None),
            (NOW_MS - DAY_MS - 1, "too_old"),
            (NOW_MS // 1000, "too_old"),  # seconds instead of milliseconds
        ):
            records = self.read(self.reader(), self.envelope(timestamp))
            self.assertEqual(kind, records.rejected[0].kind if records.rejected else None, timestamp)
            self.assertEqual(0 if kind else 1, len(records.indices))

    def test_a_metric_without_a_specification_is_not_validated(self):
        records = self.read(self.reader(), self.envelope(5, name="other", dimensions={"x": 1}))
        self.assertEqual(({}, []), (records.rejected, records.indices))


class WindowTest(RecordCase):
    # Rule 31
    def test_windows_are_ten_minutes_of_event_time_with_fractions(self):
        times = (0, 599_999, 599_999.9, 600_000, 1_485_288_947_372.3062)
        records = self.read(self.reader(), *map(self.envelope, times), bounds=pipeline.TimeBounds(0, NOW_MS))
        self.assertEqual([0, 0, 0, 600_000, 1_485_288_600_000], records.windows_ms)
        self.assertEqual([float(time) for time in times], records.timestamps_ms)


class ImportTest(base.BaseTestCase):
    # Rule 41
    def test_importing_requires_neither_spark_nor_a_database(self):
        program = (
            "import sys; from monasca_common import pipeline; pipeline.load()\n"
            "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'sqlalchemy', 'psycopg') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        self.assertEqual("[]", done.stdout.strip())
