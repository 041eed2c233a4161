# SPDX-License-Identifier: Apache-2.0
import importlib.metadata

import fixtures
from oslotest import base

from monasca_common.cli import jars
from monasca_common.devbroker.jars import VERSION_VARIABLE
from monasca_common.tests.command import run_main


class JarsFetchTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fetched = self.useFixture(fixtures.MockPatchObject(jars, "fetched", side_effect=lambda file, _: file)).mock
        self.useFixture(fixtures.EnvironmentVariable(VERSION_VARIABLE))
        self.pyspark("4.0.0")

    def pyspark(self, version):
        self.useFixture(fixtures.MockPatchObject(importlib.metadata, "version", return_value=version))

    def listed(self, *arguments):
        """Return the exit status, the names of the fetched lists, and standard error."""
        status, _, err = run_main("jars", "fetch", *arguments)
        return status, [call.args[0].stem for call in self.fetched.call_args_list], err

    def test_the_tested_kafka_and_the_connector_of_the_installed_pyspark_are_fetched(self):
        self.assertEqual((0, ["kafka-4.3.0", "spark-4.0.0"], ""), self.listed())

    def test_the_printed_assignment_can_be_pasted_into_a_shell(self):
        _, out, _ = run_main("jars", "fetch", "--to", "/srv/my jars")
        self.assertIn("To use them: export MONASCA_COMMON_JARS='/srv/my jars'\n", out)

    def test_a_version_that_is_not_pinned_is_refused_before_anything_is_fetched(self):
        for version, part in (("4.2.0", "kafka-4.2.0 is not pinned"), ("x", VERSION_VARIABLE)):
            self.useFixture(fixtures.EnvironmentVariable(VERSION_VARIABLE, version))
            status, names, stderr = self.listed()
            self.assertEqual((1, []), (status, names), version)
            [line] = stderr.splitlines()
            self.assertIn(part, line)

    def test_an_installed_pyspark_without_a_pinned_connector_is_reported(self):
        self.pyspark("4.9.9")
        status, names, stderr = self.listed()
        self.assertEqual((1, []), (status, names))
        self.assertIn("spark-4.9.9 is not pinned: name one or more of apicurio-2.6.13.Final, kafka-3.9.2,", stderr)
