# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a standalone cluster of two workers, whose driver and executors are killed repeatedly.

``MONASCA_STRESS_PIPELINE_KILLS``: the number of kills, 20 by default. ``MONASCA_STRESS_SEED`` repeats the random
choices, but not their exact timing.
"""

import contextlib
import os
import random
import subprocess

from testtools.content import text_content

from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase
from monasca_common.tests.functional.pipeline.test_pipeline_cluster import SparkCluster, cluster_options
from monasca_common.tests.functional.processes import kill_group

KILLS = int(os.environ.get("MONASCA_STRESS_PIPELINE_KILLS", "20"))
SEED = os.environ.get("MONASCA_STRESS_SEED") or str(random.randrange(10**9))
# A driver takes some seconds to start; then a batch takes one or two seconds.
LONGEST_LIFE_SECONDS = 40.0
POINTS = (
    "pipeline.before_staging",
    "pipeline.after_staging",
    "pipeline.inside_transaction",
    "pipeline.after_commit",
    "pipeline.before_publishing",
    "pipeline.before_clearing",
)


class KillsTest(PipelineProcessCase):
    def setUp(self):
        super().setUp()
        self.chance = random.Random(SEED)
        self.master = self.useFixture(SparkCluster()).master
        # The application continues however many executors are killed.
        self.configure(f"{cluster_options()}\noptions = spark.deploy.maxExecutorRetries=-1")

    # Rule 28
    def test_after_kills_of_drivers_and_executors_everything_is_counted_and_published_once(self):
        self.addDetail("seed", text_content(SEED))
        deaths = {"executor": self.kill_an_executor, "driver": self.kill_the_driver, "point": self.kill_at_a_point}
        for _ in range(KILLS):
            self.send_some(200)
            deaths[self.chance.choice(sorted(deaths))]()
        self.send_some()
        self.assertEqual(0, self.run_once())
        self.assert_clean()

    def kill_an_executor(self):
        """Kill an executor after it has staged rows and before it has reported them; another executor repeats its
        work."""
        (self.deaths / "executor").touch()
        self.assertEqual(0, self.run_once())

    def kill_the_driver(self):
        """Kill the driver and its JVM at any point."""
        process = self.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.chance.uniform(0, LONGEST_LIFE_SECONDS))
        kill_group(process)
        process.wait()

    def kill_at_a_point(self):
        point = self.chance.choice(POINTS)
        self.assertEqual(-9, self.run_once(fail_points=f"{point}=kill"), point)
