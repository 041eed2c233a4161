# SPDX-License-Identifier: Apache-2.0
from confluent_kafka import KafkaError
from oslotest import base

from monasca_common.kafka.errors import AuthenticationError, RetriableError
from monasca_common.kafka.transport.error_translation import translate


class TranslateTest(base.BaseTestCase):
    def test_a_request_to_a_broker_without_the_latest_leader_is_repeated(self):
        for code in (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE):
            self.assertIsInstance(translate(KafkaError(code)), RetriableError)

    def test_a_request_to_a_broker_that_left_the_metadata_is_retriable(self):
        self.assertIsInstance(translate(KafkaError(KafkaError._DESTROY_BROKER)), RetriableError)

    def test_an_untrusted_certificate_is_reported_as_such_under_either_code(self):
        message = "ssl://kafka1:9093/1: error:0A000086:SSL routines::certificate verify failed (after 1ms in state X)"
        for code in (KafkaError._SSL, KafkaError._TRANSPORT):
            error = translate(KafkaError(code, message))
            self.assertIsInstance(error, AuthenticationError)
            self.assertEqual(("_SSL", KafkaError._SSL), (error.name, error.code))
            for part in ("ssl://kafka1:9093/1", "expired", "another host", "authority", "openssl s_client"):
                self.assertIn(part, str(error))

    def test_a_name_of_a_broker_that_does_not_resolve_is_a_temporary_error(self):
        self.assertIsInstance(translate(KafkaError(KafkaError._RESOLVE, "kafka2: Failed to resolve")), RetriableError)

    def test_a_broken_connection_is_a_temporary_error(self):
        self.assertIsInstance(translate(KafkaError(KafkaError._TRANSPORT, "kafka1: Disconnected")), RetriableError)
