# SPDX-License-Identifier: Apache-2.0
"""The jars of the connector; ``tests/unit/jars`` tests how they are fetched."""

from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.jars import JarError, list_file
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.spark import jars

SHIPPED = "4.0.0"


class JarsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.installed(SHIPPED)

    def installed(self, version):
        self.useFixture(fixtures.MonkeyPatch("pyspark.__version__", version))

    def test_the_connector_of_the_installed_pyspark_is_fetched(self):
        connector = self.folder / "connector.jar"
        connector.touch()
        asked = []

        def fetched(jar_list):
            asked.append(jar_list)
            return self.folder

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.jars.fetched", fetched))

        self.assertEqual([connector], jars.connector_jars())
        self.assertEqual([list_file("spark-4.0.0")], asked)

    def test_a_connector_that_cannot_be_fetched_is_an_error_of_spark(self):
        def fail(*_):
            raise JarError("the repository does not respond")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.jars.fetched", fail))
        self.assertIn("does not respond", str(self.assertRaises(SparkUnavailable, jars.connector_jars)))

    def test_a_connector_that_is_not_pinned_is_not_fetched(self):
        self.installed("4.9.9")
        self.assertIsNone(jars.connector_jars())
