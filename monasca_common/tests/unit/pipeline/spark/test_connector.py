# SPDX-License-Identifier: Apache-2.0
"""Options of librdkafka are translated for the Java client of Spark's connector; ``tests/unit/jars`` tests how its jars
are fetched."""

from pathlib import Path

import fixtures
from oslotest import base
from testtools.matchers import Contains

from monasca_common.jars import JarError, list_file
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.spark.connector import client_options, connector_jars, java_security

SHIPPED = "4.0.0"


class SecurityTest(base.BaseTestCase):
    def file(self, text):
        folder = self.useFixture(fixtures.TempDir()).path
        path = Path(folder, "x.pem")
        path.write_text(text)
        return str(path)

    def login(self, mechanism, user="u", password="p", protocol="sasl_ssl"):
        return java_security(
            {
                "security.protocol": protocol,
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
            }
        )

    def test_the_default_protocol_is_plaintext(self):
        self.assertEqual({"security.protocol": "PLAINTEXT"}, java_security({}))

    def test_logins_name_the_login_module_of_their_mechanism(self):
        for mechanism, module in {
            "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
            "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
            "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
        }.items():
            self.assertEqual(
                {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": mechanism,
                    "sasl.jaas.config": f'{module} required username="u" password="p";',
                },
                self.login(mechanism),
            )

    def test_quotes_in_a_password_are_escaped(self):
        line = self.login("PLAIN", password='a"b\\;c')["sasl.jaas.config"]
        self.assertTrue(line.endswith('password="a\\"b\\\\;c";'), line)

    def test_authorities_and_certificates_are_passed_as_text(self):
        options = java_security(
            {
                "security.protocol": "ssl",
                "ssl.ca.location": self.file("the authorities"),
                "ssl.certificate.location": self.file("the certificate"),
                "ssl.key.location": self.file("the key"),
                "ssl.key.password": "secret",
            }
        )
        self.assertEqual(
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "the authorities",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "the certificate",
                "ssl.keystore.key": "the key",
                "ssl.key.password": "secret",
            },
            options,
        )

    def test_an_unreadable_file_is_named(self):
        error = self.assertRaises(
            ConfigurationError, java_security, {"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}
        )
        self.assertThat(str(error), Contains("/nowhere/ca.pem cannot be read: No such file"))

    def test_an_option_without_a_translation_is_refused(self):
        error = self.assertRaises(
            ConfigurationError, java_security, {"ssl.cipher.suites": "x", "ssl.crl.location": "y"}
        )
        self.assertThat(str(error), Contains("ssl.cipher.suites, ssl.crl.location"))

    def test_a_session_reads_committed_messages_by_default(self):
        settings = ConsumerSettings(ConnectionSettings("a:1,b:2", client_id="me"), ("metrics",), "g")
        self.assertEqual(
            {
                "kafka.bootstrap.servers": "a:1,b:2",
                "kafka.client.id": "me",
                "kafka.isolation.level": "read_committed",
                "kafka.max.poll.records": "5000",
                "kafka.max.partition.fetch.bytes": "4194304",
                "kafka.fetch.max.wait.ms": "10",
                "kafka.security.protocol": "PLAINTEXT",
            },
            client_options(settings),
        )


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

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.connector.fetched", fetched))

        self.assertEqual([connector], connector_jars())
        self.assertEqual([list_file("spark-4.0.0")], asked)

    def test_a_connector_that_cannot_be_fetched_is_an_error_of_spark(self):
        def fail(*_):
            raise JarError("the repository does not respond")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.connector.fetched", fail))
        self.assertIn("does not respond", str(self.assertRaises(SparkUnavailable, connector_jars)))

    def test_a_connector_that_is_not_pinned_is_not_fetched(self):
        self.installed("4.9.9")
        self.assertIsNone(connector_jars())
