# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the job on SQLite, where its driver stages as well as merges, where that makes a difference; all points
are in `test_pipeline_crash`."""

import signal

from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase

POINTS = (
    "pipeline.after_staging",
    "pipeline.inside_transaction",
    "pipeline.before_clearing",
)


class SqliteCrashTest(PipelineProcessCase):
    database = "sqlite"

    def test_killed_at_one_step_after_the_other_it_counts_and_publishes_everything_once(self):
        for point in POINTS:
            self.send_some(20)
            self.assertEqual(-signal.SIGKILL, self.run_once(fail_points=f"{point}=kill"), point)
        self.send_some(20)
        self.assertEqual(0, self.run_once())
        self.assert_clean()
