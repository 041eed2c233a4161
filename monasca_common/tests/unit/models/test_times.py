# SPDX-License-Identifier: Apache-2.0
import datetime

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import times


class TestTimes(base.BaseTestCase):
    def refuses(self, parse, value):
        self.assertRaises(ValueError, parse, value)

    def test_fractions_of_a_millisecond_are_dropped(self):
        self.assertEqual(1453308031000, times.from_ms(1453308031000.999))
        self.assertIs(int, type(times.from_ms(5.0)))

    def test_zero_and_the_largest_64_bit_integer_are_times(self):
        self.assertEqual(0, times.from_ms(0))
        self.assertEqual(2**63 - 1, times.from_ms(2**63 - 1))

    def test_times_out_of_range_are_refused(self):
        for value in (-1, -0.5, 2**63, float(2**63), 10**400, float("nan"), float("inf"), True, "5", None, [], {}):
            with self.subTest(value=value):
                self.refuses(times.from_ms, value)

    def test_iso_8601_is_utc_by_default(self):
        expected = 1351518131000
        for text in (
            "2012-10-29T13:42:11Z",
            "2012-10-29T13:42:11",
            "2012-10-29 13:42:11",
            "2012-10-29T15:42:11+02:00",
            "2012-10-29T15:42:11+0200",
            "2012-10-29T15:42:11Z+0200",  # the public API's example is written like this
        ):
            with self.subTest(text):
                self.assertEqual(expected, times.from_ms_or_iso(text))

    def test_fractions_of_a_second_are_floored_to_ms(self):
        for fraction, ms in ((".5", 500), (".1239", 123), (".999999999", 999), (",25", 250)):
            with self.subTest(fraction):
                self.assertEqual(1351518131000 + ms, times.from_ms_or_iso(f"2012-10-29T13:42:11{fraction}Z"))

    def test_an_invalid_date_is_refused(self):
        for text in (
            "", "1351518131000", "2012-13-01T00:00:00", "2012-10-29", "1969-12-31T23:59:59Z", "2012-10-29T25:00Z",
            "2012-10-29T13:42:11+99:00", "٢٠١٢-10-29T13:42:11", "2012-10-29T13:42:11Z\n", "\ud800", "9" * 10000,
        ):  # fmt: skip
            with self.subTest(text=ascii(text[:30])):
                self.refuses(times.from_ms_or_iso, text)

    @given(st.datetimes(min_value=datetime.datetime(1970, 1, 2), timezones=st.timezones()))  # noqa: DTZ001
    def test_times_of_python_are_accepted(self, moment):
        moment = moment.replace(fold=0)
        offset = moment.utcoffset()
        if offset.total_seconds() % 60:
            return  # local mean time, which ISO 8601 cannot write
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        self.assertEqual(
            (moment - epoch) // datetime.timedelta(milliseconds=1), times.from_ms_or_iso(moment.isoformat())
        )

    def test_the_version_is_the_creation_time_in_ms(self):
        self.assertEqual(1453308032000, times.version(1453308032))
        self.assertEqual(1453308032123, times.version(1453308032.123))

    def test_a_creation_time_has_milliseconds_unless_they_are_0(self):
        for seconds, text in (
            (5, b"5"),
            (5.0, b"5"),
            (5.1234, b"5.123"),
            (5.9999, b"6"),
            (1790000000.001, b"1790000000.001"),
        ):
            self.assertEqual(text, times.seconds_text(seconds))

    def test_a_missing_creation_time_is_the_least_version(self):
        self.assertEqual(0, times.version(None))

    def test_an_invalid_creation_time_is_refused(self):
        for value in ("5", True, -1, float("nan"), float("inf"), 2**63, 10**400, []):
            with self.subTest(value=value):
                self.refuses(times.version, value)
