# SPDX-License-Identifier: Apache-2.0
"""The job backfill with a real Kafka and Spark: windows are replaced instead of added to, whatever a stream does at
the same time."""

from unittest import mock

import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, NewPartitions

from monasca_common.kafka import failpoints
from monasca_common.kafka.message import TopicPartition
from monasca_common.pipeline.backfill.batch import Backfill
from monasca_common.pipeline.backfill.history import History
from monasca_common.pipeline.errors import BackfillStopped, RecordsLost
from monasca_common.pipeline.jobs.job import JobWatcher
from monasca_common.tests.functional.pipeline.pipeline_case import KafkaPipelineCase, SetClock, SharedSpark, expected
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.pipeline.pipeline_case import envelope, pre_row, shipped_row, specifications
from monasca_common.tests.waiting import PATIENCE_SECONDS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FIRST_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
NAME = "mem.total_mb"


class BackfillTest(KafkaPipelineCase):
    def setUp(self):
        super().setUp()
        self.pre_rows = [pre_row(NAME, "total")]
        row = shipped_row("mem_total_all", aggregated_metric_name="total_agg", usage_fetch_operation="sum")
        self.rows = [row | {"metric_id": "total"}]
        self.specs = specifications(self.pre_rows, self.rows)
        self.stream_job = self.aggregation(self.specs)

    def records(self, hour, values):
        start_ms = FIRST_MS + hour * HOUR_MS
        return [envelope(NAME, start_ms + number * 1000, value) for number, value in enumerate(values)]

    def backfill(self, **changes):
        spark = self.useFixture(SharedSpark()).session
        settings = self.stream_job._partials._settings
        return Backfill(spark, settings, self.stream_job._batches._topic, self.offset_store, 86_400_000, **changes)

    def published(self):
        self.until_quiet(self.stream_job)
        return self.stored(self.specs)

    def spoil(self):
        with self.offset_store.writing() as connection:
            connection.execute(sa.text("UPDATE aggregate_usage SET record_count = record_count + 7, sums = '1e6'"))

    def test_wrong_windows_are_replaced_and_published_again(self):
        messages = self.publish(self.records(0, range(1, 30)) + self.records(1, range(5)))
        right = self.published()
        self.assertEqual(expected(self.pre_rows, self.rows, messages), right)
        self.spoil()
        reported = []

        report = self.backfill().run(FIRST_MS, FIRST_MS + HOUR_MS, JobWatcher(tell=reported.append))

        self.assertGreaterEqual(report.done, 34)
        self.assertEqual((report.done, 0), (reported[-1].done, reported[-1].left))
        self.assertEqual((34, 1, 1), tuple(map(report.results.get, ("records", "groups", "periods"))))
        self.assertEqual([29, 12], sorted(self.scalars("SELECT record_count FROM aggregate_usage"), reverse=True))
        self.assertEqual(right, self.published())

    # Rule 36
    def test_records_that_the_stream_reads_during_a_backfill_count_once(self):
        messages = self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        backfill = self.backfill()
        replace, late = backfill._replace, self.records(0, range(100, 107))

        def stream_first(*arguments):
            if late:
                messages.extend(self.publish(late))
                late.clear()
                self.stream_job.step()
            return replace(*arguments)

        with mock.patch.object(backfill, "_replace", stream_first):
            report = backfill.run(FIRST_MS, FIRST_MS + HOUR_MS)

        self.assertGreaterEqual(report.done, 27)
        self.assertEqual((2, 1), (report.results["groups"], report.results["periods"]))
        self.assertEqual([27], self.scalars("SELECT record_count FROM aggregate_usage"))
        self.assertEqual(expected(self.pre_rows, self.rows, messages), self.published())

    @periodic("the other tests of this class use the same plan")
    def test_records_after_the_offsets_of_the_stream_are_not_backfilled(self):
        messages = self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        history = None
        for values in (range(100, 107), range(200, 207)):
            messages += self.publish(self.records(0, values))
            report = self.backfill(history=history).run(FIRST_MS, FIRST_MS + HOUR_MS)
            self.assertEqual([20], self.scalars("SELECT record_count FROM aggregate_usage"), report)
            history = self.archived_history()
        self.assertEqual(expected(self.pre_rows, self.rows, messages), self.published())

    def test_a_range_that_starts_after_the_offsets_of_the_stream_is_not_backfilled(self):
        self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        with mock.patch.object(self.jobs_topic, "at_time", lambda _: dict.fromkeys(range(self.partitions), 1000)):
            report = self.backfill().run(FIRST_MS + HOUR_MS, FIRST_MS + 2 * HOUR_MS)
        self.assertEqual((0, 0), (report.done, report.results["groups"]))
        self.assertEqual([20], self.scalars("SELECT record_count FROM aggregate_usage"))

    @periodic("test_a_crash_within_a_backfill_changes_nothing is the stronger test")
    def test_a_stopped_backfill_replaces_nothing(self):
        self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        self.spoil()
        watcher = JobWatcher()
        watcher.stop.set()
        self.assertRaises(BackfillStopped, self.backfill().run, FIRST_MS, FIRST_MS + HOUR_MS, watcher)
        self.assertEqual([27], self.scalars("SELECT record_count FROM aggregate_usage"))

    def test_a_range_before_retention_and_a_stream_that_never_ran_are_refused(self):
        self.publish(self.records(0, range(20)))
        error = self.assertRaises(RecordsLost, self.backfill().run, FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertIn("run the job aggregate first", str(error))
        error = self.assertRaises(RecordsLost, self.backfill(clock=SetClock(10**15)).run, FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertIn("retention_days", str(error))

    @periodic("the normal run contains test_records_that_the_stream_reads_during_a_backfill_count_once")
    def test_a_window_that_expires_during_a_backfill_is_not_lost(self):
        messages = self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        clock = SetClock(FIRST_MS + self.stream_job._partials._settings.retention_days * DAY_MS)
        backfill = self.backfill(clock=clock)
        stage = backfill._stage

        def later(*arguments):
            clock.now_ms += 10_000
            stage(*arguments)

        with mock.patch.object(backfill, "_stage", later):
            self.assertEqual(20, backfill.run(FIRST_MS, FIRST_MS + HOUR_MS).results["records"])
        self.assertEqual(expected(self.pre_rows, self.rows, messages), self.published())

    # Rule 36
    def test_a_crash_within_a_backfill_changes_nothing(self):
        self.publish(self.records(0, range(20)))
        right = self.published()
        before = self.scalars("SELECT record_count || sums || window_start FROM aggregate_usage")
        for place in ("backfill.after_staging", "backfill.inside_transaction"):
            with failpoints.armed(place, "raise"):
                self.assertRaises(failpoints.FailPointReached, self.backfill().run, FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertEqual(before, self.scalars("SELECT record_count || sums || window_start FROM aggregate_usage"))
        self.backfill().run(FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertEqual(right, self.published())

    def test_a_log_that_starts_after_the_range_is_refused(self):
        self.publish(self.records(0, range(20)), partition=0)
        self.until_quiet(self.stream_job)
        self.cluster.admin.delete_records({TopicPartition(self.topic, 0): 3})
        error = self.assertRaises(RecordsLost, self.backfill().run, FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertIn(f"{self.topic}/0", str(error))
        self.assertEqual([20], self.scalars("SELECT record_count FROM aggregate_usage"))

    # Rule 36
    def test_records_that_kafka_has_removed_come_from_the_archive(self):
        messages = self.publish(self.records(0, range(1, 20)) + self.records(1, range(4)))
        history = self.archived_history()
        ends = {TopicPartition(self.topic, number): extent.end for number, extent in self.jobs_topic.extents().items()}
        messages += self.publish(self.records(0, range(100, 105)))
        right = self.published()
        self.assertEqual(expected(self.pre_rows, self.rows, messages), right)
        self.cluster.admin.delete_records(ends)
        self.spoil()
        self.assertRaises(RecordsLost, self.backfill().run, FIRST_MS, FIRST_MS + HOUR_MS)

        report = self.backfill(history=history).run(FIRST_MS, FIRST_MS + HOUR_MS)

        self.assertEqual(24, report.results["records"])
        self.assertEqual([24, 11], sorted(self.scalars("SELECT record_count FROM aggregate_usage"), reverse=True))
        self.assertEqual(right, self.published())

    @periodic("the normal run contains test_records_that_the_stream_reads_during_a_backfill_count_once")
    def test_an_archive_that_is_ahead_of_a_running_stream_loses_nothing(self):
        messages = self.publish(self.records(0, range(1, 20)))
        self.until_quiet(self.stream_job)
        messages += self.publish(self.records(0, range(100, 105)))
        history = self.archived_history()
        records = History.records

        def stream_first(*arguments):
            self.until_quiet(self.stream_job)
            return records(*arguments)

        with mock.patch.object(History, "records", stream_first):
            report = self.backfill(history=history).run(FIRST_MS, FIRST_MS + HOUR_MS)

        self.assertEqual(24, report.results["records"])
        self.assertEqual([24], self.scalars("SELECT record_count FROM aggregate_usage"))
        self.assertEqual(expected(self.pre_rows, self.rows, messages), self.published())

    # Rule 36
    @periodic("the normal run contains test_a_log_that_starts_after_the_range_is_refused")
    def test_a_gap_between_archive_and_log_is_refused(self):
        self.publish(self.records(0, range(20)), partition=0)
        history = self.archived_history()
        self.publish(self.records(0, range(20)), partition=0)
        self.until_quiet(self.stream_job)
        self.cluster.admin.delete_records({TopicPartition(self.topic, 0): 30})
        error = self.assertRaises(RecordsLost, self.backfill(history=history).run, FIRST_MS, FIRST_MS + HOUR_MS)
        self.assertIn("archive ends at offset 20", str(error))
        self.assertEqual([40], self.scalars("SELECT record_count FROM aggregate_usage"))

    # Rule 36
    @periodic("the normal run contains test_records_that_the_stream_reads_during_a_backfill_count_once")
    def test_a_partition_that_the_stream_starts_during_a_backfill_counts_once(self):
        messages = self.publish(self.records(0, range(20)))
        self.until_quiet(self.stream_job)
        backfill = self.backfill()
        replace, calls = backfill._replace, []

        def stream_first(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                client = AdminClient(self.cluster.direct_options())
                client.create_partitions([NewPartitions(self.topic, 3)])[self.topic].result(PATIENCE_SECONDS)
                self.wait_until(lambda: self.cluster.admin.partition_count(self.topic) == 3)
                self.partitions, self.producer = 3, self.new_producer()
                messages.extend(self.publish(self.records(0, range(100, 107)), partition=2))
                self.stream_job.step()
            return replace(*arguments)

        with mock.patch.object(backfill, "_replace", stream_first):
            backfill.run(FIRST_MS, FIRST_MS + HOUR_MS)

        self.assertEqual(2, len(calls))
        self.assertEqual([27], self.scalars("SELECT record_count FROM aggregate_usage"))
        self.assertEqual(expected(self.pre_rows, self.rows, messages), self.published())

    @property
    def jobs_topic(self):
        return self.stream_job._batches._topic
