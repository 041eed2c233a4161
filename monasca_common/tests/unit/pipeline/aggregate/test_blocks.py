# SPDX-License-Identifier: Apache-2.0
"""Block by block, the rows of a period are those of the whole period."""

from collections import Counter

from hypothesis import given
from oslotest import base

from monasca_common import pipeline
from monasca_common.pipeline.aggregate import blocks
from monasca_common.tests.unit.pipeline import strategies
from monasca_common.tests.unit.pipeline.pipeline_case import partials_of, pre_row, shipped_row, specifications

BOUNDS = pipeline.TimeBounds(strategies.OLDEST_MS, strategies.LATEST_MS)


def periods(specs, messages):
    """The partials of each transform and period, in no particular order."""
    found = {}
    for key, partial in partials_of(specs, messages, bounds=BOUNDS):
        transform = specs.find(key.specification_id)
        period_ms = pipeline.period_start_ms(transform.period, key.window_ms)
        found.setdefault((transform.metric_id, period_ms), []).append((key, partial))
    return found


def in_order(usages):
    return sorted(usages, key=lambda usage: (usage.group, usage.first_ms))


class BlocksTest(base.BaseTestCase):
    @given(strategies.rows(), strategies.messages())
    def test_the_rows_of_random_specifications_and_data(self, rows, messages):
        specs = specifications(*rows)
        for (metric_id, _), partials in periods(specs, messages).items():
            transform = specs.transforms[metric_id]
            whole = pipeline.aggregate(transform, partials)
            kept = blocks.kept_columns(transform)
            partials.sort(key=lambda each: [each[0].group[position] for position in kept])
            dropped = Counter()
            found = in_order(blocks.rows(transform, partials, dropped))
            self.assertEqual((in_order(whole.usages), whole.dropped), (found, dropped))

    def test_what_a_stage_drops_keeps_no_block_apart(self):
        def kept(metric_id, **parameters):
            row = shipped_row(metric_id, **parameters)
            return blocks.kept_columns(specifications([pre_row("cpu", metric_id)], [row]).transforms[metric_id])

        by = {"aggregation_group_by_list": ["host", "zone", "event_type"]}
        self.assertEqual((0,), kept("cpu_total_host", **by))
        self.assertEqual((), kept("mem_total_all", **by))
        self.assertEqual((1,), kept("mem_total_all", **by, setter_rollup_group_by_list=["zone", "region"]))
        self.assertEqual((0,), kept("cpu_util_host", **by, setter_rollup_group_by_list=["host", "event_type"]))
