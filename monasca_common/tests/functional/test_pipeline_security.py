# SPDX-License-Identifier: Apache-2.0
"""Spark reaches a cluster as [kafka] says: by password over TLS, and by certificate."""

from oslotest import base

from monasca_common.devbroker.fixtures import SharedKafkaCluster
from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.ledger import OffsetRange
from monasca_common.pipeline.spark import connector
from monasca_common.tests.functional.pipeline_case import SharedSpark
from monasca_common.tests.functional.producer_case import SECONDS


class SecurityTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(tls=True, sasl=True))
        self.topic = self.fixture.topic()

    def assert_spark_reads(self, options):
        """What was sent with these options of librdkafka."""
        servers = options.pop("bootstrap.servers")
        connection = ConnectionSettings(servers, security=options)
        with plugins.kafka_producer(ProducerSettings(connection)) as producer:
            producer.publish(self.topic, [b"one", b"two"], timeout=SECONDS).raise_for_undelivered()
        consumer = ConsumerSettings(connection, (self.topic,), "reads-nothing")
        spark = self.useFixture(SharedSpark()).session
        rows = connector.ranges_frame(spark, consumer, [OffsetRange(0, 0, 2)]).select("value").collect()
        self.assertEqual([b"one", b"two"], [bytes(row.value) for row in rows])

    def test_by_password_over_tls(self):
        self.assert_spark_reads(self.fixture.cluster.client_options("monasca"))

    def test_by_certificate(self):
        self.assert_spark_reads(self.fixture.cluster.mutual_tls_options("monasca"))
