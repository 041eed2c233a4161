# SPDX-License-Identifier: Apache-2.0
"""Tests of posted metrics and of metrics in messages."""

import json
import math
from pathlib import Path

from fixtures import MonkeyPatch
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import metric as models
from monasca_common.models.errors import InvalidEnvelope, Unreadable
from monasca_common.models.metric import MetricDecoder, parse_post
from monasca_common.models.post import MOST_ELEMENTS, PostRules
from monasca_common.models.series import series_id
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
    def test_a_post_is_a_metric_or_a_list_of_metrics(self):
        for text, count in ((json.dumps(GOOD).encode(), 1), (body({}), 1), (body({}, {}), 2), (b" [ ] ", 0)):
            with self.subTest(text):
                posted = parse_post(text)
                self.assertEqual([GOOD] * count, self.metrics(posted))
                self.assertEqual((count, list(range(count))), (posted.total, posted.indices))

    def test_float_timestamps_are_floored(self):
        (found,) = self.metrics(parse_post(body({"timestamp": 1453308031000.987})))
        self.assertEqual(1453308031000, found["timestamp"])
        self.assertIs(int, type(found["timestamp"]))

    def test_omitted_members_have_defaults(self):
        self.assertEqual(
            [{"name": "cpu", "dimensions": {}, "timestamp": 5, "value": 0.0, "value_meta": None}],
            self.metrics(parse_post(b'{"name":"cpu","timestamp":5,"value":-0.0}')),
        )
        self.assertEqual([], self.places({"dimensions": None}, {"value_meta": None}, {"value_meta": {}}))

    def test_multibyte_names_are_unchanged(self):
        change = {
            "name": "温度" * 127,
            "dimensions": {"ключ": "значение", "😀": "🚀"},
            "value_meta": {"é": "à\n\\u0000"},
        }
        self.assertEqual([GOOD | change], self.metrics(parse_post(body(change))))

    def test_equal_metrics_have_equal_bytes(self):
        one = b'{"name":"a","dimensions":{"x":"1","y":"2"},"timestamp":5,"value":1,"value_meta":{"a":"","b":""}}'
        other = (
            b'{ "value_meta": {"b":"","a":""}, "value":1.0, "timestamp": 5.5, '
            b'"dimensions": {"y": "\\u0032", "x": "0", "x": "1"}, "note": [1], "name": "\\u0061" }'
        )
        self.assertEqual(parse_post(one).valid, parse_post(other).valid)

    def test_recorded_metrics_are_posted_and_stored_unchanged(self):
        lines = [line for path in sorted(GOLDEN.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        envelopes = [json.loads(line) for line in lines]
        posted = parse_post(json.dumps([envelope["metric"] for envelope in envelopes]).encode())
        self.assertEqual(((), len(lines)), (posted.violations, len(posted.valid)))
        again = []
        for text, envelope in zip(posted.valid, envelopes, strict=True):
            meta = envelope["meta"]
            again += models.envelopes([text], meta["tenantId"], meta["region"], envelope["creation_time"])
        decoder = MetricDecoder()
        self.assertEqual(decoder.decode_all(lines).rows, decoder.decode_all(again).rows)

    def test_an_envelope_has_the_format_of_messages(self):
        (text,) = parse_post(json.dumps(GOOD).encode()).valid
        expected = {"metric": GOOD, "meta": {"tenantId": 't"1', "region": "r\u00e9"}, "creation_time": 5}
        self.assertEqual([expected] * 2, list(map(json.loads, models.envelopes([text, text], 't"1', "r\u00e9", 5))))


class TestBadPosts(MetricPostCase):
    def test_all_violations_of_all_elements_are_listed_with_their_places(self):
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

    def test_valid_elements_are_accepted_among_invalid_ones(self):
        posted = parse_post(body({"value": 1}, {"name": ""}, {"value": 2}))
        self.assertEqual([1.0, 2.0], [json.loads(text)["value"] for text in posted.valid])
        self.assertEqual(([0, 2], 3), (posted.indices, posted.total))
        (rejected,) = posted.rejected
        self.assertEqual((1, GOOD | {"name": ""}), (rejected.index, json.loads(rejected.raw)))
        self.assertEqual(posted.violations, rejected.violations)

    def test_posts_have_the_limits_of_the_public_api(self):
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

    def test_the_place_of_a_single_metric_has_no_index(self):
        posted = parse_post(b'{"name":"a","timestamp":1}')
        self.assertEqual(["value"], [violation.where for violation in posted.violations])

    def test_invalid_json_has_its_own_error(self):
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
                error = self.assertRaises(Unreadable, parse_post, text)
                self.assertEqual([""], [violation.where for violation in error.violations])

    def test_json_that_is_neither_object_nor_array_is_refused(self):
        for text in (b"5", b"null", b'"a"', b"true"):
            error = self.assertRaises(InvalidEnvelope, parse_post, text)
            self.assertNotIsInstance(error, Unreadable)

    def test_invalid_json_of_python_invalidates_only_its_element(self):
        for change in ({"value": float("nan")}, {"name": "\ud800"}, {"dimensions": {"k": "\ud800"}}):
            with self.subTest(ascii(change)):
                posted = parse_post(body({}, change, {}))
                self.assertEqual([0, 2], posted.indices)

    def test_a_bulk_is_limited_in_elements(self):
        most = [{}] * MOST_ELEMENTS
        self.assertEqual(MOST_ELEMENTS, parse_post(body(*most)).total)
        self.assertRaises(InvalidEnvelope, parse_post, body(*most, {}))
        for text in (b"0", b"NaN"):
            self.assertRaises(InvalidEnvelope, parse_post, b"[" + b",".join([text] * (MOST_ELEMENTS + 1)) + b"]")

    def test_many_violations_are_truncated_but_each_invalid_element_is_rejected(self):
        posted = parse_post(b"[" + b",".join([b"0"] * 15_000) + b"]")
        self.assertEqual(15_000, len(posted.rejected))
        self.assertEqual(10_000, len(posted.violations))
        many = {"dimensions": {f"<{number}": "<" for number in range(100)}}
        self.assertEqual(100, len(parse_post(body(many)).violations))

    def test_too_many_dimensions_are_one_violation(self):
        for count, most in ((101, 100), (4, 3)):
            many = {"dimensions": {f"<{number}": "<" for number in range(count)}}
            (found,) = parse_post(body({}, many), PostRules(max_dimensions=most)).violations
            self.assertEqual(f"[1].dimensions has {count} entries: at most {most} are allowed", str(found))

    def test_cached_dimensions_are_checked_by_each_limit(self):
        three = {"dimensions": {"a": "1", "b": "2", "c": "3"}}
        found = [len(parse_post(body(three), PostRules(max_dimensions=most)).violations) for most in (3, 2, 3)]
        self.assertEqual([0, 1, 0], found)

    def test_times_outside_the_window_are_violations(self):
        times = (999, 1000, 2000, 2000.9, 2001, 1.5, 1_500_000)
        posted = parse_post(body(*({"timestamp": each} for each in times)), PostRules(Window(1000, 2000)))
        self.assertEqual([1, 2, 3], posted.indices)
        rules = [violation.rule for violation in posted.violations]
        self.assertIn("is older than the retention: the earliest allowed time is 1970-01-01T00:00:01.000", rules[0])
        self.assertIn("is in the future: the latest allowed time is 1970-01-01T00:00:02.000", rules[1])
        self.assertIn("it appears to be in seconds", rules[2])
        self.assertIn("it appears to be in microseconds", rules[3])

    def test_neither_violations_nor_errors_quote_a_value(self):
        posted = parse_post(body({"name": "secret<", "value": "secret", "dimensions": {"k": "secret<"}}))
        self.assertNotIn("secret", str(posted.violations))

    @given(st.lists(hostile.members("name", "dimensions", "timestamp", "value", "value_meta"), max_size=3))
    def test_each_posted_metric_is_accepted_or_has_violations(self, elements):
        try:
            posted = parse_post(b"[%b]" % b",".join([b'{"name":"a","timestamp":1,"value":1}', *elements]))
        except Unreadable:
            return
        self.assertEqual(posted.total, len(posted.valid) + len(posted.rejected))
        for rejected in posted.rejected:
            self.assertNotIn("cannot be read as a metric", str(rejected.violations[0]))
        # The persister accepts each metric that the API accepts.
        rows = MetricDecoder().decode_all(models.envelopes(posted.valid, "t", "r", 5))
        self.assertEqual({}, rows.errors)
        self.assertTrue(all(math.isfinite(row.value) for row in rows.rows))

    @given(hostile.TEXTS)
    def test_any_body_is_accepted_or_raises_invalid_envelope(self, text):
        for place in (text, b"[" + text + b"]"):
            try:
                parse_post(place)
            except InvalidEnvelope as error:
                self.assertTrue(error.violations)


def message(*, meta=None, without=(), created=5, **changes):
    metric = {"name": "cpu", "dimensions": {"host": "a"}, "timestamp": 1000, "value": 1.5, "value_meta": None} | changes
    envelope = {"metric": metric, "meta": meta or {"tenantId": "t", "region": "r"}, "creation_time": created}
    for name in without:
        metric.pop(name, None)
        envelope.pop(name, None)
    return json.dumps(envelope).encode()


class MetricDecoderCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.decoder = MetricDecoder()

    def row(self, value):
        decoded = self.decoder.decode_all([value])
        self.assertEqual({}, decoded.errors)
        return decoded.rows[0]

    def places(self, value):
        decoded = self.decoder.decode_all([value])
        self.assertEqual([], decoded.rows)
        return [violation.where for violation in decoded.errors[0].violations]


class TestGoodMessages(MetricDecoderCase):
    def test_a_message_is_a_row(self):
        series, *rest = self.row(message(value_meta={"unit": "s"}))
        self.assertEqual(
            ("t", "r", "cpu", {"host": "a"}), (series.tenant, series.region, series.name, series.dimensions)
        )
        self.assertEqual(series_id("t", "r", "cpu", {"host": "a"}), series.id)
        self.assertEqual([1000, 1.5, '{"unit":"s"}', 5000], rest)

    def test_recorded_metrics_are_rows(self):
        for name, count in (("cpu_metrics", 93), ("mem_and_pod_metrics", 16)):
            lines = (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()
            decoded = self.decoder.decode_all(lines)
            self.assertEqual({}, decoded.errors)
            self.assertEqual(list(range(count)), decoded.indices)
            for line, row in zip(lines, decoded.rows, strict=True):
                envelope = json.loads(line)
                metric = envelope["metric"]
                self.assertEqual(math.floor(metric["timestamp"]), row.time_ms)
                self.assertIs(int, type(row.time_ms))
                self.assertEqual((metric["name"], metric["value"]), (row.series.name, row.value))
                self.assertEqual(metric["dimensions"], row.series.dimensions)
                self.assertEqual(metric.get("value_meta") or None, json.loads(row.value_meta or "null"))
                self.assertEqual(envelope["creation_time"] * 1000, row.version)

    def test_a_float_timestamp_is_floored(self):
        self.assertEqual(1453308031000, self.row(message(timestamp=1453308031000.9)).time_ms)

    def test_members_omitted_by_old_writers_have_defaults(self):
        row = self.row(message(without=("dimensions", "value_meta", "creation_time"), meta={"tenantId": "t"}))
        self.assertEqual(({}, None, 0, ""), (row.series.dimensions, row.value_meta, row.version, row.series.region))

    def test_null_is_like_an_absent_member(self):
        row = self.row(message(dimensions=None, created=None, meta={"tenantId": "t", "region": None}))
        self.assertEqual(({}, None, 0, ""), (row.series.dimensions, row.value_meta, row.version, row.series.region))

    def test_an_empty_value_meta_is_none(self):
        self.assertIsNone(self.row(message(value_meta={})).value_meta)

    def test_equal_value_meta_has_equal_text(self):
        one, other = (
            self.row(message(value_meta={"b": "1", "a": "2"})),
            self.row(message(value_meta={"a": "2", "b": "1"})),
        )
        self.assertEqual(one.value_meta, other.value_meta)

    def test_values_of_value_meta_that_are_not_strings_become_json(self):
        row = self.row(message(value_meta={"a": 5, "b": True, "c": [1]}))
        self.assertEqual({"a": "5", "b": "true", "c": "[1]"}, json.loads(row.value_meta))

    def test_minus_zero_is_zero(self):
        self.assertEqual("0.0", repr(self.row(message(value=-0.0)).value))

    def test_values_that_json_cannot_express_are_texts(self):
        self.assertEqual((math.inf, -math.inf), tuple(self.row(message(value=f"{s}Infinity")).value for s in ("", "-")))
        one, other = self.row(message(value="NaN")), MetricDecoder().decode_all([message(value="NaN")]).rows[0]
        self.assertTrue(math.isnan(one.value))
        self.assertEqual(one, other)

    def test_a_block_with_nan_is_decoded_together(self):
        calls = []
        decode = self.decoder._measurements
        self.decoder._measurements = lambda values: (calls.append(len(values)), decode(values))[1]
        values = [message(value="NaN" if n % 20 == 0 else n) for n in range(1000)]
        decoded = self.decoder.decode_all(values)
        self.assertEqual(([1000], {}), (calls, decoded.errors))
        self.assertEqual([n for n in range(1000) if n % 20], [int(r.value) for r in decoded.rows if r.value == r.value])

    def test_an_integer_value_is_a_float(self):
        self.assertEqual("3.0", repr(self.row(message(value=3)).value))

    def test_a_fractional_creation_time_is_a_version_in_ms(self):
        self.assertEqual(5123, self.row(message(created=5.123)).version)

    def test_fractional_creation_times_are_decoded_together(self):
        self.useFixture(MonkeyPatch("monasca_common.models.times.version", None))
        times = [5, 5.123, 1_790_000_000.999, 0.0]
        rows = MetricDecoder().decode_all([message(created=created) for created in times]).rows
        self.assertEqual([5000, 5123, 1_790_000_000_999, 0], [row.version for row in rows])
        self.assertEqual({int}, {type(row.version) for row in rows})

    def test_other_members_are_ignored(self):
        self.assertEqual(1.5, self.row(message(unit="s", meta={"tenantId": "t", "region": "r", "x": [1]})).value)

    def test_characters_that_the_api_refuses_are_stored(self):
        row = self.row(message(name="cpu (all)", dimensions={"_x": "a=b"}))
        self.assertEqual(("cpu (all)", {"_x": "a=b"}), (row.series.name, row.series.dimensions))

    def test_the_last_of_repeated_keys_is_used(self):
        row = self.row(message().replace(b'"host": "a"', b'"host": "a", "host": "b"'))
        self.assertEqual({"host": "b"}, row.series.dimensions)


class TestSeriesCache(MetricDecoderCase):
    def test_a_cached_series_is_the_same_object(self):
        rows = self.decoder.decode_all([message(), message(value=2)]).rows
        self.assertIs(rows[0].series, rows[1].series)

    def test_tenants_regions_and_names_are_distinguished(self):
        metas = [{"tenantId": tenant, "region": region} for tenant in "ab" for region in "xy"]
        values = [message(meta=meta, name=name) for meta in metas for name in ("m", "n")] * 2
        found = {
            (row.series.tenant, row.series.region, row.series.name) for row in self.decoder.decode_all(values).rows
        }
        self.assertEqual({(t, r, n) for t in "ab" for r in "xy" for n in "mn"}, found)

    def test_other_texts_of_the_same_series_have_the_same_id(self):
        escaped = message().replace(b'"a"', b'"\\u0061"')
        rows = self.decoder.decode_all([message(), escaped]).rows
        self.assertEqual(rows[0].series, rows[1].series)

    def test_the_cache_is_bounded(self):
        decoder = MetricDecoder(max_series=10)
        for number in range(100):
            self.assertEqual({}, decoder.decode_all([message(name=f"m{number}")]).errors)
            self.assertLessEqual(len(decoder._series), 10)

    def test_a_refused_series_is_refused_again(self):
        bad = message(name="x" * 256)
        self.assertEqual({0, 1}, set(self.decoder.decode_all([bad, bad]).errors))


class TestBadMessages(MetricDecoderCase):
    def test_an_invalid_message_does_not_affect_others(self):
        decoded = self.decoder.decode_all([message(value=1), b"{", message(value=2), None, message(value=3)])
        self.assertEqual([1.0, 2.0, 3.0], [row.value for row in decoded.rows])
        self.assertEqual([0, 2, 4], decoded.indices)
        self.assertEqual({1, 3}, set(decoded.errors))

    def test_the_row_of_a_message_does_not_depend_on_its_place_in_a_batch(self):
        kinds = [
            message(),
            message(timestamp=7.5, created=None, value_meta={"unit": "s"}),
            message(created=1.5, dimensions={"host": "b"}),
        ]
        values = [kinds[number % 3] for number in range(2500)]
        bad = {0: b"{", 999: message(timestamp=-1), 1000: message(created=-1), 1700: None, 2499: message(name="")}
        for place, value in bad.items():
            values[place] = value
        decoded = self.decoder.decode_all(values)
        self.assertEqual(sorted(bad), sorted(decoded.errors))
        self.assertEqual([place for place in range(2500) if place not in bad], decoded.indices)
        self.assertEqual([self.row(values[place]) for place in decoded.indices], decoded.rows)

    def test_all_violations_of_a_message_are_listed_with_their_places(self):
        bad = message(
            name="", timestamp=-1, value="1", dimensions={"k": 5, "n\0": "x"}, meta={"tenantId": "", "region": 5},
            value_meta={f"k{n}": "v" for n in range(17)}, created="now",
        )  # fmt: skip
        self.assertEqual(
            ["metric.name", "metric.dimensions.k", r"metric.dimensions['n\x00']", "metric.timestamp", "metric.value",
             "metric.value_meta", "meta.tenantId", "meta.region", "creation_time"],
            self.places(bad),
        )  # fmt: skip

    def test_a_missing_required_member_is_a_violation(self):
        self.assertEqual(["metric", "meta"], self.places(b"{}"))
        self.assertEqual(["metric.name"], self.places(message(without=["name"])))
        self.assertEqual(["metric.timestamp"], self.places(message(timestamp=None)))
        self.assertEqual(["metric.value"], self.places(message(value=None)))
        self.assertEqual(["meta.tenantId"], self.places(message(meta={"region": "r"})))

    def test_a_boolean_is_not_a_number(self):
        self.assertEqual(["metric.value"], self.places(message(value=True)))
        self.assertEqual(["metric.timestamp"], self.places(message(timestamp=True)))
        self.assertEqual(["creation_time"], self.places(message(created=True)))

    def test_a_value_that_is_not_finite_is_refused(self):
        for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400):
            with self.subTest(text[:10]):
                self.assertIn("metric.value", self.places(message().replace(b"1.5", text)))

    def test_texts_other_than_nan_and_infinity_are_refused(self):
        for value in ("1.5", "nan", "inf", "", ["NaN"], {"NaN": 1}):
            with self.subTest(value):
                self.assertEqual(["metric.value"], self.places(message(value=value)))

    def test_a_time_beyond_64_bits_is_refused(self):
        self.assertEqual(["metric.timestamp"], self.places(message(timestamp=2**63)))
        self.assertEqual(2**63 - 1, self.row(message(timestamp=2**63 - 1)).time_ms)

    def test_a_nul_is_refused_anywhere(self):
        for changes in (
            {"name": "\0"},
            {"dimensions": {"k": "\0"}},
            {"value_meta": {"k": "\0"}},
            {"value_meta": {"\0": ""}},
        ):
            with self.subTest(changes):
                self.places(message(**changes))
        self.places(message(meta={"tenantId": "t\0", "region": "r"}))
        self.places(message(meta={"tenantId": "t", "region": "r\0"}))

    def test_the_text_of_an_escaped_nul_is_accepted(self):
        self.assertEqual({"k": "\\u0000"}, json.loads(self.row(message(value_meta={"k": "\\u0000"})).value_meta))

    def test_an_unpaired_surrogate_is_refused(self):
        for changes in ({"name": "\ud800"}, {"dimensions": {"k": "\udc00"}}, {"value_meta": {"k": "\ud800"}}):
            with self.subTest(ascii(changes)):
                self.places(message(**changes))

    def test_value_meta_is_limited(self):
        self.row(message(value_meta={f"k{n}": "v" for n in range(16)}))
        self.assertEqual(["metric.value_meta"], self.places(message(value_meta={f"k{n}": "v" for n in range(17)})))
        self.row(message(value_meta={"k": "v" * (2048 - len('{"k":""}'))}))
        self.assertEqual(["metric.value_meta"], self.places(message(value_meta={"k": "v" * (2049 - len('{"k":""}'))})))
        self.assertEqual(1, len(self.places(message(value_meta={"k" * 256: "v"}))))

    def test_deep_nesting_is_a_violation(self):
        self.places(message().replace(b"null", hostile.DEEP))
        self.places(hostile.DEEP)

    def test_errors_do_not_reference_the_message(self):
        error = self.decoder.decode_all([message(name="secret" * 100)]).errors[0]
        self.assertNotIn("secret", str(error))
        self.assertIsNone(error.__cause__ or error.__context__)

    @given(
        hostile.members("name", "dimensions", "timestamp", "value", "value_meta")
        | st.sampled_from([b'{"name":"a","timestamp":1,"value":1}']),
        hostile.members("tenantId", "region") | st.just(b'{"tenantId":"t"}'),
        hostile.TEXTS,
    )
    def test_any_value_is_a_storable_row_or_an_error_with_violations(self, metric, meta, created):
        value = b'{"metric":%b,"meta":%b,"creation_time":%b}' % (metric, meta, created)
        decoded = self.decoder.decode_all([value, value])
        self.assertEqual(2, len(decoded.rows) + len(decoded.errors))
        for error in decoded.errors.values():
            self.assertIsInstance(error, InvalidEnvelope)
            self.assertNotIn("cannot be read as a metric", str(error))  # the fast and the slow check agree
            str(error).encode()
        for row in decoded.rows:
            self.assertTrue(math.isfinite(row.value))
            self.assertTrue(0 <= row.time_ms < 2**63)
            self.assertTrue(0 <= row.version < 2**63)
            texts = [row.series.tenant, row.series.region, row.series.name, row.value_meta or ""]
            for key, text in row.series.dimensions.items():
                texts += [key, text]
            self.assertNotIn("\0", "".join(texts))
            "".join(texts).encode()
            self.assertLessEqual(max(map(len, texts[:3] + texts[4:])), 255)
