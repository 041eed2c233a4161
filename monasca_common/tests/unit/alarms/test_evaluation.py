# SPDX-License-Identifier: Apache-2.0
"""The evaluation: a table of cases for each rule, and random cases against a plain reference."""

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
    """When the window is due that ends with the minute (the first ends with minute 1)."""
    return minute * MINUTE_MS + DELAY_MS


def at(minute, second, value, position=0):
    return minute * MINUTE_MS + round(second * 1000), value, position


class EvaluationCase(base.BaseTestCase):
    def evaluator(self, text, **options):
        return Evaluator(parse(text), **options)

    def changes(self, text, *measured, until):
        """(new state, timestamp) of everything until the window is evaluated that ends with this minute."""
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(until))
        return [(each.new_state, each.timestamp_ms) for each in evaluator.transitions]

    def state(self, text, *measured, until):
        changes = self.changes(text, *measured, until=until)
        return changes[-1][0] if changes else AlarmState.new(parse(text)).state


class WholeWindowsTest(EvaluationCase):
    def test_one_that_does_not_meet_it_is_ok(self):
        self.assertEqual([("OK", due_ms(1))], self.changes("avg(m) > 1", at(0, 5, 1.0), until=1))

    def test_all_that_meet_it_are_an_alarm(self):
        self.assertEqual([("ALARM", due_ms(1))], self.changes("avg(m) > 1", at(0, 5, 1.5), until=1))

    def test_each_function(self):
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

    def test_periods_from_one_to_five_and_an_empty_window_at_each_position(self):
        for periods in range(1, 6):
            text = f"avg(m) > 1 times {periods}"
            full = [at(minute, 10, 2.0) for minute in range(periods)]
            self.assertEqual([("ALARM", due_ms(periods))], self.changes(text, *full, until=periods))
            for empty in range(periods):
                some = [each for minute, each in enumerate(full) if minute != empty]
                self.assertEqual("UNDETERMINED", self.state(text, *some, until=periods), (periods, empty))
                below = [at(minute, 10, 0.0) if minute == empty else each for minute, each in enumerate(full)]
                self.assertEqual("OK", self.state(text, *below, until=periods), (periods, empty))

    def test_what_is_partly_empty_stays_as_it_was(self):
        text = "avg(m) > 1 times 2"
        alarm = [at(0, 0, 2.0), at(1, 0, 2.0)]

        self.assertEqual([("ALARM", due_ms(2))], self.changes(text, *alarm, at(3, 0, 2.0), until=5))
        self.assertEqual([("OK", due_ms(1))], self.changes(text, at(0, 0, 0.0), at(2, 0, 2.0), until=3))

    def test_windows_are_aligned_and_belong_to_their_borders_by_the_millisecond(self):
        for time_ms, window in ((0, 1), (59_999, 1), (60_000, 2), (119_999, 2), (120_000, 3)):
            changes = self.changes("avg(m) > 1", (time_ms, 2.0, 0), until=window)
            self.assertEqual([("ALARM", due_ms(window))], changes, time_ms)

    def test_a_longer_period(self):
        measured = [at(0, 1, 2.0), at(4, 59.999, 0.5), at(5, 0, 9.0)]

        self.assertEqual([("ALARM", due_ms(5))], self.changes("avg(m, 300) > 1", *measured, until=9))
        self.assertEqual([], self.changes("avg(m, 300) > 1", *measured, until=4))

    def test_an_evaluation_comes_when_it_is_due_and_not_before(self):
        evaluator = self.evaluator("avg(m) > 1")

        self.assertEqual((), evaluator.batch([at(0, 5, 2.0)], due_ms(1) - 1))
        self.assertEqual(["ALARM"], [each.new_state for each in evaluator.batch([], due_ms(1))])
        self.assertEqual((), evaluator.batch([], due_ms(1)))

    def test_negative_and_huge_values(self):
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

    def test_what_no_float_holds_is_shown_as_the_greatest(self):
        evaluator = self.evaluator("sum(m) > 1")
        [transition] = evaluator.batch([at(0, 0, 1.7e308), at(0, 1, 1.7e308)], due_ms(1))

        self.assertEqual((1.7976931348623157e308,), transition.sub_alarms[0].current_values)


class UndeterminedTest(EvaluationCase):
    def test_after_two_times_the_periods_of_empty_windows(self):
        for periods in range(1, 6):
            measured = [at(0, 0, 0.0)]
            # The measurement is in view until window `periods`; then come 2 x periods evaluations of empty windows.
            last = periods + 2 * periods
            text = f"avg(m) > 1 times {periods}"
            self.assertEqual(
                [("OK", due_ms(1)), ("UNDETERMINED", due_ms(last))], self.changes(text, *measured, until=last + 3)
            )

    def test_two_times_the_periods_are_not_minutes(self):
        self.assertEqual(
            [("OK", due_ms(5)), ("UNDETERMINED", due_ms(15))], self.changes("avg(m, 300) > 1", at(0, 0, 0.0), until=30)
        )

    def test_one_measurement_starts_the_count_anew(self):
        changes = self.changes("avg(m) > 1 times 2", at(0, 0, 0.0), at(5, 0, 3.0), until=20)

        self.assertEqual([("OK", due_ms(1)), ("UNDETERMINED", due_ms(11))], changes)

    def test_an_alarm_becomes_undetermined_too_and_comes_back(self):
        changes = self.changes("avg(m) > 1", at(0, 0, 2.0), at(9, 0, 2.0), until=10)

        self.assertEqual([("ALARM", due_ms(1)), ("UNDETERMINED", due_ms(3)), ("ALARM", due_ms(10))], changes)

    def test_a_long_silence_changes_no_row_any_more(self):
        evaluator = self.evaluator("avg(m) > 1 times 2")
        evaluator.batch([], due_ms(4))
        before = evaluator.alarm
        evaluator.batch([], due_ms(9))

        self.assertEqual(before, evaluator.alarm)


class DeterministicTest(EvaluationCase):
    def test_it_starts_as_ok_and_is_never_undetermined(self):
        text = "count(m, deterministic) > 1"

        self.assertEqual("OK", AlarmState.new(parse(text)).state)
        self.assertEqual([], self.changes(text, until=20))

    def test_an_empty_window_is_ok_at_once(self):
        changes = self.changes("sum(m, deterministic) > 1", at(0, 0, 2.0), until=9)

        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(2))], changes)

    def test_an_empty_window_at_each_position_of_its_periods(self):
        for empty in range(3):
            measured = [at(minute, 0, 2.0) for minute in range(3) if minute != empty]
            self.assertEqual([], self.changes("sum(m, deterministic) > 1 times 3", *measured, until=3))

    def test_beside_one_that_is_not_the_alarm_starts_as_undetermined(self):
        self.assertEqual("UNDETERMINED", AlarmState.new(parse("count(m, deterministic) > 1 or avg(n) > 1")).state)


class ImmediateTest(EvaluationCase):
    def test_an_alarm_that_later_data_cannot_undo(self):
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

    def test_an_ok_that_later_data_cannot_undo(self):
        for text, values, time_ms in (
            ("max(m) < 1", [0.0, 2.0], 1_000),
            ("max(m) <= 1", [0.0, 1.0, 2.0], 2_000),
            ("min(m) > 1", [2.0, 1.0], 1_000),
            ("min(m) >= 1", [1.0, 0.0], 1_000),
            ("count(m) < 2", [9.0, 9.0], 1_000),
            ("count(m) <= 2", [9.0, 9.0, 9.0], 2_000),
        ):
            for periods in (1, 3):  # one window that fails is enough
                measured = [at(0, second, value) for second, value in enumerate(values)]
                transitions = self.evaluator(f"{text} times {periods}").batch(measured, 5_000)
                self.assertEqual([("OK", time_ms)], [(t.new_state, t.timestamp_ms) for t in transitions], text)

    def test_what_later_data_could_undo_waits(self):
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

    def test_an_alarm_needs_all_its_successive_windows(self):
        text = "max(m) > 1 times 3"
        measured = [at(minute, 10, 2.0) for minute in range(3)]

        self.assertEqual([("ALARM", measured[2][0])], self.changes(text, *measured, until=3))
        for missing in range(3):
            some = [each for minute, each in enumerate(measured) if minute != missing]
            self.assertEqual([], self.changes(text, *some, until=3))
        apart = [at(0, 10, 2.0), at(1, 10, 2.0), at(3, 10, 2.0)]
        self.assertEqual([], self.changes(text, *apart, until=4))

    # Rule 43
    def test_it_does_not_flap_at_the_border_of_a_window(self):
        # The window before the alarm's was quiet; it is due half a minute after the alarm.
        measured = [at(0, 10, 0.0), at(1, 5, 2.0), at(2, 10, 0.0)]

        self.assertEqual([("ALARM", 65_000), ("OK", due_ms(3))], self.changes("max(m) > 1", *measured, until=4))
        evaluator = self.evaluator("max(m) > 1")
        for measurement, watermark_ms in ((measured[0], 10_000), (measured[1], 65_000), (measured[2], 130_000)):
            evaluator.batch([measurement], watermark_ms)
        self.assertEqual([("UNDETERMINED", "ALARM")], [(t.old_state, t.new_state) for t in evaluator.transitions])

    # Rule 43
    def test_it_may_be_seen_before_the_windows_before_it_are_due(self):
        # Another partition is ten minutes behind: what is due meanwhile does not take the alarm back.
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 10, 0.0), at(9, 5, 2.0)], due_ms(1), seen_ms=9 * MINUTE_MS + 6_000)
        self.assertEqual(["OK", "ALARM"], [each.new_state for each in evaluator.transitions])

        self.assertEqual((), evaluator.batch([], due_ms(10)))
        self.assertEqual("ALARM", evaluator.alarm.state)

    def test_what_was_due_before_it_and_is_known_later_is_left_out(self):
        # The other partition is so far behind that the quiet minute is not due yet. The alarm does not wait for it, and
        # nothing precedes afterwards what was told.
        measured = [at(0, 10, 0.0), at(2, 5, 2.0)]
        self.assertEqual([("OK", due_ms(1)), ("ALARM", 125_000)], self.changes("max(m) > 1", *measured, until=3))

        behind = self.evaluator("max(m) > 1")
        [alarm] = behind.batch(measured, due_ms(1) - 1, seen_ms=126_000)
        self.assertEqual(("UNDETERMINED", "ALARM", 125_000), (alarm.old_state, alarm.new_state, alarm.timestamp_ms))
        self.assertEqual((), behind.batch([], due_ms(3)))
        [ok] = behind.batch([at(3, 5, 0.0)], due_ms(4))
        self.assertEqual(("ALARM", "OK", due_ms(4)), (ok.old_state, ok.new_state, ok.timestamp_ms))

    def test_a_clock_that_is_a_day_ahead_changes_nothing_today(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 10, 0.0), at(24 * 60, 0, 9.0)], due_ms(1))

        self.assertEqual(["OK"], [each.new_state for each in evaluator.transitions])

    # Rule 42
    def test_a_pause_of_an_hour_is_caught_up_as_if_there_had_been_none(self):
        measured = [at(minute, 10, 2.0 if minute in (5, 40) else 0.0) for minute in range(60)]
        expected = [("OK", due_ms(1)), ("ALARM", 310_000), ("OK", due_ms(7)), ("ALARM", 2_410_000), ("OK", due_ms(42))]

        self.assertEqual(expected, self.changes("max(m) > 1", *measured, until=60))

    def test_the_values_are_those_of_that_moment(self):
        evaluator = self.evaluator("max(m) > 1 times 2")
        [transition] = evaluator.batch([at(0, 1, 5.0), at(1, 1, 2.0), at(1, 2, 7.0)], 63_000)

        self.assertEqual((5.0, 2.0), transition.sub_alarms[0].current_values)

    def test_more_measurements_than_are_kept_are_dated_by_the_newest(self):
        measured = [(second * 100, 1.0, 0) for second in range(300)]

        self.assertEqual([("ALARM", 29_900)], self.changes("count(m) > 150", *measured, until=1))
        self.assertEqual([("ALARM", 9_900)], self.changes("count(m) >= 100", *measured, until=1))

    def test_a_new_threshold_keeps_the_windows(self):
        low, high = parse("max(m) > 1"), parse("max(m) > 3")
        readings = [Reading(1_000, 0, 0, 2.0), Reading(2_000, 0, 1, 4.0)]
        windows = {0: WindowPartial.of(low.root, readings)}
        progress = replace(self.evaluator("a>1").progress, watermark_ms=3_000, seen_ms=3_000)
        found = evaluate(high, AlarmState.new(high), [Measured(windows)], progress)

        self.assertEqual([("ALARM", 2_000)], [(each.new_state, each.timestamp_ms) for each in found.transitions])


class LastTest(EvaluationCase):
    def test_each_value_decides_as_it_comes(self):
        measured = [at(0, 1, 0.0), at(0, 2, 2.0), at(0, 3, 3.0), at(0, 4, 1.0)]
        expected = [("OK", 1_000), ("ALARM", 2_000), ("OK", 4_000)]

        self.assertEqual(expected, self.changes("last(m) > 1", *measured, until=1))
        evaluator = self.evaluator("last(m) > 1")
        for each in measured:
            evaluator.batch([each], each[0])
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_silence_and_periods_are_nothing_to_it(self):
        self.assertEqual([("ALARM", 1_000)], self.changes("last(m, 300) > 1 times 5", at(0, 1, 2.0), until=100))

    def test_an_older_value_that_comes_later_is_nothing_to_it(self):
        evaluator = self.evaluator("last(m) > 1")
        evaluator.batch([at(0, 9, 2.0)], 9_000)

        self.assertEqual((), evaluator.batch([at(0, 8, 0.0)], 10_000))

    def test_within_a_batch_time_orders_the_values(self):
        changes = self.changes("last(m) > 1", at(0, 3, 0.0), at(0, 2, 2.0), at(0, 1, 0.0), until=1)

        self.assertEqual([("OK", 1_000), ("ALARM", 2_000), ("OK", 3_000)], changes)

    @mock.patch.object(partials, "MOST_READINGS", 64)
    def test_of_too_many_runs_of_equal_outcomes_the_ends_are_kept(self):
        measured = [at(0, second / 100, 0.0 if 500 <= second < 800 else 2.0) for second in range(1_000)]

        expected = [("ALARM", 0), ("OK", 5_000), ("ALARM", 8_000)]
        self.assertEqual(expected, self.changes("last(m) > 1", *measured, until=1))

    @mock.patch.object(partials, "MOST_READINGS", 64)
    def test_what_is_kept_is_bounded_and_ends_as_all_of_it_would(self):
        measured = [at(0, second / 100, second % 2 * 2.0) for second in range(1_001)]
        changes = self.changes("last(m) > 1", *measured, until=1)

        self.assertLessEqual(len(changes), 64)
        self.assertEqual(("OK", 10_000), changes[-1])


class LateTest(EvaluationCase):
    def test_late_data_counts_in_what_is_not_decided(self):
        evaluator = self.evaluator("avg(m) > 1 times 2")
        evaluator.batch([at(1, 0, 2.0)], due_ms(1))

        self.assertEqual(["ALARM"], [t.new_state for t in evaluator.batch([at(0, 0, 2.0)], due_ms(2))])

    def test_what_was_decided_is_not_rewritten(self):
        for text in ("max(m) > 1", "avg(m) > 1"):
            evaluator = self.evaluator(text)
            evaluator.batch([at(0, 0, 0.0)], due_ms(1))
            self.assertEqual((), evaluator.batch([at(0, 1, 9.0)], due_ms(1) + 1), text)

    def test_ok_at_once_waits_for_the_next_evaluation_if_its_window_was_evaluated_before_the_measurement_came(self):
        evaluator = self.evaluator("max(m) < 5 times 2")
        evaluator.batch([at(0, 0, 1.0), at(1, 0, 1.0)], due_ms(2))
        self.assertEqual("ALARM", evaluator.alarm.state)
        self.assertEqual((), evaluator.batch([at(1, 1, 9.0), at(2, 0, 1.0)], due_ms(3) - 1))
        [transition] = evaluator.batch([], due_ms(3))
        self.assertEqual(("OK", due_ms(3)), (transition.new_state, transition.timestamp_ms))

    def test_ok_at_once_does_not_come_if_no_later_evaluation_includes_the_window(self):
        evaluator = self.evaluator("max(m) < 5")
        evaluator.batch([at(0, 0, 1.0)], due_ms(1))
        self.assertEqual((), evaluator.batch([at(0, 1, 9.0), at(1, 0, 1.0)], due_ms(2)))

    def test_a_late_measurement_completes_the_run_of_a_window_under_way(self):
        evaluator = self.evaluator("max(m) > 5 times 2")
        evaluator.batch([at(0, 0, 1.0), at(1, 35, 9.0)], due_ms(1) + 10_000)
        [transition] = evaluator.batch([at(0, 1, 9.0)], due_ms(1) + 11_000)
        self.assertEqual(("ALARM", 95_000), (transition.new_state, transition.timestamp_ms))

    def test_a_late_crossing_of_a_window_under_way_keeps_the_time_of_its_measurement(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 5, 0.0)], 100_000)
        [transition] = evaluator.batch([at(1, 35, 2.0)], 101_000)

        self.assertEqual(("ALARM", 95_000), (transition.new_state, transition.timestamp_ms))

    def test_history_stays_in_order(self):
        evaluator = self.evaluator("max(m) > 1")
        evaluator.batch([at(0, 5, 0.0)], due_ms(1))
        [transition] = evaluator.batch([at(1, 5, 2.0)], due_ms(1) + 1_000)

        self.assertEqual(("ALARM", due_ms(1) + 1), (transition.new_state, transition.timestamp_ms))

    def test_the_order_of_arrival_and_the_borders_of_batches_are_nothing_to_it(self):
        measured = [at(minute, second, float(second)) for minute in range(3) for second in (10, 20, 30)]
        expected = self.changes("sum(m) > 50 times 3", *measured, until=3)
        self.assertEqual([("ALARM", due_ms(3))], expected)

        self.assertEqual(expected, self.changes("sum(m) > 50 times 3", *reversed(measured), until=3))
        evaluator = self.evaluator("sum(m) > 50 times 3")
        for each in reversed(measured):
            evaluator.batch([each], 0)
        evaluator.batch([], due_ms(3))
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_changes_that_come_after_a_later_one_have_times_of_their_own(self):
        evaluator = self.evaluator("last(m) > 5")
        evaluator.alarm = replace(evaluator.alarm, state="OK", last_transition_ms=5_000)  # by hand
        evaluator.batch([at(0, 1, 10.0), at(0, 2, 1.0), at(0, 3, 10.0)], 6_000)
        expected = [("ALARM", 5_001), ("OK", 5_002), ("ALARM", 5_003)]
        self.assertEqual(expected, [(each.new_state, each.timestamp_ms) for each in evaluator.transitions])

    def test_old_windows_are_not_needed(self):
        [sub] = parse("avg(m, 120) > 1 times 3").sub_expressions

        self.assertEqual(-240_000, needed_from_ms(sub, 0, DELAY_MS) + 120_000)
        self.assertEqual(120_000, needed_from_ms(sub, 360_000 + DELAY_MS, DELAY_MS))
        self.assertEqual(0, needed_from_ms(sub, 360_000 + DELAY_MS - 1, DELAY_MS))


class StandstillTest(EvaluationCase):
    def after(self, text, *measured, idle_period, until=30):
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(1))
        evaluator.progress = replace(evaluator.progress, idle_periods=(idle_period,))
        evaluator.batch([], due_ms(until))
        return [(each.new_state, each.timestamp_ms) for each in evaluator.transitions]

    # Rule 44
    def test_what_is_unknown_is_not_empty(self):
        # From minute 1 to 11 the broker was away; agents have until minute 15.
        idle_period = IdlePeriod(due_ms(1), due_ms(11), due_ms(15))
        quiet = self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=idle_period, until=12)
        silent = self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=idle_period)

        self.assertEqual([("OK", due_ms(1))], quiet)
        self.assertEqual([("OK", due_ms(1)), ("UNDETERMINED", due_ms(14))], silent)

    def test_without_an_idle_period_it_is(self):
        nothing = IdlePeriod(0, 0, 0)

        self.assertEqual(
            [("OK", due_ms(1)), ("UNDETERMINED", due_ms(3))],
            self.after("avg(m) > 1", at(0, 0, 0.0), idle_period=nothing),
        )

    # Rule 44
    def test_it_is_no_ok_of_a_deterministic_one(self):
        idle_period = IdlePeriod(MINUTE_MS, 11 * MINUTE_MS, due_ms(11) + 1)
        changes = self.after("sum(m, deterministic) > 1", at(0, 0, 2.0), idle_period=idle_period)

        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(12))], changes)

    def test_a_known_empty_window_beside_unknown_ones_is(self):
        idle_period = IdlePeriod(2 * MINUTE_MS, 11 * MINUTE_MS, due_ms(30))
        changes = self.after("sum(m, deterministic) > 1 times 1", at(0, 0, 2.0), idle_period=idle_period)
        self.assertEqual([("ALARM", due_ms(1)), ("OK", due_ms(2))], changes)

    def test_what_arrives_afterwards_decides(self):
        evaluator = self.evaluator("avg(m) > 1")
        evaluator.batch([at(0, 0, 0.0)], due_ms(1))
        evaluator.progress = replace(evaluator.progress, idle_periods=(IdlePeriod(due_ms(1), due_ms(9), due_ms(12)),))
        evaluator.batch([at(7, 0, 2.0)], due_ms(10))

        self.assertEqual(
            [("OK", due_ms(1)), ("ALARM", due_ms(8))], [_plain(each)[1:] for each in evaluator.transitions]
        )

    def test_idle_periods_that_overlap_are_counted_once(self):
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
    def test_an_undetermined_part_makes_the_whole_undetermined(self):
        for text in ("avg(m) > 1 or avg(n) > 1", "avg(m) > 1 and avg(n) > 1"):
            self.assertEqual("UNDETERMINED", self.state(text, at(0, 0, 2.0), until=1))

    def test_the_expression_is_over_what_is_in_alarm(self):
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

    def test_a_huge_number_of_periods_costs_nothing(self):
        self.assertEqual("UNDETERMINED", self.state("avg(m) > 1 times 999999999", at(0, 0, 2.0), until=60))
        self.assertEqual("OK", self.state("avg(m, deterministic) > 1 times 999999999", until=60))


class ReasonTest(EvaluationCase):
    def reasons(self, text, *measured, until):
        evaluator = self.evaluator(text)
        evaluator.batch(measured, due_ms(until))
        return [each.reason for each in evaluator.transitions]

    def test_the_reason_of_each_state(self):
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

    def test_several_are_joined(self):
        self.assertEqual(
            [
                f"{NOT_EXCEEDED}: avg(m) > 1.0 with the values: [0.5], sum(n) > 1.0 with the values: [0.0]",
                "No data was present for the sub-alarms: avg(m) > 1.0, sum(n) > 1.0",
            ],
            self.reasons("avg(m) > 1 or sum(n) > 1", at(0, 0, 0.5, 0), at(0, 0, 0.0, 1), until=3),
        )


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

    @given(st.integers(1, 3), subs.map(Expression) | expressions, delays_ms, st.data())
    def test_windows_whose_values_are_not_shown_decide_too(self, shown, expression, delay_ms, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        batches = in_batches_with_late_ones(data.draw, measured)
        expected = in_order_of_history(reference.changes(expression, batches, delay_ms, shown))

        with mock.patch.object(evaluation, "MOST_VALUES", shown):
            self.assertEqual(expected, evaluated(expression, batches, delay_ms))
