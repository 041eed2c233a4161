# SPDX-License-Identifier: Apache-2.0
"""The rules for the rows of one call: which row of a key is kept, and which rows are refused or too old."""

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.times import Window
from monasca_common.storage import retention
from monasca_common.storage.base import Kind
from monasca_common.storage.reduction import rank, reduced
from monasca_common.storage.refusal import find_refused
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.settings import StorageSettings

_ROWS = st.tuples(
    st.sampled_from([b"a", b"b"]),
    st.integers(0, 2),
    st.floats(min_value=-2, max_value=2) | st.builds(float, st.just("nan")),  # each NaN is a separate object
    st.sampled_from([None, "", '{"a": "b"}', '{"a": "c"}']),
    st.integers(0, 2),
)


class ReductionTest(base.BaseTestCase):
    def test_rows_with_different_keys_are_kept_in_order(self):
        rows = [(b"b", 1, 1.0, None, 1), (b"a", 1, 1.0, None, 1), (b"a", 2, 1.0, None, 1)]
        self.assertEqual((rows, 0, 0), _parts(reduced(rows)))

    def test_removed_rows_are_counted_as_repeated_or_conflicting(self):
        rows = [(b"a", 1, 1.0, None, 1), (b"a", 1, 2.0, None, 3), (b"a", 1, 2.0, None, 2)]
        for order in itertools.permutations(rows):
            self.assertEqual(([rows[1]], 1, 1), _parts(reduced(order)))

    def test_rows_are_ranked_by_version_value_and_value_meta(self):
        rising = [
            (b"a", 1, 9.0, '{"z": "z"}', 1),
            (b"a", 1, 1.0, None, 2),
            (b"a", 1, 2.0, None, 2),
            (b"a", 1, 2.0, "{}", 2),
            (b"a", 1, 2.0, '{"a": "b"}', 3),
        ]
        falling = rising[::-1]
        self.assertEqual(rising, sorted(falling, key=rank))

    def test_nan_is_equal_to_another_nan(self):
        rows = [(b"a", 1, float("nan"), meta, 1) for meta in ('{"a": "b"}', None, '{"a": "b"}')]
        for order in itertools.permutations(rows):
            result = reduced(order)
            self.assertEqual(('{"a": "b"}', 1, 1), (result.rows[0][3], result.repeated, result.conflicting))

    @given(st.lists(_ROWS, max_size=12), st.randoms(use_true_random=False))
    def test_the_order_of_rows_does_not_affect_the_result_and_counts_add_up(self, rows, chance):
        first = reduced(rows)
        self.assertEqual(len(rows), len(first.rows) + first.repeated + first.conflicting)
        shuffled = list(rows)
        chance.shuffle(shuffled)
        again = reduced(shuffled)
        self.assertEqual(*(sorted((row[:2], rank(row)) for row in result.rows) for result in (first, again)))
        self.assertEqual((first.repeated, first.conflicting), (again.repeated, again.conflicting))


def _parts(result):
    return result.rows, result.repeated, result.conflicting


class FindRefusedTest(base.BaseTestCase):
    def search(self, count, bad):
        self.trials = 0

        def trial(start, stop):
            self.trials += 1
            inside = [position for position in bad if start <= position < stop]
            return f"row {inside[0]}" if inside else None

        return find_refused(count, trial)

    def test_each_refused_row_is_found_with_its_reason(self):
        chance = random.Random(1)
        for count in (1, 2, 3, 7, 64, 1000):
            for _ in range(20):
                bad = sorted(chance.sample(range(count), chance.randint(0, min(count, 9))))
                self.assertEqual({position: f"row {position}" for position in bad}, self.search(count, bad))

    def test_a_single_refused_row_among_many_is_found_with_few_trials(self):
        self.search(20_000, [12_345])
        self.assertLessEqual(self.trials, 2 * math.ceil(math.log2(20_000)) + 1)

    def test_rows_that_are_refused_only_together_end_the_search(self):
        self.assertEqual({}, find_refused(8, lambda start, stop: "together" if stop - start > 1 else None))

    def test_zero_rows_need_no_trial(self):
        self.assertEqual(({}, 0), (self.search(0, []), self.trials))


class RetentionTest(base.BaseTestCase):
    def test_the_accepted_window_extends_from_retention_to_tolerance(self):
        settings = StorageSettings(
            "sqlite", "", default_retention_days=10, retention_days={Kind.LOGS: 2}, future_tolerance_seconds=60
        )
        now_ms = 100 * DAY_MS
        self.assertEqual(Window(90 * DAY_MS, now_ms + 60_000), retention.window(settings, Kind.METRICS, now_ms))
        self.assertEqual(Window(98 * DAY_MS, now_ms + 60_000), retention.window(settings, Kind.LOGS, now_ms))

    def test_both_ends_of_the_window_are_accepted(self):
        self.assertEqual({}, retention.refused([10, 15, 20], Window(10, 20)))
        self.assertEqual({}, retention.refused([], Window(10, 20)))

    def test_refused_times_are_reported_by_position(self):
        reasons = retention.refused([9, 15, 21], Window(10, 20))
        self.assertEqual({0, 2}, set(reasons))
        self.assertIn("1970-01-01T00:00:00.009+00:00, is older than the retention", reasons[0])
        self.assertIn("1970-01-01T00:00:00.021+00:00, is in the future", reasons[2])

    def test_a_time_outside_the_calendar_is_shown_in_ms(self):
        reasons = retention.refused([2**70, -(2**70)], Window(10, 20))
        self.assertIn(f"{2**70} ms", reasons[0])
        self.assertIn(f"{-(2**70)} ms", reasons[1])
