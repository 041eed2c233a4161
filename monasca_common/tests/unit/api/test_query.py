# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote, urlencode

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.api.paging import PAGE_LIMIT
from monasca_common.api.problems import Problem
from monasca_common.api.query import Cursor, Query, iso
from monasca_common.storage.reader import PageOf, SeriesFilter, Span

_TIMES = st.integers(-62_135_596_800_000, 253_402_300_799_999)  # times in the years 1 to 9999
_IDS = st.binary(min_size=16, max_size=16)
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
_DIMENSION = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs"), exclude_characters="\0,|:"), min_size=1, max_size=20
).filter(lambda text: text.strip() == text)
_ASKED = (
    "series",
    "names",
    "measurements",
    "statistics",
    "alarm_history",
    "alarms",
    "definitions",
    "rows",
    "limit",
)


_PARAMETERS = (
    *("name", "metric_name", "dimension_name", "dimensions", "start_time", "end_time", "limit", "offset"),
    *("merge_metrics", "group_by", "statistics", "period", "other"),
)
_CENTURIES = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1))  # noqa: DTZ001


def query(text="", **values):
    return Query(urlencode(values) or text, tenant="t1")


class QueryTest(base.BaseTestCase):
    def status_of(self, call):
        return self.assertRaises(Problem, call).status_code

    def test_a_query_without_parameters_selects_the_whole_tenant(self):
        self.assertEqual((SeriesFilter("t1"), PageOf(PAGE_LIMIT)), query().series())

    def test_the_query_does_not_set_the_tenant(self):
        which, _ = query(tenant="t2", tenant_id="t3").series()
        self.assertEqual("t1", which.tenant)

    def test_dimensions_are_keys_with_values_and_only_a_key_permits_any_value(self):
        which, _ = query("dimensions=a:1|2,b,c:x:y,d:,e:|&dimensions=f%3Ag").series()
        expected = {"a": ("1", "2"), "b": (), "c": ("x:y",), "d": (), "e": (), "f": ("g",)}
        self.assertEqual(expected, which.dimensions)

    @given(st.dictionaries(_DIMENSION, st.lists(_DIMENSION, max_size=3, unique=True).map(tuple), max_size=4))
    def test_dimensions_are_parsed_as_they_were_sent(self, dimensions):
        text = ",".join(f"{key}:{'|'.join(values)}" if values else key for key, values in dimensions.items())
        which, _ = query(dimensions=text).series()
        self.assertEqual(dimensions, which.dimensions)

    def test_too_many_keys_or_values_are_refused_with_the_limit(self):
        hundred = ",".join(f"k{number}:" + "|".join(f"v{value}" for value in range(10)) for number in range(100))
        self.assertEqual(100, len(query(dimensions=hundred).series()[0].dimensions))
        for text, message in (
            (f"{hundred},one", "dimensions has 101 keys: at most 100 are allowed"),
            (f"{hundred},k0:" + "|".join(map(str, range(11))), "dimensions has 1001 values: at most 1000 are allowed"),
        ):
            for asked in ("series", "names", "alarm_history"):
                error = self.assertRaises(Problem, getattr(query(dimensions=text), asked))
                self.assertEqual((422, message), (error.status_code, error.description))

    def test_too_many_keys_to_group_by_are_refused_with_the_limit(self):
        keys = ",".join(f"k{number}" for number in range(101))
        asked = query(name="a", start_time="2026-01-01", group_by=keys)
        for call in (asked.measurements, partial(asked.groups, ["name"])):
            error = self.assertRaises(Problem, call)
            self.assertEqual(
                (422, "group_by has 101 keys: at most 100 are allowed"), (error.status_code, error.description)
            )

    def test_percent_encoding_plus_and_raw_utf_8_are_decoded(self):
        self.assertEqual("a b", query("name=a+b").series()[0].name)
        self.assertEqual("a+b é", query("name=a%2Bb%20%C3%A9").series()[0].name)
        self.assertEqual("é", query("name=é".encode().decode("latin-1")).series()[0].name)

    def test_the_first_value_of_a_repeated_parameter_is_used(self):
        self.assertTrue(
            query("name=a&start_time=2026-01-01&merge_metrics=true&merge_metrics=false").measurements().merge
        )

    def test_a_flag_is_true_in_any_case_and_false_for_anything_else(self):
        for text, meant in {"true": True, "True": True, "TRUE": True, "false": False, "1": False, "": False}.items():
            found = query(name="a", start_time="2026-01-01", merge_metrics=text).measurements().merge
            self.assertEqual(meant, found, text)

    def test_times_are_iso_8601_and_utc_by_default(self):
        noon = 1_767_268_800_000
        for text, expected in {
            "2026-01-01T12:00:00Z": noon,
            "2026-01-01T12:00:00.250Z": noon + 250,
            "2026-01-01T12:00:00.250999Z": noon + 250,
            "2026-01-01 12:00:00": noon,
            "2026-01-01T13:00:00+01:00": noon,
            "2026-01-01T13:00:00 01:00": noon,  # a + that was not encoded
            "2026-01-01": noon - 43_200_000,
        }.items():
            self.assertEqual(expected, query(start_time=text).series()[0].start_ms, text)

    @given(_TIMES)
    def test_each_returned_time_is_accepted_in_queries(self, time_ms):
        self.assertEqual(time_ms, query(start_time=iso(time_ms)).series()[0].start_ms)

    def test_a_time_is_returned_with_milliseconds_and_z(self):
        self.assertEqual("2026-01-01T12:00:00.000Z", iso(1_767_268_800_000))
        self.assertEqual("1969-12-31T23:59:59.999Z", iso(-1))

    def test_an_invalid_time_is_refused(self):
        for text in ("yesterday", "2026-13-01", "1767268800000", "2026-01-01T25:00", "-5", "0001-01-01T00:00+14:00"):
            self.assertEqual(422, self.status_of(query(start_time=text).series), text)

    def test_an_end_that_is_not_after_the_start_is_a_bad_request(self):
        for end in ("2026-01-01", "2025-01-01"):
            self.assertEqual(400, self.status_of(query(start_time="2026-01-01", end_time=end).series))

    def test_limit_is_at_most_the_page_limit(self):
        self.assertEqual([PAGE_LIMIT, 7, PAGE_LIMIT], [query(limit=text).limit() for text in ("", "7", "1000000")])
        for text in ("0", "-1", "ten", "1.5", "1_0", "٣"):
            self.assertEqual(422, self.status_of(query(limit=text).limit), text)

    def test_an_offset_of_metrics_is_an_id(self):
        after = "0123456789abcdef" * 2
        self.assertEqual(PageOf(PAGE_LIMIT, after), query(offset=after).series()[1])
        for text in ("abc", after.upper(), after + "0"):
            self.assertEqual(422, self.status_of(query(offset=text).series), text)

    def test_measurements_require_a_name_and_a_start(self):
        self.assertEqual(422, self.status_of(query(start_time="2026-01-01").measurements))
        self.assertEqual(422, self.status_of(query(name="", start_time="2026-01-01").measurements))
        self.assertEqual(422, self.status_of(query(name="a").measurements))
        self.assertEqual(422, self.status_of(query(name="a" * 256, start_time="2026-01-01").measurements))
        found = query(name="é" * 255, start_time="1970-01-01", end_time="1970-01-02").measurements()
        self.assertEqual((Span(0, 86_400_000), "é" * 255), (found.span, found.name))

    def test_group_by_is_a_list_of_dimensions(self):
        found = query("name=a&start_time=2026-01-01&group_by=x,y&group_by=x,%20z").measurements()
        self.assertEqual(("x", "y", "z"), found.group_by)

    def test_statistics_may_be_in_any_case_and_repeated(self):
        found = query("name=a&start_time=2026-01-01&statistics=AVG,max&statistics=Avg,count").statistics()
        self.assertEqual((("avg", "max", "count"), 300_000), (found.functions, found.period_ms))
        for text in ("", ",", "median", "avg,median"):
            asked = query(name="a", start_time="2026-01-01", statistics=text)
            self.assertEqual(422, self.status_of(asked.statistics), text)

    def test_a_period_is_a_positive_number_of_seconds(self):
        asked = {"name": "a", "start_time": "2026-01-01", "statistics": "avg"}
        self.assertEqual(60_000, query(**asked, period="60").statistics().period_ms)
        for text in ("0", "-60", "1.5", "x", "9999999999"):
            self.assertEqual(422, self.status_of(query(**asked, period=text).statistics), text)

    @given(_TIMES, st.none() | _IDS, st.none() | _IDS)
    def test_a_cursor_is_parsed_as_it_was_returned(self, time_ms, element, series):
        cursor = Cursor(time_ms, element and element.hex(), series if element else None)
        found = query(name="a", start_time="2026-01-01", offset=str(cursor)).measurements().cursor
        self.assertEqual(cursor, found)

    def test_an_invalid_cursor_is_refused(self):
        an_id = "ab" * 16
        for text in ("x", "_", f"{an_id}_", f"{an_id}_x", f"zz_{iso(0)}", f"{an_id}_{iso(0)}_x", f"{an_id}_{iso(0)}__"):
            asked = query(name="a", start_time="2026-01-01", offset=text)
            self.assertEqual(422, self.status_of(asked.measurements), text)

    def test_a_nul_is_refused(self):
        self.assertEqual(422, self.status_of(lambda: query("name=a%00")))

    def test_too_many_parameters_are_refused(self):
        self.assertEqual(422, self.status_of(lambda: query("&".join(f"a{n}=1" for n in range(101)))))

    def test_an_offset_of_transitions_is_an_id_or_a_time(self):
        self.assertEqual(PageOf(PAGE_LIMIT, "5-00ff"), query(offset="5-00ff").alarm_history()[1])
        self.assertEqual(PageOf(PAGE_LIMIT, "1001-"), query(offset="1970-01-01T00:00:01Z").alarm_history()[1])
        self.assertEqual(422, self.status_of(query(offset="5-0").alarm_history))

    @given(
        st.dictionaries(
            st.sampled_from(_PARAMETERS),
            _TEXT | _TIMES.map(iso) | st.sampled_from(["true", "10", "avg,min", "0" * 32]),
        )
    )
    def test_any_text_is_parsed_or_refused(self, values):
        asked = Query(urlencode(values), tenant="t1")
        for name in _ASKED:
            try:
                getattr(asked, name)()
            except Problem as problem:
                self.assertIn(problem.status_code, (400, 422))

    @given(st.binary(max_size=60))
    def test_any_bytes_are_parsed_or_refused(self, data):
        for text in (data.decode("latin-1"), quote(data)):
            try:
                Query(f"name={text}&dimensions={text}&offset={text}", tenant="t1").names()
            except Problem as problem:
                self.assertIn(problem.status_code, (400, 422))

    @given(st.timezones(), _CENTURIES)
    def test_a_zone_shifts_a_time_by_its_offset(self, zone, local):
        aware = local.replace(tzinfo=zone)
        if aware.utcoffset() % timedelta(minutes=1):
            return  # local mean times of long ago
        expected = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        self.assertEqual(expected, query(start_time=aware.isoformat()).series()[0].start_ms)
