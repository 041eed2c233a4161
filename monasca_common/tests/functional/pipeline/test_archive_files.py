# SPDX-License-Identifier: Apache-2.0
"""Files as Spark's executors write and read them, without Kafka. A message is archived under the time that the models
read from it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import fixtures
from hypothesis import given, settings
from hypothesis import strategies as st
from oslotest import base
from pyspark.sql import functions as sql

from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.pipeline.archive import reader
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.reader import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.archive.writer import LATEST_MS, kafka_ms, stage_files, with_own_ms
from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark
from monasca_common.tests.unit.models import hostile
from monasca_common.tests.unit.persister import envelopes

HEADERS = [("a", b"1"), ("a", None)]
SCHEMA = (
    "partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key string, value binary>>"
)
NOW_MS = envelopes.NOW_MS
# Each example is a query with many values, so few examples are enough.
FEW = settings(max_examples=5, deadline=None)
TIMES = st.one_of(
    st.integers(-5, LATEST_MS + 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0, 1e15),
    st.sampled_from(["2026-01-01T10:00", "2026-01-31T23:59:59.123+02:00", "2026-01-31T23:59:59,5", "x", None, True]),
    st.sampled_from(
        [
            "2026-01-31T23:59:59Z+0200",
            "2026-02-30T10:00Z",
            "2026-01-31 10:00-0130",
            "2026-01-31",
            "T10:00",
            "1767225600000",
        ]
    ),
)
INNER = st.dictionaries(st.sampled_from(["a", "timestamp", "{", '}"', "\\"]), st.text(max_size=4), max_size=3)


class StageFilesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.folder))
        self.spark = self.useFixture(SharedSpark()).session

    def write(self, *rows):
        """Return the staged files of records with (partition, offset, hour or value)."""
        records = [
            (
                partition,
                offset,
                datetime.fromtimestamp(7000 + offset, UTC),
                b"k",
                envelopes.metric(0, time_ms=last * HOUR_MS) if isinstance(last, int) else last,
                HEADERS if offset % 2 else None,
            )
            for partition, offset, last in rows
        ]
        frame = self.spark.createDataFrame(records, SCHEMA).coalesce(1)
        return stage_files(frame, self.store, "metrics", "abc")

    def files(self, *rows):
        """Return (hour, partition, first offset, last offset, records) of each file."""
        return sorted(
            (file.hour_ms // HOUR_MS, file.offsets.partition, file.offsets.first, file.offsets.last, file.records)
            for file in self.write(*rows).files
        )

    def read(self, file, **selection):
        found = reader.read(self.store, file.staged, Selection(**selection))
        return [message for part in found for message in reader.messages("metrics", part)]

    def test_records_of_one_hour_are_one_file(self):
        staged = self.write((0, 1, 5), (0, 2, 5), (0, 4, 5))
        (file,) = staged.files
        self.assertEqual((5 * HOUR_MS, 3, 0), (file.hour_ms, file.records, staged.undated))
        self.assertEqual((self.folder / file.staged).stat().st_size, file.size_bytes)
        self.assertEqual([1, 2, 4], [message.offset for message in self.read(file)])

    def test_each_hour_and_partition_has_its_own_file(self):
        found = self.files((0, 1, 5), (0, 2, 6), (0, 3, 5), (1, 1, 5))
        self.assertEqual([(5, 0, 1, 3, 2), (5, 1, 1, 1, 1), (6, 0, 2, 2, 1)], found)

    def test_an_undated_record_is_counted_and_is_in_kafkas_hour(self):
        staged = self.write((0, 1, 5), (0, 2, b"x"))
        self.assertEqual(1, staged.undated)
        self.assertEqual([1 * HOUR_MS, 5 * HOUR_MS], sorted(file.hour_ms for file in staged.files))

    def test_no_records_create_no_file(self):
        staged = self.write()
        self.assertEqual(((), 0), (staged.files, staged.undated))

    # Rule 38
    def test_more_hours_than_open_files_are_all_archived(self):
        hours = 50
        found = self.files(*((0, turn * hours + hour, hour) for turn in range(3) for hour in range(hours)))
        self.assertEqual(hours, len({hour for hour, *_ in found}))
        self.assertEqual(3 * hours, sum(records for *_, records in found))
        self.assertEqual((0, 3 * hours - 1), (min(first for _, _, first, *_ in found), max(one[3] for one in found)))

    def test_archived_messages_are_equal_to_those_of_kafka(self):
        values = [envelopes.metric(0, time_ms=5 * HOUR_MS), envelopes.metric(0, time_ms=6 * HOUR_MS), b"x", None]
        staged = self.write(*((0, number, value) for number, value in enumerate(values, 1)))
        messages = sorted(
            (message for file in staged.files for message in self.read(file)), key=lambda message: message.offset
        )
        self.assertEqual(values, [message.value for message in messages])
        self.assertEqual([7_001_000, 7_002_000, 7_003_000, 7_004_000], [message.timestamp_ms for message in messages])
        self.assertEqual([tuple(HEADERS), (), tuple(HEADERS), ()], [message.headers for message in messages])
        self.assertEqual({("metrics", 0, b"k")}, {(one.topic, one.partition, one.key) for one in messages})

    def test_a_range_includes_its_beginning_and_not_its_end(self):
        (file,) = self.write(*((0, offset, 5) for offset in range(3))).files
        for selection, count in (
            ({"from_ms": 5 * HOUR_MS}, 3),
            ({"from_ms": 5 * HOUR_MS + 1}, 0),
            ({"to_ms": 5 * HOUR_MS}, 0),
            ({"to_ms": 5 * HOUR_MS + 1}, 3),
        ):
            self.assertEqual(count, len(self.read(file, **selection)), selection)


def metric(timestamp):
    return json.dumps({"metric": {"name": "n", "timestamp": timestamp, "value": 1}, "meta": {}}).encode()


def with_time(member, timestamp, **rest):
    return json.dumps({member: {"timestamp": timestamp}, **rest}).encode()


@st.composite
def metrics(draw):
    """Generate metrics whose members have any order, with and without spaces."""
    members = {"name": draw(st.text(min_size=1, max_size=4)), "dimensions": draw(INNER), "value": 1}
    members |= {"timestamp": draw(TIMES), "value_meta": draw(INNER)}
    if draw(st.booleans()):
        members = dict(draw(st.permutations(sorted(members.items(), key=str))))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    return json.dumps({"metric": members, "meta": {"tenantId": "t"}}, separators=separators).encode()


@st.composite
def others(draw):
    member, meta = draw(st.sampled_from([("log", "tenantId"), ("event", "project_id"), ("alarm-transitioned", "x")]))
    members = {"message": "m", "event_type": "e", "tenantId": "t", "alarmId": "a", "oldState": "OK", "newState": "OK"}
    if draw(st.booleans()):
        members["timestamp"] = draw(TIMES)
    created = draw(st.one_of(st.integers(0, 10**10), st.floats(0, 1e10)))
    return json.dumps({member: members, "meta": {meta: "t"}, "creation_time": created}).encode()


class EventTimeTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SharedSpark()).session

    def times_of(self, values):
        """Return the times in ms; ``None`` for a message without a time."""
        rows = self.spark.createDataFrame(list(enumerate(values)), "number int, value binary")
        return [row.own_ms for row in with_own_ms(rows).orderBy("number").collect()]

    def test_each_kind_of_message_has_the_time_of_its_model(self):
        values = [envelopes.metric(7), envelopes.alarm(7), envelopes.event(7), envelopes.log(7)]
        self.assertEqual([NOW_MS + 7] * 3 + [NOW_MS // 1000 * 1000], self.times_of(values))

    def test_a_fraction_of_a_millisecond_is_dropped(self):
        self.assertEqual([1_453_308_000_000], self.times_of([metric(1_453_308_000_000.76)]))

    def test_a_time_can_be_a_date_or_the_time_of_the_envelope(self):
        for member in ("log", "event"):
            values = [
                with_time(member, "2026-01-01T00:00:00.123Z"),
                with_time(member, "2026-01-01 02:00+02:00"),
                with_time(member, None, creation_time=1.5),
                with_time(member, "yesterday", creation_time=1.5),
            ]
            self.assertEqual([1_767_225_600_123, 1_767_225_600_000, 1_500, None], self.times_of(values))

    def test_a_time_within_a_string_is_ignored(self):
        text = '"},"timestamp":7,"value":1}'
        for members in ({"name": text, "dimensions": {}}, {"name": "n", "dimensions": {"a": text, "}": text}}):
            members |= {"timestamp": 5, "value": 1}
            for separators in ((",", ":"), (", ", ": ")):
                value = json.dumps({"metric": members}, separators=separators).encode()
                self.assertEqual([5], self.times_of([value]), value)

    def test_values_without_a_time_have_no_event_time(self):
        values = [None, b"", b"{", b"[1]", b"{}", b'{"metric":{}}', b'{"metric":null}', b'{"log":{}}', b"\xff"]
        values += [metric(-1), metric(LATEST_MS + 1), metric(1e300), metric(2**70), metric(True)]
        values += [b'{"metric":{"timestamp":NaN}}', b'{"log":{"timestamp":"9999999-01-01T00:00:00Z"}}']
        self.assertEqual([None] * len(values) + [5], self.times_of([*values, metric(5)]))

    def test_kafkas_time_always_has_a_date(self):
        rows = self.spark.createDataFrame([(-1,), (7,), (LATEST_MS + 1,)], "ms long")
        times = rows.select(kafka_ms(sql.timestamp_millis("ms"))).collect()
        self.assertEqual([0, 7, LATEST_MS], [row[0] for row in times])

    def test_the_greatest_time_has_a_date(self):
        self.assertEqual([LATEST_MS], self.times_of([metric(LATEST_MS)]))

    @FEW
    @given(st.lists(hostile.members("metric", "log", "event", "alarm-transitioned", "creation_time"), max_size=100))
    def test_any_value_has_a_time_or_none(self, values):
        values += hostile.VALUES
        values += [b'{"metric":{"timestamp":%b}}' % value for value in hostile.VALUES]
        for time_ms in self.times_of(values):
            self.assertTrue(time_ms is None or 0 <= time_ms <= LATEST_MS)

    # Rule 38
    @FEW
    @given(st.lists(st.one_of(metrics(), others()), min_size=1, max_size=300))
    def test_valid_messages_are_archived_by_the_time_of_their_model(self, values):
        found = self.times_of(values)
        for decode in (MetricDecoder().decode_all, log.decode_all, event.decode_all, alarm.decode_all):
            decoded = decode(values)
            for index, row in zip(decoded.indices, decoded.rows, strict=True):
                if row.time_ms <= LATEST_MS:
                    self.assertEqual(row.time_ms, found[index], values[index])
