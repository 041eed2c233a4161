# SPDX-License-Identifier: Apache-2.0
"""Which jars a cluster runs; ``tests/unit/jars`` has how they are fetched."""

from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.errors import InvalidCluster, JarsUnavailable
from monasca_common.devbroker.jars import JARS_VARIABLE, KAFKA_VERSION, VERSION_VARIABLE, kafka_jars, kafka_version
from monasca_common.jars import JarError

MAIN_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"


class TestKafkaJars(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.jars.fetched", self.fetched))

    def fetched(self, jar_list, environ):
        return self.folder / jar_list.stem

    def test_they_are_those_of_the_version(self):
        self.assertEqual(self.folder / f"kafka-{KAFKA_VERSION}", kafka_jars({}))
        self.assertEqual(self.folder / "kafka-3.9.2", kafka_jars({VERSION_VARIABLE: "3.9.2"}))

    def test_a_fetch_that_fails_is_an_error_of_the_local_broker(self):
        def fail(*_):
            raise JarError("the repository does not answer")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.devbroker.jars.fetched", fail))
        self.assertIn("does not answer", str(self.assertRaises(JarsUnavailable, kafka_jars, {})))

    def test_a_version_without_pinned_digests_is_not_fetched(self):
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {VERSION_VARIABLE: "3.9.1"}))

        for part in ("Kafka 3.9.1", JARS_VARIABLE, VERSION_VARIABLE):
            self.assertIn(part, refusal)

    def test_a_folder_given_by_hand_is_taken_as_it_is(self):
        (self.folder / MAIN_JAR).touch()
        self.assertEqual(self.folder, kafka_jars({JARS_VARIABLE: str(self.folder)}))

    def test_a_folder_given_by_hand_without_that_version_is_refused_with_the_remedy(self):
        (self.folder / "kafka_2.13-3.9.2.jar").touch()
        refusal = str(self.assertRaises(JarsUnavailable, kafka_jars, {JARS_VARIABLE: str(self.folder)}))
        for part in (JARS_VARIABLE, MAIN_JAR, "unset it"):
            self.assertIn(part, refusal)

    def test_what_is_not_a_version_is_refused_with_the_remedy(self):
        for wrong in ("3.9", "newest", "../etc", "4.3.0-rc1"):
            refusal = str(self.assertRaises(InvalidCluster, kafka_version, {VERSION_VARIABLE: wrong}))
            for part in (VERSION_VARIABLE, wrong, KAFKA_VERSION):
                self.assertIn(part, refusal)
