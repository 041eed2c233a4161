# SPDX-License-Identifier: Apache-2.0
"""Which jars a session may use; ``tests/functional/pipeline/test_pipeline_sessions.py`` has Spark fetch them."""

import hashlib
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.digests import read_digests
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import jars

SHIPPED = "4.0.0"
CLIENTS = "org.apache.kafka_kafka-clients-3.9.0.jar"


class JarsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger())

    def jar(self, name, content=b"something else"):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def pin(self, *jars):
        digests = self.folder / "digests"
        digests.write_text("".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars))
        return str(digests)

    def refusal(self, fetched, settings, version=SHIPPED):
        return str(self.assertRaises(SparkUnavailable, jars.check_jars, fetched, settings, version))

    def test_the_connector_that_is_tested_is_pinned_with_what_it_needs(self):
        pinned = read_digests(jars.digest_file(SHIPPED))

        self.assertIn("org.apache.spark_spark-sql-kafka-0-10_2.13-4.0.0.jar", pinned)
        self.assertIn(CLIENTS, pinned)

    def test_a_jar_of_the_connector_that_is_another_is_refused(self):
        said = self.refusal([self.jar(CLIENTS)], SparkSettings())

        for part in (CLIENTS, hashlib.sha256(b"something else").hexdigest(), "jar_digests in group [spark]"):
            self.assertIn(part, said)

    def test_a_jar_that_the_connector_does_not_need_is_refused(self):
        self.assertIn("evil_evil-1.jar", self.refusal([self.jar("evil_evil-1.jar")], SparkSettings()))

    def test_packages_of_the_operator_are_used_with_a_warning(self):
        jars.check_jars([self.jar("org_own-1.jar")], SparkSettings(packages=("org:own:1",)), SHIPPED)

        self.assertIn("org_own-1.jar", self.log.output)

    def test_a_jar_of_the_connector_is_compared_beside_packages_of_the_operator_too(self):
        fetched = [self.jar("org_own-1.jar"), self.jar(CLIENTS)]

        said = self.refusal(fetched, SparkSettings(packages=("org:own:1",)))

        self.assertIn(CLIENTS, said)
        self.assertNotIn("org_own", said)

    def test_a_connector_of_another_version_is_used_with_a_warning(self):
        jars.check_jars([self.jar(CLIENTS)], SparkSettings(), "4.9.9")

        self.assertIn(CLIENTS, self.log.output)

    def test_the_operators_file_pins_every_jar(self):
        own, other = self.jar("org_own-1.jar"), self.jar("org_other-1.jar")
        settings = SparkSettings(packages=("org:own:1",), jar_digests=self.pin(own))

        jars.check_jars([own], settings, SHIPPED)
        said = self.refusal([own, other], settings)

        self.assertIn("org_other-1.jar", said)
        self.assertNotIn("org_own-1.jar", said)
        self.assertEqual("", self.log.output)

    def test_a_file_that_cannot_be_read_is_named(self):
        for content, part in ((None, "No such file"), ("no digest", "line 1")):
            path = self.folder / "digests"
            if content:
                path.write_text(content)
            said = self.refusal([], SparkSettings(jar_digests=str(path)))
            self.assertIn(part, said)
            self.assertIn("jar_digests in group [spark]", said)

    def test_jars_that_were_given_were_not_fetched(self):
        local = "file:/tmp/x/own.jar,file:///home/a%20b/org_fetched-1.jar"

        self.assertEqual(
            [Path("/home/a b/org_fetched-1.jar")], jars.fetched_jars(local, ["hdfs://h/lib/own.jar", "/y/other.jar"])
        )
        self.assertEqual([], jars.fetched_jars("", [""]))
