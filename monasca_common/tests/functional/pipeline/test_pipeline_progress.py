# SPDX-License-Identifier: Apache-2.0
"""The observable progress of a batch, and the metrics of a backfill while it is running."""

import fixtures
from oslo_config import cfg

from monasca_common.devbroker import ports
from monasca_common.pipeline.backfill import job
from monasca_common.pipeline.jobs import activity
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.pipeline.spark import session
from monasca_common.tests.functional.pipeline.pipeline_case import NOON_MS, CpuCase, SharedSpark, cpu
from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase
from monasca_common.tests.web import fetch


class BatchTest(CpuCase):
    """The observable progress of a batch of ``aggregate``."""

    def setUp(self):
        super().setUp()
        self.send(*(cpu(number, 1) for number in range(10)), partition=0)
        self.send(*(cpu(number, 1) for number in range(5)), partition=1)
        self.spark = self.useFixture(SharedSpark()).session

    def test_spark_jobs_have_the_name_of_the_job_and_the_offsets(self):
        self.job(one_task_offsets=0).step()
        text = f"aggregate: {self.topic}, 15 offsets"
        self.wait_until(lambda: text in self.descriptions(), self.descriptions)

    def test_a_small_batch_needs_no_job_of_spark_and_has_the_same_result_as_a_larger_one(self):
        """A job of Spark costs as much as thousands of records."""
        self.job(one_task_offsets=15, duplicates_lookback=100).step()
        self.assertEqual([], self.tasks())
        found = self.partials()
        with self.offset_store.writing() as connection:
            connection.exec_driver_sql("DELETE FROM aggregate_usage")
            connection.exec_driver_sql("DELETE FROM kafka_offset")
        self.job(one_task_offsets=15).step()  # the published aggregates are read too
        self.wait_until(lambda: sum(self.tasks()) > self.partitions, self.tasks)
        self.assertEqual(found, self.partials())

    def test_a_batch_has_the_times_of_its_stages_and_the_lags_of_partitions_and_is_the_last_batch(self):
        report = self.job().step()  # it is 12:50
        self.assertEqual({"plan", "stage", "merge", "publish"}, set(report.stage_seconds))
        lags = [PartitionLag(self.topic, 0, 41 * 60.0), PartitionLag(self.topic, 1, 46 * 60.0)]
        self.assertEqual(lags, list(report.lags))
        with self.offset_store.reading() as connection:
            batch = activity.find(connection, Source(self.group, self.topic, None)).last_batch
        # Each of the two specifications counts each record.
        self.assertEqual((self.clock.now_ms, 15, 30), (batch.ended_ms, batch.offsets, batch.records))
        self.assertGreater(batch.seconds, 0)

    def partials(self):
        with self.offset_store.reading() as connection:
            return connection.exec_driver_sql("SELECT * FROM aggregate_usage ORDER BY 1, 2, 3, 4").all()

    def tasks(self):
        """Return the number of tasks of each Spark job for this topic."""
        prefix = f"aggregate: {self.topic},"
        return [job.numTasks() for text, job in self.jobs() if text.startswith(prefix)]

    def descriptions(self):
        return {text for text, _ in self.jobs()}

    def jobs(self):
        """Return the jobs that Spark remembers, by description."""
        found = self.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        jobs = [found.apply(number) for number in range(found.size())]
        return [(job.description().get(), job) for job in jobs if job.description().isDefined()]


class BackfillProgressTest(PipelineProcessCase):
    database = "sqlite"

    def test_a_backfill_has_the_progress_metrics_of_other_jobs(self):
        self.send(*(cpu(number, 1) for number in range(20)))
        self.job(max_offsets_per_trigger=20).step()
        (port,) = ports.free_ports(1)
        with self.configuration.open("a") as file:
            file.write(f"max_offsets_per_trigger = 10\n[pipeline_backfill]\nstatus_port = {port}\n")
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(self.configuration)])
        spark = self.useFixture(SharedSpark()).session
        self.useFixture(fixtures.MockPatchObject(session, "open_session", lambda *_: spark))
        self.useFixture(fixtures.MockPatchObject(session, "close_session"))
        scraped = []
        watcher = JobWatcher(tell=lambda _: scraped.append(_scraped(port)))

        done = job.BackfillJob(conf).run(JobRequest(from_ms=NOON_MS, to_ms=NOON_MS + 3_600_000), watcher)

        half, whole, end = scraped
        self.assertEqual([10, 20, 20], [each["offsets_total"] for each in scraped])
        self.assertEqual([10, 0, 0], [each["behind_offsets"] for each in scraped])
        self.assertGreater(half["batch_seconds_sum"], 0)
        self.assertGreaterEqual(whole["last_batch_time_seconds"], half["last_batch_time_seconds"])
        self.assertEqual(done.results["records"], end['results_total,what="records"'])


def _scraped(port):
    lines = fetch(f"http://127.0.0.1:{port}/metrics")[1].splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    prefix, label = "monasca_pipeline_", '{job="backfill"'
    return {
        name.removeprefix(prefix).replace(label, "").removesuffix("}"): float(value)
        for name, _, value in samples
        if label in name
    }
