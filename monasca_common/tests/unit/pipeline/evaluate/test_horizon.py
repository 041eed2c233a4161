# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.alarms.evaluation import Standstill
from monasca_common.pipeline.evaluate.watermark import Look, StoredProgress, after, begun, least_ms

DAY_MS = 86_400_000
GRACE_MS = 30_000
TIMES = st.sets(st.integers(11, 199).map(lambda number: number * 10_000), max_size=40)


def looked(stored, *looks):
    for each in looks:
        stored = after(stored, each, GRACE_MS)
    return stored


class HorizonTest(base.BaseTestCase):
    stored = StoredProgress(100_000, 0, seen_ms=100_000, horizons_ms={0: 100_000, 1: 100_000})

    def test_a_partition_that_was_read_to_its_end_is_known_up_to_the_look(self):
        found = looked(self.stored, Look(110_000, {0, 1}))
        self.assertEqual(({0: 110_000, 1: 110_000}, 110_000), (found.horizons_ms, least_ms(found)))

    def test_else_up_to_its_last_record_and_the_least_counts(self):
        found = looked(self.stored, Look(130_000, {1}, {0: 105_000}))
        self.assertEqual((105_000, 130_000), (least_ms(found), found.seen_ms))

    def test_a_partition_that_no_longer_exists_does_not_hold_back_and_the_restart_is_logged(self):
        logged = self.useFixture(fixtures.FakeLogger())
        stored = replace(self.stored, topic_id="old")
        look = Look(130_000, {0}, partitions={0}, topic_id="new")
        found = looked(stored, look, look)
        self.assertEqual(({0: 130_000}, 130_000, "new"), (found.horizons_ms, least_ms(found), found.topic_id))
        self.assertEqual(1, logged.output.count("its watermarks restart"))

    def test_a_recreated_topic_with_as_many_partitions_restarts_its_watermarks(self):
        ahead = {"horizons_ms": {0: 200_000, 1: 200_000}, "seen_ms": 200_000, "topic_id": "old"}
        found = looked(replace(self.stored, **ahead), Look(210_000, {0}, partitions={0, 1}, topic_id="new"))
        self.assertEqual({0: 210_000, 1: 100_000}, found.horizons_ms)

    def test_a_new_partition_holds_back_until_it_is_read(self):
        looks = [Look(110_000, {0, 1}, partitions={0, 1, 2}), Look(120_000, {0, 1, 2}, partitions={0, 1, 2})]
        self.assertEqual([100_000, 120_000], [least_ms(looked(self.stored, *looks[:count])) for count in (1, 2)])

    def test_the_first_look_restarts_nothing(self):
        logged = self.useFixture(fixtures.FakeLogger())
        look = Look(130_000, {0}, partitions={0, 1}, topic_id="new")
        self.assertEqual({0: 130_000, 1: 130_000}, looked(begun(look, 0), look).horizons_ms)
        self.assertEqual("", logged.output)

    def test_progress_of_a_clock_that_was_an_hour_ahead_goes_back_once_records_have_the_time_of_the_look(self):
        standstill = Standstill(50_000, 3_700_000, 4_000_000)
        stored = StoredProgress(3_700_000, 0, None, "", 3_700_000, {0: 3_700_000}, (standstill,))
        for last_kafka_ms in ({}, {0: 59_999}):
            self.assertEqual(stored, looked(stored, Look(120_000, {0}, last_kafka_ms)))
        found = looked(stored, Look(120_000, {0}, {0: 60_000}))
        self.assertEqual((120_000, {0: 120_000}, ()), (found.evaluated_to_ms, found.horizons_ms, found.standstills))
        self.assertEqual(120_000, found.seen_ms)

    def test_the_first_evaluation_goes_back_to_the_first_arrival_and_a_day_at_most(self):
        now_ms = 10 * DAY_MS
        firsts = [
            begun(Look(now_ms, arrivals=found), 0).evaluated_to_ms for found in ({now_ms - 70_000, now_ms}, {0}, ())
        ]
        self.assertEqual([now_ms - 70_000, now_ms - DAY_MS, now_ms], firsts)
        self.assertEqual(now_ms, begun(Look(now_ms, arrivals={now_ms + 50_000}), 0).evaluated_to_ms)

    def test_a_partition_of_which_nothing_was_read_holds_all_back(self):
        self.assertEqual(100_000, least_ms(looked(self.stored, Look(130_000, {1}))))

    def test_a_clock_that_is_a_day_ahead_moves_no_horizon_beyond_the_look(self):
        found = looked(self.stored, Look(110_000, (), {0: 110_000 + DAY_MS, 1: 105_000}))
        self.assertEqual((105_000, 110_000), (least_ms(found), found.seen_ms))

    def test_no_horizon_goes_back(self):
        found = looked(self.stored, Look(90_000, {0}, {1: 50_000}))
        self.assertEqual(self.stored, found)

    def test_a_minute_without_look_and_without_arrivals_is_no_standstill_and_more_is_one(self):
        self.assertEqual((), looked(self.stored, Look(160_000, {0, 1})).standstills)
        standstill = Standstill(100_000, 160_001, 190_001)
        self.assertEqual((standstill,), looked(self.stored, Look(160_001, {0, 1})).standstills)

    def test_a_gap_among_arrivals_of_one_batch_is_a_standstill(self):
        arrivals = {*range(100_000, 200_000, 10_000), *range(700_000, 800_000, 10_000)}
        found = looked(self.stored, Look(800_000, {0, 1}, {}, arrivals))
        self.assertEqual((Standstill(190_000, 700_000, 730_000),), found.standstills)

    def test_a_pause_in_which_metrics_went_on_is_caught_up_without_a_standstill(self):
        arrivals = set(range(100_000, 7_300_000, 10_000))
        self.assertEqual((), looked(self.stored, Look(7_300_000, {0, 1}, {}, arrivals)).standstills)

    def test_the_backlog_of_one_partition_is_no_standstill_although_another_was_read_to_its_end(self):
        looks = [
            Look(7_300_000 + batch, {1}, {0: end_ms}, set(range(end_ms - 1_200_000, end_ms, 10_000)))
            for batch, end_ms in enumerate(range(1_300_000, 7_300_000, 1_200_000))
        ]
        ended = Look(7_300_010, {0, 1}, {}, set(range(6_100_000, 7_300_000, 10_000)))
        self.assertEqual((), looked(self.stored, *looks, ended).standstills)

    def test_what_is_read_later_does_not_change_what_all_partitions_were_read_beyond(self):
        standstill = Standstill(100_000, 700_000, 730_000)
        stored = looked(self.stored, Look(700_000, {0, 1}))
        self.assertEqual((standstill,), looked(stored, Look(701_000, {0, 1}, {}, {650_000})).standstills)

    @given(TIMES, TIMES, st.data())
    def test_however_batches_cut_a_backlog_its_standstills_are_those_of_one_batch(self, first, second, data):
        left, stored, look_ms = {0: sorted(first), 1: sorted(second)}, self.stored, 2_000_000
        whole = looked(stored, Look(look_ms, {0, 1}, {}, first | second))
        while any(left.values()):
            read = {}
            for partition, times in left.items():
                count = data.draw(st.integers(min(1, len(times)), len(times)))
                read[partition], left[partition] = times[:count], times[count:]
            last = {partition: times[-1] for partition, times in read.items() if times}
            ended = {partition for partition, times in left.items() if not times}
            look = Look(look_ms, ended, last, {time for times in read.values() for time in times})
            stored = looked(stored, look, look)
            guesses = [each for each in stored.standstills if each.end_ms > least_ms(stored)]
            # No evaluation that can be done now asks for them.
            self.assertEqual([], [each for each in guesses if each.start_ms < least_ms(stored)])
        stored = looked(stored, Look(look_ms, {0, 1}))
        self.assertEqual(whole.standstills, tuple(sorted(stored.standstills, key=lambda each: each.start_ms)))

    def test_the_same_look_again_changes_nothing(self):
        look = Look(800_000, {0}, {1: 750_000}, {300_000})
        self.assertEqual(looked(self.stored, look), looked(self.stored, look, look))

    def test_a_standstill_is_forgotten_when_no_evaluation_asks_for_it(self):
        old, late = Standstill(1, 2, 100_000), Standstill(1, 2, 100_001)
        stored = StoredProgress(100_000, 0, None, "", 100_000, {0: 100_000}, (old, late))
        self.assertEqual((late,), looked(stored, Look(101_000, {0})).standstills)

    def test_before_the_first_look_time_is_where_evaluation_begins(self):
        self.assertEqual(5, least_ms(StoredProgress(5, 0)))
