# SPDX-License-Identifier: Apache-2.0
"""Clauses of the services' code, word for word: what the core raises arrives in them."""

from oslotest import base

from monasca_common.kafka import errors
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka_lib import client
from monasca_common.kafka_lib import common as kafka_common


class ErrorsTest(base.BaseTestCase):
    def test_whatever_keeps_a_broker_from_answering_is_caught_as_unavailable(self):
        for error in (errors.RetriableError("no answer"), errors.AuthenticationError("refused"), errors.FatalError("")):
            try:
                raise error
            except (kafka_common.KafkaUnavailableError, kafka_common.LeaderNotAvailableError) as caught:
                self.assertIs(error, caught)

    def test_the_root_catches_every_error_of_the_core(self):
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

    def test_a_health_check_takes_the_name_from_the_client_module(self):
        self.assertIs(kafka_common.KafkaUnavailableError, client.KafkaUnavailableError)

    def test_each_name_of_an_error_is_one_of_the_core_s_tree(self):
        names = [name for name in vars(kafka_common) if name.endswith("Error") or name == "AsyncProducerQueueFull"]
        self.assertGreater(len(names), 12)
        for name in names:
            self.assertTrue(issubclass(getattr(kafka_common, name), errors.MessagingError), name)
