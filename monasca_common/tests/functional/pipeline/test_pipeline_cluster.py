# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a standalone cluster of two workers, one of which loses its executor.

`SubmitTest` is a shorter version on this machine.
"""

import contextlib
import tempfile
from pathlib import Path

import fixtures
import psutil

from monasca_common.tests.functional.pipeline import spark_cluster
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.functional.pipeline.spark_cluster import SparkCluster
from monasca_common.tests.periodic import periodic


class ClusterTests:
    """Tests of the job on any cluster. A mixin; ``assert_ended``: checks the cluster's view after a run."""

    # Rule 28
    def test_records_staged_by_a_killed_executor_count_once(self):
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(0, self.start("--once").wait(SECONDS))
        self.assertEqual([], list(self.deaths.iterdir()))
        self.assert_clean()
        self.assert_ended()
        # The rows that the killed executor had staged are lost, too.
        self.assertEqual([0], self.scalars("SELECT count(*) FROM aggregate_staging"))

    def test_sigterm_ends_the_job_cleanly(self):
        self.send_some()
        process = self.start()
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertIn("offsets done, 0 left", self.log.read_text())
        self.assert_ended()
        self.assert_clean()


@periodic("SubmitTest submits the job to Spark on one machine, and CrashTest kills tasks that have staged partials")
class ClusterTest(ClusterTests, PipelineProcessCase):
    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SparkCluster())
        self.master = self.spark.master
        self.configure(spark_cluster.options(), one_task_offsets=0)

    def assert_ended(self):
        self.wait_until(lambda: self.masters_view() == (2, 1), self.masters_view)

    def masters_view(self):
        """Return the numbers of live workers and of ended applications, which the master updates with a delay."""
        state = self.spark.state()
        return state.get("aliveworkers"), len(state.get("completedapps", ()))


SECRET = "plantedspark"


@periodic("test_session verifies how Java is started, and EndToEndTest runs the same jobs")
class SubmitTest(PipelineProcessCase):
    database = "sqlite"

    def test_the_job_counts_once_shows_no_secret_and_removes_its_folder(self):
        self.configure(f"options = spark.hadoop.fs.s3a.secret.key={SECRET}")
        self.send_some()
        temporary = self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path
        with fixtures.EnvironmentVariable("TMPDIR", temporary):
            process = self.start()
        self.wait_until(self.is_through, seconds=SECONDS)
        shown = self.shown_by(process)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))

        self.assertIn("offsets done, 0 left", self.log.read_text())
        self.assert_clean()
        self.assertIn("java", " ".join(shown))
        self.assertNotIn(SECRET, " ".join(shown))
        self.assertEqual([], list(Path(temporary).glob("monasca-spark-*")))

    def shown_by(self, process):
        """Return the command lines and environments of the process and its descendants."""
        shown = []
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{each.pid}/{name}").read_bytes()
                    shown.append(text.decode(errors="replace"))
        return shown
