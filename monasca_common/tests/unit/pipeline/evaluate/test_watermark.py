# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms.evaluation import IdlePeriod
from monasca_common.kafka.clock import VirtualClock
from monasca_common.pipeline.evaluate.watermark import (
    ACCEPTED_AFTER_SECONDS,
    LONGEST_STEP_MS,
    EvaluatorState,
    Scan,
    SteadyTime,
    advanced,
    initial,
    least_ms,
)

DAY_MS = 86_400_000
GRACE_MS = 30_000
TIMES = st.sets(st.integers(11, 199).map(lambda number: number * 10_000), max_size=40)


def scanned(stored, *scans):
    for each in scans:
        stored = advanced(stored, each, GRACE_MS)
    return stored


class WatermarkTest(base.BaseTestCase):
    stored = EvaluatorState(100_000, 0, seen_ms=100_000, watermarks_ms={0: 100_000, 1: 100_000})

    def test_a_partition_read_to_its_end_has_the_time_of_the_scan_as_its_watermark(self):
        found = scanned(self.stored, Scan(110_000, {0, 1}))
        self.assertEqual(({0: 110_000, 1: 110_000}, 110_000), (found.watermarks_ms, least_ms(found)))

    def test_the_watermark_of_other_partitions_is_their_last_record_and_the_lowest_counts(self):
        found = scanned(self.stored, Scan(130_000, {1}, {0: 105_000}))
        self.assertEqual((105_000, 130_000), (least_ms(found), found.seen_ms))

    def test_a_removed_partition_does_not_delay_evaluation_and_the_restart_is_logged(self):
        logged = self.useFixture(fixtures.FakeLogger())
        stored = replace(self.stored, topic_id="old")
        scan = Scan(130_000, {0}, partitions={0}, topic_id="new")
        found = scanned(stored, scan, scan)
        self.assertEqual(({0: 130_000}, 130_000, "new"), (found.watermarks_ms, least_ms(found), found.topic_id))
        self.assertEqual(1, logged.output.count("its watermarks restart"))

    def test_a_recreated_topic_with_as_many_partitions_restarts_its_watermarks(self):
        ahead = {"watermarks_ms": {0: 200_000, 1: 200_000}, "seen_ms": 200_000, "topic_id": "old"}
        found = scanned(replace(self.stored, **ahead), Scan(210_000, {0}, partitions={0, 1}, topic_id="new"))
        self.assertEqual({0: 210_000, 1: 100_000}, found.watermarks_ms)

    def test_a_new_partition_delays_evaluation_until_it_is_read(self):
        scans = [Scan(110_000, {0, 1}, partitions={0, 1, 2}), Scan(120_000, {0, 1, 2}, partitions={0, 1, 2})]
        self.assertEqual([100_000, 120_000], [least_ms(scanned(self.stored, *scans[:count])) for count in (1, 2)])

    def test_the_first_scan_restarts_no_watermark(self):
        logged = self.useFixture(fixtures.FakeLogger())
        scan = Scan(130_000, {0}, partitions={0, 1}, topic_id="new")
        self.assertEqual({0: 130_000, 1: 130_000}, scanned(initial(scan, 0), scan).watermarks_ms)
        self.assertEqual("", logged.output)

    def test_progress_of_a_fast_clock_is_reset_once_records_have_the_time_of_the_scan(self):
        idle_period = IdlePeriod(50_000, 3_700_000, 4_000_000)
        stored = EvaluatorState(3_700_000, 0, None, "", 3_700_000, {0: 3_700_000}, (idle_period,))
        for last_kafka_ms in ({}, {0: 59_999}):
            self.assertEqual(stored, scanned(stored, Scan(120_000, {0}, last_kafka_ms)))
        found = scanned(stored, Scan(120_000, {0}, {0: 60_000}))
        self.assertEqual((120_000, {0: 120_000}, ()), (found.evaluated_to_ms, found.watermarks_ms, found.idle_periods))
        self.assertEqual(120_000, found.seen_ms)

    def test_the_first_evaluation_starts_at_the_first_arrival_at_most_a_day_ago(self):
        now_ms = 10 * DAY_MS
        firsts = [
            initial(Scan(now_ms, arrivals=found), 0).evaluated_to_ms for found in ({now_ms - 70_000, now_ms}, {0}, ())
        ]
        self.assertEqual([now_ms - 70_000, now_ms - DAY_MS, now_ms], firsts)
        self.assertEqual(now_ms, initial(Scan(now_ms, arrivals={now_ms + 50_000}), 0).evaluated_to_ms)

    def test_an_unread_partition_delays_the_watermark(self):
        self.assertEqual(100_000, least_ms(scanned(self.stored, Scan(130_000, {1}))))

    def test_a_record_from_a_day_ahead_moves_no_watermark_beyond_the_scan(self):
        found = scanned(self.stored, Scan(110_000, (), {0: 110_000 + DAY_MS, 1: 105_000}))
        self.assertEqual((105_000, 110_000), (least_ms(found), found.seen_ms))

    def test_watermarks_never_decrease(self):
        found = scanned(self.stored, Scan(90_000, {0}, {1: 50_000}))
        self.assertEqual(self.stored, found)

    def test_more_than_a_minute_without_scans_and_arrivals_is_an_idle_period(self):
        self.assertEqual((), scanned(self.stored, Scan(160_000, {0, 1})).idle_periods)
        idle_period = IdlePeriod(100_000, 160_001, 190_001)
        self.assertEqual((idle_period,), scanned(self.stored, Scan(160_001, {0, 1})).idle_periods)

    def test_a_gap_between_arrivals_of_a_batch_is_an_idle_period(self):
        arrivals = {*range(100_000, 200_000, 10_000), *range(700_000, 800_000, 10_000)}
        found = scanned(self.stored, Scan(800_000, {0, 1}, {}, arrivals))
        self.assertEqual((IdlePeriod(190_000, 700_000, 730_000),), found.idle_periods)

    def test_a_pause_of_the_job_with_arrivals_is_caught_up_without_an_idle_period(self):
        arrivals = set(range(100_000, 7_300_000, 10_000))
        self.assertEqual((), scanned(self.stored, Scan(7_300_000, {0, 1}, {}, arrivals)).idle_periods)

    def test_the_backlog_of_one_partition_is_not_an_idle_period_if_another_was_read_to_its_end(self):
        scans = [
            Scan(7_300_000 + batch, {1}, {0: end_ms}, set(range(end_ms - 1_200_000, end_ms, 10_000)))
            for batch, end_ms in enumerate(range(1_300_000, 7_300_000, 1_200_000))
        ]
        ended = Scan(7_300_010, {0, 1}, {}, set(range(6_100_000, 7_300_000, 10_000)))
        self.assertEqual((), scanned(self.stored, *scans, ended).idle_periods)

    def test_later_reads_do_not_change_an_idle_period_before_all_watermarks(self):
        idle_period = IdlePeriod(100_000, 700_000, 730_000)
        stored = scanned(self.stored, Scan(700_000, {0, 1}))
        self.assertEqual((idle_period,), scanned(stored, Scan(701_000, {0, 1}, {}, {650_000})).idle_periods)

    @given(TIMES, TIMES, st.data())
    def test_idle_periods_of_a_backlog_do_not_depend_on_the_batches(self, first, second, data):
        left, stored, scan_ms = {0: sorted(first), 1: sorted(second)}, self.stored, 2_000_000
        whole = scanned(stored, Scan(scan_ms, {0, 1}, {}, first | second))
        while any(left.values()):
            read = {}
            for partition, times in left.items():
                count = data.draw(st.integers(min(1, len(times)), len(times)))
                read[partition], left[partition] = times[:count], times[count:]
            last = {partition: times[-1] for partition, times in read.items() if times}
            ended = {partition for partition, times in left.items() if not times}
            scan = Scan(scan_ms, ended, last, {time for times in read.values() for time in times})
            stored = scanned(stored, scan, scan)
            guesses = [each for each in stored.idle_periods if each.end_ms > least_ms(stored)]
            # Evaluations that are possible now do not need these idle periods.
            self.assertEqual([], [each for each in guesses if each.start_ms < least_ms(stored)])
        stored = scanned(stored, Scan(scan_ms, {0, 1}))
        self.assertEqual(whole.idle_periods, tuple(sorted(stored.idle_periods, key=lambda each: each.start_ms)))

    def test_a_repeated_scan_changes_nothing(self):
        scan = Scan(800_000, {0}, {1: 750_000}, {300_000})
        self.assertEqual(scanned(self.stored, scan), scanned(self.stored, scan, scan))

    def test_an_idle_period_that_no_evaluation_needs_is_deleted(self):
        old, late = IdlePeriod(1, 2, 100_000), IdlePeriod(1, 2, 100_001)
        stored = EvaluatorState(100_000, 0, None, "", 100_000, {0: 100_000}, (old, late))
        self.assertEqual((late,), scanned(stored, Scan(101_000, {0})).idle_periods)

    def test_before_the_first_scan_the_watermark_is_the_start_of_evaluation(self):
        self.assertEqual(5, least_ms(EvaluatorState(5, 0)))


HOUR_MS = 3_600_000


class SteadyTimeTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.logged = self.useFixture(fixtures.FakeLogger())
        self.clock, self.step_ms = VirtualClock(start_ms=10 * HOUR_MS), 0
        self.steady = SteadyTime(self.clock)
        self.assertEqual(10 * HOUR_MS, self.scan(0))

    def scan(self, seconds):
        """Return the time of a scan after ``seconds``."""
        self.clock.advance(seconds)
        return self.steady.time_ms(self.clock.time_ms() + self.step_ms)

    def test_a_small_step_of_the_clock_is_followed_and_a_large_one_is_not(self):
        self.step_ms = LONGEST_STEP_MS
        self.assertEqual(self.clock.time_ms() + 1000 + self.step_ms, self.scan(1))
        self.step_ms += LONGEST_STEP_MS + 1
        self.assertEqual(self.clock.time_ms() + 1000 + LONGEST_STEP_MS, self.scan(1))

    def test_a_clock_that_steps_by_an_hour_and_back_is_not_followed(self):
        for step_ms in (HOUR_MS, HOUR_MS, -HOUR_MS, 0):
            self.step_ms = step_ms
            self.assertEqual(self.clock.time_ms() + 1000, self.scan(1))
            self.steady.compare([self.clock.time_ms()])
        self.assertEqual(1, self.logged.output.count("stepped by 3600 s"))

    def test_a_large_step_is_followed_once_a_record_has_the_new_time(self):
        self.step_ms = HOUR_MS
        self.scan(1)
        self.steady.compare([self.clock.time_ms() + HOUR_MS - LONGEST_STEP_MS])
        self.assertEqual(self.clock.time_ms() + HOUR_MS + 1000, self.scan(1))

    def test_a_large_step_is_followed_after_ten_minutes_without_records(self):
        self.step_ms = HOUR_MS
        self.scan(1)
        self.assertEqual(10 * HOUR_MS + 601_000, self.scan(ACCEPTED_AFTER_SECONDS))
        self.assertEqual(11 * HOUR_MS + 602_000, self.scan(1))

    def test_records_with_the_old_time_delay_following_a_large_step(self):
        self.step_ms = HOUR_MS
        self.scan(ACCEPTED_AFTER_SECONDS)
        self.steady.compare([self.clock.time_ms()])
        self.assertEqual(self.clock.time_ms() + 600_000, self.scan(ACCEPTED_AFTER_SECONDS))
