# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from monasca_common.models.readings import Reading
from monasca_common.pipeline import Partial
from monasca_common.pipeline.aggregate import periods, usage_table
from monasca_common.pipeline.aggregate.periods import Closing, Period
from monasca_common.pipeline.aggregate.usage_table import Retention
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql.tables import aggregate_period, aggregate_staging, aggregate_usage
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS, pre_row, shipped_row, specifications

DAY_MS = 24 * HOUR_MS
NOW_MS = 20_000 * DAY_MS
ONE = Partial.of(Reading(0.0, 0, 0, 1.0))


class RetentionTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.specs = specifications([pre_row("cpu", "mem_total_all")], [shipped_row("mem_total_all")])
        self.name = self.specs.transforms["mem_total_all"].id

    def know(self, *starts_ms, job="aggregate"):
        rows = [usage_table.staged_row(self.name, start_ms, "[]", ONE) for start_ms in starts_ms]
        with self.offset_store.writing() as connection:
            staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 0, rows, NOW_MS)
            usage_table.merge(connection, job, StagedAttempts("b", (0,), len(rows)))
            staging.clear(connection, aggregate_staging, "b", NOW_MS)
            changed = [Period(self.name, start_ms) for start_ms in starts_ms]
            periods.touch(connection, job, changed, Closing(self.specs, 0), NOW_MS)

    def known(self):
        windows = sorted(start for (start,) in self.rows(aggregate_usage, "window_start"))
        self.assertEqual(windows, sorted(start for (start,) in self.rows(aggregate_period, "period_start")))
        return [NOW_MS - start for start in windows]

    def test_rows_older_than_retention_and_a_day_are_deleted(self):
        self.know(NOW_MS, NOW_MS - 3 * DAY_MS, NOW_MS - 3 * DAY_MS - 1)
        self.assertEqual(1, Retention(self.offset_store, "aggregate", 2 * DAY_MS).apply(NOW_MS))
        self.assertEqual([3 * DAY_MS, 0], self.known())

    def test_a_period_is_deleted_with_all_its_windows_although_no_later_period_exists(self):
        with self.offset_store.writing() as connection:
            for window_ms in (NOW_MS, NOW_MS + 23 * HOUR_MS):
                rows = [usage_table.staged_row(self.name, window_ms, "[]", ONE)]
                staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 0, rows, NOW_MS)
            usage_table.merge(connection, "aggregate", StagedAttempts("b", (0,), 2))
            periods.touch(connection, "aggregate", [Period(self.name, NOW_MS)], Closing(self.specs, 0), NOW_MS)
        retention = Retention(self.offset_store, "aggregate", DAY_MS)
        removed = [retention.apply(NOW_MS + hour * HOUR_MS) for hour in range(73)]
        self.assertEqual([0] * 72 + [2], removed)
        self.assertEqual([], self.known())

    def test_retention_is_applied_once_an_hour(self):
        retention = Retention(self.offset_store, "aggregate", DAY_MS)
        self.know(0)
        self.assertEqual(1, retention.apply(NOW_MS))
        self.know(0)
        self.assertEqual(0, retention.apply(NOW_MS + HOUR_MS - 1))
        self.assertEqual(1, retention.apply(NOW_MS + HOUR_MS))

    def test_retention_that_failed_is_applied_again_immediately(self):
        retention = Retention(self.offset_store, "aggregate", DAY_MS)
        self.know(0)
        with mock.patch.object(self.offset_store, "writing", side_effect=StorageUnavailable("unavailable")):
            self.assertRaises(StorageUnavailable, retention.apply, NOW_MS)
        self.assertEqual(1, retention.apply(NOW_MS))

    def test_retention_is_applied_after_the_clock_went_back(self):
        retention = Retention(self.offset_store, "aggregate", DAY_MS)
        retention.apply(NOW_MS + 9 * DAY_MS)
        self.know(0)
        self.assertEqual(1, retention.apply(NOW_MS))

    def test_rows_of_another_job_are_kept(self):
        self.know(0, job="other")
        self.assertEqual(0, Retention(self.offset_store, "aggregate", DAY_MS).apply(NOW_MS))
        self.assertEqual([NOW_MS], self.known())
