# SPDX-License-Identifier: Apache-2.0
"""The contract of storage with a real InfluxDB 1.x; unsupported operations must fail."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.rows import AlarmTransition, Measurement
from monasca_common.models.series import Series, series_id
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import RowsRefused, StorageUnavailable
from monasca_common.storage.influxdb import InfluxdbStorage
from monasca_common.storage.influxdb.lines import NotWritable, series_head
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts import storage as testing
from monasca_common.tests.contracts.storage.database import NOW_MS, canonical
from monasca_common.tests.contracts.storage.scenario import (
    GROUP,
    PARTITION,
    TOPIC_ID,
    Scenario,
    claim,
    make_series,
    measurement,
    row,
)
from monasca_common.tests.functional.storage.influxdb_server import server
from monasca_common.tests.periodic import periodic

# In addition to separators: white space of any kind, quotes, comments, and characters of several bytes.
_TEXT = st.text(alphabet="a\\, =\"'#_\t\r\x0b\x1f\x85\u2028é😀", min_size=1, max_size=6)
_numbers = itertools.count()


class InfluxDatabase(testing.Database):
    def __init__(self, defer):
        super().__init__(defer)
        self.name = f"monasca {next(_numbers)}"
        url = f"influxdb://127.0.0.1:{server().http_port}/{self.name}"
        self.settings = StorageSettings("influxdb", url)

    def prepare(self):
        self.storage().upgrade()
        self._defer(server().query, f'DROP DATABASE "{self.name}"')

    def rows(self, kind):
        table = "/.*/" if kind is Kind.METRICS else "alarm_state_history"
        # Tags are separate from fields, which can have the same names.
        found = server().query(f"SELECT * FROM {table} GROUP BY *", self.name)
        read = _measurement if kind is Kind.METRICS else _transition
        wanted = [series for series in found if (series["name"] == "alarm_state_history") != (kind is Kind.METRICS)]
        return [
            read(series["name"], series["tags"], dict(zip(series["columns"], values, strict=True)))
            for series in wanted
            for values in series["values"]
        ]


def _measurement(name, tags, fields):
    tags = {key: value for key, value in tags.items() if value}
    tenant, region = tags.pop("_tenant_id"), tags.pop("_region", "")
    series = Series(series_id(tenant, region, name, tags), tenant, region, name, tags)
    value_meta = None if fields["value_meta"] == "{}" else canonical(fields["value_meta"])
    value = float(fields.get("value_text") or fields["value"])
    return Measurement(series, fields["time"], value, value_meta, fields["version"])


def _transition(_, tags, fields):
    row = AlarmTransition(
        time_ms=fields.pop("time"),
        tenant=tags["tenant_id"],
        alarm_id=tags["alarm_id"],
        link=fields.pop("link") or None,
        lifecycle_state=fields.pop("lifecycle_state") or None,
        metrics=canonical(fields.pop("metrics")),
        sub_alarms=canonical(fields.pop("sub_alarms")),
        **{name: value for name, value in fields.items() if name not in ("message_id", "reason_data")},
    )
    return bytes.fromhex(fields["message_id"]), row


class InfluxdbTestCase(base.BaseTestCase):
    """``self.database`` is an empty database, on a server that other tests share."""

    def setUp(self):
        super().setUp()
        self.database = InfluxDatabase(self.addCleanup)
        self.database.prepare()


class InfluxdbWriteTest(testing.WriteContract, InfluxdbTestCase):
    pass


@periodic("second database; the normal run contains InfluxdbWriteTest")
class InfluxdbFenceTest(testing.FenceContract, InfluxdbTestCase):
    pass


@periodic("second database; the normal run contains InfluxdbWriteTest")
class InfluxdbKeyTest(testing.KeyContract, InfluxdbTestCase):
    pass


@periodic("second database; the normal run contains InfluxdbWriteTest")
class InfluxdbRefusalTest(testing.RefusalContract, InfluxdbTestCase):
    pass


@periodic("second database; the normal run contains InfluxdbWriteTest")
class InfluxdbResetTest(testing.ResetContract, InfluxdbTestCase):
    pass


@periodic("second database; the normal run contains InfluxdbWriteTest")
class InfluxdbTest(Scenario, InfluxdbTestCase):
    def test_the_last_write_replaces_the_whole_point(self):
        writer = self.database.writer()
        for value, value_meta in ((1.0, '{"a": "b"}'), (2.0, None)):
            last = measurement(value=value, value_meta=value_meta)
            self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [last]))
            self.assertEqual([last], self.stored(Kind.METRICS))

    def test_accounting_without_offsets_does_nothing(self):
        writer = self.database.writer()
        writer.accounted(claim(3, 5))
        writer.accounted(claim(9, 9))
        self.assertEqual({}, writer.next_offsets(GROUP, {PARTITION: TOPIC_ID}))

    def test_two_alarms_in_one_millisecond_are_two_rows(self):
        writer = self.database.writer()
        self.write(writer, Kind.ALARM_HISTORY, [row(Kind.ALARM_HISTORY, 0), row(Kind.ALARM_HISTORY, 1)])
        alarms = [each.alarm_id for _, each in self.stored(Kind.ALARM_HISTORY)]
        self.assertEqual(["alarm-0", "alarm-1"], sorted(alarms))

    def test_a_metric_can_have_the_names_of_its_own_tags_and_fields(self):
        given = [measurement(series=make_series("value", value="a", value_meta="b", version="c"), value=2.0)]
        self.write(self.database.writer(), Kind.METRICS, given)
        self.assertEqual(given, self.stored(Kind.METRICS))

    def test_a_dimension_reserved_by_influxdb_refuses_only_its_row(self):
        writer = self.database.writer()
        rows = [measurement(0), measurement(series=make_series(time="noon")), measurement(2)]
        error = self.assertRaises(RowsRefused, self.write, writer, Kind.METRICS, rows)
        self.assertEqual({1}, set(error.reasons))
        self.assertIn("time", error.reasons[1])

    def test_a_series_key_that_is_too_long_refuses_only_its_row(self):
        writer = self.database.writer()
        long = make_series(**{f"k{number}": "v" * 255 for number in range(300)})
        error = self.assertRaises(
            RowsRefused, self.write, writer, Kind.METRICS, [measurement(0), measurement(series=long)]
        )
        self.assertEqual({1}, set(error.reasons))

    def test_a_field_of_another_type_refuses_only_its_rows(self):
        writer = self.database.writer()
        writer._client.write([b'texts value="a" %d' % NOW_MS])
        rows = [measurement(0), measurement(series=make_series("texts")), measurement(2)]
        error = self.assertRaises(RowsRefused, self.write, writer, Kind.METRICS, rows)
        self.assertEqual({1}, set(error.reasons))
        self.assertIn("field type conflict", error.reasons[1])

    def test_a_point_older_than_the_retention_of_the_database_is_refused(self):
        server().query(f'ALTER RETENTION POLICY autogen ON "{self.database.name}" DURATION 1d SHARD DURATION 1h')
        self.database.clock.now_ms = NOW_MS
        writer = self.database.writer()
        old = measurement(time_ms=NOW_MS - 40 * 86_400_000)
        self.assertIn("retention", str(self.assertRaises(RowsRefused, self.write, writer, Kind.METRICS, [old])))

    def test_a_dropped_database_is_unavailable_instead_of_refusing_rows(self):
        writer = self.database.writer()
        server().query(f'DROP DATABASE "{self.database.name}"')
        self.assertRaises(StorageUnavailable, self.write, writer, Kind.METRICS, [measurement()])
        self.database.storage().upgrade()
        self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [measurement()]))

    def test_points_are_written_to_the_configured_retention_policy(self):
        server().query(f'CREATE RETENTION POLICY week ON "{self.database.name}" DURATION INF REPLICATION 1')
        url = self.database.settings.connection + "?retention_policy=week"
        with InfluxdbStorage(StorageSettings("influxdb", url), self.database.clock).open_writer() as writer:
            self.write(writer, Kind.METRICS, [measurement()])
        found = server().query('SELECT value FROM "week"."cpu.user"', self.database.name)
        self.assertEqual([[NOW_MS, 0]], found[0]["values"])

    @settings(
        max_examples=100,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(st.tuples(_TEXT, _TEXT, st.dictionaries(_TEXT, _TEXT, max_size=3)), min_size=1, max_size=20))
    def test_a_row_is_read_back_as_written_or_refused(self, series):
        server().query(f'DROP DATABASE "{self.database.name}"')
        self.database.storage().upgrade()
        given = {}
        for name, tenant, dimensions in series:
            one = Series(series_id(tenant, "r", name, dimensions), tenant, "r", name, dimensions)
            try:
                series_head(one)
            except NotWritable:
                continue
            given[one.id] = measurement(series=one)
        rows = list(given.values())
        with self.database.storage().open_writer() as writer:
            self.write(writer, Kind.METRICS, rows)
        self.assertEqual(sorted(rows, key=lambda each: each.series.id), self.stored(Kind.METRICS))

    def test_any_texts_of_a_transition_are_read_back(self):
        text = 'line\nbreak, "quotes" = \\ \\" \\n 😀 ' + "x" * 100_000
        given = AlarmTransition(NOW_MS, "t", "a", *[text] * 6, text, text, "[]", "[]")
        self.write(self.database.writer(), Kind.ALARM_HISTORY, [given])
        self.assertEqual([given], [each for _, each in self.stored(Kind.ALARM_HISTORY)])
