# SPDX-License-Identifier: Apache-2.0
import json
import struct
import time

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models import metric, remote_write, remote_write_v2
from monasca_common.models.errors import InvalidEnvelope, Unreadable
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.post import PostRules
from monasca_common.models.times import Window
from monasca_common.tests.unit.models.write_request import STALE, label, number, part, request_2, sample, series, up

NOW_MS = 1_790_000_000_123
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=150)
NUMBERS = st.floats() | st.integers(-(2**53), 2**53).map(float)
UP = {"__name__": "up"}
_TEXTS = TEXTS | st.just("")
_SAMPLES = st.lists(st.tuples(NUMBERS, st.integers(0, 2**63 - 1)), max_size=3)


class WriteRequestCase(base.BaseTestCase):
    def rows(self, body, **rules):
        post = remote_write.parse(body, PostRules(**rules))
        self.assertEqual(((), len(post.valid)), (post.violations, post.total))
        return MetricDecoder().decode_all(metric.envelopes(post.valid, "t", "r", 5)).rows

    def faults(self, body, **rules):
        post = remote_write.parse(body, PostRules(**rules))
        self.assertEqual(bool(post.violations), len(post.valid) < post.total)
        return "\n".join(map(str, post.violations))


class ReadTest(WriteRequestCase):
    @given(
        st.lists(
            st.tuples(
                st.dictionaries(TEXTS, TEXTS, max_size=5),
                TEXTS,
                st.lists(st.tuples(NUMBERS, st.integers(0, 2**63 - 1)), max_size=3),
            ),
            max_size=4,
        )
    )
    def test_each_sample_is_a_row(self, given_series):
        body = b"".join(series({**labels, "__name__": name}, *samples) for labels, name, samples in given_series)
        for _ in range(2):  # the labels are in the cache at the second call
            self.assertEqual(
                [
                    (name, {key: each for key, each in labels.items() if key != "__name__"}, time_ms, repr(value + 0.0))
                    for labels, name, samples in given_series
                    for value, time_ms in samples
                ],
                [(row.series.name, row.series.dimensions, row.time_ms, repr(row.value)) for row in self.rows(body)],
            )

    def test_a_staleness_marker_is_the_end_of_a_series(self):
        stale, other = self.rows(up((STALE, NOW_MS), (struct.pack("<Q", 0x7FF8000000000001), NOW_MS + 1)))
        self.assertEqual(("nan", '{"prometheus":"stale"}'), (repr(stale.value), stale.value_meta))
        self.assertEqual(("nan", None), (repr(other.value), other.value_meta))

    def test_samples_of_a_known_series_are_read_as_at_first(self):
        samples = [(value, NOW_MS) for value in (1.5, 0.0, -0.0, 1e300, float("nan"), float("-inf"), STALE)]
        samples.append((2.5, NOW_MS + 1))
        expected = ["1.5", "0.0", "0.0", "1e+300", "nan", "-inf", "nan", "2.5"]
        for body in (b"".join(up(each, known="yes") for each in samples), up(*samples, known="yes")):
            for _ in range(2):
                rows = self.rows(body)
                self.assertEqual(expected, [repr(row.value) for row in rows])
                self.assertEqual([None] * 6 + ['{"prometheus":"stale"}', None], [row.value_meta for row in rows])
                self.assertEqual([each[1] for each in samples], [row.time_ms for row in rows])

    def test_the_time_of_a_known_series_is_checked(self):
        body = up((1.0, NOW_MS), known="yes")
        self.rows(body)
        self.assertIn(
            "timeseries[1] ('__name__=up, known=yes') its time", self.faults(up() + body, allowed=Window(1, 2))
        )

    def test_known_labels_that_end_like_a_sample_are_labels(self):
        usual = b"\x12\x10\x09" + bytes(8) + b"\x10" + number(NOW_MS)
        body = series([("__name__", "up"), ("a", usual)], (1.0, NOW_MS))
        for _ in range(2):
            self.assertIn("UTF-8", self.faults(body))
        for _ in range(2):
            (row,) = self.rows(up((1.0, NOW_MS), known="\x12\x10\t123"))
            self.assertEqual("\x12\x10\t123", row.series.dimensions["known"])

    def test_series_of_any_size_are_read(self):
        """The labels whose values are empty are omitted, so that labels can be long."""
        bare = len(up((1.0, NOW_MS))) - 2
        for size in (60, 126, 127, 128, 129, 2046, 2047, 2048, 2049, 2**14 - 1, 2**14, 2**15, 2**21):
            name = next(n for n in range(size, 0, -1) if bare + len(label("x" * n, "")) <= size)
            for value in (1.5, 0.0):
                body = up((value, NOW_MS), **{"x" * name: ""})
                for _ in range(2):
                    self.assertEqual([(value, NOW_MS)], [(row.value, row.time_ms) for row in self.rows(body)])

    def test_a_field_of_the_size_of_a_known_series_is_not_a_series(self):
        known = up((1.5, NOW_MS), a="b")
        self.rows(known)
        self.assertEqual([], self.rows(part(3, known[2:])))
        self.assertEqual([1.5], [row.value for row in self.rows(b"\x18" + known[1:2] + known)])

    def test_an_empty_label_is_a_missing_one(self):
        (row,) = self.rows(up((1.0, NOW_MS), a="", b="x"))
        self.assertEqual({"b": "x"}, row.series.dimensions)

    def test_empty_labels_do_not_hide_others(self):
        for letter in "aA":  # before and after __name__
            empty = [(f"{letter}{place}", "") for place in range(100)]
            pairs = sorted([*empty, ("__name__", "cpu"), ("b", "1"), ("c", "2")])
            (row,) = self.rows(series(pairs, (1, NOW_MS)), max_dimensions=2)
            self.assertEqual(("cpu", {"b": "1", "c": "2"}), (row.series.name, row.series.dimensions))
            faults = self.faults(series([*pairs, ("d", "3")], (1, NOW_MS)), max_dimensions=2)
            self.assertIn("has 3 entries", faults)

    def test_a_series_with_long_labels_is_not_cached(self):
        """A label with an empty value is omitted from the series, but not from the key of the cache."""
        heads = remote_write._heads(PostRules().max_dimensions, PostRules().reserved_names)
        for length, count in ((1000, 1), (4096, 0)):
            before = len(heads)
            self.rows(up((1.0, NOW_MS), **{"x" * length: ""}))
            self.assertEqual(count, len(heads) - before)

    def test_labels_in_any_order_are_the_same_series(self):
        pairs = [("b", "1"), ("__name__", "up"), ("a", "2")]
        rows = self.rows(series(pairs, (1, NOW_MS)) + series(sorted(pairs), (1, NOW_MS)))
        self.assertEqual(rows[0].series, rows[1].series)

    def test_metadata_exemplars_and_unknown_fields_are_ignored(self):
        exemplar = part(3, b"\x11" + bytes(8))
        unknown = part(900, b"x") + b"\x78\x05" + b"\x7d" + bytes(4) + b"\x79" + bytes(8)
        body = part(3, b"metadata") + unknown + series({"__name__": "up"}, (1.0, NOW_MS), more=exemplar + unknown)
        self.assertEqual([1.0], [row.value for row in self.rows(body)])

    def test_unusual_encodings_are_read(self):
        long_forms = b"\x0a\x88\x00" + b"__name__" + b"\x12\x82\x00" + b"up"
        reordered = part(2, b"\x10" + number(NOW_MS) + b"\x09" + struct.pack("<d", 2.5))
        twice = part(2, b"\x09" + bytes(8) + b"\x09" + struct.pack("<d", 3.5) + b"\x10" + number(NOW_MS + 1))
        rows = self.rows(part(1, part(1, long_forms) + reordered + twice))
        self.assertEqual([("up", 2.5), ("up", 3.5)], [(row.series.name, row.value) for row in rows])

    def test_unknown_fields_of_a_sample_are_ignored(self):
        for time_ms in (5, NOW_MS, 2**50):
            known = b"\x09" + struct.pack("<d", 1.5) + b"\x10" + number(time_ms)
            for unknown in (b"\x18\x01", b"\x18" + number(NOW_MS), part(3, b"unknown")):
                (row,) = self.rows(part(1, label("__name__", "up") + part(2, known + unknown)))
                self.assertEqual((1.5, time_ms), (row.value, row.time_ms))

    def test_the_last_of_repeated_times_of_a_sample_counts(self):
        times = b"\x10\x05" + b"\x10" + number(2**27)  # together as long as the usual time
        for known in (up((1.0, NOW_MS)), b""):
            row = self.rows(known + part(1, label("__name__", "up") + part(2, b"\x09" + bytes(8) + times)))[-1]
            self.assertEqual(2**27, row.time_ms)

    def test_an_empty_request_and_a_series_without_samples_have_no_rows(self):
        self.assertEqual([], self.rows(b""))
        self.assertEqual([], self.rows(up() + part(1, b"")))


class RefusedTest(WriteRequestCase):
    def test_valid_samples_of_a_request_with_invalid_ones_are_read(self):
        good = up((1.0, NOW_MS), (2.0, NOW_MS + 1), job="a")
        for body, fault in (
            (series({"job": "a"}, (1.0, NOW_MS)), "the name must not be empty"),
            (series([("__name__", "up"), ("a", "1"), ("a", "2")], (1.0, NOW_MS)), "the label 'a' is repeated"),
            (series([("__name__", "up"), (b"\xff", "1")], (1.0, NOW_MS)), "a label is not UTF-8"),
            (up((1.0, NOW_MS), a="\0"), "the value of 'a' has a NUL"),
            (up((1.0, NOW_MS), a="x" * 256), "the value of 'a' has 256 characters"),
            (up((1.0, NOW_MS), **{f"l{n}": "x" for n in range(101)}), "has 101 entries: at most 100 are allowed"),
            (series({"__name__": "up"}, more=part(4, b"")), "send_native_histograms"),
        ):
            post = remote_write.parse(body + good)
            self.assertEqual((2, 3, [1, 2]), (len(post.valid), post.total, post.indices), fault)
            self.assertIn(fault, str(post.violations[0]))
            self.assertIn("timeseries[0]", post.violations[0].where)

    def test_refused_samples_between_those_of_known_series_have_their_places(self):
        good, bad = up((1.0, NOW_MS), job="a"), up((1.0, NOW_MS), a="\0")
        post = remote_write.parse(good * 3 + bad + good * 2 + bad)
        self.assertEqual(([0, 1, 2, 4, 5], 7), (post.indices, post.total))
        places = [violation.where.partition(" ")[0] for violation in post.violations]
        self.assertEqual(["timeseries[3]", "timeseries[6]"], places)

    def test_a_sample_outside_the_time_range_is_refused_with_its_series(self):
        window = Window(NOW_MS - 10, NOW_MS + 10)
        body = up(*((1.0, NOW_MS + after) for after in (-11, -10, 10, 11)), job="node")
        post = remote_write.parse(body, PostRules(window))
        self.assertEqual([1, 2], post.indices)
        self.assertEqual(2, len(post.violations))
        self.assertIn("job=node", post.violations[0].where)
        self.assertIn("older than the retention", post.violations[0].rule)
        self.assertIn("in the future", post.violations[1].rule)
        for time_ms in (0, -1, -(2**63)):
            self.assertIn("older", self.faults(up((1.0, time_ms)), allowed=window))

    def test_a_reserved_name_is_refused(self):
        self.assertIn("reserves", self.faults(up((1.0, 5)), reserved_names=frozenset({"up"})))

    def test_a_series_that_broke_a_stricter_rule_is_not_cached_for_another(self):
        body = up((1.0, 5), a="1", b="2")
        self.assertEqual("", self.faults(body))
        self.assertIn("2 entries", self.faults(body, max_dimensions=1))
        self.assertEqual("", self.faults(body))

    def test_other_bytes_are_refused(self):
        good = up((1.0, NOW_MS), a="b")
        for body in (
            b"\xff" * 20, b"\x0a", b"\x0a\x05abc", b"\x0b\x0c", b"\x0e", b"\x08\xff", good + b"\x0a\x7f",
            part(1, part(1, b"\x0a\x05abc") + sample(1.0, 5)), part(1, b"\x0a\xff\xff\xff\xff\x0f"),
            part(1, label("__name__", "up") + part(2, b"\x09abc")),
            part(1, label("__name__", "up") + sample(1.0, NOW_MS) + label("a", "b")),
            part(1, label("__name__", "up") + part(2, b"\x09" + bytes(8) + b"\x10" + b"\xff" * 10 + b"\x01")),
        ):  # fmt: skip
            self.assertRaises(Unreadable, remote_write.parse, body)

    @given(st.binary(max_size=300))
    def test_any_bytes_are_samples_or_refused(self, body):
        try:
            post = remote_write.parse(body)
        except InvalidEnvelope:
            return
        for text in post.valid:
            json.loads(text)

    @given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 200))
    def test_a_damaged_request_is_samples_or_refused(self, place, byte, end):
        body = bytearray(up((1.0, NOW_MS), (STALE, NOW_MS), a="b" * 130) * 2)
        body[place] = byte
        for damaged in (bytes(body), bytes(body[:end])):
            try:
                remote_write.parse(damaged)
            except InvalidEnvelope:
                continue

    def test_work_is_linear_in_the_bytes(self):
        size = 1_000_000
        for body in (
            part(1, part(1, b"") * (size // 2)),
            part(1, part(1, part(1, b"a") + part(2, b"b")) * (size // 8) + sample(1.0, 5)),
            part(3, b"") * (size // 2),
            part(1, label("__name__", "up") + part(4, b"") * 19_000 + part(3, b"") * (size // 4)),
            up((1.0, 5), a="x" * size),
            up(*[(1.0, -1)] * 19_000, a="x" * size),
        ):
            began = time.process_time()
            remote_write.parse(body)
            self.assertLess(time.process_time() - began, 5)

    def test_too_many_samples_are_too_large(self):
        error = self.assertRaises(InvalidEnvelope, remote_write.parse, up(*[(1.0, 5)] * 20_001))
        self.assertTrue(error.violations[0].too_large)
        error = self.assertRaises(InvalidEnvelope, remote_write.parse, series({}, *[(1.0, 5)] * 20_001))
        self.assertTrue(error.violations[0].too_large)

    def test_too_many_series_are_too_large(self):
        self.assertEqual(0, remote_write.parse(part(1, b"") * 20_000).total)
        for body in (part(1, b"") * 20_001, up((1.0, 5)) * 10_000 + part(1, b"") * 10_001, up((1.0, NOW_MS)) * 20_001):
            error = self.assertRaises(InvalidEnvelope, remote_write.parse, body)
            self.assertTrue(error.violations[0].too_large)


class RemoteWrite2Test(base.BaseTestCase):
    @given(st.lists(st.tuples(st.dictionaries(_TEXTS, _TEXTS, max_size=5), _SAMPLES), max_size=4))
    def test_a_request_has_the_same_samples_and_faults_as_one_of_version_1(self, found):
        version_1 = b"".join(series(labels, *samples) for labels, samples in found)
        expected, post = remote_write.parse(version_1), remote_write_v2.parse(request_2(*found))
        self.assertEqual(
            (expected.valid, expected.total, expected.violations, expected.id_parts),
            (post.valid, post.total, post.violations, post.id_parts),
        )

    def test_references_need_not_be_packed(self):
        symbols = part(4, b"") + part(4, b"__name__") + part(4, b"up")
        for references in (b"\x08\x01\x08\x02", part(1, b"\x01") + part(1, b"\x02"), b"\x08\x01" + part(1, b"\x02")):
            post = remote_write_v2.parse(symbols + part(5, references + sample(1.5, NOW_MS)))
            self.assertEqual(remote_write.parse(series(UP, (1.5, NOW_MS))).id_parts, post.id_parts)

    def test_metadata_start_times_and_unknown_fields_are_ignored(self):
        metadata, unknown = part(5, b"\x08\x01"), part(900, b"x")
        started = part(2, sample(2.5, NOW_MS)[2:] + b"\x18" + number(NOW_MS - 1000))
        body = request_2((UP, [(1.5, NOW_MS)], started, metadata, unknown)) + unknown
        expected = remote_write.parse(series(UP, (1.5, NOW_MS), (2.5, NOW_MS)))
        self.assertEqual(expected.id_parts, remote_write_v2.parse(body).id_parts)

    def refused(self, *found):
        """Return the first violation of a request that begins with a valid sample, and count the others."""
        post = remote_write_v2.parse(request_2(({"__name__": "b"}, [(1.0, NOW_MS)]), *found))
        self.assertEqual(1, len(post.valid))
        return post.total - 1, str(post.violations[0])

    def test_native_histograms_and_exemplars_are_refused_and_samples_are_stored(self):
        count, fault = self.refused((UP, [], part(3, b"\x08\x01")))
        self.assertEqual(1, count)
        self.assertIn("timeseries[1] ('__name__=up') native histograms are not stored", fault)
        count, fault = self.refused((UP, [], part(4, b"\x11" + bytes(8))))
        self.assertEqual((1, "timeseries[1] exemplars are not stored: set send_exemplars to false"), (count, fault))

    def test_only_the_samples_of_a_series_with_a_wrong_reference_are_refused(self):
        for references, fault in (
            (b"\x01\x7f", "refers to the missing symbol 127: the request has 3 symbols"),
            (b"\x01" + number(2**63), f"refers to the missing symbol {2**63}: the request has 3 symbols"),
            (b"\x01", "has an odd number of references to symbols"),
            (b"\x01\x02\x01", "has an odd number of references to symbols"),
        ):
            samples = sample(1.5, NOW_MS) + sample(2.5, NOW_MS)
            self.assertEqual((2, f"timeseries[1] {fault}"), self.refused(([], [], part(1, references), samples)))

    def test_a_truncated_request_is_refused(self):
        parts = [part(4, b""), part(4, b"__name__"), part(4, b"up"), part(5, b"\x08\x01\x08\x02" + sample(1, NOW_MS))]
        body = b"".join(parts)
        ends = {len(b"".join(parts[:count])) for count in range(5)}
        for end in range(len(body)):
            if end in ends:
                self.assertEqual(0, remote_write_v2.parse(body[:end]).total)
            else:
                error = self.assertRaises(Unreadable, remote_write_v2.parse, body[:end])
                self.assertIn("message of remote write: it is truncated", str(error))
        truncated = parts[3][:1] + bytes((parts[3][1] - 1,)) + parts[3][2:-1]
        self.assertRaises(Unreadable, remote_write_v2.parse, b"".join([*parts[:3], truncated]))

    def test_a_request_with_too_many_parts_is_too_large(self):
        many, long = b"\x00" * 10_000, {"__name__": "up", "a": "x" * 2**20}
        for name, body in (
            ("symbols", part(4, b"") * 200_001),
            ("series", part(5, b"") * 20_001),
            ("samples", part(5, part(2, b"") * 20_001)),
            ("500000 labels", part(4, b"") + part(5, part(1, many)) * 100 + part(5, part(1, b"\x00\x00"))),
            ("500000 labels", part(4, b"") + part(5, b"\x08\x00" * 1_000_001)),
            ("labels", request_2(*[(long, [(1.0, NOW_MS)])] * 16)),
        ):
            error = self.assertRaises(InvalidEnvelope, remote_write_v2.parse, body)
            self.assertIn(name, str(error))
            self.assertEqual((True, False), (error.violations[0].too_large, isinstance(error, Unreadable)))
        for body in (part(4, b"") * 200_000, part(5, b"") * 20_000, part(4, b"") + part(5, part(1, many)) * 100):
            self.assertEqual(0, remote_write_v2.parse(body).total)
        self.assertEqual(15, remote_write_v2.parse(request_2(*[(long, [(1.0, NOW_MS)])] * 15)).total)
