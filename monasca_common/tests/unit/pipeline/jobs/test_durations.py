# SPDX-License-Identifier: Apache-2.0
import pickle

import pyarrow as pa
from oslotest import base

from monasca_common.pipeline.aggregate.batch import RecordDecoder
from monasca_common.pipeline.jobs.durations import EventTimeLags, PartitionLag, StageSeconds
from monasca_common.pipeline.jobs.job import JobProgress
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark.counts import Greatest
from monasca_common.tests.unit.pipeline.pipeline_case import EVER, envelope, pre_row, shipped_row, specifications


class StageSecondsTest(base.BaseTestCase):
    def test_the_durations_of_a_repeated_stage_are_added(self):
        self.now = 0.0
        timing = StageSeconds(self)
        for name, seconds in (("stage", 2.0), ("merge", 0.5), ("stage", 1.0)):
            with timing.stage(name):
                self.now += seconds
        self.assertEqual({"stage": 3.0, "merge": 0.5}, timing.seconds)

    def monotonic(self):
        return self.now


class EventTimeLagsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.lags = EventTimeLags("metrics")

    def after(self, *partitions, newest=None, now_ms=10_000):
        ranges = [OffsetRange(partition, 0, 1) for partition in partitions]
        return {each.partition: each.seconds for each in self.lags.after(ranges, newest or {}, now_ms)}

    def test_the_lag_is_the_age_of_the_newest_record_of_each_partition(self):
        self.assertEqual({0: 5.0, 1: 0.5}, self.after(0, 1, newest={0: 5_000.0, 1: 9_500}))

    def test_a_partition_without_new_records_has_no_lag(self):
        self.after(0, 1, newest={0: 5_000, 1: 9_500})
        self.assertEqual({0: 7.0, 1: 0.0}, self.after(0, newest={0: 5_000}, now_ms=12_000))
        self.assertEqual({0: 0.0, 1: 0.0}, self.after())

    def test_a_range_without_a_counted_record_has_no_lag(self):
        self.assertEqual({}, self.after(0))

    def test_a_fast_clock_gives_no_negative_lag(self):
        self.assertEqual({0: 0.0}, self.after(0, newest={0: 11_000}))

    def test_the_progress_of_several_topics_is_added(self):
        one = JobProgress(stage_seconds={"write": 1.0}, lags=(PartitionLag("metrics", 0, 1.0),))
        other = JobProgress(stage_seconds={"write": 2.0, "place": 0.5}, lags=(PartitionLag("logs", 0, 2.0),))
        both = one.plus(other)
        self.assertEqual(({"write": 3.0, "place": 0.5}, 2), (both.stage_seconds, len(both.lags)))


class NewestTimeTest(base.BaseTestCase):
    """The newest event time of each partition, as computed by an executor."""

    def newest(self, *messages):
        """Return the newest times.

        ``messages``: (partition, time); ``None`` is the time of a record that is not counted.
        """
        partitions, times_ms = zip(*messages, strict=True)
        values = [envelope("cpu", time_ms) if time_ms else envelope("other", 9_000) for time_ms in times_ms]
        batch = pa.record_batch(
            {
                "partition": pa.array(partitions, pa.int32()),
                "offset": pa.array(range(len(values)), pa.int64()),
                "value": pa.array(values, pa.binary()),
            }
        )
        specs = specifications([pre_row("cpu", "mem_total_all")], [shipped_row("mem_total_all")])
        reported = []
        decoding = RecordDecoder(pickle.dumps(specs), EVER, lambda *_: None, lambda *counts: reported.append(counts))
        list(decoding([batch]))
        ((_, _, newest, _),) = reported
        return newest

    def test_the_newest_time_of_one_partition_is_kept(self):
        self.assertEqual({3: 7_000.0}, self.newest((3, 5_000), (3, None), (3, 7_000), (3, 6_000)))

    def test_the_newest_times_of_several_partitions_are_kept(self):
        self.assertEqual({0: 5_000.0, 1: 7_000.0}, self.newest((0, 5_000), (1, 7_000), (1, 6_000), (2, None)))

    def test_without_records_there_is_no_newest_time(self):
        self.assertEqual({}, self.newest((0, None)))

    def test_the_greatest_time_of_all_tasks_is_kept(self):
        greatest = Greatest()
        whole = greatest.zero({0: 1.0})
        for each in ({0: 5.0}, {1: 7.0}, {0: 4.0, 1: 8.0}):
            whole = greatest.addInPlace(whole, each)
        self.assertEqual({0: 5.0, 1: 8.0}, whole)
