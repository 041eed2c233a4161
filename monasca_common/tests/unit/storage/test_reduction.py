# SPDX-License-Identifier: Apache-2.0

import itertools

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.storage.reduction import rank, reduced

_ROWS = st.tuples(
    st.sampled_from([b"a", b"b"]),
    st.integers(0, 2),
    st.floats(allow_nan=False, min_value=-2, max_value=2),
    st.sampled_from([None, "", '{"a": "b"}', '{"a": "c"}']),
    st.integers(0, 2),
)


class ReductionTest(base.BaseTestCase):
    def test_keys_that_differ_all_stay_in_order(self):
        rows = [(b"b", 1, 1.0, None, 1), (b"a", 1, 1.0, None, 1), (b"a", 2, 1.0, None, 1)]
        self.assertEqual((rows, 0, 0), _parts(reduced(rows)))

    def test_others_count_by_whether_their_value_is_the_winners(self):
        rows = [(b"a", 1, 1.0, None, 1), (b"a", 1, 2.0, None, 3), (b"a", 1, 2.0, None, 2)]
        for order in itertools.permutations(rows):
            self.assertEqual(([rows[1]], 1, 1), _parts(reduced(order)))

    def test_version_then_value_then_value_meta_decide(self):
        rising = [
            (b"a", 1, 9.0, '{"z": "z"}', 1),
            (b"a", 1, 1.0, None, 2),
            (b"a", 1, 2.0, None, 2),
            (b"a", 1, 2.0, "{}", 2),
            (b"a", 1, 2.0, '{"a": "b"}', 3),
        ]
        falling = rising[::-1]
        self.assertEqual(rising, sorted(falling, key=rank))

    @given(st.lists(_ROWS, max_size=12), st.randoms(use_true_random=False))
    def test_any_order_comes_to_the_same_and_counts_add_up(self, rows, chance):
        first = reduced(rows)
        self.assertEqual(len(rows), len(first.rows) + first.repeated + first.conflicting)
        shuffled = list(rows)
        chance.shuffle(shuffled)
        again = reduced(shuffled)
        self.assertEqual(sorted(first.rows, key=_key), sorted(again.rows, key=_key))
        self.assertEqual((first.repeated, first.conflicting), (again.repeated, again.conflicting))


def _parts(result):
    return result.rows, result.repeated, result.conflicting


def _key(row):
    return row[:2]
