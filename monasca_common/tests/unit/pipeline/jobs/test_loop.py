# SPDX-License-Identifier: Apache-2.0
import logging
import threading
from types import SimpleNamespace
from unittest import mock

import fixtures
from oslotest import base
from testtools.matchers import EndsWith

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.testing import MemoryRegistry, VirtualClock
from monasca_common.models import avro
from monasca_common.pipeline.errors import Fenced, NotPublished, RecordsLost, SparkUnavailable, StagingLost
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import UNDELIVERED, JobProgress, JobRequest, JobWatcher
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeWriter
from monasca_common.storage.errors import StorageUnavailable


class LoopTest(base.BaseTestCase):
    """``self.stop`` records the time-outs of its waits, and does not wait."""

    def setUp(self):
        super().setUp()
        self.rests, self.reported = [], []
        self.stop = threading.Event()
        self.stop.wait = self.rests.append
        self.is_stopped = False
        spark_context = SimpleNamespace(isStopped=lambda: self.is_stopped)
        self.spark = mock.Mock()
        self.spark.sparkContext._jsc.sc.return_value = spark_context

    def run_through(self, *outcomes, once=True):
        """Each outcome is a report, or an error that a step raises."""
        left = list(outcomes)

        def step():
            outcome = left.pop(0)
            if not left and not once:
                self.stop.set()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        progress = loop.run(step, self.spark, 10.0, JobRequest(once=once), JobWatcher(self.stop, self.reported.append))
        self.assertEqual([], left)
        return progress

    def test_once_ends_when_nothing_is_left_and_adds_up_the_results(self):
        progress = self.run_through(
            JobProgress(5, 7, results={"records": 4}), JobProgress(7, 0, results={"records": 6})
        )
        self.assertEqual((12, 0, {"records": 10}), (progress.done, progress.left, progress.results))
        self.assertEqual([7, 0], [each.left for each in self.reported])

    def test_progress_has_the_stages_and_lags_of_the_last_batch(self):
        first, last = PartitionLag("metrics", 0, 9.0), PartitionLag("metrics", 0, 2.0)
        self.run_through(
            JobProgress(1, 1, stage_seconds={"merge": 1.0}, lags=(first,)),
            JobProgress(1, 0, stage_seconds={"merge": 2.0}, lags=(last,)),
        )
        self.assertEqual([{"merge": 1.0}, {"merge": 2.0}], [each.stage_seconds for each in self.reported])
        self.assertEqual([(first,), (last,)], [each.lags for each in self.reported])

    def test_each_consecutive_retriable_error_waits_longer(self):
        self.run_through(
            StorageUnavailable("unavailable"), StagingLost("gone"), StorageUnavailable("unavailable"), JobProgress()
        )
        self.assertEqual([0.5, 1.0, 2.0], self.rests)

    def test_six_consecutive_failures_end_a_run_with_once(self):
        error = StorageUnavailable("unavailable")
        self.assertIs(error, self.assertRaises(StorageUnavailable, self.run_through, *[error] * 6))
        self.run_through(*[error] * 5, JobProgress(1, 1), *[error] * 5, JobProgress())

    def test_once_does_not_end_before_an_unknown_schema_is_rejected(self):
        clock = VirtualClock()
        client = "monasca_common.kafka.serialization.registry_client.SystemClock"
        self.useFixture(fixtures.MonkeyPatch(client, lambda: clock))
        self.stop.wait = clock.advance
        settings = SchemaRegistrySettings(url=self.useFixture(MemoryRegistry()).url, auto_register=True)
        EnvelopeWriter(settings, avro.METRICS, "metrics").values([])
        reader = EnvelopeReader(settings)

        def step():
            _, errors = reader.as_json([b"\0corrupt"])
            return JobProgress(len(errors))

        found = loop.run(step, self.spark, 10.0, JobRequest(once=True), JobWatcher(self.stop))
        self.assertEqual(1, found.done)

    def test_a_run_without_once_retries_indefinitely(self):
        self.assertEqual(
            3, self.run_through(*[StorageUnavailable("unavailable")] * 20, JobProgress(3), once=False).done
        )

    def test_a_stopped_spark_ends_the_job(self):
        self.is_stopped = True
        self.assertRaises(SparkUnavailable, self.run_through, StorageUnavailable("x"), once=False)

    def test_a_dead_spark_ends_the_job_with_a_remedy(self):
        self.spark.sparkContext._jsc.sc.side_effect = ConnectionRefusedError(111, "Connection refused")
        error = self.assertRaises(SparkUnavailable, self.run_through, ConnectionRefusedError("gone"), once=False)
        self.assertEqual("Spark has ended during the job; start the job again: gone", str(error))

    def test_another_error_ends_the_job_immediately(self):
        self.assertRaises(RecordsLost, self.run_through, RecordsLost("gone"), once=False)

    def test_a_job_continues_after_any_number_of_fences(self):
        self.assertEqual(1, self.run_through(*[Fenced("t", 0, 1, 2)] * 9, JobProgress(1)).done)

    def test_once_does_not_end_before_all_messages_are_acknowledged(self):
        left = JobProgress(5, 0, results={UNDELIVERED: 2})
        self.assertEqual(5, self.run_through(left, JobProgress()).done)
        self.assertRaises(NotPublished, self.run_through, *[left] * 6)

    def test_the_trace_of_java_is_logged_at_debug_only(self):
        from pyspark.errors import PySparkException

        logged = self.useFixture(fixtures.FakeLogger(level=logging.DEBUG, format="%(levelname)s %(message)s"))
        error = PySparkException("Job aborted\n\tat a.b\nCaused by: java.io.IOException: no space left\n\tat c.d")
        self.run_through(error, JobProgress())
        debug, line = logged.output.split("ERROR ")
        self.assertEqual(5, len(debug.splitlines()))
        self.assertThat(line, EndsWith(" s: java.io.IOException: no space left\n"))
