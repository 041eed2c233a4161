# SPDX-License-Identifier: Apache-2.0
"""The status of jobs, with SQLite and the memory broker."""

import contextlib
import json
import socket
import threading
from pathlib import Path

from oslo_config import cfg
from oslotest import base
from prometheus_client.parser import text_string_to_metric_families
from testtools.matchers import Contains

from monasca_common.cli.pipeline import status_row
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.testing import MemoryKafka, VirtualClock
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs import activity
from monasca_common.pipeline.jobs.activity import JobState, LastBatch, heartbeat
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.settings import JobStatusSettings, aggregate_settings
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.pipeline.status import job_statuses
from monasca_common.storage.sql.tables import alarm_outbox
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS
from monasca_common.tests.web import fetch


class ServedTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.taken.close)
        self.port = self.taken.getsockname()[1]
        self.heard = []
        self.watcher = JobWatcher(tell=self.heard.append)

    def scraped(self, job):
        families = text_string_to_metric_families(fetch(f"http://127.0.0.1:{self.port}/metrics")[1])
        samples = [sample for family in families for sample in family.samples if sample.labels.get("job") == job]
        return {
            sample.name.removeprefix("monasca_pipeline_")
            + "".join(value for name, value in sorted(sample.labels.items()) if name != "job"): sample.value
            for sample in samples
            if not sample.name.endswith(("_created", "_bucket"))
        }

    def test_a_scrape_returns_the_progress_of_a_job(self):
        self.taken.close()
        with served("backfill", JobStatusSettings(port=self.port), self.watcher) as watcher:
            watcher.tell(JobProgress(100, 50, 2.5, {"records": 90}))
            for _ in range(2):  # the second report has no new offsets
                watcher.tell(JobProgress(150, 0, 1.5, {"records": 130}))
            found = self.scraped("backfill")
        self.assertGreater(found.pop("last_batch_time_seconds"), 0)
        self.assertEqual(
            {
                "offsets_total": 150,
                "behind_offsets": 0,
                "batch_seconds_count": 2,
                "batch_seconds_sum": 4.0,
                "results_totalrecords": 130,
            },
            found,
        )
        self.assertEqual([50, 0, 0], [each.left for each in self.heard])

    def test_each_stage_is_counted_and_a_lag_is_kept_until_a_new_one_is_known(self):
        self.taken.close()
        lags = (PartitionLag("metrics", 0, 7.5), PartitionLag("metrics", 1, 2.0))
        with served("aggregate", JobStatusSettings(port=self.port), self.watcher) as watcher:
            watcher.tell(JobProgress(1, 0, 1.0, {}, {"stage": 0.5, "merge": 0.25}, lags))
            watcher.tell(JobProgress(2, 0, 1.0, {}, {"stage": 1.5}, (PartitionLag("metrics", 1, 0.0),)))
            found = self.scraped("aggregate")
        counts = {name: value for name, value in found.items() if name.startswith("stage_seconds")}
        self.assertEqual(
            {
                "stage_seconds_countstage": 2,
                "stage_seconds_sumstage": 2.0,
                "stage_seconds_countmerge": 1,
                "stage_seconds_summerge": 0.25,
            },
            counts,
        )
        self.assertEqual(
            {"event_time_lag_seconds0metrics": 7.5, "event_time_lag_seconds1metrics": 0.0},
            {name: value for name, value in found.items() if name.startswith("event_time")},
        )

    def probed(self, path):
        status, text = fetch(f"http://127.0.0.1:{self.port}{path}")
        return status, json.loads(text)

    def test_a_job_is_ready_after_a_successful_batch_and_live_while_its_loop_runs(self):
        self.taken.close()
        with served("evaluate", JobStatusSettings(port=self.port), self.watcher) as watcher:
            self.assertEqual((503, ["no batch is complete yet"]), self.reasons())
            watcher.tell(JobProgress(1, 0, 1.0))
            self.assertEqual((200, []), self.reasons())
            watcher.turned("a batch failed: the database does not respond")
            self.assertEqual((503, ["a batch failed: the database does not respond"]), self.reasons())
            self.assertEqual(503, self.probed("/healthcheck")[0])
            self.assertEqual((200, True), (self.probed("/healthz")[0], self.probed("/healthz")[1]["live"]))

    def reasons(self):
        code, body = self.probed("/readyz")
        return code, body["reasons"]

    def test_a_job_whose_loop_hangs_is_not_live(self):
        self.taken.close()
        with served("evaluate", JobStatusSettings(port=self.port, live_seconds=-1.0), self.watcher):
            self.assertEqual(503, self.probed("/healthz")[0])

    def test_without_a_port_there_is_no_server(self):
        with served("aggregate", JobStatusSettings(), self.watcher) as watcher:
            self.assertIs(self.watcher, watcher)

    def test_a_port_in_use_is_an_error_with_the_group_of_the_job(self):
        reported = served("replay", JobStatusSettings(port=self.port), self.watcher)
        error = self.assertRaises(ConfigurationError, reported.__enter__)
        self.assertThat(str(error), Contains("change status_port or status_host in group [pipeline_replay]"))


CONFIGURATION = """\
[kafka]
bootstrap_servers = memory:9092
driver = memory
[database]
connection = {url}
[pipeline_aggregate]
emit = {emit}
slack_seconds = 0
"""
NOON_MS = 1_767_268_800_000


class JobStatusCase(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 2)
        self.now_ms = NOON_MS

    def configuration(self, emit="update"):
        path = Path(self.url.removeprefix("sqlite:///")).with_suffix(".conf")
        path.write_text(CONFIGURATION.format(url=self.url, emit=emit))
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(path)])
        return conf

    def status(self, **options):
        (status,) = job_statuses(self.configuration(**options), SetClock(self.now_ms))
        return status


class SetClock(VirtualClock):
    """A clock that calls ``asked`` at each read, with the number of reads so far."""

    def __init__(self, now_ms):
        super().__init__()
        self.now_ms = now_ms
        self.asked = lambda times: None
        self.times = 0

    def time_ms(self):
        self.times += 1
        self.asked(self.times)
        return self.now_ms


class UnpublishedPeriodsTest(JobStatusCase):
    def setUp(self):
        super().setUp()
        settings = aggregate_settings(self.configuration())
        (self.specification, *_) = (
            each.id for each in settings.specifications.transforms.values() if each.period == "hourly"
        )
        self.job = settings.publisher.job
        self.touch(NOON_MS - HOUR_MS)
        self.touch(NOON_MS)

    def touch(self, start_ms, specification=None):
        with self.offset_store.writing() as connection:
            table = periods.aggregate_period
            provisional = start_ms >= NOON_MS
            row = {"job": self.job, "specification": specification or self.specification, "period_start": start_ms}
            connection.execute(table.insert().values(row | {"version": 1, "published": 0, "provisional": provisional}))

    def waiting(self, **options):
        status = self.status(**options)
        return status.due, status.still_open

    def test_an_open_period_is_unpublished_if_each_change_is_emitted(self):
        self.assertEqual((2, 0), self.waiting(emit="update"))

    def test_an_open_period_is_still_open_if_only_final_periods_are_emitted(self):
        self.assertEqual((1, 1), self.waiting(emit="final"))

    def test_an_ended_period_is_unpublished_even_if_no_job_has_closed_it(self):
        self.now_ms = NOON_MS + HOUR_MS
        self.assertEqual((2, 0), self.waiting(emit="final"))

    def test_a_published_period_is_neither_unpublished_nor_open(self):
        with self.offset_store.writing() as connection:
            connection.execute(periods.aggregate_period.update().values(published=1))
        self.assertEqual((0, 0), self.waiting(emit="final"))

    def test_a_period_of_a_removed_specification_is_reported_until_retention_removes_it(self):
        self.touch(NOON_MS, "gone")
        self.assertEqual((2, 1), self.waiting(emit="final"))


class EvaluationTest(JobStatusCase):
    def test_the_status_of_evaluate_has_its_time_and_unpublished_transitions(self):
        job = "spark-evaluate/metrics"
        with self.offset_store.writing() as connection:
            watermarks_ms = {0: NOON_MS + 9000, 1: NOON_MS + 8000}
            watermark.save(connection, job, EvaluatorState(NOON_MS, 0, watermarks_ms=watermarks_ms))
            connection.execute(alarm_outbox.insert().values(key="a", message_id=b"id", value=b"{}"))
        _, status = job_statuses(self.configuration(), SetClock(self.now_ms))
        gauges = status.evaluation
        self.assertEqual(("evaluate", NOON_MS, 1), (status.job, gauges.evaluated_to_ms, status.due))
        evaluation = status_row(status)[-2]
        self.assertEqual(
            [
                "evaluated up to 2026-01-01T12:00:00.000+00:00",
                "watermark 2026-01-01T12:00:08.000+00:00 of partition 1",
                "0 OK, 0 UNDETERMINED, 0 ALARM",
            ],
            evaluation.human_readable().splitlines(),
        )
        self.assertEqual(NOON_MS, evaluation.machine_readable()["evaluated_to_ms"])

    def test_the_status_omits_evaluate_without_an_evaluator(self):
        self.assertEqual(["aggregate"], [each.job for each in job_statuses(self.configuration())])


class ActivityTest(JobStatusCase):
    """The state of a job, and its last batch."""

    def setUp(self):
        super().setUp()
        self.clock = SetClock(NOON_MS)
        self.source = Source("spark-aggregate", "metrics", None)

    def heartbeat(self, interval_seconds=3600.0):
        return heartbeat(self.url, [("spark-aggregate", "metrics")], self.clock, interval_seconds)

    def state(self):
        status = self.status()
        found = status.activity
        return (status.state, None, None) if found is None else (status.state, found.started_ms, found.seen_ms)

    def test_before_the_first_start_the_state_of_a_job_is_unknown(self):
        self.assertEqual((JobState.UNKNOWN, None, None), self.state())

    def test_a_job_is_running_from_its_start_to_its_end(self):
        with self.heartbeat():
            self.assertEqual((JobState.RUNNING, NOON_MS, NOON_MS), self.state())
            self.clock.now_ms += 5000
        self.now_ms += 3_600_000
        self.assertEqual((JobState.STOPPED, NOON_MS, NOON_MS + 5000), self.state())

    def test_a_job_without_recent_heartbeats_is_silent(self):
        with self.heartbeat():
            self.now_ms += 60_000
            self.assertEqual(JobState.RUNNING, self.status().state)
            self.now_ms += 1
            self.assertEqual(JobState.SILENT, self.status().state)

    def test_a_running_job_sends_heartbeats_repeatedly(self):
        reported = threading.Event()
        with self.heartbeat(interval_seconds=0.001):
            self.clock.asked = lambda times: times > 3 and reported.set()
            self.assertTrue(reported.wait(60))

    def test_a_process_that_ends_does_not_hide_a_running_one(self):
        reported = threading.Event()
        with self.heartbeat(interval_seconds=0.001):
            with self.heartbeat():
                pass
            ended_at = self.clock.times
            self.clock.asked = lambda times: times > ended_at + 1 and reported.set()
            self.assertTrue(reported.wait(60))
            self.assertEqual(JobState.RUNNING, self.status().state)

    def test_an_unavailable_database_does_not_end_the_job(self):
        with heartbeat("sqlite:////nowhere/x.sqlite", [("g", "t")], self.clock):
            pass

    def test_a_stored_batch_is_reported_as_the_last_and_the_job_as_running(self):
        for offsets in (10, 7):
            batch = LastBatch(NOON_MS + offsets, 2.5, offsets, 6)
            with self.offset_store.writing() as connection:
                activity.note_batch(connection, self.source, batch)
            status = self.status()
            self.assertEqual((batch, JobState.RUNNING), (status.activity.last_batch, status.state))
        with self.heartbeat():
            self.assertEqual(batch, self.status().activity.last_batch)

    def test_a_rolled_back_batch_is_not_reported(self):
        with contextlib.suppress(ZeroDivisionError), self.offset_store.writing() as connection:
            activity.note_batch(connection, self.source, LastBatch(NOON_MS, 2.5, 10, 6))
            raise ZeroDivisionError
        self.assertIsNone(self.status().activity)
