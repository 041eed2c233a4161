# SPDX-License-Identifier: Apache-2.0
"""Sets of offsets behave like Python sets."""

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.audit.runs import difference, intersection, runs_of, size, union

OFFSETS = st.sets(st.integers(0, 40))


def offsets(runs):
    return {offset for first, following in runs for offset in range(first, following)}


class RunsTest(base.BaseTestCase):
    @given(OFFSETS, OFFSETS)
    def test_runs_behave_like_sets(self, some, others):
        one, other = runs_of(some), runs_of(others)

        self.assertEqual((some, len(some)), (offsets(one), size(one)))
        self.assertEqual(runs_of(some | others), union(one, other))
        self.assertEqual(runs_of(some & others), intersection(one, other))
        self.assertEqual(runs_of(some - others), difference(one, other))

    def test_adjacent_runs_are_merged(self):
        self.assertEqual(((3, 7), (9, 10)), runs_of([9, 3, 4, 6, 5, 4]))
