# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from monasca_common.models.times import Window
from monasca_common.storage import retention
from monasca_common.storage.base import Kind
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.settings import StorageSettings


class RetentionTest(base.BaseTestCase):
    def test_the_window_reaches_from_retention_to_tolerance(self):
        settings = StorageSettings(
            "sqlite", "", default_retention_days=10, retention_days={Kind.LOGS: 2}, future_tolerance_seconds=60
        )
        now_ms = 100 * DAY_MS
        self.assertEqual(Window(90 * DAY_MS, now_ms + 60_000), retention.window(settings, Kind.METRICS, now_ms))
        self.assertEqual(Window(98 * DAY_MS, now_ms + 60_000), retention.window(settings, Kind.LOGS, now_ms))

    def test_both_ends_belong_to_it(self):
        self.assertEqual({}, retention.refused([10, 15, 20], Window(10, 20)))
        self.assertEqual({}, retention.refused([], Window(10, 20)))

    def test_what_is_outside_is_named_by_position_and_told_when_it_is(self):
        reasons = retention.refused([9, 15, 21], Window(10, 20))
        self.assertEqual({0, 2}, set(reasons))
        self.assertIn("1970-01-01T00:00:00.009+00:00, is older than rows are kept", reasons[0])
        self.assertIn("1970-01-01T00:00:00.021+00:00, is in the future", reasons[2])

    def test_a_time_that_no_calendar_has_is_told_in_ms(self):
        reasons = retention.refused([2**70, -(2**70)], Window(10, 20))
        self.assertIn(f"{2**70} ms", reasons[0])
        self.assertIn(f"{-(2**70)} ms", reasons[1])
