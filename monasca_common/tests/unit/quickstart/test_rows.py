# SPDX-License-Identifier: Apache-2.0


import contextlib
import io
import json
import sqlite3
import tempfile
from dataclasses import asdict
from pathlib import Path
from unittest import mock

from oslotest import base
from rich.console import Console

from monasca_common.models import metric
from monasca_common.quickstart import aggregates
from monasca_common.quickstart.alarm import AlarmSummary
from monasca_common.quickstart.own_metrics import OwnMetrics
from monasca_common.quickstart.poster import PostedBulk
from monasca_common.quickstart.prometheus import PrometheusSummary
from monasca_common.quickstart.rows import count
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.quickstart.table import RunSummary, percentile, show
from monasca_common.quickstart.webhook import ReceivedNotification


class CountTest(base.BaseTestCase):
    """Posted items compared with stored rows, in constructed histories."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = Path(folder.name) / "rows.sqlite"
        self.metrics = [self.bulk(number, time_ms, 2) for number, time_ms in enumerate((100, 200))]
        self.events = [self.bulk(number, time_ms, 1) for number, time_ms in enumerate((100, 200))]

    def bulk(self, number, time_ms, size, *, acknowledged=True):
        return PostedBulk(number, time_ms, "/", None, size, acknowledged_at=1.0 if acknowledged else None)

    def store(self, times, numbers):
        with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("CREATE TABLE measurements (time)")
            connection.execute("CREATE TABLE events (payload)")
            connection.executemany("INSERT INTO measurements VALUES (?)", [(time_ms,) for time_ms in times])
            payloads = [(json.dumps({"number": number}),) for number in numbers]
            connection.executemany("INSERT INTO events VALUES (?)", payloads)

    def found(self):
        result = count(self.database, self.metrics, self.events)
        return result.rows, result.lost, result.duplicates

    def test_rows_stored_once_are_neither_lost_nor_duplicates(self):
        self.store([100, 100, 200, 200], [0, 1])
        self.assertEqual((6, 0, 0), self.found())

    def test_a_row_that_is_missing_is_lost(self):
        self.store([100, 200, 200], [0, 1])
        self.assertEqual((5, 1, 0), self.found())

    def test_an_event_that_is_missing_is_lost(self):
        self.store([100, 100, 200, 200], [1])
        self.assertEqual((5, 1, 0), self.found())

    def test_an_extra_row_is_a_duplicate(self):
        self.store([100, 100, 100, 200, 200], [0, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_an_event_stored_twice_is_a_duplicate(self):
        self.store([100, 100, 200, 200], [0, 1, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_a_row_that_was_not_posted_is_a_duplicate(self):
        self.store([100, 100, 200, 200, 300], [0, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_a_loss_and_a_duplicate_do_not_cancel_out(self):
        self.store([100, 100, 100, 200], [0, 1])
        self.assertEqual((6, 1, 1), self.found())

    def test_messages_that_were_never_acknowledged_are_not_lost(self):
        self.metrics[1] = self.bulk(1, 200, 2, acknowledged=False)
        self.events[1] = self.bulk(1, 200, 1, acknowledged=False)
        self.store([100, 100], [0])
        self.assertEqual((3, 0, 0), self.found())


class AveragesTest(base.BaseTestCase):
    def refusal(self, output):
        job = mock.Mock()
        job.finished.return_value = output
        job.last_log_line.return_value = "no records (log: /x/aggregate.log)"
        return str(self.assertRaises(ServiceFailed, aggregates.averages_of, job, Path("/nonexistent")))

    def test_fewer_aggregates_than_metrics_are_an_error_that_names_the_log(self):
        for published in (0, 2):
            refusal = self.refusal(f'Java\n{{"results": {{"published_messages": {published}}}}}\n')
            for part in (f"{published} aggregates were published", "(log: /x/aggregate.log)"):
                self.assertIn(part, refusal)

    def test_a_job_without_a_result_is_an_error_that_names_the_log(self):
        self.assertIn("no result: no records (log: /x/aggregate.log)", self.refusal("Java\n"))


class OwnMetricsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.sample = OwnMetrics().sample(1_700_000_000_000)

    def test_the_api_accepts_the_whole_sample(self):
        parsed = metric.parse_post(json.dumps(self.sample).encode())
        self.assertEqual((), tuple(parsed.violations))
        self.assertEqual(len(self.sample), len(parsed.valid))

    def test_each_series_occurs_once(self):
        series = [(reading["name"], tuple(sorted(reading["dimensions"].items()))) for reading in self.sample]
        self.assertEqual(len(series), len(set(series)))

    def test_the_api_accepts_a_process_whose_name_is_not_utf_8(self):
        info = {"pid": 1, "name": "x\udcc3", "cpu_times": None, "memory_info": None, "num_threads": 1}
        with mock.patch("psutil.process_iter", return_value=[mock.Mock(info=info)]):
            self.sample = OwnMetrics().sample(1_700_000_000_000)
        self.test_the_api_accepts_the_whole_sample()

    def test_a_disk_that_is_mounted_twice_is_one_series(self):
        disk = mock.Mock(mountpoint="/data", device="/dev/sdb1")
        with (
            mock.patch("psutil.disk_partitions", return_value=[disk, disk]),
            mock.patch("psutil.disk_usage", return_value=mock.Mock(percent=50, total=2**30)),
        ):
            self.sample = OwnMetrics().sample(1_700_000_000_000)
        self.test_each_series_occurs_once()

    def test_a_disk_in_a_folder_of_another_user_is_omitted(self):
        with mock.patch("psutil.disk_usage", side_effect=PermissionError):
            names = {reading["name"] for reading in OwnMetrics().sample(1_700_000_000_000)}
        self.assertEqual({"disk.space_used_perc", "disk.total_space_mb"} & names, set())
        self.assertIn("mem.total_mb", names)

    def test_a_sample_has_metrics_of_the_machine_and_of_processes(self):
        names = {reading["name"] for reading in self.sample}
        self.assertLessEqual({"cpu.percent", "mem.usable_mb", "load.avg_1_min", "process.mem_rss_mb"}, names)


def _received(states):
    return tuple(ReceivedNotification(str(number), state, 1, (200,)) for number, state in enumerate(states))


GOOD = RunSummary(
    seconds=20.0,
    posted=1000,
    acknowledged=1000,
    rows=1000,
    duplicates=0,
    lost=0,
    repeated_posts=2,
    kafka_freezes=1,
    persister_kills=1,
    p50_ms=25.0,
    p99_ms=1900.0,
)


class OutcomeTest(base.BaseTestCase):
    def changed(self, **changes):
        return RunSummary(**(asdict(GOOD) | changes))

    def test_a_run_with_all_rows_acknowledged_and_stored_once_succeeds(self):
        self.assertTrue(GOOD.good)

    def test_a_run_with_a_loss_a_duplicate_or_an_unacknowledged_post_fails(self):
        for changes in (
            {"lost": 1},
            {"duplicates": 1},
            {"acknowledged": 999},
            {"rows": 999},
            {"posted": 0, "acknowledged": 0, "rows": 0},
        ):
            self.assertFalse(self.changed(**changes).good, changes)

    def test_a_run_with_an_alarm_that_did_not_return_to_ok_fails(self):
        for history, is_good in ((("OK", "ALARM", "OK"), True), (("OK", "ALARM"), False), ((), False)):
            summary = AlarmSummary("last(x) > 1", "id", history, (), 0, 1.0, _received(history))
            self.assertEqual(is_good, self.changed(alarm=summary).good, history)

    def test_a_run_with_prometheus_succeeds_if_each_sample_is_a_row(self):
        for samples, rows, is_good in ((5, 5, True), (5, 4, False), (5, 6, False), (0, 0, False)):
            outcome = RunSummary(prometheus=PrometheusSummary(samples, rows))
            self.assertEqual(is_good, outcome.good, (samples, rows))

    def test_a_table_shows_every_count(self):
        out = io.StringIO()
        show(GOOD, Console(file=out, width=100))
        for text in ("1,000", "duplicates", "lost", "SIGSTOP", "SIGKILL", "25 ms", "1,900 ms"):
            self.assertIn(text, out.getvalue())
        self.assertNotIn("late", out.getvalue())
        show(self.changed(rows=978, late=22), Console(file=out, width=100))
        self.assertIn("late (unread in Kafka)", out.getvalue())


class PercentileTest(base.BaseTestCase):
    def test_percentiles_of_a_hundred_values_are_correct(self):
        values = list(range(1, 101))
        self.assertEqual((51, 100), (percentile(values, 0.5), percentile(values, 0.99)))

    def test_no_values_have_no_percentile(self):
        self.assertIsNone(percentile([], 0.5))
