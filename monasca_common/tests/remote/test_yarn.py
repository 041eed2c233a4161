# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on YARN, in two containers, one of which loses its executor."""

import fixtures

from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.remote import yarn


class YarnTest(PipelineProcessCase):
    master = "yarn"

    def setUp(self):
        super().setUp()
        self.yarn = yarn.shared_cluster()
        self.useFixture(fixtures.EnvironmentVariable("HADOOP_CONF_DIR", str(self.yarn.configuration)))
        self.configure(yarn.options(self.yarn))

    def test_records_staged_by_a_killed_executor_count_once(self):
        before = self.yarn.applications()
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(0, self.start("--once").wait(SECONDS))
        self.assertEqual([], list(self.deaths.iterdir()))
        self.assert_clean()
        [name] = self.yarn.applications().keys() - before.keys()
        self.wait_until(lambda: self.yarn.applications()[name] == "FINISHED", self.yarn.applications)
        self.assertEqual([0], self.scalars("SELECT count(*) FROM aggregate_staging"))

    def test_sigterm_ends_the_job_in_order(self):
        self.send_some()
        process = self.start()
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertIn("offsets done, 0 left", self.log.read_text())
        self.assert_clean()
