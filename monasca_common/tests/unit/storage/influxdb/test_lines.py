# SPDX-License-Identifier: Apache-2.0
"""Lines for InfluxDB, read by a parser that follows the published rules and is independent of the writer."""

import math
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.rows import AlarmTransition, Measurement
from monasca_common.models.series import Series
from monasca_common.storage.influxdb.lines import NotWritable, measurement_line, series_head, transition_line


class Point(NamedTuple):
    name: str
    tags: dict[str, str]
    fields: dict[str, str | float | int]
    time: int


def parse(text: str) -> list[Point]:
    """Return all points of a body; comments and white space at the start of a line are dropped, as the server does."""
    points = []
    position = 0
    while position < len(text):
        while position < len(text) and text[position] in " \t\0\n":
            position += 1
        if position < len(text) and text[position] == "#":
            position = (text + "\n").index("\n", position)
            continue
        if position < len(text):
            point, position = _point(text, position)
            points.append(point)
    return points


def _point(text: str, position: int) -> tuple[Point, int]:
    name, position = _word(text, position, ends=", ", escapable=", ")
    tags: dict[str, str] = {}
    while text[position] == ",":
        key, position = _word(text, position + 1, ends="=", escapable=",= ")
        tags[key], position = _word(text, position + 1, ends=", ", escapable=",= ")
        assert key and tags[key], "an empty tag"
    assert text[position] == " "
    fields: dict[str, str | float | int] = {}
    while text[position] in " ,":
        separator = text[position]
        if separator == " " and fields:
            break
        key, position = _word(text, position + 1, ends="=", escapable=",= ")
        fields[key], position = _value(text, position + 1)
    end = (text + "\n").index("\n", position)
    return Point(name, tags, fields, int(text[position + 1 : end])), end + 1


def _word(text: str, position: int, *, ends: str, escapable: str) -> tuple[str, int]:
    word = ""
    while True:
        character = text[position]
        assert character != "\n", "a line ends within a name"
        if character == "\\" and text[position + 1] in escapable:
            word += text[position + 1]
            position += 2
        elif character in ends:
            return word, position
        else:
            word += character
            position += 1


def _value(text: str, position: int) -> tuple[str | float | int, int]:
    if text[position] != '"':
        start = position
        while text[position] not in ", ":
            position += 1
        number = text[start:position]
        return (int(number[:-1]) if number.endswith("i") else float(number)), position
    value, position = "", position + 1
    while text[position] != '"':
        if text[position] == "\\" and text[position + 1] in '"\\':
            position += 1
        value += text[position]
        position += 1
    return value, position + 1


HARD = st.text(alphabet='a\\, =\n\t"#_é😀\r\x0b\x85\u2028', min_size=1, max_size=6)
EASY = st.text(alphabet='a, ="#_é😀', min_size=1, max_size=6).filter(lambda text: not text.startswith("#"))
TEXT = HARD | EASY
ANY_TEXT = st.text(alphabet='a\\, =\n\t"#{}é😀\r', max_size=10)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SERIES = st.builds(
    Series, st.just(b"id"), TEXT, TEXT | st.just(""), TEXT, st.dictionaries(TEXT, TEXT | st.just(""), max_size=3)
)


def series(name="cpu", tenant="t", region="r", **dimensions):
    return Series(b"id", tenant, region, name, dimensions)


class TestMeasurementLines(base.BaseTestCase):
    def test_a_measurement_is_written_in_the_format_of_existing_dashboards(self):
        row = Measurement(series(host="a b", app="x"), 1000, 0.5, '{"unit":"s"}', 5000)
        self.assertEqual(
            r'cpu,_region=r,_tenant_id=t,app=x,host=a\ b value=0.5,value_meta="{\"unit\":\"s\"}",version=5000i 1000',
            measurement_line(series_head(row.series), row),
        )

    def test_missing_value_meta_is_an_empty_object_so_that_overwriting_removes_it(self):
        line = measurement_line("cpu", Measurement(series(), 1000, 0.5, None, 5000))
        self.assertEqual('cpu value=0.5,value_meta="{}",version=5000i 1000', line)

    def test_a_value_that_influxdb_refuses_is_a_text(self):
        for value, text in ((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")):
            line = measurement_line("cpu", Measurement(series(), 1000, value, None, 5000))
            self.assertEqual(f'cpu value_text="{text}",value_meta="{{}}",version=5000i 1000', line)

    @given(SERIES, NUMBERS, st.none() | ANY_TEXT, st.integers(0, 2**63 - 1))
    @example(series(name="\\,"), 1.0, '\\"', 0)
    @example(series(k="a\\b"), 1.0, "\\", 0)
    def test_a_line_is_read_back_by_an_independent_parser(self, one, value, value_meta, version):
        row = Measurement(one, 1000, value, value_meta, version)
        try:
            head = series_head(one)
        except NotWritable:
            return
        line = measurement_line(head, row)
        tags = {key: tag for key, tag in one.dimensions.items() if tag} | {"_tenant_id": one.tenant}
        if one.region:
            tags["_region"] = one.region
        fields = {"value": value, "value_meta": "{}" if value_meta is None else value_meta, "version": version}
        expected = Point(one.name, tags, fields, 1000)
        self.assertEqual([expected, expected], parse(f"{line}\n{line}"))

    @given(st.builds(series, name=EASY, tenant=EASY, host=EASY))
    def test_ordinary_text_is_never_refused(self, one):
        series_head(one)

    def test_text_that_the_server_would_misread_is_refused(self):
        for changes in (
            {"name": "#comment"}, {"name": "\tindented"}, {"name": "a\\"}, {"name": "a\\,b"}, {"name": "a\\\"b"},
            {"name": "a\nb"},
            {"k": "v\\"}, {"k": "v\\ w"}, {"k": "v\\=w"}, {"k": "v\n"}, {"k\\": "v"}, {"k\n": "v"}, {"tenant": "t\\"},
            {"_tenant_id": "another's"}, {"_region": "elsewhere"},
        ):  # fmt: skip
            with self.subTest(changes):
                self.assertRaises(NotWritable, series_head, series(**changes))

    def test_a_metric_cannot_have_the_name_of_the_alarm_history(self):
        error = self.assertRaises(NotWritable, series_head, series(name="alarm_state_history"))
        self.assertIn("its name, alarm_state_history, is reserved for the alarm history", str(error))
        series_head(series(name="alarm_state_history2"))

    def test_an_empty_dimension_is_not_written_as_a_tag(self):
        self.assertEqual(series_head(series()), series_head(series(host="")))

    @given(NUMBERS)
    def test_values_keep_their_precision(self, value):
        line = measurement_line("m", Measurement(series(), 1, value, None, 0))
        found = parse(line)[0].fields["value"]
        self.assertEqual((value, math.copysign(1, value)), (found, math.copysign(1, found)))


class TestTransitionLines(base.BaseTestCase):
    @given(EASY, EASY, st.lists(ANY_TEXT, min_size=8, max_size=8), st.none() | ANY_TEXT, st.binary(max_size=8))
    def test_a_transition_is_read_back_by_an_independent_parser(self, tenant, alarm_id, texts, link, message_id):
        row = AlarmTransition(1000, tenant, alarm_id, *texts[:6], link, None, *texts[6:])
        [point] = parse(transition_line(row, message_id))
        self.assertEqual(
            ("alarm_state_history", {"tenant_id": tenant, "alarm_id": alarm_id}, 1000), (*point[:2], point.time)
        )
        expected = row._asdict() | {"link": link or "", "lifecycle_state": "", "message_id": message_id.hex()}
        for name in ("time_ms", "tenant", "alarm_id"):
            del expected[name]
        self.assertEqual(expected | {"reason_data": "{}"}, point.fields)

    def test_two_alarms_in_one_millisecond_are_two_points(self):
        rows = [AlarmTransition(1000, "t", alarm, *["x"] * 6, None, None, "[]", "[]") for alarm in ("a", "b")]
        points = [parse(transition_line(row, b"id"))[0] for row in rows]
        self.assertNotEqual(points[0].tags, points[1].tags)
