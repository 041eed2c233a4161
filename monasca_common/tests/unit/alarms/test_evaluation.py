# SPDX-License-Identifier: Apache-2.0
"""Test the evaluation: a table of cases for each rule, and random cases compared with a plain reference."""

from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms import evaluation, partials
from monasca_common.alarms.evaluation import AlarmState, IdlePeriod, Measured, evaluate, needed_from_ms
from monasca_common.alarms.expression import FUNCTIONS, And, Expression, Or, SubExpression, parse
from monasca_common.alarms.partials import WindowPartial
from monasca_common.models.readings import Reading
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.evaluator import DELAY_MS, Evaluator
from monasca_common.tests.unit.alarms.reference import Measurement

MINUTE_MS = 60_000
NOT_EXCEEDED = "The alarm threshold(s) have not been exceeded for the sub-alarms"


def due_ms(minute):
    """Return the time at which the window that ends with this minute is due. The first window ends with minute 1."""
    return minute * MINUTE_MS + DELAY_MS


def at(minute, second, value, position=0):
    return minute * MINUTE_MS + round(second * 1000), value, position


class EvaluationCase(base.BaseTestCase):
    def evaluator(self, text, **options):
        return Evaluator(parse(text), **options)

    def changes(self, text, *measured, until):
        """Return (new state, timestamp) of each transition until the window that ends with minute ``until`` is
        evaluated."""
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(until))
        return [(each.new_state, each.timestamp_ms) for each in evaluator.transitions]

    def state(self, text, *measured, until):
        changes = self.changes(text, *measured, until=until)
        return changes[-1][0] if changes else AlarmState.new(parse(text)).state


class WholeWindowsTest(EvaluationCase):
    def test_a_window_that_does_not_meet_the_condition_is_ok(self):
        self.assertEqual([("OK", due_ms(1))], self.changes("avg(m) > 1", at(0, 5, 1.0), until=1))

    def test_windows_that_all_meet_the_condition_are_an_alarm(self):
        self.assertEqual([("ALARM", due_ms(1))], self.changes("avg(m) > 1", at(0, 5, 1.5), until=1))

    def test_each_function_is_compared_with_the_threshold(self):
        measured = [at(0, 10, 1.0), at(0, 20, 4.0), at(0, 30, 1.0)]
        for function, value in {"min": 1, "max": 4, "sum": 6, "count": 3, "avg": 2}.items():
            for operator, below, equal, above in (
                (">", "ALARM", "OK", "OK"),
                (">=", "ALARM", "ALARM", "OK"),
                ("<", "OK", "OK", "ALARM"),
                ("<=", "OK", "ALARM", "ALARM"),
            ):
                states = [
                    self.state(f"{function}(m) {operator} {value + more}", *measured, until=1)
                    for more in (-0.5, 0, 0.5)
                ]
                self.assertEqual([below, equal, above], states, (function, operator))

    def test_an_empty_window_at_any_position_prevents_an_alarm(self):
        for periods in range(1, 6):
            text = f"avg(m) > 1 times {periods}"
            full = [at(minute, 10, 2.0) for minute in range(periods)]
            self.assertEqual([("ALARM", due_ms(periods))], self.changes(text, *full, until=periods))
            for empty in range(periods):
                some = [each for minute, each in enumerate(full) if minute != empty]
                self.assertEqual("UNDETERMINED", self.state(text, *some, until=periods), (periods, empty))
                below = [at(minute, 10, 0.0) if minute == empty else each for minute, each in enumerate(full)]
                self.assertEqual("OK", self.state(text, *below, until=periods), (periods, empty))

    def test_the_state_stays_while_some_windows_are_empty(self):
        text = "avg(m) > 1 times 2"
        alarm = [at(0, 0, 2.0), at(1, 0, 2.0)]

        self.assertEqual([("ALARM", due_ms(2))], self.changes(text, *alarm, at(3, 0, 2.0), until=5))
        self.assertEqual([("OK", due_ms(1))], self.changes(text, at(0, 0, 0.0), at(2, 0, 2.0), until=3))

    def test_windows_are_aligned_to_the_millisecond(self):
        for time_ms, window in ((0, 1), (59_999, 1), (60_000, 2), (119_999, 2), (120_000, 3)):
            changes = self.changes("avg(m) > 1", (time_ms, 2.0, 0), until=window)
            self.assertEqual([("ALARM", due_ms(window))], changes, time_ms)

    def test_a_period_can_be_longer_than_a_minute(self):
        measured = [at(0, 1, 2.0), at(4, 59.999, 0.5), at(5, 0, 9.0)]

        self.assertEqual([("ALARM", due_ms(5))], self.changes("avg(m, 300) > 1", *measured, until=9))
        self.assertEqual([], self.changes("avg(m, 300) > 1", *measured, until=4))

    def test_a_window_is_evaluated_when_it_is_due(self):
        evaluator = self.evaluator("avg(m) > 1")

        self.assertEqual((), evaluator.batch([at(0, 5, 2.0)], due_ms(1) - 1))
        self.assertEqual(["ALARM"], [each.new_state for each in evaluator.batch([], due_ms(1))])
        self.assertEqual((), evaluator.batch([], due_ms(1)))

    def test_negative_and_huge_values_are_computed_exactly(self):
        huge = 1.7e308
        for text, values, state in (
            ("avg(m) < -1.5", [-1.0, -3.0], "ALARM"),
            ("sum(m) > 1.6e308", [huge, huge], "ALARM"),
            ("sum(m) < 1", [huge, huge, -huge, -huge], "ALARM"),
            ("avg(m) > 1.6e308", [huge] * 3, "ALARM"),
            ("sum(m) < -1.6e308", [-huge] * 3, "ALARM"),
            ("sum(m) > 0.5", [1e16, 1.0, -1e16], "ALARM"),
            ("max(m) >= -1e308", [-huge, -1e308], "ALARM"),
            ("min(m) < -1e308", [huge, -huge], "ALARM"),
        ):
            measured = [at(0, second, value) for second, value in enumerate(values)]
            self.assertEqual(state, self.state(text, *measured, until=1), text)

    def test_a_sum_beyond_the_range_of_floats_is_shown_as_the_largest_float(self):
        evaluator = self.evaluator("sum(m) > 1")
        [transition] = evaluator.batch([at(0, 0, 1.7e308), at(0, 1, 1.7e308)], due_ms(1))

        self.assertEqual((1.7976931348623157e308,), transition.sub_alarms[0].current_values)


class UndeterminedTest(EvaluationCase):
    def test_an_alarm_is_undetermined_after_twice_as_many_empty_windows_as_periods(self):
        for periods in range(1, 6):
            measured = [at(0, 0, 0.0)]
            # The measurement is in the evaluated windows up to window `periods`; then 2 x periods evaluations are
            # empty.
            last = periods + 2 * periods
            text = f"avg(m) > 1 times {periods}"
            self.assertEqual(
                [("OK", due_ms(1)), ("UNDETERMINED", due_ms(last))], self.changes(text, *measured, until=last + 3)
            )

    def test_empty_windows_are_counted_in_periods_instead_of_minutes(self):
        self.assertEqual(
            [("OK", due_ms(5)), ("UNDETERMINED", due_ms(15))], self.changes("avg(m, 300) > 1", at(0, 0, 0.0), until=30)
        )

    def test_a_measurement_restarts_the_count_of_empty_windows(self):
        changes = self.changes("avg(m) > 1 times 2", at(0, 0, 0.0), at(5, 0, 3.0), until=20)

        self.assertEqual([("OK", due_ms(1)), ("UNDETERMINED", due_ms(11))], changes)

    def test_an_alarm_becomes_undetermined_and_alarms_again(self):
        changes = self.changes("avg(m) > 1", at(0, 0, 2.0), at(9, 0, 2.0), until=10)

        self.assertEqual([("ALARM", due_ms(1)), ("UNDETERMINED", due_ms(3)), ("ALARM", due_ms(10))], changes)

    def test_rows_do_not_change_during_a_long_silence(self):
        evaluator = self.evaluator("avg(m) > 1 times 2")
        evaluator.batch([], due_ms(4))
        before = evaluator.alarm
        evaluator.batch([], due_ms(9))

        self.assertEqual(before, evaluator.alarm)


class DeterministicTest(EvaluationCase):
    def test_a_deterministic_alarm_starts_as_ok_and_is_never_undetermined(self):
        text = "count(m, deterministic) > 1"

        self.assertEqual("OK", AlarmState.new(parse(text)).state)
        self.assertEqual([], self.changes(text, until=20))

    def test_an_empty_window_of_a_deterministic_alarm_is_ok_immediately(self):
        changes = self.changes("sum(m, deterministic) > 1", at(0, 0, 2.0), until=9)

        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(2))], changes)

    def test_an_empty_window_at_any_position_of_a_deterministic_alarm_is_ok(self):
        for empty in range(3):
            measured = [at(minute, 0, 2.0) for minute in range(3) if minute != empty]
            self.assertEqual([], self.changes("sum(m, deterministic) > 1 times 3", *measured, until=3))

    def test_a_partly_deterministic_alarm_starts_as_undetermined(self):
        self.assertEqual("UNDETERMINED", AlarmState.new(parse("count(m, deterministic) > 1 or avg(n) > 1")).state)


class ImmediateTest(EvaluationCase):
    def test_an_irrevocable_alarm_is_immediate(self):
        for text, values, time_ms in (
            ("max(m) > 1", [1.0, 2.0, 3.0], 1_000),
            ("max(m) >= 1", [0.0, 0.0, 1.0], 2_000),
            ("min(m) < 1", [2.0, 0.0, 2.0], 1_000),
            ("min(m) <= 1", [1.0, 2.0], 0),
            ("count(m) > 1", [9.0, 9.0, 9.0], 1_000),
            ("count(m) >= 3", [9.0, 9.0, 9.0, 9.0], 2_000),
            ("count(m) >= -1", [9.0], 0),
        ):
            measured = [at(0, second, value) for second, value in enumerate(values)]
            evaluator = self.evaluator(text)
            transitions = evaluator.batch(measured, 5_000)
            self.assertEqual([("ALARM", time_ms)], [(t.new_state, t.timestamp_ms) for t in transitions], text)

    def test_an_irrevocable_ok_is_immediate(self):
        for text, values, time_ms in (
            ("max(m) < 1", [0.0, 2.0], 1_000),
            ("max(m) <= 1", [0.0, 1.0, 2.0], 2_000),
            ("min(m) > 1", [2.0, 1.0], 1_000),
            ("min(m) >= 1", [1.0, 0.0], 1_000),
            ("count(m) < 2", [9.0, 9.0], 1_000),
            ("count(m) <= 2", [9.0, 9.0, 9.0], 2_000),
        ):
            for periods in (1, 3):  # a single window that does not meet the condition is enough
                measured = [at(0, second, value) for second, value in enumerate(values)]
                transitions = self.evaluator(f"{text} times {periods}").batch(measured, 5_000)
                self.assertEqual([("OK", time_ms)], [(t.new_state, t.timestamp_ms) for t in transitions], text)

    def test_a_revocable_change_waits_for_the_end_of_the_window(self):
        for text in (
            "max(m) < 9",
            "min(m) > 1",
            "count(m) < 9",
            "sum(m) > 1",
            "sum(m) < 9",
            "avg(m) > 1",
            "avg(m) < 9",
        ):
            evaluator = self.evaluator(text)
            self.assertEqual((), evaluator.batch([at(0, 0, 5.0)], due_ms(1) - 1), text)
            self.assertEqual(["ALARM"], [each.new_state for each in evaluator.batch([], due_ms(1))], text)

    def test_an_immediate_alarm_needs_all_its_successive_windows(self):
        text = "max(m) > 1 times 3"
        measured = [at(minute, 10, 2.0) for minute in range(3)]

        self.assertEqual([("ALARM", measured[2][0])], self.changes(text, *measured, until=3))
        for missing in range(3):
            some = [each for minute, each in enumerate(measured) if minute != missing]
            self.assertEqual([], self.changes(text, *some, until=3))
        apart = [at(0, 10, 2.0), at(1, 10, 2.0), at(3, 10, 2.0)]
        self.assertEqual([], self.changes(text, *apart, until=4))

    # Rule 43
    def test_an_immediate_alarm_does_not_flap_at_the_border_of_two_windows(self):
        # The window before the alarm has no value above the threshold, and is due half a minute after the alarm.
        measured = [at(0, 10, 0.0), at(1, 5, 2.0), at(2, 10, 0.0)]

        self.assertEqual([("ALARM", 65_000), ("OK", due_ms(3))], self.changes("max(m) > 1", *measured, until=4))
        evaluator = self.evaluator("max(m) > 1")
        for measurement, watermark_ms in ((measured[0], 10_000), (measured[1], 65_000), (measured[2], 130_000)):
            evaluator.batch([measurement], watermark_ms)
        self.assertEqual([("UNDETERMINED", "ALARM")], [(t.old_state, t.new_state) for t in evaluator.transitions])

    # Rule 43
    def test_an_immediate_alarm_can_precede_the_evaluation_of_earlier_windows(self):
        # Another partition is ten minutes behind: windows that become due in the meantime do not revert the alarm.
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 10, 0.0), at(9, 5, 2.0)], due_ms(1), seen_ms=9 * MINUTE_MS + 6_000)
        self.assertEqual(["OK", "ALARM"], [each.new_state for each in evaluator.transitions])

        self.assertEqual((), evaluator.batch([], due_ms(10)))
        self.assertEqual("ALARM", evaluator.alarm.state)

    def test_earlier_windows_evaluated_after_an_immediate_alarm_are_skipped(self):
        # The other partition is so far behind that the window without an alarm is not due yet. The alarm does not wait
        # for this window, and no earlier transition is published after it.
        measured = [at(0, 10, 0.0), at(2, 5, 2.0)]
        self.assertEqual([("OK", due_ms(1)), ("ALARM", 125_000)], self.changes("max(m) > 1", *measured, until=3))

        behind = self.evaluator("max(m) > 1")
        [alarm] = behind.batch(measured, due_ms(1) - 1, seen_ms=126_000)
        self.assertEqual(("UNDETERMINED", "ALARM", 125_000), (alarm.old_state, alarm.new_state, alarm.timestamp_ms))
        self.assertEqual((), behind.batch([], due_ms(3)))
        [ok] = behind.batch([at(3, 5, 0.0)], due_ms(4))
        self.assertEqual(("ALARM", "OK", due_ms(4)), (ok.old_state, ok.new_state, ok.timestamp_ms))

    def test_a_measurement_from_a_day_ahead_changes_no_current_state(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 10, 0.0), at(24 * 60, 0, 9.0)], due_ms(1))

        self.assertEqual(["OK"], [each.new_state for each in evaluator.transitions])

    # Rule 42
    def test_after_a_pause_of_an_hour_the_transitions_are_the_same(self):
        measured = [at(minute, 10, 2.0 if minute in (5, 40) else 0.0) for minute in range(60)]
        expected = [("OK", due_ms(1)), ("ALARM", 310_000), ("OK", due_ms(7)), ("ALARM", 2_410_000), ("OK", due_ms(42))]

        self.assertEqual(expected, self.changes("max(m) > 1", *measured, until=60))

    def test_a_transition_has_the_values_of_its_moment(self):
        evaluator = self.evaluator("max(m) > 1 times 2")
        [transition] = evaluator.batch([at(0, 1, 5.0), at(1, 1, 2.0), at(1, 2, 7.0)], 63_000)

        self.assertEqual((5.0, 2.0), transition.sub_alarms[0].current_values)

    def test_a_change_after_more_measurements_than_are_kept_has_the_newest_time(self):
        measured = [(second * 100, 1.0, 0) for second in range(300)]

        self.assertEqual([("ALARM", 29_900)], self.changes("count(m) > 150", *measured, until=1))
        self.assertEqual([("ALARM", 9_900)], self.changes("count(m) >= 100", *measured, until=1))

    def test_windows_stay_valid_with_a_new_threshold(self):
        low, high = parse("max(m) > 1"), parse("max(m) > 3")
        readings = [Reading(1_000, 0, 0, 2.0), Reading(2_000, 0, 1, 4.0)]
        windows = {0: WindowPartial.of(low.root, readings)}
        progress = replace(self.evaluator("a>1").progress, watermark_ms=3_000, seen_ms=3_000)
        found = evaluate(high, AlarmState.new(high), [Measured(windows)], progress)

        self.assertEqual([("ALARM", 2_000)], [(each.new_state, each.timestamp_ms) for each in found.transitions])


class LastTest(EvaluationCase):
    def test_each_value_of_last_decides_immediately(self):
        measured = [at(0, 1, 0.0), at(0, 2, 2.0), at(0, 3, 3.0), at(0, 4, 1.0)]
        expected = [("OK", 1_000), ("ALARM", 2_000), ("OK", 4_000)]

        self.assertEqual(expected, self.changes("last(m) > 1", *measured, until=1))
        evaluator = self.evaluator("last(m) > 1")
        for each in measured:
            evaluator.batch([each], each[0])
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_last_ignores_silence_and_periods(self):
        self.assertEqual([("ALARM", 1_000)], self.changes("last(m, 300) > 1 times 5", at(0, 1, 2.0), until=100))

    def test_last_ignores_an_older_value_that_arrives_later(self):
        evaluator = self.evaluator("last(m) > 1")
        evaluator.batch([at(0, 9, 2.0)], 9_000)

        self.assertEqual((), evaluator.batch([at(0, 8, 0.0)], 10_000))

    def test_values_of_a_batch_are_evaluated_in_order_of_time(self):
        changes = self.changes("last(m) > 1", at(0, 3, 0.0), at(0, 2, 2.0), at(0, 1, 0.0), until=1)

        self.assertEqual([("OK", 1_000), ("ALARM", 2_000), ("OK", 3_000)], changes)

    @mock.patch.object(partials, "MOST_READINGS", 64)
    def test_the_ends_of_long_runs_of_equal_outcomes_are_kept(self):
        measured = [at(0, second / 100, 0.0 if 500 <= second < 800 else 2.0) for second in range(1_000)]

        expected = [("ALARM", 0), ("OK", 5_000), ("ALARM", 8_000)]
        self.assertEqual(expected, self.changes("last(m) > 1", *measured, until=1))

    @mock.patch.object(partials, "MOST_READINGS", 64)
    def test_the_number_of_kept_values_is_limited_and_the_final_state_is_the_same(self):
        measured = [at(0, second / 100, second % 2 * 2.0) for second in range(1_001)]
        changes = self.changes("last(m) > 1", *measured, until=1)

        self.assertLessEqual(len(changes), 64)
        self.assertEqual(("OK", 10_000), changes[-1])


class LateTest(EvaluationCase):
    def test_late_data_counts_in_windows_that_are_not_decided(self):
        evaluator = self.evaluator("avg(m) > 1 times 2")
        evaluator.batch([at(1, 0, 2.0)], due_ms(1))

        self.assertEqual(["ALARM"], [t.new_state for t in evaluator.batch([at(0, 0, 2.0)], due_ms(2))])

    def test_late_data_does_not_change_a_decided_window(self):
        for text in ("max(m) > 1", "avg(m) > 1"):
            evaluator = self.evaluator(text)
            evaluator.batch([at(0, 0, 0.0)], due_ms(1))
            self.assertEqual((), evaluator.batch([at(0, 1, 9.0)], due_ms(1) + 1), text)

    def test_late_data_of_an_evaluated_window_counts_in_the_next_evaluation_that_includes_it(self):
        evaluator = self.evaluator("max(m) < 5 times 2")
        evaluator.batch([at(0, 0, 1.0), at(1, 0, 1.0)], due_ms(2))
        self.assertEqual("ALARM", evaluator.alarm.state)
        self.assertEqual((), evaluator.batch([at(1, 1, 9.0), at(2, 0, 1.0)], due_ms(3) - 1))
        [transition] = evaluator.batch([], due_ms(3))
        self.assertEqual(("OK", due_ms(3)), (transition.new_state, transition.timestamp_ms))

    def test_late_data_of_an_evaluated_window_has_no_effect_if_no_later_evaluation_includes_it(self):
        evaluator = self.evaluator("max(m) < 5")
        evaluator.batch([at(0, 0, 1.0)], due_ms(1))
        self.assertEqual((), evaluator.batch([at(0, 1, 9.0), at(1, 0, 1.0)], due_ms(2)))

    def test_a_late_measurement_completes_the_windows_of_an_immediate_alarm(self):
        evaluator = self.evaluator("max(m) > 5 times 2")
        evaluator.batch([at(0, 0, 1.0), at(1, 35, 9.0)], due_ms(1) + 10_000)
        [transition] = evaluator.batch([at(0, 1, 9.0)], due_ms(1) + 11_000)
        self.assertEqual(("ALARM", 95_000), (transition.new_state, transition.timestamp_ms))

    def test_a_late_measurement_in_an_open_window_keeps_its_time(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 5, 0.0)], 100_000)
        [transition] = evaluator.batch([at(1, 35, 2.0)], 101_000)

        self.assertEqual(("ALARM", 95_000), (transition.new_state, transition.timestamp_ms))

    def test_transitions_stay_in_order_of_time(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 5, 0.0)], due_ms(1))
        [transition] = evaluator.batch([at(1, 5, 2.0)], due_ms(1) + 1_000)

        self.assertEqual(("ALARM", due_ms(1) + 1), (transition.new_state, transition.timestamp_ms))

    def test_the_order_of_arrival_and_the_batches_do_not_affect_the_result(self):
        measured = [at(minute, second, float(second)) for minute in range(3) for second in (10, 20, 30)]
        expected = self.changes("sum(m) > 50 times 3", *measured, until=3)
        self.assertEqual([("ALARM", due_ms(3))], expected)

        self.assertEqual(expected, self.changes("sum(m) > 50 times 3", *reversed(measured), until=3))
        evaluator = self.evaluator("sum(m) > 50 times 3")
        for each in reversed(measured):
            evaluator.batch([each], 0)
        evaluator.batch([], due_ms(3))
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_late_changes_have_distinct_times_after_the_last_transition(self):
        evaluator = self.evaluator("last(m) > 5")
        evaluator.alarm = replace(evaluator.alarm, state="OK", last_transition_ms=5_000)  # by hand
        evaluator.batch([at(0, 1, 10.0), at(0, 2, 1.0), at(0, 3, 10.0)], 6_000)
        expected = [("ALARM", 5_001), ("OK", 5_002), ("ALARM", 5_003)]
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_windows_that_no_evaluation_needs_can_be_removed(self):
        [sub] = parse("avg(m, 120) > 1 times 3").sub_expressions

        self.assertEqual(-240_000, needed_from_ms(sub, 0, DELAY_MS) + 120_000)
        self.assertEqual(120_000, needed_from_ms(sub, 360_000 + DELAY_MS, DELAY_MS))
        self.assertEqual(0, needed_from_ms(sub, 360_000 + DELAY_MS - 1, DELAY_MS))


class IdlePeriodTest(EvaluationCase):
    def after(self, text, *measured, idle_period, until=30):
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(1))
        evaluator.progress = replace(evaluator.progress, idle_periods=(idle_period,))
        evaluator.batch([], due_ms(until))
        return [(each.new_state, each.timestamp_ms) for each in evaluator.transitions]

    # Rule 44
    def test_unknown_windows_do_not_count_as_empty(self):
        # The broker was unavailable from minute 1 to 11; agents have until minute 15.
        idle_period = IdlePeriod(due_ms(1), due_ms(11), due_ms(15))
        quiet = self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=idle_period, until=12)
        silent = self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=idle_period)

        self.assertEqual([("OK", due_ms(1))], quiet)
        self.assertEqual([("OK", due_ms(1)), ("UNDETERMINED", due_ms(14))], silent)

    def test_without_an_idle_period_windows_without_data_count_as_empty(self):
        nothing = IdlePeriod(0, 0, 0)

        self.assertEqual(
            [("OK", due_ms(1)), ("UNDETERMINED", due_ms(3))],
            self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=nothing),
        )

    # Rule 44
    def test_unknown_windows_do_not_make_a_deterministic_alarm_ok(self):
        idle_period = IdlePeriod(MINUTE_MS, 11 * MINUTE_MS, due_ms(11) + 1)
        changes = self.after("sum(m, deterministic) > 1", at(0, 0, 2.0), idle_period=idle_period)

        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(12))], changes)

    def test_a_known_empty_window_before_unknown_windows_makes_a_deterministic_alarm_ok(self):
        idle_period = IdlePeriod(2 * MINUTE_MS, 11 * MINUTE_MS, due_ms(30))
        changes = self.after("sum(m, deterministic) > 1 times 1", at(0, 0, 2.0), idle_period=idle_period)
        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(2))], changes)

    def test_data_that_arrives_after_an_idle_period_decides(self):
        evaluator = self.evaluator("avg(m) > 1")
        evaluator.batch([at(0, 0, 0.0)], due_ms(1))
        evaluator.progress = replace(evaluator.progress, idle_periods=(IdlePeriod(due_ms(1), due_ms(9), due_ms(12)),))
        evaluator.batch([at(7, 0, 2.0)], due_ms(10))

        self.assertEqual(
            [("OK", due_ms(1)), ("ALARM", due_ms(8))], [_plain(each)[1:] for each in evaluator.transitions]
        )

    def test_overlapping_idle_periods_count_once(self):
        evaluator = self.evaluator("sum(m, deterministic) > 1 times 3")
        overlapping = (IdlePeriod(0, 100_000, due_ms(30)), IdlePeriod(30_000, 110_000, due_ms(30)))
        evaluator.alarm = replace(
            evaluator.alarm, state="ALARM", sub_alarms=(replace(evaluator.alarm.sub_alarms[0], state="ALARM"),)
        )
        evaluator.progress = replace(evaluator.progress, evaluated_to_ms=due_ms(2), idle_periods=overlapping)
        evaluator.batch([], due_ms(3))

        self.assertEqual(["OK"], [each.new_state for each in evaluator.transitions])  # the third window is known


def _plain(transition):
    return transition.old_state, transition.new_state, transition.timestamp_ms


class AlarmTest(EvaluationCase):
    def test_an_undetermined_sub_alarm_makes_the_alarm_undetermined(self):
        for text in ("avg(m) > 1 or avg(n) > 1", "avg(m) > 1 and avg(n) > 1"):
            self.assertEqual("UNDETERMINED", self.state(text, at(0, 0, 2.0), until=1))

    def test_the_expression_combines_the_sub_alarms_in_state_alarm(self):
        both = [at(0, 0, 2.0, 0), at(0, 1, 0.0, 1)]

        self.assertEqual("ALARM", self.state("avg(m) > 1 or avg(n) > 1", *both, until=1))
        self.assertEqual("OK", self.state("avg(m) > 1 and avg(n) > 1", *both, until=1))

    def test_simultaneous_evaluations_cause_one_transition(self):
        measured = [at(0, 0, 2.0, 0), at(0, 1, 0.0, 1), at(1, 0, 0.0, 0), at(1, 1, 2.0, 1)]
        changes = self.changes("avg(m) > 1 or avg(n) > 1", *measured, until=2)

        self.assertEqual([("ALARM", due_ms(1))], changes)

    def test_a_state_set_by_hand_holds_until_the_next_evaluation(self):
        evaluator = self.evaluator("avg(m) > 1")
        evaluator.batch([at(0, 0, 2.0), at(1, 0, 2.0)], due_ms(1))
        evaluator.alarm = replace(evaluator.alarm, state="OK")

        self.assertEqual((), evaluator.batch([], due_ms(2) - 1))
        self.assertEqual([("OK", "ALARM", due_ms(2))], [_plain(each) for each in evaluator.batch([], due_ms(2))])

    def test_a_huge_number_of_periods_takes_no_extra_time(self):
        self.assertEqual("UNDETERMINED", self.state("avg(m) > 1 times 999999999", at(0, 0, 2.0), until=60))
        self.assertEqual("OK", self.state("avg(m, deterministic) > 1 times 999999999", until=60))


class ReasonTest(EvaluationCase):
    def reasons(self, text, *measured, until):
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(until))
        return [each.reason for each in evaluator.transitions]

    def test_each_state_has_its_reason(self):
        self.assertEqual(
            [
                "Thresholds were exceeded for the sub-alarms: avg(m{h=a}) > 1.0 times 2 with the values: [2.0, 3.5]",
                f"{NOT_EXCEEDED}: avg(m{{h=a}}) > 1.0 times 2 with the values: [3.5, -10.0]",
                "No data was present for the sub-alarms: avg(m{h=a}) > 1.0 times 2",
            ],
            self.reasons("avg(m{h=a}) > 1 times 2", at(0, 0, 2.0), at(1, 0, 3.5), at(2, 0, -10.0), until=8),
        )

    def test_only_sub_alarms_in_the_new_state_are_named(self):
        self.assertEqual(
            ["Thresholds were exceeded for the sub-alarms: avg(m) > 1.0 with the values: [2.0]"],
            self.reasons("avg(m) > 1 or avg(n) > 1", at(0, 0, 2.0, 0), at(0, 0, 0.0, 1), until=1),
        )

    def test_several_sub_alarms_are_joined_in_the_reason(self):
        self.assertEqual(
            [
                f"{NOT_EXCEEDED}: avg(m) > 1.0 with the values: [0.5], sum(n) > 1.0 with the values: [0.0]",
                "No data was present for the sub-alarms: avg(m) > 1.0, sum(n) > 1.0",
            ],
            self.reasons("avg(m) > 1 or sum(n) > 1", at(0, 0, 0.5, 0), at(0, 0, 0.0, 1), until=3),
        )


# Use few values near the thresholds, so that both outcomes are frequent, and times at the borders of windows.

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
    """Generate measurements in order of time."""
    found = draw(st.dictionaries(times, values, max_size=40))
    return [Measurement(time, value, draw(st.integers(0, positions - 1))) for time, value in sorted(found.items())]


def in_batches(draw, measured):
    """Split measurements into batches at random. A watermark is not less than the time of the last measurement."""
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
    """Shift a change that arrived late to a time after the previous change."""
    found, last_ms = [], -1
    for each in changes:
        last_ms = max(last_ms + 1, each.timestamp_ms)
        found.append(each._replace(timestamp_ms=last_ms))
    return found


class AgainstReferenceTest(base.BaseTestCase):
    # Rule 42
    @given(expressions, delays_ms, st.data())
    def test_transitions_match_the_reference_wherever_batches_are_split(self, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        expected = in_order_of_history(reference.changes(expression, [(measured, END_MS)], delay_ms))

        self.assertEqual(expected, evaluated(expression, in_batches(data.draw, measured), delay_ms))

    @given(subs.map(Expression), delays_ms, st.data())
    def test_transitions_match_the_reference_with_late_and_unordered_data(self, expression, delay_ms, data):
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

    @given(st.integers(1, 3), subs.map(Expression) | expressions, delays_ms, st.data())
    def test_windows_whose_values_are_not_shown_are_also_evaluated(self, shown, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        batches = in_batches_with_late_ones(data.draw, measured)
        expected = in_order_of_history(reference.changes(expression, batches, delay_ms, shown))

        with mock.patch.object(evaluation, "MOST_VALUES", shown):
            self.assertEqual(expected, evaluated(expression, batches, delay_ms))
