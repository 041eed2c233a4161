# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on a standalone cluster of two workers, one of which loses its executor.

`SubmitTest` is a shorter version on this machine.
"""

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import fixtures
import psutil
import pyspark

from monasca_common.devbroker import ports
from monasca_common.devbroker.java import find_java
from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS
from monasca_common.tests.web import fetch

HOST = "127.0.0.1"
_DEPLOY = "org.apache.spark.deploy"
_WORKERS = 2


class SparkCluster(fixtures.Fixture):
    """``master``: the URL of the master. The cluster ends with the test, or with the process that started it."""

    def _setUp(self):
        home = Path(pyspark.__file__).parent
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        port, self._looking, *webs = ports.free_ports(2 + _WORKERS)
        self.master = f"spark://{HOST}:{port}"
        supervisor = Supervisor(remove=[folder])
        self.addCleanup(supervisor.close)
        # Without this variable, executors are started with the jars of another Scala version, and fail.
        environment = ["env", "SPARK_SCALA_VERSION=2.13", f"SPARK_HOME={home}"]
        java = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{home}/jars/*"]
        start = [*environment, *java]
        master = [f"{_DEPLOY}.master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(self._looking)]
        supervisor.start([*start, *master], log=folder / "master.log")
        for number, web in enumerate(webs):
            worker = [f"{_DEPLOY}.worker.Worker", "--host", HOST, "--cores", "1", "--memory", "1g"]
            where = ["--webui-port", str(web), "--work-dir", str(folder / f"worker-{number}"), self.master]
            supervisor.start([*start, *worker, *where], log=folder / f"worker-{number}.log")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.state().get("aliveworkers") != _WORKERS:
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
                raise AssertionError(f"Spark's workers do not register:\n{logs}")
            time.sleep(0.2)

    def state(self):
        """Return the state reported by the master, or an empty dictionary while the master does not respond."""
        try:
            status, text = fetch(f"http://{HOST}:{self._looking}/json/")
        except OSError:
            return {}
        return json.loads(text) if status == 200 else {}


def cluster_options():
    """Return lines for ``[spark]``: small executors, and the address of the driver for them."""
    return "\n".join(
        f"options = {option}"
        for option in (
            f"spark.driver.host={HOST}",
            f"spark.driver.bindAddress={HOST}",
            "spark.executor.memory=512m",
            "spark.executor.cores=1",
            f"spark.executorEnv.PATH={os.environ['PATH']}",
        )
    )


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
        self.configure(cluster_options(), one_task_offsets=0)

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
