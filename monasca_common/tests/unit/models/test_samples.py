# SPDX-License-Identifier: Apache-2.0
import json
import math

from oslotest import base

from monasca_common.models import metric, samples
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.post import MOST_ELEMENTS, PostRules
from monasca_common.models.samples import Samples, series_head


class SamplesTest(base.BaseTestCase):
    def rows(self, given):
        decoded = MetricDecoder().decode_all(metric.envelopes(given.post().valid, "tenant", "region", 5.5))
        self.assertEqual({}, decoded.errors)
        return decoded.rows

    def test_samples_are_envelopes_of_the_same_series_and_values(self):
        name, dimensions = "größe {x}", {"_b": "", "a=": '☃ "\\'}
        head, given = series_head(name, dimensions), Samples()
        values = (0.1, -0.0, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf)
        for number, value in enumerate(values):
            given.add(head, number, value)
        rows = self.rows(given)
        self.assertEqual(["0.1", "0.0", *map(repr, values[2:])], [repr(row.value) for row in rows])
        self.assertEqual({(name, 5500)}, {(row.series.name, row.version) for row in rows})
        self.assertEqual([dimensions] * len(values), [row.series.dimensions for row in rows])

    def test_the_end_of_a_series_is_nan_with_its_own_value_meta(self):
        given = Samples()
        given.add(series_head("up", {}), 5, math.nan, samples.STALE_META)
        (row,) = self.rows(given)
        self.assertEqual(("nan", {"prometheus": "stale"}), (repr(row.value), json.loads(row.value_meta)))

    def test_samples_have_equal_ids_if_series_time_value_and_meta_are_equal(self):
        given, up, down = Samples(), series_head("up", {}), series_head("down", {})
        metas = samples.NO_META, samples.STALE_META, b'{"start":"1"}'
        different = [
            *((head, time_ms, value) for head in (up, down) for time_ms in (1, 12) for value in (0.0, 2.5, math.inf)),
            *((up, 5, math.nan, meta) for meta in metas),
        ]
        for each in [*different, *different, (up, 1, -0.0)]:
            given.add(*each)
        ids, count = [b"".join(parts) for parts in zip(*given.post().id_parts, strict=True)], len(different)
        self.assertEqual(count, len(set(ids)))
        self.assertEqual([*ids[:count], *ids[:1]], ids[count:])

    def test_all_rules_that_a_series_breaks_are_listed(self):
        given = Samples(PostRules(max_dimensions=2, reserved_names=frozenset({"mine"})))
        self.assertEqual([], given.faults("any(name)", {"_": "<>", "b": "x" * 255}))
        for name, dimensions, count in (
            ("mine", {}, 1), ("", {"": ""}, 2), ("a\0", {"b\0": "c\0"}, 3), ("n", {"a": "x" * 256}, 1),
            ("n", dict.fromkeys("abc", "x"), 1),
        ):  # fmt: skip
            self.assertEqual(count, len(given.faults(name, dimensions)), (name, dimensions))

    def test_refused_samples_are_counted_and_the_first_violations_are_kept(self):
        given = Samples()
        for number in range(1000):
            given.refuse(f"[{number}]", ["is too old"])
        given.add(series_head("up", {}), 15, 1.0)
        post = given.post()
        self.assertEqual((1001, [1000], 100), (post.total, post.indices, len(post.violations)))
        self.assertEqual("[0] is too old", str(post.violations[0]))

    def test_a_request_with_too_many_samples_or_bytes_is_too_large(self):
        given, head = Samples(), series_head("up", {})
        for _ in range(MOST_ELEMENTS):
            given.add(head, 1, 1.0)
        error = self.assertRaises(InvalidEnvelope, given.add, head, 1, 1.0)
        self.assertTrue(error.violations[0].too_large)
        self.assertRaises(InvalidEnvelope, given.refuse, "", ["rule"])
        given, head = Samples(), series_head("up", {f"{n}": "x" * 255 for n in range(100)})
        error = self.assertRaises(InvalidEnvelope, lambda: [given.add(head, 1, 1.0) for _ in range(MOST_ELEMENTS)])
        self.assertLess(sum(map(len, given.post().valid)), 2**24)
