# SPDX-License-Identifier: Apache-2.0
"""The pipeline and a simple reference have equal results for random specifications and data."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common import pipeline
from monasca_common.pipeline.aggregate.output import dimensions, output
from monasca_common.pipeline.aggregate.records import RecordReader
from monasca_common.tests.unit.pipeline import reference, strategies
from monasca_common.tests.unit.pipeline.pipeline_case import PUBLISHER, aggregates, partials_of, specifications

BOUNDS = pipeline.TimeBounds(strategies.OLDEST_MS, strategies.LATEST_MS)


def written(specs, found):
    """Return the rows in the form of the reference."""
    return [
        reference.Row(
            metric_id,
            period_ms,
            dimensions(specs.transforms[metric_id], usage),
            usage.quantity,
            usage.count,
            usage.first_ms,
            usage.last_ms,
        )
        for (metric_id, period_ms), aggregate in found.items()
        for usage in aggregate.usages
    ]


def in_order(rows):
    return sorted(rows, key=lambda row: (*row[:2], sorted(row.dimensions.items()), *row[4:], row.quantity))


class AgainstReferenceTest(base.BaseTestCase):
    def assert_same_rows(self, expected, found):
        without_quantities = [[row._replace(quantity=None) for row in in_order(rows)] for rows in (expected, found)]
        self.assertEqual(*without_quantities)
        for one, other in zip(in_order(expected), in_order(found), strict=True):
            # The reference does not round; large values that cancel out leave an error in proportion to their size.
            self.assertTrue(math.isclose(one.quantity, other.quantity, rel_tol=1e-9, abs_tol=1e-6), (one, other))

    @given(strategies.rows(), strategies.messages())
    def test_random_specifications_and_data_have_the_rows_of_the_reference(self, rows, messages):
        specs = specifications(*rows)
        expected, rejected, without_value = reference.aggregate(*rows, messages, BOUNDS.oldest_ms, BOUNDS.latest_ms)
        found = aggregates(specs, partials_of(specs, messages, bounds=BOUNDS))
        self.assert_same_rows(expected, written(specs, found))
        read = RecordReader(specs).read([value for value, _, _ in messages], BOUNDS)
        self.assertEqual(rejected, set(read.rejected))
        dropped = sum(aggregate.dropped["zero_oldest"] for aggregate in found.values())
        self.assertEqual(sum(without_value.values()), dropped)

    # Rule 29
    @given(strategies.rows(), strategies.messages(), st.randoms(use_true_random=False))
    def test_the_output_is_byte_identical_for_every_split_and_merge_of_the_input(self, rows, messages, chance):
        specs = specifications(*rows)
        whole = partials_of(specs, messages, bounds=BOUNDS)
        pieces = self._in_pieces(specs, messages, chance)
        self.assertEqual(dict(whole), self._merged_in_any_order(pieces, chance))
        chance.shuffle(pieces)
        self.assertEqual(self._published(specs, whole), self._published(specs, pieces))

    def _in_pieces(self, specs, messages, chance):
        shuffled = random.Random(chance.random()).sample(messages, len(messages))
        pieces = []
        while shuffled:
            size = chance.randint(1, len(shuffled))
            pieces += partials_of(specs, shuffled[:size], bounds=BOUNDS)
            del shuffled[:size]
        return pieces

    def _merged_in_any_order(self, pieces, chance):
        """Merge in a random tree."""
        keys = {key: [partial for one, partial in pieces if one == key] for key, _ in pieces}
        for partials in keys.values():
            while len(partials) > 1:
                chance.shuffle(partials)
                partials.append(partials.pop().merge(partials.pop()))
        return {key: partial for key, (partial,) in keys.items()}

    def _published(self, specs, partials):
        return {
            output(PUBLISHER, specs.transforms[metric_id], usage, period_ms, version_ms=7)
            for (metric_id, period_ms), aggregate in aggregates(specs, partials).items()
            for usage in aggregate.usages
        }
