# SPDX-License-Identifier: Apache-2.0
import json

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.pipeline.archive.event_time import LATEST_MS, event_times
from monasca_common.tests.unit.models import hostile
from monasca_common.tests.unit.persister import envelopes

KAFKA_MS = 1_800_000_000_000
NOW_MS = envelopes.NOW_MS


def time_of(value, kafka_ms=KAFKA_MS):
    (found,), _ = event_times([value], [kafka_ms])
    return found


def metric(timestamp):
    return json.dumps({"metric": {"name": "n", "timestamp": timestamp, "value": 1}, "meta": {}}).encode()


def with_time(member, timestamp, **rest):
    return json.dumps({member: {"timestamp": timestamp}, **rest}).encode()


class EventTimeTest(base.BaseTestCase):
    def test_each_kind_has_the_time_of_its_model(self):
        self.assertEqual(NOW_MS + 7, time_of(envelopes.metric(7)))
        self.assertEqual(NOW_MS + 7, time_of(envelopes.alarm(7)))
        self.assertEqual(NOW_MS + 7, time_of(envelopes.event(7)))
        self.assertEqual(NOW_MS // 1000 * 1000, time_of(envelopes.log(7)))

    def test_a_fraction_of_a_millisecond_is_dropped(self):
        self.assertEqual(1_453_308_000_000, time_of(metric(1_453_308_000_000.76)))

    def test_logs_and_events_may_write_a_date_and_metrics_may_not(self):
        for member in ("log", "event"):
            self.assertEqual(1_767_225_600_123, time_of(with_time(member, "2026-01-01T00:00:00.123Z")))
            self.assertEqual(1_500, time_of(with_time(member, None, creation_time=1.5)))
            self.assertEqual(KAFKA_MS, time_of(with_time(member, "yesterday")))
        for member in ("metric", "alarm-transitioned"):
            self.assertEqual(KAFKA_MS, time_of(with_time(member, "2026-01-01T00:00:00Z", creation_time=1)))

    def test_what_tells_no_time_has_that_of_kafka_and_is_counted(self):
        values = [None, b"", b"{", b"[1]", b"{}", b'{"metric":{}}', b'{"metric":null}', b'{"log":{}}', b"\xff"]
        values += [metric(-1), metric(LATEST_MS + 1), metric(1e300), metric(2**70), metric(True)]
        values += [b'{"metric":{"timestamp":NaN}}', b'{"log":{"timestamp":"9999999-01-01T00:00:00Z"}}']
        found, undated = event_times([*values, metric(5)], [KAFKA_MS] * (len(values) + 1))
        self.assertEqual(([KAFKA_MS] * len(values) + [5], len(values)), (found, undated))

    def test_a_log_of_kafka_without_times_has_the_epoch(self):
        self.assertEqual(0, time_of(None, kafka_ms=-1))

    def test_the_last_moment_has_a_date(self):
        self.assertEqual(LATEST_MS, time_of(metric(LATEST_MS)))
        self.assertEqual(LATEST_MS, time_of(None, kafka_ms=LATEST_MS + 1))

    @given(st.lists(hostile.JSON_BYTES if hasattr(hostile, "JSON_BYTES") else st.binary(), max_size=20))
    def test_whatever_comes_is_kept(self, values):
        found, undated = event_times(values, [KAFKA_MS] * len(values))
        self.assertEqual(len(values), len(found))
        self.assertLessEqual(undated, len(values))

    @given(
        st.one_of(
            st.integers(-5, LATEST_MS),
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from(["2026-01-01", "2026-01-01T10:00", "2026-01-31T23:59:59.123+02:00", "x", None, True]),
        )
    )
    def test_what_a_model_reads_is_filed_by_the_time_that_the_model_has_read(self, timestamp):
        for decode, value in (
            (MetricDecoder().decode_all, {"metric": {"name": "n", "value": 1}, "meta": {"tenantId": "t"}}),
            (log.decode_all, {"log": {"message": "m"}, "meta": {"tenantId": "t"}, "creation_time": 7}),
            (
                event.decode_all,
                {"event": {"event_type": "e"}, "meta": {"project_id": "t"}, "creation_time": 7},
            ),
            (
                alarm.decode_all,
                {"alarm-transitioned": {"tenantId": "t", "alarmId": "a", "oldState": "OK", "newState": "ALARM"}},
            ),
        ):
            next(iter(value.values()))["timestamp"] = timestamp
            written = json.dumps(value).encode()
            for row in decode([written]).rows:
                if row.time_ms <= LATEST_MS:
                    self.assertEqual(row.time_ms, time_of(written))
