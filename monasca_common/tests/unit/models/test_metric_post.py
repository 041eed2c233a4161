# SPDX-License-Identifier: Apache-2.0
"""What the API makes of the bodies that are posted to /v2.0/metrics."""

import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import metric as models
from monasca_common.models.errors import InvalidEnvelope, NotJson
from monasca_common.models.metric import MetricDecoder, parse_post
from monasca_common.models.times import Window
from monasca_common.tests.unit.models import hostile

GOLDEN = Path(__file__).with_name("golden")
GOOD = {"name": "cpu", "dimensions": {"host": "a"}, "timestamp": 1000, "value": 1.5, "value_meta": None}


def body(*changes):
    return json.dumps([GOOD | change for change in changes]).encode()


class MetricPostCase(base.BaseTestCase):
    def metrics(self, posted):
        self.assertEqual(((), ()), (posted.violations, posted.rejected))
        return [json.loads(element) for element in posted.valid]

    def places(self, *changes):
        return [violation.where for violation in parse_post(body(*changes)).violations]


class TestGoodPosts(MetricPostCase):
    def test_one_metric_or_a_list_of_them(self):
        for text, count in ((json.dumps(GOOD).encode(), 1), (body({}), 1), (body({}, {}), 2), (b" [ ] ", 0)):
            with self.subTest(text):
                posted = parse_post(text)
                self.assertEqual([GOOD] * count, self.metrics(posted))
                self.assertEqual((count, list(range(count))), (posted.total, posted.indices))

    def test_float_timestamps_are_floored(self):
        (found,) = self.metrics(parse_post(body({"timestamp": 1453308031000.987})))
        self.assertEqual(1453308031000, found["timestamp"])
        self.assertIs(int, type(found["timestamp"]))

    def test_what_may_be_left_out(self):
        self.assertEqual(
            [{"name": "cpu", "dimensions": {}, "timestamp": 5, "value": 0.0, "value_meta": None}],
            self.metrics(parse_post(b'{"name":"cpu","timestamp":5,"value":-0.0}')),
        )
        self.assertEqual([], self.places({"dimensions": None}, {"value_meta": None}, {"value_meta": {}}))

    def test_multibyte_names_stay_what_they_are(self):
        change = {
            "name": "温度" * 127,
            "dimensions": {"ключ": "значение", "😀": "🚀"},
            "value_meta": {"é": "à\n\\u0000"},
        }
        self.assertEqual([GOOD | change], self.metrics(parse_post(body(change))))

    def test_equal_metrics_in_other_words_are_equal_bytes(self):
        one = b'{"name":"a","dimensions":{"x":"1","y":"2"},"timestamp":5,"value":1,"value_meta":{"a":"","b":""}}'
        other = (
            b'{ "value_meta": {"b":"","a":""}, "value":1.0, "timestamp": 5.5, '
            b'"dimensions": {"y": "\\u0032", "x": "0", "x": "1"}, "note": [1], "name": "\\u0061" }'
        )
        self.assertEqual(parse_post(one).valid, parse_post(other).valid)

    def test_real_metrics_of_clouds_come_through_to_the_same_rows(self):
        lines = [line for path in sorted(GOLDEN.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        envelopes = [json.loads(line) for line in lines]
        posted = parse_post(json.dumps([envelope["metric"] for envelope in envelopes]).encode())
        self.assertEqual(((), len(lines)), (posted.violations, len(posted.valid)))
        again = [
            models.envelope(text, envelope["meta"]["tenantId"], envelope["meta"]["region"], envelope["creation_time"])
            for text, envelope in zip(posted.valid, envelopes, strict=True)
        ]
        decoder = MetricDecoder()
        self.assertEqual(decoder.decode_all(lines).rows, decoder.decode_all(again).rows)

    def test_an_envelope_is_as_it_is_on_the_wire(self):
        (text,) = parse_post(json.dumps(GOOD).encode()).valid
        expected = {"metric": GOOD, "meta": {"tenantId": 't"1', "region": "r\u00e9"}, "creation_time": 5}
        self.assertEqual(expected, json.loads(models.envelope(text, 't"1', "r\u00e9", 5)))
        self.assertEqual([models.envelope(text, "t", "r", 5)] * 2, models.envelopes([text, text], "t", "r", 5))


class TestBadPosts(MetricPostCase):
    def test_all_violations_of_all_elements_are_told_with_their_places(self):
        found = self.places(
            {"name": "a b", "dimensions": {"_k": "<", "": "v"}, "value_meta": {"a": 1}},
            {},
            {"timestamp": None, "value": None},
            {"timestamp": "now", "value": True, "dimensions": []},
        )
        self.assertEqual(
            ["[0].name", "[0].dimensions._k", "[0].dimensions._k", "[0].dimensions['']", "[0].value_meta.a",
             "[2].timestamp", "[2].value", "[3].dimensions", "[3].timestamp", "[3].value"],
            found,
        )  # fmt: skip

    def test_good_elements_beside_bad_ones_go_on(self):
        posted = parse_post(body({"value": 1}, {"name": ""}, {"value": 2}))
        self.assertEqual([1.0, 2.0], [json.loads(text)["value"] for text in posted.valid])
        self.assertEqual(([0, 2], 3), (posted.indices, posted.total))
        (rejected,) = posted.rejected
        self.assertEqual((1, GOOD | {"name": ""}), (rejected.index, json.loads(rejected.raw)))
        self.assertEqual(posted.violations, rejected.violations)

    def test_the_limits_of_the_public_api(self):
        for change in (
            {"name": ""}, {"name": None}, {"name": 5}, {"name": "x" * 256}, {"name": "a(b"}, {"name": "a b"},
            {"timestamp": None}, {"timestamp": -1}, {"timestamp": 2**63}, {"timestamp": "1"}, {"timestamp": True},
            {"value": None}, {"value": "1"}, {"value": True}, {"value": float("inf")}, {"value": float("nan")},
            {"dimensions": {"": "v"}}, {"dimensions": {"k": ""}}, {"dimensions": {"k": None}}, {"dimensions": "k:v"},
            {"dimensions": {"k" * 256: "v"}}, {"dimensions": {"k": "v" * 256}}, {"dimensions": {"_k": "v"}},
            {"value_meta": {"k" * 256: "v"}}, {"value_meta": {"k": 5}}, {"value_meta": {"k": "v" * 2048}},
            {"value_meta": {f"k{n}": "v" for n in range(17)}}, {"value_meta": []}, {"value_meta": {"k": None}},
            *({"name": f"a{c}"} for c in '<>={},"\\;&() '),
            *({"dimensions": {f"k{c}": "v"}} for c in '<>={},"\\;&'),
            *({"dimensions": {"k": f"v{c}"}} for c in '<>={},"\\;&'),
        ):  # fmt: skip
            with self.subTest(change):
                posted = parse_post(body({}, change))
                self.assertEqual([0], posted.indices)
                self.assertTrue(all(where.startswith("[1]") for where in (v.where for v in posted.violations)))
                self.assertIn(next(iter(change)), " ".join(violation.where for violation in posted.violations))

    def test_a_single_metric_needs_no_index(self):
        posted = parse_post(b'{"name":"a","timestamp":1}')
        self.assertEqual(["value"], [violation.where for violation in posted.violations])

    def test_what_is_no_json_is_told_apart(self):
        for text in (
            b"",
            b"{",
            b"[",
            b"nul",
            b'{"a":1}}',
            b"[{}]x",
            b"\xff",
            b"\x1f\x8b",
            hostile.DEEP,
            hostile.DEEP[:9],
        ):
            with self.subTest(text[:20]):
                error = self.assertRaises(NotJson, parse_post, text)
                self.assertEqual([""], [violation.where for violation in error.violations])

    def test_json_that_is_neither_object_nor_array_is_refused(self):
        for text in (b"5", b"null", b'"a"', b"true"):
            error = self.assertRaises(InvalidEnvelope, parse_post, text)
            self.assertNotIsInstance(error, NotJson)

    def test_what_python_takes_for_json_spoils_its_own_element_only(self):
        for change in ({"value": float("nan")}, {"name": "\ud800"}, {"dimensions": {"k": "\ud800"}}):
            with self.subTest(ascii(change)):
                posted = parse_post(body({}, change, {}))
                self.assertEqual([0, 2], posted.indices)

    def test_a_bulk_is_limited_in_elements(self):
        self.assertEqual(3, parse_post(body({}, {}, {}), max_elements=3).total)
        self.assertRaises(InvalidEnvelope, parse_post, body({}, {}, {}, {}), max_elements=3)
        self.assertRaises(InvalidEnvelope, parse_post, b"[" + b"0," * 30 + b"0]", max_elements=3)
        self.assertRaises(InvalidEnvelope, parse_post, b"[" + b"NaN," * 30 + b"0]", max_elements=3)

    def test_a_flood_of_violations_is_cut_but_every_bad_element_is_rejected(self):
        posted = parse_post(b"[" + b",".join([b"0"] * 15_000) + b"]")
        self.assertEqual(15_000, len(posted.rejected))
        self.assertEqual(10_000, len(posted.violations))
        many = {"dimensions": {f"<{number}": "<" for number in range(100)}}
        self.assertEqual(100, len(parse_post(body(many)).violations))

    def test_more_dimensions_than_allowed_are_one_violation_whatever_they_are(self):
        for count, most in ((101, 100), (4, 3)):
            many = {"dimensions": {f"<{number}": "<" for number in range(count)}}
            (found,) = parse_post(body({}, many), max_dimensions=most).violations
            self.assertEqual(f"[1].dimensions has {count} entries: at most {most} are allowed", str(found))

    def test_what_was_allowed_by_one_limit_is_refused_by_another(self):
        three = {"dimensions": {"a": "1", "b": "2", "c": "3"}}
        found = [len(parse_post(body(three), max_dimensions=most).violations) for most in (3, 2, 3)]
        self.assertEqual([0, 1, 0], found)

    def test_times_outside_of_the_window_are_violations(self):
        times = (999, 1000, 2000, 2000.9, 2001, 1.5, 1_500_000)
        posted = parse_post(body(*({"timestamp": each} for each in times)), allowed=Window(1000, 2000))
        self.assertEqual([1, 2, 3], posted.indices)
        rules = [violation.rule for violation in posted.violations]
        self.assertIn("is older than rows are kept: since 1970-01-01T00:00:01.000", rules[0])
        self.assertIn("is in the future: beyond 1970-01-01T00:00:02.000", rules[1])
        self.assertIn("as seconds it would be right", rules[2])
        self.assertIn("as microseconds it would be right", rules[3])

    def test_neither_violations_nor_errors_quote_a_value(self):
        posted = parse_post(body({"name": "secret<", "value": "secret", "dimensions": {"k": "secret<"}}))
        self.assertNotIn("secret", str(posted.violations))

    @given(st.lists(hostile.members("name", "dimensions", "timestamp", "value", "value_meta"), max_size=3))
    def test_whatever_is_posted_is_accepted_whole_or_blamed(self, elements):
        try:
            posted = parse_post(b"[%b]" % b",".join([b'{"name":"a","timestamp":1,"value":1}', *elements]))
        except NotJson:
            return
        self.assertEqual(posted.total, len(posted.valid) + len(posted.rejected))
        for rejected in posted.rejected:
            self.assertNotIn("cannot be read as a metric", str(rejected.violations[0]))
        # What is accepted is stored: the persister's rules are wider than the API's.
        rows = MetricDecoder().decode_all([models.envelope(text, "t", "r", 5) for text in posted.valid])
        self.assertEqual({}, rows.errors)
        self.assertTrue(all(math.isfinite(row.value) for row in rows.rows))

    @given(hostile.TEXTS)
    def test_no_body_escapes_as_anything_but_a_refusal(self, text):
        for place in (text, b"[" + text + b"]"):
            try:
                parse_post(place)
            except InvalidEnvelope as error:
                self.assertTrue(error.violations)
