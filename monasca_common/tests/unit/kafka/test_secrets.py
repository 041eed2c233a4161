# SPDX-License-Identifier: Apache-2.0
"""Passwords with special characters reach the client and nothing else, and log lines contain no messages."""

from __future__ import annotations

import logging
import traceback

import fixtures

from monasca_common.kafka.config.configuration import consumer_settings, producer_settings
from monasca_common.kafka.config.groups import register
from monasca_common.kafka.errors import ConfigurationError, Poison
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.serialization.json import JsonSerializer
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase

SASL = ("security_protocol = SASL_SSL", "sasl_mechanism = PLAIN", "sasl_username = alice")


class SecretsTest(ConfigurationTestCase):
    def secured(self, password: str, *lines: str, **groups: str):
        return self.with_kafka(*SASL, f"sasl_password = {password}", *lines, **groups)

    def test_a_password_may_hold_commas_equals_signs_quotes_and_doubled_dollars(self):
        conf = self.secured("""a,b=c:d "e' $$f\\$g #h""")

        security = producer_settings(conf).connection.security

        self.assertEqual("""a,b=c:d "e' $f$g #h""", security["sasl.password"])
        self.assertEqual("alice", security["sasl.username"])

    def test_an_option_may_hold_commas_and_doubled_dollars(self):
        conf = self.with_kafka("producer_options = broker.address.family=v4,$$x=1")

        self.assertEqual({"broker.address.family": "v4,$x=1"}, dict(producer_settings(conf).options))

    # Rule 69
    def test_a_single_dollar_is_refused_without_quoting_what_follows(self):
        # oslo.config would silently replace the second password by the client id, and quote the third in an error.
        for password in ("hush$", "hush$client_id", "hush$sesame", "hush${kafka.driver}", "hush$$$sesame"):
            conf = self.secured(password)

            error = self.assertRaises(ConfigurationError, producer_settings, conf)

            self.assertIn("sasl_password in group [kafka]", str(error))
            self.assertIn("$$", str(error))
            shown = "".join(traceback.format_exception(error)) + repr(error.__context__)
            self.assertNotIn("hush", shown)
            self.assertNotIn("sesame", shown)

    def test_a_single_dollar_in_further_options_is_also_refused(self):
        conf = self.with_kafka("consumer_options = debug=sesame$street")

        refusal = self.refused(consumer_settings, conf, "kafka_metrics")

        self.assertIn("consumer_options in group [kafka]", refusal)
        self.assertNotIn("street", refusal)

    def test_settings_do_not_show_secrets(self):
        conf = self.secured("hush,hush", "producer_options = debug=hush", "consumer_options = debug=hush")

        self.assertNotIn("hush", repr(producer_settings(conf)))
        self.assertNotIn("hush", repr(consumer_settings(conf, "kafka_metrics")))

    # Rule 69
    def test_log_opt_values_shows_no_secret(self):
        conf = self.secured(
            "hush,hu$$sh",
            "tls_key_password = hush",
            "producer_options = debug=hush",
            kafka_metrics="sasl_password = hush\nconsumer_options = debug=hush\n",
        )
        producer_settings(conf)
        consumer_settings(conf, "kafka_metrics")

        with self.assertLogs("options", "DEBUG") as logs:
            conf.log_opt_values(logging.getLogger("options"), logging.DEBUG)

        self.assertNotIn("hush", "\n".join(logs.output))
        self.assertIn("kafka.linger_ms", "\n".join(logs.output))

    def test_log_opt_values_does_not_quote_a_secret_with_a_single_dollar(self):
        conf = self.secured("hush$sesame")
        register(conf)

        try:
            conf.log_opt_values(logging.getLogger("options"), logging.DEBUG)
        except Exception as error:
            self.assertNotIn("sesame", "".join(traceback.format_exception(error)))
        else:
            self.fail("a single $ went unnoticed")

    def test_building_settings_logs_no_secret(self):
        with self.assertLogs(level="DEBUG") as logs:
            logging.getLogger("sentinel").debug("something must be logged")
            producer_settings(self.secured("hush"))

        self.assertNotIn("hush", "\n".join(logs.output))

    def test_a_line_that_is_not_an_option_is_refused_without_being_quoted(self):
        refusal = self.refused(producer_settings, self.with_kafka("producer_options = hush"))

        self.assertIn("producer_options in group [kafka], line 1", refusal)
        self.assertNotIn("hush", refusal)


class SecurityTest(ConfigurationTestCase):
    def test_credentials_without_tls_are_refused(self):
        conf = self.with_kafka("security_protocol = SASL_PLAINTEXT", *SASL[1:], "sasl_password = hush")

        refusal = self.refused(producer_settings, conf)

        self.assertIn("security_protocol in group [kafka] is SASL_PLAINTEXT, which sends credentials", refusal)
        self.assertNotIn("hush", refusal)

    def test_credentials_are_sent_without_tls_if_an_option_permits_it(self):
        conf = self.with_kafka(
            "security_protocol = SASL_PLAINTEXT", *SASL[1:], "sasl_password = x", "allow_insecure_credentials = true"
        )

        self.assertEqual("sasl_plaintext", producer_settings(conf).connection.security["security.protocol"])

    def test_the_case_of_the_protocol_and_the_mechanism_is_ignored(self):
        lines = ("security_protocol = sasl_ssl", "sasl_mechanism = scram-sha-512", "sasl_username = alice")
        security = producer_settings(self.with_kafka(*lines, "sasl_password = x")).connection.security
        self.assertEqual("SCRAM-SHA-512", security["sasl.mechanism"])

    def test_unused_credentials_are_refused(self):
        for protocol in ("PLAINTEXT", "SSL"):
            refusal = self.refused(
                producer_settings, self.with_kafka(f"security_protocol = {protocol}", "sasl_username = x")
            )
            self.assertIn(f"sasl_username in group [kafka] has no effect with security_protocol={protocol}", refusal)

    def test_missing_credentials_are_named(self):
        for missing in ("sasl_mechanism", "sasl_username", "sasl_password"):
            lines = [line for line in (*SASL, "sasl_password = x") if not line.startswith(missing)]
            self.assertIn(missing, self.refused(producer_settings, self.with_kafka(*lines)))

    def test_a_consumer_without_credentials_inherits_none(self):
        conf = self.with_kafka(
            *SASL,
            "sasl_password = x",
            f"tls_ca_file = {self.path_of('')}",
            kafka_metrics="security_protocol = PLAINTEXT",
        )

        security = consumer_settings(conf, "kafka_metrics").connection.security

        self.assertEqual({"security.protocol": "plaintext"}, dict(security))

    def test_files_of_tls_must_exist(self):
        for option in ("tls_ca_file", "tls_certificate_file", "tls_key_file"):
            refusal = self.refused(
                producer_settings, self.with_kafka("security_protocol = SSL", f"{option} = /nowhere.pem")
            )
            self.assertIn(f"{option} in group [kafka] names a file that does not exist: /nowhere.pem", refusal)

    def test_a_certificate_and_its_key_go_together(self):
        pem = self.path_of("")
        conf = self.with_kafka("security_protocol = SSL", f"tls_certificate_file = {pem}")

        self.assertIn("tls_key_file in group [kafka] is missing", self.refused(producer_settings, conf))

    def test_tls_files_without_tls_are_refused(self):
        conf = self.with_kafka(f"tls_ca_file = {self.path_of('')}")

        self.assertIn("tls_ca_file in group [kafka] has no effect", self.refused(producer_settings, conf))

    def test_tls_options_have_the_names_of_the_client(self):
        pem = self.path_of("")
        conf = self.with_kafka(
            "security_protocol = ssl",
            f"tls_ca_file = {pem}",
            f"tls_certificate_file = {pem}",
            f"tls_key_file = {pem}",
            "tls_key_password = hush",
        )

        self.assertEqual(
            {
                "security.protocol": "ssl",
                "ssl.ca.location": pem,
                "ssl.certificate.location": pem,
                "ssl.key.location": pem,
                "ssl.key.password": "hush",
            },
            dict(producer_settings(conf).connection.security),
        )


SECRET = "confidential"


class NoPayloadTest(ProcessorCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common", level=logging.INFO))

    def test_no_part_of_a_message_is_logged(self):
        def handler(message):
            if "poison" in message.value:
                raise Poison(f"no such {message.value}")
            if "bug" in message.value:
                raise ValueError(message.value)
            if "stored" not in message.value:
                raise AssertionError("no such case")
            return [("out", message.value["stored"].encode())]

        self.fill(
            b'{"stored": "confidential"}',
            b'{"poison": "confidential"}',
            b'{"bug": "confidential"}',
            b"confidential, and no JSON",
            key=b"confidential key",
        )
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), topic="out", count=2)
        self.start(handler, per_message=True, serializer=JsonSerializer(), retry=RetryPolicy(attempts=2))
        self.until(lambda: self.committed() == 4)
        self.assertEqual(1, len(self.values("out")))
        self.assertEqual(3, len(self.values("in.dlq")))
        for expected in ("handler failed on in/0", "no acknowledgement yet"):
            self.assertIn(expected, self.log.output)
        self.assertNotIn(SECRET, self.log.output)
