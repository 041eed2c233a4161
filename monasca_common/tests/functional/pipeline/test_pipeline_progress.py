# SPDX-License-Identifier: Apache-2.0
"""What Prometheus finds while a job that comes to an end is running."""

import urllib.request

import fixtures
from oslo_config import cfg

from monasca_common.devbroker import ports
from monasca_common.pipeline.backfill import job
from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher
from monasca_common.tests.functional.pipeline.pipeline_case import NOON_MS, SharedSpark, cpu
from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS


class BackfillProgressTest(PipelineProcessCase):
    database = "sqlite"

    def test_a_backfill_tells_how_far_it_is_under_the_names_of_the_other_jobs(self):
        self.send(*(cpu(number, 1) for number in range(20)))
        self.job(max_offsets_per_trigger=20).step()
        (port,) = ports.free_ports(1)
        with self.configuration.open("a") as file:
            file.write(f"max_offsets_per_trigger = 10\n[pipeline_backfill]\nstatus_port = {port}\n")
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(self.configuration)])
        spark = self.useFixture(SharedSpark()).session
        self.useFixture(fixtures.MockPatchObject(job, "open_session", lambda *_: spark))
        self.useFixture(fixtures.MockPatchObject(job, "close_session"))
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
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    prefix, label = "monasca_pipeline_", '{job="backfill"'
    return {
        name.removeprefix(prefix).replace(label, "").removesuffix("}"): float(value)
        for name, _, value in samples
        if label in name
    }
