# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.models.readings import Reading, exact_sum
from monasca_common.pipeline.aggregate.partials import (
    Accumulator,
    Partial,
    group_of_text,
    group_text,
)
from monasca_common.pipeline.aggregate.records import MOST_QUANTITY, Records

quantities = st.floats(-MOST_QUANTITY, MOST_QUANTITY).map(lambda value: value + 0.0)
# Like the records of a topic, no two readings have the same partition and offset.
readings = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 1.5, 2.0]), st.integers(0, 2), st.integers(0, 9), quantities),
    min_size=1,
    max_size=12,
    unique_by=lambda reading: reading[1:3],
).map(lambda rows: [Reading(*row) for row in rows])


def whole(readings):
    partials = [Partial.of(reading) for reading in readings]
    result = partials[0]
    for partial in partials[1:]:
        result = result.merge(partial)
    return result


class MergeTest(base.BaseTestCase):
    # Rule 29
    @given(readings, st.data())
    def test_merging_is_associative_and_commutative_to_the_last_bit(self, rows, data):
        shuffled = data.draw(st.permutations(rows))
        cut = data.draw(st.integers(0, len(rows)))
        parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
        merged = whole(parts[-1]) if len(parts) == 1 else whole(parts[1]).merge(whole(parts[0]))
        self.assertEqual(whole(rows), merged)

    @given(readings)
    def test_a_partial_combines_its_records(self, rows):
        partial = whole(rows)
        values = [row.quantity for row in rows]
        self.assertEqual((len(rows), min(values), max(values)), (partial.count, partial.least, partial.greatest))
        self.assertEqual(sum(map(Fraction, values)), sum(map(Fraction, partial.sums)))
        first, last = min(row.timestamp_ms for row in rows), max(row.timestamp_ms for row in rows)
        self.assertEqual((first, last), (partial.first_ms, partial.last_ms))
        by_place = sorted(rows, key=lambda row: row[1:3])
        self.assertEqual([row for row in by_place if row.timestamp_ms == first][-1], partial.oldest)
        self.assertEqual([row for row in by_place if row.timestamp_ms == last][-1], partial.latest)

    # Rule 29
    @given(readings)
    def test_a_row_is_read_back_as_its_partial_even_if_its_sums_were_only_concatenated(self, rows):
        partial = whole(rows)
        self.assertEqual(partial, Partial.of_row(partial.as_row()))
        count, _, *rest = partial.as_row()
        joined = tuple(part for row in rows for part in Partial.of(row).sums)
        self.assertEqual(partial, Partial.of_row((count, joined, *rest)))


class ExactSumTest(base.BaseTestCase):
    def test_an_exact_sum_keeps_digits_that_floats_lose(self):
        self.assertEqual((1.0,), exact_sum([1e16, 1.0, -1e16]))
        self.assertEqual((), exact_sum([0.1, -0.1, 0.0]))
        self.assertEqual(exact_sum([0.1, 0.2, 0.3]), exact_sum([0.3, 0.2, 0.1]))

    @given(st.lists(quantities, max_size=30))
    def test_the_first_part_of_a_sum_is_the_nearest_float_and_the_parts_are_exact(self, values):
        parts = exact_sum(values)
        exact = sum(map(Fraction, values))
        self.assertEqual(exact, sum(map(Fraction, parts)))
        self.assertEqual(float(exact), parts[0] if parts else 0.0)

    def test_the_greatest_quantities_can_be_added(self):
        parts = exact_sum([MOST_QUANTITY] * 1000)
        self.assertTrue(math.isfinite(parts[0]))


class AccumulatorTest(base.BaseTestCase):
    @given(readings, st.integers(1, 400))
    def test_many_records_in_one_call_give_the_same_partials_as_merging_each(self, rows, times):
        # Repeat the records at higher offsets, so that more readings wait for their sum than are kept.
        many = [row._replace(offset=row.offset + 10 * turn) for turn in range(times) for row in rows]
        count = len(many)
        records = Records(
            ["s"] * count,
            [0] * count,
            [("g",)] * count,
            [row.timestamp_ms for row in many],
            [row.quantity for row in many],
            list(range(count)),
        )
        accumulator = Accumulator()
        accumulator.add(records, [row.partition for row in many], [row.offset for row in many])
        ((key, partial),) = accumulator.partials()
        self.assertEqual(("s", 0, ("g",)), key)
        self.assertEqual(whole(many), partial)
        self.assertEqual([(key, partial)], list(accumulator.partials()))


class GroupTextTest(base.BaseTestCase):
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4).map(tuple))
    def test_a_group_is_read_back_from_its_text(self, group):
        self.assertEqual(group, group_of_text(group_text(group)))
