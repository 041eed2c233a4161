# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the job at each of its fail points: the next process has the same results as without the kill.

`test_pipeline_stream` has the mutants that must fail: no fence, no key, and an outbox that is cleared too early.
"""

import json
import signal
import subprocess
import sys

from testtools.matchers import StartsWith

from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.periodic import periodic


class CrashTest(PipelineProcessCase):
    """Kill several processes one after another, each after new records were published; the last process completes."""

    def die_at(self, *points):
        for point in points:
            self.send_some()
            self.assertEqual(-signal.SIGKILL, self.run_once(fail_points=f"{point}=kill", is_attached=True), point)
        self.send_some()

    # Rule 28
    def test_after_kills_before_the_commit_everything_is_counted_and_published_once(self):
        self.configure(one_task_offsets=0)  # the executors compute; in the next test the driver does at first
        self.die_at("pipeline.before_staging", "pipeline.after_staging", "pipeline.inside_transaction")
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    # Rule 28
    def test_after_kills_after_the_commit_everything_is_counted_and_published_once(self):
        self.die_at("pipeline.after_commit", "pipeline.before_publishing", "pipeline.before_clearing")
        # A worker is killed after it has staged rows, and they count once; SIGTERM ends the job in order.
        self.configure(one_task_offsets=0)
        deaths = self.useFixture(SharedSpark()).deaths
        (deaths / "worker").touch()
        process = self.start(is_attached=True)
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertEqual([], list(deaths.iterdir()))
        self.assert_clean()
        reported = self.status()
        self.assertEqual((0, 0), (reported["behind"], reported["due"]))

    @periodic("test_loop verifies that a job ends if Spark has died")
    def test_after_a_kill_of_spark_the_next_job_counts_and_publishes_everything_once(self):
        self.configure(one_task_offsets=0)
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(1, self.run_once())
        reported = self.log.read_text().splitlines()[-1]
        self.assertThat(reported, StartsWith("monasca-common pipeline run: Spark has ended during the job; start"))
        self.send_some()
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    def status(self):
        command = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "status", "-f", "json"]
        reported = subprocess.run(
            [*command, "--config-file", str(self.configuration)], capture_output=True, check=True, timeout=SECONDS
        )
        return next(each for each in json.loads(reported.stdout) if each["job"] == "aggregate")
