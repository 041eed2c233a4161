# SPDX-License-Identifier: Apache-2.0
"""Folded rows are compared with the partials of alarms, for random borders of batches and tasks."""

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms.expression import parse
from monasca_common.alarms.partials import WindowPartial, readings_of, readings_text, runs
from monasca_common.models.readings import Reading, sums_of, sums_text
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.evaluate.definitions import IndexedSubExpression, SubExpressionIndex
from monasca_common.pipeline.evaluate.windows import WindowFold, merged_rows
from monasca_common.tests.unit.alarms.evaluator import window_start_ms

SERIES = Series(series_id("t", "r", "cpu", {"host": "h"}), "t", "r", "cpu", {"host": "h"})
TEXTS = (
    *("max(cpu) > 5", "max(cpu) < 5", "min(cpu) >= 5", "count(cpu) > 3", "sum(cpu, 120) > 5", "avg(cpu) <= 5"),
    "last(cpu) > 5",
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
READINGS = st.lists(st.tuples(st.integers(0, 200_000), FINITE), min_size=1, max_size=40)


def active(text):
    (expression,) = parse(text).sub_expressions
    return IndexedSubExpression("s", 3, "t", ("host",), 0, expression)


def folded(one, readings):
    (target,) = SubExpressionIndex([one]).targets(SERIES)
    folding = WindowFold()
    series = folding.series(target, SERIES)
    for reading in readings:
        series.add(reading, 7)
    return list(folding.rows())


class WindowFoldTest(base.BaseTestCase):
    @given(st.sampled_from(TEXTS), READINGS, st.randoms(use_true_random=False))
    def test_random_tasks_produce_the_same_rows_as_one_list(self, text, values, random: Random):
        one = active(text)
        sub = one.expression
        readings = [Reading(float(time), 0, offset, value) for offset, (time, value) in enumerate(values)]
        cut = sorted(random.randrange(len(readings) + 1) for _ in range(3))
        tasks = [readings[start:end] for start, end in zip([0, *cut], [*cut, len(readings)], strict=True)]
        rows = [row for task in tasks for row in folded(one, task)]
        random.shuffle(rows)
        merged = {row.window_start: row for row in merged_rows(rows, {"s": one})}
        seen = merged.pop(None)
        self.assertEqual((SERIES.id, '{"host":"h"}', '["h"]'), (seen.series_id, seen.dimensions, seen.match_values))
        if sub.function == "last":
            self.assertEqual([0], list(merged))
            self.assertEqual(runs(sub, readings), readings_of(merged[0].readings))
            return
        windows: dict[int, list[Reading]] = {}
        for reading in readings:
            windows.setdefault(window_start_ms(sub, reading.timestamp_ms), []).append(reading)
        expected = {start: WindowPartial.of(sub, each) for start, each in windows.items()}
        self.assertEqual(expected, {start: WindowPartial.of_row(row[5:11]) for start, row in merged.items()})

    def test_a_window_of_many_readings_is_folded_in_limited_memory(self):
        one = active("sum(cpu) > 5")
        readings = [Reading(float(offset), 0, offset, 0.1) for offset in range(2000)]
        row, _ = folded(one, readings)
        self.assertEqual(WindowPartial.of(one.expression, readings), WindowPartial.of_row(row[5:11]))

    def test_each_row_has_the_generation_of_its_windows(self):
        self.assertEqual({3}, {row.windows for row in folded(active("max(cpu) > 5"), [(1.0, 0, 0, 1.0)])})


class TextTest(base.BaseTestCase):
    @given(st.lists(FINITE), st.lists(FINITE))
    def test_concatenated_texts_are_read_as_concatenated_values(self, one, other):
        self.assertEqual((*one, *other), sums_of(f"{sums_text(one)} {sums_text(other)}"))

    @given(st.lists(st.builds(Reading, FINITE, st.integers(0, 9), st.integers(0, 2**63), FINITE)))
    def test_readings_are_read_back_exactly(self, readings):
        found = readings_of(readings_text(readings))
        self.assertEqual(tuple(readings), found)
        self.assertEqual(
            [math.copysign(1, each.quantity) for each in readings], [math.copysign(1, each.quantity) for each in found]
        )
