# SPDX-License-Identifier: Apache-2.0


import base64
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.jars import REGISTRY_LIST
from monasca_common.jars import REPOSITORY_VARIABLE, JarError, list_file, pinned_lists, read_digests, read_list
from monasca_common.jars.repository import Repository, configured_repository, download
from monasca_common.tests.unit.jars.test_cache import RIGHT, UNAVAILABLE, Registry

SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">
<mirrors>
  <mirror><id>other</id><mirrorOf>*,!central</mirrorOf><url>https://other.example</url></mirror>
  <mirror><id>own</id><mirrorOf>{of}</mirrorOf><url>https://maven.example/m2/</url></mirror>
</mirrors>
<servers><server><id>own</id><username>reader</username><password>{password}</password></server></servers>
</settings>
"""


class TestConfigured(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.environ = {"HOME": self.useFixture(fixtures.TempDir()).path}
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.repository._GLOBAL_SETTINGS", Path("/nonexistent")))

    def settings(self, text):
        file = Path(self.environ["HOME"], ".m2", "settings.xml")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    def test_maven_central_is_the_default_repository(self):
        self.assertEqual("https://repo1.maven.org/maven2", configured_repository(self.environ).url)
        self.settings("<settings/>")
        self.assertEqual("https://repo1.maven.org/maven2", configured_repository(self.environ).url)

    def test_the_mirror_of_central_in_mavens_settings_is_used_with_its_login(self):
        self.environ["NEXUS_PASSWORD"] = "hush"
        for mirror_of in ("central", "*", "external:*", "a, central", "*,!b"):
            file = self.settings(SETTINGS.format(of=mirror_of, password="${env.NEXUS_PASSWORD}"))

            found = configured_repository(self.environ)

            self.assertEqual("https://maven.example/m2", found.url, mirror_of)
            self.assertEqual(f"the mirror own in {file}", found.source)
            self.assertEqual("reader:hush", found.login)
            self.assertNotIn("hush", repr(found))

    def test_a_mirror_of_other_repositories_is_not_used(self):
        self.settings(SETTINGS.format(of="jboss,!central", password=""))
        self.assertEqual("https://repo1.maven.org/maven2", configured_repository(self.environ).url)

    def test_the_variable_overrides_mavens_settings(self):
        self.settings(SETTINGS.format(of="*", password="x"))
        self.environ[REPOSITORY_VARIABLE] = "https://me:p%40ss@maven.example:8443/a/"

        found = configured_repository(self.environ)

        self.assertEqual(("https://maven.example:8443/a", "me:p@ss"), (found.url, found.login))

    def test_wrong_configurations_are_refused_with_the_remedy(self):
        for text, part in (("<settings", "cannot be read"), (SETTINGS.format(of="*", password="{x=}"), "encrypted")):
            file = self.settings(text)
            refusal = str(self.assertRaises(JarError, configured_repository, self.environ))
            for each in (str(file), part, REPOSITORY_VARIABLE):
                self.assertIn(each, refusal)

    def test_a_login_in_the_url_of_a_mirror_is_used_unless_its_server_has_one(self):
        url = "https://writer:hu%2Fsh@maven.example/m2"
        for server, login in (("own", "reader:x"), ("another", "writer:hu/sh")):
            text = SETTINGS.format(of="*", password="x").replace("https://maven.example/m2/", url)
            self.settings(text.replace("<server><id>own", f"<server><id>{server}"))

            found = configured_repository(self.environ)

            self.assertEqual(("https://maven.example/m2", login), (found.url, found.login))

    def test_an_unusable_url_is_refused_with_the_setting_and_the_remedy_and_without_its_password(self):
        for url in (
            "",
            "maven.example",
            "file:///srv/maven",
            "https://",
            "http://[::1",
            "http://maven.example:port/",
            "https://me:hush/hush@maven.example/m2",
            "https://me/hush@maven.example/m2",
            "https://me:1?hush@maven.example/m2",
            "https://me:1#hush@maven.example/m2",
        ):
            environ = {**self.environ, REPOSITORY_VARIABLE: url}
            file = self.settings(SETTINGS.format(of="*", password="x").replace("https://maven.example/m2/", url))
            for setting, each in ((f"the mirror own in {file}", self.environ), (REPOSITORY_VARIABLE, environ)):
                if each.get(REPOSITORY_VARIABLE) == "":  # as if it were not set
                    continue
                refusal = str(self.assertRaises(JarError, configured_repository, each))
                for part in (setting, "https://repo1", "%40"):
                    self.assertIn(part, refusal, url)
                self.assertNotIn("hush", refusal)


class TestDownload(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(Registry("one"))
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.waits = []

    def download(self, login=None):
        [jar] = read_list(self.registry.jar_list)
        download(jar, Repository(self.registry.url, "a test", login), self.folder, self.waits.append)

    def test_attempts_back_off(self):
        self.registry.faults["one-1.0.jar"] = [UNAVAILABLE] * 3 + [RIGHT]
        self.download()
        self.assertEqual([1.0, 2.0, 4.0], self.waits)
        self.assertTrue((self.folder / "one-1.0.jar").is_file())

    def test_the_login_is_sent_and_is_not_in_an_error(self):
        self.registry.faults["one-1.0.jar"] = [UNAVAILABLE] * 4
        error = self.assertRaises(JarError, self.download, "me:hush")
        self.assertNotIn("hush", str(error))
        self.assertEqual(f"Basic {base64.b64encode(b'me:hush').decode()}", self.registry.requests[0][1])

    def test_a_response_that_takes_too_long_is_aborted(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.repository._ATTEMPT_SECONDS", -1.0))
        self.assertIn("takes longer", str(self.assertRaises(JarError, self.download)))

    def test_a_response_that_is_too_large_is_aborted(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.repository._MOST_BYTES", 100))
        self.assertIn("has more than 100 bytes", str(self.assertRaises(JarError, self.download)))

    def test_a_repository_that_does_not_listen_is_named(self):
        jar = read_list(self.registry.jar_list)[0]
        repository = Repository("http://127.0.0.1:9", "a test")
        error = self.assertRaises(JarError, download, jar, repository, self.folder, self.waits.append)
        self.assertIn("Connection refused", str(error))


class TestLists(base.BaseTestCase):
    def test_each_version_of_kafka_that_the_tests_run_is_pinned_with_all_of_its_jars(self):
        for version in ("3.9.2", "4.3.0", "4.4.0"):
            names = [jar.name for jar in read_list(list_file(f"kafka-{version}"))]
            self.assertIn(f"kafka_2.13-{version}.jar", names)
            self.assertGreaterEqual(len(names), 45)
            self.assertEqual(len(names), len({*names}))

    def test_the_archive_of_the_schema_registry_is_pinned(self):
        [archive] = read_list(list_file(REGISTRY_LIST))

        self.assertEqual("apicurio-registry-app-2.6.13.Final-all.tar.gz", archive.name)
        self.assertEqual(f"io/apicurio/apicurio-registry-app/2.6.13.Final/{archive.name}", archive.path)

    def test_the_connector_is_pinned_without_the_jars_that_pyspark_ships(self):
        for version, pool, client in (("4.0.0", "2.12.0", "3.9.0"), ("4.2.0", "2.13.1", "3.9.2")):
            names = {jar.name for jar in read_list(list_file(f"spark-{version}"))}
            self.assertEqual(
                {
                    f"commons-pool2-{pool}.jar",
                    f"kafka-clients-{client}.jar",
                    f"spark-sql-kafka-0-10_2.13-{version}.jar",
                    f"spark-token-provider-kafka-0-10_2.13-{version}.jar",
                },
                names,
            )

    def test_every_list_is_named(self):
        self.assertLessEqual({"kafka-4.3.0", "spark-4.0.0"}, {*pinned_lists()})

    def test_a_jar_has_the_path_of_a_maven_repository(self):
        jar = next(jar for jar in read_list(list_file("spark-4.0.0")) if jar.artifact == "commons-pool2")
        self.assertEqual("org/apache/commons/commons-pool2/2.12.0/commons-pool2-2.12.0.jar", jar.path)

    def test_a_line_without_a_digest_or_coordinates_is_named(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "digests")
        for line in ("", "abc  a.jar", f"{'0' * 64}", f"{'G' * 64}  a.jar"):
            file.write_text(f"{'0' * 64}  good.jar\n{line}\n")
            self.assertIn("line 2", str(self.assertRaises(ValueError, read_digests, file)))
        file.write_text(f"{'0' * 64}  good.jar\n")
        self.assertIn("good.jar", str(self.assertRaises(ValueError, read_list, file)))
