# SPDX-License-Identifier: Apache-2.0
"""The requests of monasca-api's health check and of monasca-agent's consumer check, sent to a real broker."""

from monasca_common.devbroker.ports import HOST
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka_lib import client, common, consumer
from monasca_common.tests.functional.kafka.consumer_case import SECONDS, ConsumerCase


class KafkaClientTest(ConsumerCase):
    def client(self):
        opened = client.KafkaClient(self.cluster.direct_options()["bootstrap.servers"], timeout=SECONDS)
        self.addCleanup(opened.close)
        return opened

    def test_the_client_lists_the_existing_topics(self):
        topic = self.fixture.topic()
        found = self.client().topics

        self.assertIn(topic.encode(), found)
        self.assertNotIn(f"{topic}-more".encode(), found)

    def test_an_unreachable_broker_is_unavailable(self):
        with self.assertRaises(client.KafkaUnavailableError):
            client.KafkaClient(hosts=f"{HOST}:1", timeout=1.0)

    def test_committed_offsets_and_log_ends_give_the_lag_of_a_group(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 9, partitions=2)
        self.admin.alter_group_offsets(self.group, {TopicPartition(topic, 0): 3})

        opened = self.client()
        reader = consumer.SimpleConsumer(opened, self.group, topic, auto_commit=False)
        ends = {}
        for partition in reader.offsets:
            [answer] = opened.send_offset_request([common.OffsetRequest(topic.encode(), partition, -1, 1)])
            ends[answer.partition] = answer.offsets[0]

        self.assertEqual({0: 3, 1: 0}, reader.offsets)
        self.assertEqual({0: 5, 1: 4}, ends)

    def test_a_request_for_a_missing_topic_does_not_create_it(self):
        topic = f"{self.group}-nowhere"
        with self.assertRaises(common.UnknownTopicOrPartitionError):
            consumer.SimpleConsumer(self.client(), self.group, topic, auto_commit=False)

        self.assertNotIn(topic.encode(), self.client().topics)
