# SPDX-License-Identifier: Apache-2.0
import io

from oslotest import base
from rich.console import Console

from monasca_common.quickstart.alarm import AlarmSummary
from monasca_common.quickstart.table import RunSummary, chart, percentile, show

GOOD = RunSummary(
    broker="kafka",
    seconds=20.0,
    posted=1000,
    acknowledged=1000,
    rows=1000,
    duplicates=0,
    lost=0,
    repeated_posts=2,
    persister_kills=1,
    answers_lost=3,
    p50_ms=25.0,
    p99_ms=1900.0,
)


class OutcomeTest(base.BaseTestCase):
    def changed(self, **changes):
        return RunSummary(**(GOOD.as_json() | changes))

    def test_all_posted_acknowledged_and_stored_once_is_good(self):
        self.assertTrue(GOOD.good)

    def test_a_loss_a_duplicate_or_an_unacknowledged_post_is_not(self):
        for changes in (
            {"lost": 1},
            {"duplicates": 1},
            {"acknowledged": 999},
            {"rows": 999},
            {"posted": 0, "acknowledged": 0, "rows": 0},
        ):
            self.assertFalse(self.changed(**changes).good, changes)

    def test_an_alarm_that_did_not_come_back_is_not_good(self):
        for history, is_good in ((("OK", "ALARM", "OK"), True), (("OK", "ALARM"), False), ((), False)):
            summary = AlarmSummary("last(x) > 1", "id", history, (), 0, 1.0)
            self.assertEqual(is_good, self.changed(alarm=summary).good, history)

    def test_a_table_shows_every_count(self):
        out = io.StringIO()
        show(GOOD, [20.0, 25.0, 1900.0], Console(file=out, width=100))
        for text in ("1,000", "duplicates", "lost", "SIGKILL", "25 ms", "1,900 ms", "▁", "█"):
            self.assertIn(text, out.getvalue())


class PercentileTest(base.BaseTestCase):
    def test_percentiles_of_a_hundred(self):
        values = list(range(1, 101))
        self.assertEqual((51, 100), (percentile(values, 0.5), percentile(values, 0.99)))

    def test_of_nothing_there_is_none(self):
        self.assertIsNone(percentile([], 0.5))


class ChartTest(base.BaseTestCase):
    def test_the_greatest_value_has_the_highest_bar(self):
        self.assertEqual("▁▁█▁", chart([10, 10, 1000, 10]))

    def test_equal_values_are_a_flat_line(self):
        self.assertEqual("▁▁▁", chart([10, 10, 10]))

    def test_a_long_run_fits_the_screen_and_keeps_its_peak(self):
        bars = chart([10.0] * 500 + [900.0] + [10.0] * 499)
        self.assertLessEqual(len(bars), 60)
        self.assertEqual(1, bars.count("█"))
