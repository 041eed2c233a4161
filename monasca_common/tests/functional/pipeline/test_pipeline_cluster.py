# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a standalone cluster of two workers, of which one loses its executor on the way."""

from monasca_common.tests.functional.pipeline import spark_cluster
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.functional.pipeline.spark_cluster import SparkCluster
from monasca_common.tests.periodic import periodic


@periodic("SubmitTest submits the job to Spark on one machine, and CrashTest kills what has staged")
class ClusterTest(PipelineProcessCase):
    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SparkCluster())
        self.master = self.spark.master
        self.configure(spark_cluster.options(), one_task_offsets=0)

    # Rule 28
    def test_submitted_it_counts_once_what_an_executor_had_staged_that_was_killed(self):
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(0, self.start("--once").wait(SECONDS))
        self.assertEqual([], list(self.deaths.iterdir()))
        self.assert_clean()
        self.wait_until(lambda: self.masters_view() == (2, 1), self.masters_view)
        # What the dead one had staged is not there any more, either.
        self.assertEqual([0], self.scalars("SELECT count(*) FROM aggregate_staging"))

    def test_submitted_it_ends_in_order_when_it_is_told_to(self):
        self.send_some()
        process = self.start()
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertIn("offsets done, 0 left", self.log.read_text())
        self.wait_until(lambda: self.masters_view() == (2, 1), self.masters_view)
        self.assert_clean()

    def masters_view(self):
        """How many workers are alive, and how many applications have ended: it learns of an end by and by."""
        state = self.spark.state()
        return state.get("aliveworkers"), len(state.get("completedapps", ()))
