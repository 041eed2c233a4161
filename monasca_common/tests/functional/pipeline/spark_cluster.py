# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on this machine, from the wheel: a master and two workers, each with one executor."""

import json
import os
import time
from pathlib import Path

import fixtures
import pyspark

from monasca_common.devbroker import ports
from monasca_common.devbroker.java import find_java
from monasca_common.devbroker.supervisor import Supervisor
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


def options():
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
