# SPDX-License-Identifier: Apache-2.0
"""Tests of ``pipeline status`` with SQLite and the memory broker."""

import contextlib
import threading
from pathlib import Path

from oslo_config import cfg

from monasca_common.cli.pipeline_status import status_row
from monasca_common.kafka.testing import MemoryKafka, VirtualClock
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs import activity
from monasca_common.pipeline.jobs.activity import JobState, LastBatch, heartbeat
from monasca_common.pipeline.settings import aggregate_settings
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.pipeline.status import job_statuses
from monasca_common.storage.sql.tables import alarm_outbox
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS

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
