# SPDX-License-Identifier: Apache-2.0
"""The job aggregate on YARN, in two containers, one of which loses its executor."""

import atexit
import functools
import logging
import shutil
import tempfile
from pathlib import Path

import fixtures
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from monasca_common.devbroker.java import find_java
from monasca_common.jars import fetched
from monasca_common.tests.functional.pipeline.pipeline_process_case import PipelineProcessCase
from monasca_common.tests.functional.pipeline.test_pipeline_cluster import ClusterTests
from monasca_common.tests.remote import hadoop
from monasca_common.tests.waiting import PATIENCE_SECONDS

# Processes that outlive a test use the folder for temporary files that was set before the test.
_TEMPORARY = tempfile.gettempdir()
_HOME = Path(pyspark.__file__).parent
_LOG4J = ("log4j-1.2-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")  # the cluster needs the oldest's names
_FIFO = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
_SETTINGS = {
    "yarn.resourcemanager.scheduler.class": _FIFO,
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    # YARN treats a disk that is 90 % full as failed.
    "yarn.nodemanager.disk-health-checker.enable": "false",
}
_FILES = "<configuration><property><name>fs.defaultFS</name><value>file:///</value></property></configuration>"


class YarnCluster:
    """``configuration``: the folder for HADOOP_CONF_DIR."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="monasca-yarn-", dir=_TEMPORARY))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        options = [f"-D{name}={self.folder}/{name}" for name in ("test.build.data", "test.build.dir", "yarn.log.dir")]
        options += ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["--add-opens=java.base/java.lang=ALL-UNNAMED"]
        [py4j] = (_HOME / "jars").glob("py4j-*.jar")
        jars = [str(jar) for name in _LOG4J for jar in (_HOME / "jars").glob(name)]
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs its secret
        with (self.folder / "log").open("wb") as log:
            port, secret = launch_gateway(
                jarpath=str(py4j),
                classpath=":".join([f"{fetched(hadoop.CLUSTER_JARS)}/*", *jars]),
                javaopts=options,
                die_on_exit=True,
                redirect_stdout=log,
                redirect_stderr=log,
                java_path=find_java(),
                enable_auth=True,
                cwd=str(self.folder),
            )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))
        atexit.register(self._gateway.shutdown)
        self._cluster = self._start()
        self.configuration = self.folder / "configuration"
        self.configuration.mkdir()
        (self.configuration / "core-site.xml").write_text(_FILES)
        self._write(self.configuration / "yarn-site.xml")

    def _start(self):
        java = self._gateway.jvm
        settings = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in _SETTINGS.items():
            settings.set(name, value)
        cluster = java.org.apache.hadoop.yarn.server.MiniYARNCluster("monasca", 1, 1, 1)
        cluster.init(settings)
        cluster.start()
        if not cluster.waitForNodeManagersToConnect(int(PATIENCE_SECONDS * 1000)):
            raise RuntimeError("the node does not connect to the resource manager")
        return cluster

    def _write(self, path):
        stream = self._gateway.jvm.java.io.FileOutputStream(str(path))
        self._cluster.getConfig().writeXml(stream)
        stream.close()

    def applications(self):
        """Return the state of each application by its id: FINISHED, KILLED and so on."""
        applications = self._cluster.getResourceManager().getRMContext().getRMApps()
        return {str(identity): str(applications[identity].getState()) for identity in applications}


@functools.cache
def shared_cluster():
    """Return the cluster of this process; the first call starts it."""
    return YarnCluster()


def options(cluster):
    """Return lines for ``[spark]``: two small executors, and the folder of Spark's jars."""
    return "\n".join(
        f"options = {option}"
        for option in (
            f"spark.yarn.jars=local:{_HOME}/jars/*",
            f"spark.yarn.stagingDir=file://{cluster.folder}/staging",
            "spark.yarn.am.memory=384m",
            "spark.executor.instances=2",
            "spark.executor.memory=512m",
            "spark.executor.cores=1",
        )
    )


class YarnTest(ClusterTests, PipelineProcessCase):
    master = "yarn"

    def setUp(self):
        super().setUp()
        self.yarn = shared_cluster()
        self.useFixture(fixtures.EnvironmentVariable("HADOOP_CONF_DIR", str(self.yarn.configuration)))
        self.configure(options(self.yarn))
        self.before = self.yarn.applications()

    def assert_ended(self):
        [name] = self.yarn.applications().keys() - self.before.keys()
        self.wait_until(lambda: self.yarn.applications()[name] == "FINISHED", self.yarn.applications)
