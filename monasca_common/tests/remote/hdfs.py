# SPDX-License-Identifier: Apache-2.0
"""HDFS with one data node, in a process of its own, for the tests of this process; and the archive in it."""

import atexit
import functools
import shutil
import subprocess
import tempfile
import time
import uuid
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from monasca_common.devbroker.java import find_java
from monasca_common.pipeline.archive.store import Store
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS
from monasca_common.tests.remote import hadoop
from monasca_common.tests.remote.remote_archive import RemoteArchive

# What outlives a test takes the folder for temporary files from before it.
_TEMPORARY = tempfile.gettempdir()
_JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


class HdfsCluster:
    def __init__(self):
        folder = Path(tempfile.mkdtemp(prefix="monasca-hdfs-", dir=_TEMPORARY))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        configuration = folder / "hdfs.xml"
        command = [find_java().path, *_JAVA, f"-Dtest.build.data={folder}/data", "-cp", f"{hadoop.cluster_jars()}/*"]
        command += [_MAIN, "-nomr", "-format", "-writeConfig", str(configuration)]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        atexit.register(self._stop)
        deadline = time.monotonic() + PATIENCE_SECONDS
        # It is written when all have started, and not at once.
        while not (configuration.exists() and configuration.read_text().rstrip().endswith("</configuration>")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"HDFS does not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        self.url = _property(configuration, "fs.defaultFS")

    def _stop(self):
        self._process.kill()
        self._process.wait()


def _property(configuration, name):
    [value] = [
        each.findtext("value") for each in ElementTree.parse(configuration).getroot() if each.findtext("name") == name
    ]
    return value


@functools.cache
def shared_cluster():
    """The cluster of this process; the first call starts it."""
    return HdfsCluster()


class HdfsArchive(RemoteArchive):
    def setUp(self):
        self.hdfs = shared_cluster()
        super().setUp()

    def new_location(self):
        return f"{self.hdfs.url}/{uuid.uuid4().hex}/archive"

    def all_files(self):
        store = Store(self.location)
        found, folders = [], [""]
        while folders:
            prefix = folders.pop()
            found += [f"{prefix}{name}" for name in store.files(prefix)]
            folders += [f"{prefix}{name}/" for name in store.folders(prefix)]
        return sorted(found)
