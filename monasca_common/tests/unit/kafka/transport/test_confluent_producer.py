# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import fixtures
from confluent_kafka import KafkaError, KafkaException
from oslotest import base

from monasca_common.kafka.errors import FatalError
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport.confluent_producer import ConfluentProducer


class TestServing(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.errors = []
        settings = ProducerSettings(ConnectionSettings("127.0.0.1:1"))
        self.producer = ConfluentProducer(settings, batch_bytes=1000, on_error=self.errors.append)
        self.addCleanup(self.producer.close, 1.0)

    def client_returns_although(self, raised):
        """Make the client's calls end as if this exception had been raised during the call."""

        def call(timeout):
            raise SystemError("returned a result with an exception set") from raised

        client = mock.MagicMock(poll=call, flush=call)
        self.useFixture(fixtures.MockPatchObject(self.producer, "_client", client))

    def test_a_call_raises_the_exception_of_a_signal_and_the_client_continues(self):
        for raised in (KeyboardInterrupt(), SystemExit(3)):
            self.client_returns_although(raised)
            for call in (self.producer.poll, self.producer.flush):
                self.assertIs(raised, self.assertRaises(type(raised), call, 0.0))
        self.assertEqual([], self.errors)

    def test_an_exception_after_the_client_accepted_a_message_is_not_a_refusal(self):
        produce = self.producer._produce

        def interrupted(*arguments):
            produce(*arguments)
            raise BufferError("of the handler")

        self.producer._produce = interrupted
        self.assertRaises(BufferError, self.producer.produce_record, "t", b"v", None, -1, 0, (), 1)
        room = self.producer.new_reservation(2, 3, 100, 100, 0, None)
        self.assertRaises(BufferError, self.producer.send, "t", b"v", None, room)
        self.producer.purge()
        undelivered = [(each.sequence, each.taken) for each in self.producer.flush(10).undelivered]
        self.assertCountEqual([(1, True), (2, True), (2, None)], undelivered)

    def test_an_error_of_the_client_is_a_refusal(self):
        self.assertRaises(self.producer.refusals, self.producer.produce_record, "t" * 1000, b"v", None, -1, 0, (), 1)
        room = self.producer.new_reservation(2, 3, 100, 100, 0, None)
        self.assertEqual(b"", self.producer.send("t" * 1000, b"v", None, room))
        [message] = self.producer.poll(0).undelivered
        self.assertEqual((2, False, "_INVALID_ARG"), (message.sequence, message.taken, message.error.name))

    def test_a_fatal_error_of_the_client_is_reported_once(self):
        self.client_returns_although(KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)))
        self.producer.poll(0.0)
        self.producer.flush(0.0)
        self.assertEqual([FatalError], [type(each) for each in self.errors])

    def test_an_error_without_a_cause_is_fatal(self):
        self.client_returns_although(None)
        self.producer.poll(0.0)
        self.assertEqual([True], [each.fatal for each in self.errors])
