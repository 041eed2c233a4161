# SPDX-License-Identifier: Apache-2.0
"""The Java and the jars of a cluster. ``tests/unit/jars`` tests the fetching of jars."""

import os
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.errors import InvalidCluster, JarsUnavailable, JavaNotFound
from monasca_common.devbroker.jars import JARS_VARIABLE, KAFKA_VERSION, VERSION_VARIABLE, kafka_jars, kafka_version
from monasca_common.devbroker.java import find_java, parse_version
from monasca_common.jars import JarError

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)\n'


class TestParseVersion(base.BaseTestCase):
    def test_versions_in_the_formats_of_vendors_are_parsed(self):
        for text, version in (
            (OPENJDK_17, 17),
            ('java version "1.8.0_402"', 8),
            ('openjdk version "21" 2023-09-19', 21),
            ('openjdk version "25-ea" 2025-09-16', 25),
            ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ):
            self.assertEqual(version, parse_version(text))

    def test_other_output_has_no_version(self):
        self.assertIsNone(parse_version("The operation couldn't be completed. Unable to locate a Java Runtime."))


class TestFindJava(base.BaseTestCase):
    def java(self, text, status=0):
        """Return a folder with a program ``java`` that prints ``text``."""
        folder = Path(self.useFixture(fixtures.TempDir()).path, "bin")
        folder.mkdir()
        program = folder / "java"
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {status}\n")
        program.chmod(0o755)
        return folder

    def environment(self, folder, **more):
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}

    def test_java_on_the_path_is_found(self):
        folder = self.java(OPENJDK_17)
        self.assertEqual(str(folder / "java"), find_java(self.environment(folder)))

    def test_java_home_comes_before_the_path(self):
        home = self.java('openjdk version "21"').parent
        found = find_java(self.environment(self.java(OPENJDK_17), JAVA_HOME=str(home)))
        self.assertEqual(str(home / "bin" / "java"), found)

    def test_an_old_java_is_refused_with_the_remedy(self):
        folder = self.java('openjdk version "11.0.2"')
        refusal = self.assertRaises(JavaNotFound, find_java, self.environment(folder))
        for part in ("Java 11", "17 or newer", "openjdk-17-jre-headless", str(folder)):
            self.assertIn(part, str(refusal))

    def test_a_missing_java_is_reported_with_the_remedy(self):
        empty = self.useFixture(fixtures.TempDir()).path
        self.assertIn("apt-get install", str(self.assertRaises(JavaNotFound, find_java, {"PATH": empty})))

    def test_the_error_names_a_java_home_without_java(self):
        empty = self.useFixture(fixtures.TempDir()).path
        refusal = self.assertRaises(JavaNotFound, find_java, self.environment(empty, JAVA_HOME=empty))
        self.assertIn(f"JAVA_HOME is {empty!r}", str(refusal))

    def test_a_program_without_a_version_is_refused(self):
        folder = self.java("Unable to locate a Java Runtime.", status=1)
        self.assertRaises(JavaNotFound, find_java, self.environment(folder))


MAIN_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"


class TestKafkaJars(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.jars.fetched", self.fetched))

    def fetched(self, jar_list, environ):
        return self.folder / jar_list.stem

    def test_the_folder_has_the_jars_of_the_version(self):
        self.assertEqual(self.folder / f"kafka-{KAFKA_VERSION}", kafka_jars({}))
        self.assertEqual(self.folder / "kafka-3.9.2", kafka_jars({VERSION_VARIABLE: "3.9.2"}))

    def test_a_failed_fetch_raises_jars_unavailable(self):
        def fail(*_):
            raise JarError("the repository does not respond")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.jars.fetched", fail))
        self.assertIn("does not respond", str(self.assertRaises(JarsUnavailable, kafka_jars, {})))

    def test_a_version_without_pinned_digests_is_not_fetched(self):
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {VERSION_VARIABLE: "3.9.1"}))

        for part in ("Kafka 3.9.1", JARS_VARIABLE, VERSION_VARIABLE):
            self.assertIn(part, refusal)

    def test_a_configured_folder_is_used(self):
        (self.folder / MAIN_JAR).touch()
        self.assertEqual(self.folder, kafka_jars({JARS_VARIABLE: str(self.folder)}))

    def test_a_configured_folder_without_that_version_is_refused_with_the_remedy(self):
        (self.folder / "kafka_2.13-3.9.2.jar").touch()
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {JARS_VARIABLE: str(self.folder)}))
        for part in (JARS_VARIABLE, MAIN_JAR, "unset the variable"):
            self.assertIn(part, refusal)

    def test_an_invalid_version_is_refused_with_the_remedy(self):
        for wrong in ("3.9", "newest", "../etc", "4.3.0-rc1"):
            refusal = str(self.assertRaises(InvalidCluster, kafka_version, {VERSION_VARIABLE: wrong}))
            for part in (VERSION_VARIABLE, wrong, KAFKA_VERSION):
                self.assertIn(part, refusal)
