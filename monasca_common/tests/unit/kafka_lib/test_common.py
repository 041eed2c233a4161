# SPDX-License-Identifier: Apache-2.0
"""The ``except`` clauses of the services, word for word, catch the errors of the library."""

from oslotest import base

from monasca_common.kafka import errors
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka_lib import client
from monasca_common.kafka_lib import common as kafka_common


class ErrorsTest(base.BaseTestCase):
    def test_each_cause_of_a_missing_response_is_caught_as_unavailable(self):
        for error in (
            errors.RetriableError("no response"),
            errors.AuthenticationError("refused"),
            errors.FatalError(""),
        ):
            try:
                raise error
            except (kafka_common.KafkaUnavailableError, kafka_common.LeaderNotAvailableError) as caught:
                self.assertIs(error, caught)

    def test_the_base_class_catches_every_error_of_the_core(self):
        for error in (
            errors.UndeliveredError(DeliveryReport({})),
            errors.ClosedError("closed"),
            errors.TransportError("refused"),
            errors.ConfigurationError("bootstrap_servers"),
        ):
            try:
                raise error
            except kafka_common.KafkaError as caught:
                self.assertIs(error, caught)

    def test_a_missing_leader_is_not_a_refused_login(self):
        self.assertFalse(issubclass(errors.AuthenticationError, kafka_common.LeaderNotAvailableError))

    def test_a_health_check_imports_the_error_from_the_client_module(self):
        self.assertIs(kafka_common.KafkaUnavailableError, client.KafkaUnavailableError)

    def test_each_error_name_is_an_error_of_the_core(self):
        names = [name for name in vars(kafka_common) if name.endswith("Error") or name == "AsyncProducerQueueFull"]
        self.assertGreater(len(names), 12)
        for name in names:
            self.assertTrue(issubclass(getattr(kafka_common, name), errors.MessagingError), name)
