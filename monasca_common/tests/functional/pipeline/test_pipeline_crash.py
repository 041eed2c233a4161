# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the job at each of its fail points: whoever comes next makes the same of it as if nothing had been.

The mutants that this must not pass are in `test_pipeline_stream`: no fence, no key, an outbox that is cleared first.
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
    """One death after the other, each with new records to count, and only then somebody who lives."""

    def die_at(self, *points):
        for point in points:
            self.send_some()
            self.assertEqual(-signal.SIGKILL, self.run_once(fail_points=f"{point}=kill", is_attached=True), point)
        self.send_some()

    # Rule 28
    def test_killed_before_it_has_committed_it_counts_and_publishes_everything_once(self):
        self.configure(one_task_offsets=0)  # executors compute; in the next test the driver does at first
        self.die_at("pipeline.before_staging", "pipeline.after_staging", "pipeline.inside_transaction")
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    # Rule 28
    def test_killed_after_it_has_committed_it_counts_and_publishes_everything_once(self):
        self.die_at("pipeline.after_commit", "pipeline.before_publishing", "pipeline.before_clearing")
        # A task dies that has staged its rows, and they count no second time; and it ends in order when it is told to.
        self.configure(one_task_offsets=0)
        deaths = self.useFixture(SharedSpark()).deaths
        (deaths / "worker").touch()
        process = self.start(is_attached=True)
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertEqual([], list(deaths.iterdir()))
        self.assert_clean()
        told = self.status()
        self.assertEqual((0, 0), (told["behind"], told["due"]))

    @periodic("test_loop verifies that a job ends if Spark has died")
    def test_a_job_whose_spark_is_killed_ends_and_the_next_one_counts_and_publishes_everything_once(self):
        self.configure(one_task_offsets=0)
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(1, self.run_once())
        told = self.log.read_text().splitlines()[-1]
        self.assertThat(told, StartsWith("monasca-common pipeline run: Spark has ended during the job; start"))
        self.send_some()
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    def status(self):
        command = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "status", "-f", "json"]
        told = subprocess.run(
            [*command, "--config-file", str(self.configuration)], capture_output=True, check=True, timeout=SECONDS
        )
        return next(each for each in json.loads(told.stdout) if each["job"] == "aggregate")
