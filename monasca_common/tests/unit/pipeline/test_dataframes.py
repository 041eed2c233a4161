# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a user's job; the functional test of the same example runs it on Spark."""

import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.pipeline.errors import SparkUnavailable

EXAMPLES = Path(__file__).parents[4] / "examples"


class SessionTest(base.BaseTestCase):
    def test_the_example_uses_only_the_configured_master(self):
        opened = []

        def open_session(settings, name):
            opened.append((settings.master, name))
            raise SparkUnavailable("the master does not respond")

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
