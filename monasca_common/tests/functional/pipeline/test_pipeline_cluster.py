# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a standalone cluster of two workers, of which one loses its executor on the way."""

from monasca_common.tests.functional.pipeline import spark_cluster
from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase
from monasca_common.tests.functional.pipeline.spark_cluster import SparkCluster


class ClusterTest(PipelineProcessCase):
    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SparkCluster())
        self.master = self.spark.master
        self.configure(spark_cluster.options())

    def test_submitted_it_counts_once_what_an_executor_had_staged_that_was_killed(self):
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(0, self.start("--once", verb="submit").wait(300))
        self.assertEqual([], list(self.deaths.iterdir()))
        self.assert_clean()
        state = self.spark.state()
        self.assertEqual((2, 1), (state["aliveworkers"], len(state["completedapps"])))
        # What the dead one had staged is not there any more, either.
        self.assertEqual([0], self.scalars("SELECT count(*) FROM aggregate_staging"))

    def test_submitted_it_ends_in_order_when_it_is_told_to(self):
        self.send_some()
        process = self.start(verb="submit")
        self.wait_until(self.is_through, seconds=180)
        process.terminate()
        self.assertEqual(0, process.wait(60))
        self.assertIn("offsets done, 0 left", self.log.read_text())
        self.assertEqual(1, len(self.spark.state()["completedapps"]))
        self.assert_clean()
