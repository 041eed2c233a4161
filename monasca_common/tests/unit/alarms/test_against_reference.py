# SPDX-License-Identifier: Apache-2.0
"""Whatever the definition, the measurements and the borders of batches, alarms do what the plain reference says."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms import evaluation
from monasca_common.alarms.expression import And, Expression, Or, SubExpression
from monasca_common.alarms.grammar import FUNCTIONS
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.evaluator import Evaluator
from monasca_common.tests.unit.alarms.reference import Measurement

# Few values, near the thresholds, so that they are met and missed often; times at the borders of windows.
values = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 0.1, 1e300, -1e300])
seconds = st.integers(0, 15 * 60) | st.integers(0, 15).map(lambda minute: minute * 60)
times = st.builds(
    lambda second, beside: max(0, second * 1000 + beside), seconds, st.sampled_from([-1, 0, 0, 1, 30_000])
)
END_MS = 24 * 60_000

subs = st.builds(
    SubExpression,
    function=st.sampled_from(FUNCTIONS),
    metric_name=st.just("m"),
    dimensions=st.just(()),
    deterministic=st.booleans(),
    operator=st.sampled_from(["LT", "LTE", "GT", "GTE"]),
    threshold=st.sampled_from([-1.5, 0.0, 1.0, 2.0, 2.5]),
    period=st.sampled_from([60, 60, 120, 180]),
    periods=st.integers(1, 5) | st.just(1),
)
expressions = st.one_of(
    subs,
    subs,
    st.builds(lambda kind, some: kind(tuple(some)), st.sampled_from([And, Or]), st.lists(subs, min_size=2, max_size=3)),
).map(Expression)
delays_ms = st.sampled_from([0, 5_000, 30_000, 90_000])


@st.composite
def measurements(draw, positions):
    """At times of their own, in order of time."""
    found = draw(st.dictionaries(times, values, max_size=40))
    return [Measurement(time, value, draw(st.integers(0, positions - 1))) for time, value in sorted(found.items())]


def in_batches(draw, measured):
    """Cut anywhere; a watermark is the time of what was read last, or later."""
    batches, start = [], 0
    while start < len(measured):
        end = draw(st.integers(start + 1, len(measured)))
        next_ms = measured[end].time_ms - 1 if end < len(measured) else END_MS
        batches.append((measured[start:end], draw(st.sampled_from([measured[end - 1].time_ms, next_ms]))))
        start = end
    return [*batches, ([], END_MS)]


def in_batches_with_late_ones(draw, measured):
    late = draw(st.sets(st.sampled_from(measured))) if measured else set()
    batches = [
        ([one for one in arrived if one not in late], watermark_ms)
        for arrived, watermark_ms in in_batches(draw, measured)
    ]
    for one in sorted(late):
        after = [index for index, (_, watermark_ms) in enumerate(batches) if watermark_ms >= one.time_ms]
        batches[draw(st.sampled_from(after))][0].append(one)
    return batches


def evaluated(expression, batches, delay_ms):
    evaluator = Evaluator(expression, delay_ms=delay_ms)
    for arrived, watermark_ms in batches:
        evaluator.batch(arrived, watermark_ms)
    return [
        reference.Change(
            each.old_state,
            each.new_state,
            each.timestamp_ms,
            tuple(sub.state for sub in each.sub_alarms),
            tuple(sub.current_values for sub in each.sub_alarms),
        )
        for each in evaluator.transitions
    ]


def in_order_of_history(changes):
    """A change that came late is dated after the one before it."""
    found, last_ms = [], -1
    for each in changes:
        last_ms = max(last_ms + 1, each.timestamp_ms)
        found.append(each._replace(timestamp_ms=last_ms))
    return found


class AgainstReferenceTest(base.BaseTestCase):
    # Rule 42
    @given(expressions, delays_ms, st.data())
    def test_wherever_batches_are_cut(self, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        expected = in_order_of_history(reference.changes(expression, [(measured, END_MS)], delay_ms))

        self.assertEqual(expected, evaluated(expression, in_batches(data.draw, measured), delay_ms))

    @given(subs.map(Expression), delays_ms, st.data())
    def test_late_and_out_of_order(self, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        batches, watermark_ms = [], 0
        for some, minute in zip(data.draw(st.permutations(range(4))), (4, 8, 12, 16), strict=True):
            arrived = [one for one in measured if one.time_ms <= minute * 60_000 and hash(one.time_ms) % 4 <= some]
            known = [one for batch, _ in batches for one in batch]
            watermark_ms = minute * 60_000
            batches.append((data.draw(st.permutations([one for one in arrived if one not in known])), watermark_ms))
        batches.append(([], END_MS))
        expected = in_order_of_history(reference.changes(expression, batches, delay_ms))

        self.assertEqual(expected, evaluated(expression, batches, delay_ms))

    @given(st.integers(1, 3), st.integers(1, 2), subs.map(Expression) | expressions, delays_ms, st.data())
    def test_a_summary_decides_as_the_windows_that_it_replaces(self, shown, step, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        batches = in_batches_with_late_ones(data.draw, measured)
        expected = in_order_of_history(reference.changes(expression, batches, delay_ms, shown))

        with mock.patch.multiple(evaluation, MOST_VALUES=shown, _SUMMARY_STEP=step):
            self.assertEqual(expected, evaluated(expression, batches, delay_ms))
