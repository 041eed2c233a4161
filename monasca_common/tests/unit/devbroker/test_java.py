# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.errors import JavaNotFound, JavaTooOld
from monasca_common.devbroker.java import find_java, parse_version

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)\n'


class TestParseVersion(base.BaseTestCase):
    def test_the_versions_that_vendors_print(self):
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
        """A folder with a program ``java`` that prints ``text``."""
        folder = Path(self.useFixture(fixtures.TempDir()).path, "bin")
        folder.mkdir()
        program = folder / "java"
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {status}\n")
        program.chmod(0o755)
        return folder

    def environment(self, folder, **more):
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}

    def test_the_one_on_the_path_is_found(self):
        folder = self.java(OPENJDK_17)
        java = find_java(self.environment(folder))
        self.assertEqual((str(folder / "java"), 17), (java.path, java.version))

    def test_java_home_comes_before_the_path(self):
        home = self.java('openjdk version "21"').parent
        self.assertEqual(21, find_java(self.environment(self.java(OPENJDK_17), JAVA_HOME=str(home))).version)

    def test_an_old_one_is_refused_with_the_remedy(self):
        folder = self.java('openjdk version "11.0.2"')
        refusal = self.assertRaises(JavaTooOld, find_java, self.environment(folder))
        for part in ("Java 11", "17 or newer", "openjdk-17-jre-headless", str(folder)):
            self.assertIn(part, str(refusal))

    def test_none_at_all_is_told_with_the_remedy(self):
        empty = self.useFixture(fixtures.TempDir()).path
        self.assertIn("apt-get install", str(self.assertRaises(JavaNotFound, find_java, {"PATH": empty})))

    def test_a_java_home_without_java_is_named(self):
        empty = self.useFixture(fixtures.TempDir()).path
        refusal = self.assertRaises(JavaNotFound, find_java, self.environment(empty, JAVA_HOME=empty))
        self.assertIn(f"JAVA_HOME is {empty!r}", str(refusal))

    def test_a_program_that_tells_no_version_is_no_java(self):
        folder = self.java("Unable to locate a Java Runtime.", status=1)
        self.assertRaises(JavaNotFound, find_java, self.environment(folder))
