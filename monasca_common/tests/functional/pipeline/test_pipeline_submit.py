# SPDX-License-Identifier: Apache-2.0
"""The job aggregate, submitted to Spark on this machine: a shorter version of `test_pipeline_cluster` and
`test_secrets`."""

import contextlib
import tempfile
from pathlib import Path

import fixtures
import psutil

from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.periodic import periodic

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
