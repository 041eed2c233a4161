# SPDX-License-Identifier: Apache-2.0
"""The session of a job of a user; the functional test of the same example has the frames on Spark."""

import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.pipeline.errors import SparkUnavailable

EXAMPLES = Path(__file__).parents[4] / "examples"


class SessionTest(base.BaseTestCase):
    def test_the_example_does_not_run_on_another_master_than_the_configured_one(self):
        opened = []

        def open_session(settings, name):
            opened.append((settings.master, name))
            raise SparkUnavailable("the master does not answer")

        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "a.conf").write_text("[spark]\nmaster = spark://192.0.2.1:7077\n")
        arguments = ["own_spark_job.py", "--config-file", str(folder / "a.conf"), "/source", "/target"]
        for name, value in (
            ("monasca_common.pipeline.dataframes.open_session", open_session),
            ("sys.argv", arguments),
            ("sys.path", [str(EXAMPLES), *sys.path]),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        import own_spark_job

        self.assertRaises(SparkUnavailable, own_spark_job.main)
        self.assertEqual([("spark://192.0.2.1:7077", "latencies")], opened)
