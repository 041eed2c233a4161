# SPDX-License-Identifier: Apache-2.0
"""The jars that a session uses; ``tests/unit/jars`` has how they are fetched."""

import hashlib
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.jars import JarError, list_file
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import jars

SHIPPED = "4.0.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SHIPPED}"


class JarsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger())
        self.installed(SHIPPED)

    def installed(self, version):
        self.useFixture(fixtures.MonkeyPatch("pyspark.__version__", version))

    def jar(self, name, content=b"something else"):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def pin(self, *jars):
        digests = self.folder / "digests"
        digests.write_text("".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars))
        return str(digests)

    def refusal(self, resolved, settings):
        return str(self.assertRaises(SparkUnavailable, jars.check_jars, resolved, settings))

    def test_the_connector_of_the_installed_pyspark_is_fetched(self):
        connector = self.jar("connector.jar")
        asked = []

        def fetched(jar_list):
            asked.append(jar_list)
            return self.folder

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.jars.fetched", fetched))

        self.assertEqual([connector], jars.connector_jars())
        self.assertEqual([list_file("spark-4.0.0")], asked)

    def test_a_connector_that_cannot_be_fetched_is_an_error_of_spark(self):
        def fail(*_):
            raise JarError("the repository does not answer")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.jars.fetched", fail))
        self.assertIn("does not answer", str(self.assertRaises(SparkUnavailable, jars.connector_jars)))

    def test_ivy_resolves_only_the_users_coordinates(self):
        self.assertEqual([], jars.packages(SparkSettings()))
        self.assertEqual(["org:own:1"], jars.packages(SparkSettings(packages=("org:own:1", CONNECTOR))))

    def test_ivy_resolves_a_connector_that_is_not_pinned(self):
        self.installed("4.9.9")

        self.assertEqual([], jars.connector_jars())
        connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.9"
        self.assertEqual([connector, "org:own:1"], jars.packages(SparkSettings(packages=("org:own:1",))))

    def test_without_pinned_digests_the_jars_of_packages_are_used_with_a_warning(self):
        jars.check_jars([self.jar("org_own-1.jar")], SparkSettings(packages=("org:own:1",)))

        self.assertIn("org_own-1.jar", self.log.output)

    def test_the_users_file_pins_every_jar(self):
        own, other = self.jar("org_own-1.jar"), self.jar("org_other-1.jar")
        settings = SparkSettings(packages=("org:own:1",), jar_digests=self.pin(own))

        jars.check_jars([own], settings)
        refusal = self.refusal([own, other], settings)

        self.assertIn("org_other-1.jar", refusal)
        self.assertNotIn("org_own-1.jar", refusal)
        self.assertEqual("", self.log.output)

    def test_a_file_that_cannot_be_read_is_named(self):
        for content, part in ((None, "No such file"), ("no digest", "line 1")):
            path = self.folder / "digests"
            if content:
                path.write_text(content)
            refusal = self.refusal([], SparkSettings(jar_digests=str(path)))
            self.assertIn(part, refusal)
            self.assertIn("jar_digests in group [spark]", refusal)

    def test_the_jars_of_packages_are_neither_given_nor_the_connectors(self):
        local = "file:/tmp/x/own.jar,file:/cache/kafka-clients-3.9.0.jar,file:///home/a%20b/org_fetched-1.jar"
        settings = SparkSettings(jars=("hdfs://h/lib/own.jar", "/y/other.jar"))

        self.assertEqual([Path("/home/a b/org_fetched-1.jar")], jars.resolved_jars(local, settings))
        self.assertEqual([], jars.resolved_jars("", settings))
