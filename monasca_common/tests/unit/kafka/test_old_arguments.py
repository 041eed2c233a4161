# SPDX-License-Identifier: Apache-2.0
"""The calls of the retired events and log APIs, and of the consumers of monasca-common 3."""

from oslotest import base

from monasca_common.kafka import MisuseError, consumer, producer


class OldArgumentsTest(base.BaseTestCase):
    def assert_refused(self, call, *arguments, **named):
        error = self.assertRaises(MisuseError, call, *arguments, **named)
        self.assertIn("client_factory", str(error))
        self.assertIn("migration.rst", str(error))

    def test_a_producer_of_an_address_is_refused_with_the_page_to_read(self):
        self.assert_refused(producer.KafkaProducer, url="kafka1:9092")
        self.assert_refused(producer.KafkaProducer, "kafka1:9092")
        self.assert_refused(producer.KafkaProducer, ["kafka1:9092"])

    def test_a_consumer_of_addresses_is_refused_with_the_page_to_read(self):
        self.assert_refused(
            consumer.KafkaConsumer, ["kafka1:9092"], ["zookeeper1:2181"], "/consumers", "1_metrics", "metrics"
        )
        self.assert_refused(consumer.KafkaConsumer, kafka_url="kafka1:9092", zookeeper_url="zookeeper1:2181")
