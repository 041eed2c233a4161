# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from monasca_common.models.times import Window
from monasca_common.storage.base import Kind
from monasca_common.storage.postgresql import partitions
from monasca_common.storage.retention import DAY_MS, window
from monasca_common.storage.settings import StorageSettings

NOON_MS = 1_790_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
TODAY = NOON_MS // DAY_MS


class PartitionsTest(base.BaseTestCase):
    def test_a_name_is_that_of_its_day_and_back(self):
        self.assertEqual("logs_20260921", partitions.partition_name("logs", TODAY))
        for day in (0, TODAY, TODAY + 30_000, -1):
            name = partitions.partition_name("alarm_history", day)
            self.assertEqual(day, partitions._day_of_name("alarm_history", name))

    def test_other_names_are_somebody_elses(self):
        for name in ("logs_backup", "logs_2026", "logs", "logs_20261399", "events_20260921"):
            self.assertIsNone(partitions._day_of_name("logs", name))

    def test_days_begin_at_midnight_utc_before_the_epoch_too(self):
        self.assertEqual([0, 0, 1, -1], [partitions.day_of(time) for time in (0, DAY_MS - 1, DAY_MS, -1)])

    def test_two_days_either_way_are_made_ahead(self):
        allowed = window(StorageSettings("postgresql", ""), Kind.METRICS, NOON_MS)
        self.assertEqual(set(range(TODAY - 2, TODAY + 3)), partitions.around(NOON_MS, allowed))

    def test_no_day_is_made_that_no_row_may_have(self):
        allowed = Window(NOON_MS - DAY_MS, NOON_MS)
        self.assertEqual({TODAY - 1, TODAY, TODAY + 1}, partitions.around(NOON_MS, allowed))
