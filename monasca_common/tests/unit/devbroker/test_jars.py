# SPDX-License-Identifier: Apache-2.0
import io
import tarfile
import threading
import zipfile
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.devbroker import fetch
from monasca_common.devbroker.errors import JarsUnavailable
from monasca_common.devbroker.jars import JARS_VARIABLE, kafka_jars

MAIN_JAR = f"kafka_{fetch.SCALA_VERSION}-{fetch.KAFKA_VERSION}.jar"


class TestCache(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.cache = Path(self.useFixture(fixtures.TempDir()).path)
        self.environ = {"XDG_CACHE_HOME": str(self.cache)}
        self.fetches = []
        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.fetch.fetch", self.fetch))

    def fetch(self, folder):
        self.fetches.append(folder)
        folder.mkdir()
        (folder / MAIN_JAR).touch()

    def left_over(self):
        return [path.name for path in self.cache.rglob("*") if "partial" in path.name]

    def test_jars_are_fetched_once(self):
        first, second = kafka_jars(self.environ), kafka_jars(self.environ)
        self.assertEqual(self.cache / "monasca-common" / f"kafka-{fetch.KAFKA_VERSION}", first)
        self.assertEqual((first, 1), (second, len(self.fetches)))
        self.assertTrue((first / MAIN_JAR).is_file())

    def test_the_cache_is_in_the_home_where_xdg_names_none(self):
        home = Path(self.useFixture(fixtures.TempDir()).path)
        self.assertEqual(home / ".cache/monasca-common", kafka_jars({"HOME": str(home)}).parent)

    def test_of_several_at_once_one_fetches(self):
        begun = [threading.Event() for _ in range(4)]

        def ask(event):
            event.set()
            kafka_jars(self.environ)

        def while_the_others_wait(folder):
            for event in begun:
                event.wait(10)
            self.fetch(folder)

        with mock.patch.object(fetch, "fetch", while_the_others_wait):
            threads = [threading.Thread(target=ask, args=(event,)) for event in begun]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(1, len(self.fetches))

    def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_works(self):
        def broken(folder):
            folder.mkdir()
            (folder / "half.jar").touch()
            raise JarsUnavailable("the network is away")

        with mock.patch.object(fetch, "fetch", broken):
            self.assertRaises(JarsUnavailable, kafka_jars, self.environ)
        self.assertEqual([], self.left_over())
        self.assertTrue((kafka_jars(self.environ) / MAIN_JAR).is_file())

    def test_what_a_killed_fetch_left_is_removed(self):
        partial = self.cache / "monasca-common" / f"kafka-{fetch.KAFKA_VERSION}.partial"
        partial.mkdir(parents=True)
        (partial / "half.jar").touch()
        self.assertFalse((kafka_jars(self.environ) / "half.jar").exists())
        self.assertEqual([], self.left_over())

    def test_a_fetch_without_kafka_in_it_is_refused(self):
        with mock.patch.object(fetch, "fetch", Path.mkdir):
            self.assertIn(MAIN_JAR, str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ)))

    def test_a_folder_given_by_hand_is_taken_as_it_is(self):
        (self.cache / MAIN_JAR).touch()
        self.assertEqual(self.cache, kafka_jars({JARS_VARIABLE: str(self.cache)}))
        self.assertEqual([], self.fetches)

    def test_a_folder_given_by_hand_without_kafka_is_refused_with_the_remedy(self):
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {JARS_VARIABLE: str(self.cache)}))
        for part in (JARS_VARIABLE, MAIN_JAR, "unset it"):
            self.assertIn(part, refusal)


class TestFetch(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)

    def maven(self, script):
        """A folder for the path with a program ``mvn``."""
        program = self.folder / "bin" / "mvn"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{program.parent}:/usr/bin:/bin"))

    def test_maven_is_asked_for_kafka_and_a_voice_for_its_log(self):
        self.maven(f'cat "$3" > {self.folder}/pom; echo "$@" > {self.folder}/arguments')
        fetch.fetch(self.folder / "jars")
        pom, arguments = (self.folder / "pom").read_text(), (self.folder / "arguments").read_text()
        self.assertIn(f"<version>{fetch.KAFKA_VERSION}</version>", pom)
        self.assertIn("slf4j-simple", pom)
        self.assertIn(f"-DoutputDirectory={self.folder}/jars", arguments)

    def test_a_maven_that_fails_is_quoted_with_the_remedy(self):
        self.maven("echo '[ERROR] Could not resolve host'; exit 1")
        refusal = str(self.assertRaises(JarsUnavailable, fetch.fetch, self.folder / "jars"))
        for part in ("Could not resolve host", "exit status 1", JARS_VARIABLE):
            self.assertIn(part, refusal)

    def test_ivy_is_found_in_a_wheel_and_in_a_source_package(self):
        wheel, sdist = self.folder / "p.whl", self.folder / "p.tar.gz"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pyspark/jars/other.jar", b"other")
            archive.writestr("pyspark/jars/ivy-2.5.3.jar", b"ivy")
        with tarfile.open(sdist, "w:gz") as archive:
            member = tarfile.TarInfo("pyspark-4.0.0/deps/jars/ivy-2.5.3.jar")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"ivy"))
        self.assertEqual([[b"ivy"], [b"ivy"]], [list(fetch._ivy_members(each)) for each in (wheel, sdist)])
