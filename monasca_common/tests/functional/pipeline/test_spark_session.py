# SPDX-License-Identifier: Apache-2.0
"""The end of a process that had a Spark session."""

import subprocess
import sys
from pathlib import Path

import fixtures
import psutil
from oslotest import base

from monasca_common.tests.periodic import periodic

_PROGRAM = """
from pyspark import SparkContext
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import session

session.open_session(SparkSettings("local[1]"), "ends")
print(SparkContext._gateway.proc.pid)
"""


@periodic("SubmitTest checks the same for a submitted job")
class SessionEndTest(base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 2  # starting Spark takes minutes on a busy machine

    def test_java_and_its_folder_are_removed_at_the_end_of_the_process(self):
        home = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable("TMPDIR", home))

        done = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, check=True)

        self.assertFalse(psutil.pid_exists(int(done.stdout)))
        self.assertEqual([], list(Path(home).glob("monasca-spark-*")))
