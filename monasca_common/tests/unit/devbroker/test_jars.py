# SPDX-License-Identifier: Apache-2.0
import hashlib
import io
import tarfile
import threading
import zipfile
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.devbroker import fetch, jars
from monasca_common.devbroker.digests import read_digests
from monasca_common.devbroker.errors import InvalidCluster, JarsUnavailable
from monasca_common.devbroker.jars import JARS_VARIABLE, VERSION_VARIABLE, kafka_jars, kafka_version

MAIN_JAR = f"kafka_{fetch.SCALA_VERSION}-{fetch.KAFKA_VERSION}.jar"


class TestCache(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.cache = Path(self.useFixture(fixtures.TempDir()).path)
        self.environ = {"XDG_CACHE_HOME": str(self.cache)}
        self.fetches = []
        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.fetch.fetch", self.fetch))
        self.pin("3.9.2")
        self.pin(fetch.KAFKA_VERSION)

    def pin(self, version, content=b""):
        """Pin one jar of a version, with this content, for `fetch` to write it empty."""
        digests = Path(self.useFixture(fixtures.TempDir()).path, "digests")
        digests.write_text(f"{hashlib.sha256(content).hexdigest()}  kafka_{fetch.SCALA_VERSION}-{version}.jar\n")
        shipped = jars.digest_file
        self.useFixture(
            fixtures.MonkeyPatch(
                "monasca_common.devbroker.jars.digest_file",
                lambda asked: digests if asked == version else shipped(asked),
            )
        )

    def fetch(self, folder, version):
        self.fetches.append(folder)
        folder.mkdir()
        (folder / f"kafka_{fetch.SCALA_VERSION}-{version}.jar").touch()

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

        def while_the_others_wait(folder, version):
            for event in begun:
                event.wait(50)
            self.fetch(folder, version)

        with mock.patch.object(fetch, "fetch", while_the_others_wait):
            threads = [threading.Thread(target=ask, args=(event,)) for event in begun]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(1, len(self.fetches))

    def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_works(self):
        def broken(folder, version):
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
        with mock.patch.object(fetch, "fetch", lambda folder, version: folder.mkdir()):
            self.assertIn(MAIN_JAR, str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ)))

    def test_a_jar_that_is_not_the_pinned_one_is_refused_and_not_kept(self):
        self.pin(fetch.KAFKA_VERSION, b"another")

        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ))

        for part in (MAIN_JAR, hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"another").hexdigest(), "repository"):
            self.assertIn(part, refusal)
        self.assertEqual([], [path.name for path in self.cache.rglob("*.jar")])

    def test_jars_in_the_cache_that_were_changed_added_or_lost_are_refused(self):
        folder = kafka_jars(self.environ)
        (folder / MAIN_JAR).write_bytes(b"changed")
        (folder / "added.jar").touch()

        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ))
        for part in (
            f"{MAIN_JAR} has the SHA-256 digest",
            "added.jar is not one of the pinned jars",
            f"remove {folder}",
        ):
            self.assertIn(part, refusal)

        (folder / MAIN_JAR).unlink()
        self.assertIn(f"{MAIN_JAR} is missing", str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ)))

    def test_a_version_without_pinned_digests_is_not_fetched(self):
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, self.environ | {VERSION_VARIABLE: "3.9.1"}))

        for part in ("Kafka 3.9.1", JARS_VARIABLE, VERSION_VARIABLE):
            self.assertIn(part, refusal)
        self.assertEqual([], self.fetches)

    def test_a_folder_given_by_hand_is_taken_as_it_is(self):
        (self.cache / MAIN_JAR).touch()
        self.assertEqual(self.cache, kafka_jars({JARS_VARIABLE: str(self.cache)}))
        self.assertEqual([], self.fetches)

    def test_a_folder_given_by_hand_without_kafka_is_refused_with_the_remedy(self):
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {JARS_VARIABLE: str(self.cache)}))
        for part in (JARS_VARIABLE, MAIN_JAR, "unset it"):
            self.assertIn(part, refusal)

    def test_another_version_has_a_folder_of_its_own(self):
        other = self.environ | {VERSION_VARIABLE: "3.9.2"}
        self.assertEqual([self.cache / "monasca-common" / "kafka-3.9.2"], [kafka_jars(other)])
        self.assertNotEqual(kafka_jars(self.environ), kafka_jars(other))
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, other | {JARS_VARIABLE: str(self.cache)}))
        self.assertIn("kafka_2.13-3.9.2.jar", refusal)

    def test_what_is_not_a_version_is_refused_with_the_remedy(self):
        for wrong in ("3.9", "newest", "../etc", "4.3.0-rc1"):
            refusal = str(self.assertRaises(InvalidCluster, kafka_version, {VERSION_VARIABLE: wrong}))
            for part in (VERSION_VARIABLE, wrong, fetch.KAFKA_VERSION):
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
        fetch.fetch(self.folder / "jars", "3.9.2")
        pom, arguments = (self.folder / "pom").read_text(), (self.folder / "arguments").read_text()
        self.assertIn("<artifactId>kafka_2.13</artifactId><version>3.9.2</version>", pom)
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

    def test_an_ivy_that_is_not_the_pinned_one_is_refused_and_not_kept(self):
        def download(command, **_):
            with zipfile.ZipFile(Path(command[-1], "p.whl"), "w") as archive:
                archive.writestr("pyspark/jars/ivy-2.5.3.jar", b"another")
            return mock.Mock(returncode=0)

        with mock.patch.object(fetch.subprocess, "run", download):
            refusal = str(self.assertRaises(JarsUnavailable, fetch._downloaded_ivy, self.folder))

        self.assertIn(hashlib.sha256(b"another").hexdigest(), refusal)
        self.assertEqual([], [*self.folder.iterdir()])


class TestDigests(base.BaseTestCase):
    def test_each_version_that_the_tests_run_is_pinned_with_all_of_its_jars(self):
        for version in ("3.9.2", "4.3.0", "4.4.0"):
            names = jars.pinned(version).keys()
            self.assertIn(f"kafka_2.13-{version}.jar", names)
            self.assertGreaterEqual(len(names), 45)

    def test_a_line_that_is_no_digest_is_named(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "digests")
        for line in ("", "abc  a.jar", f"{'0' * 64}", f"{'G' * 64}  a.jar"):
            file.write_text(f"{'0' * 64}  good.jar\n{line}\n")
            self.assertIn("line 2", str(self.assertRaises(ValueError, read_digests, file)))
