# SPDX-License-Identifier: Apache-2.0
"""The requests of a client to its administrator, and how it uses the responses."""

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ClosedError, ConfigurationError, MisuseError, RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka_lib.client import KafkaClient
from monasca_common.kafka_lib.common import KafkaUnavailableError, OffsetRequest, UnknownTopicOrPartitionError
from monasca_common.kafka_lib.consumer import SimpleConsumer


class Cluster:
    """Replaces the `Admin` of a cluster with "metrics" (two partitions) and "alarms" (one)."""

    def __init__(self):
        self.options = None
        self.down = None
        self.committed = {TopicPartition("metrics", 0): 7, TopicPartition("alarms", 0): 3}

    def __call__(self, options):
        self.options = options
        return self

    def partition_counts(self, timeout):
        if self.down:
            raise self.down
        return {"metrics": 2, "alarms": 1}

    def group_offsets(self, group, timeout):
        return self.committed if group == "1_metrics" else {}

    def end_offsets(self, partitions, timeout):
        return {each: 10 + each.partition for each in partitions}

    def first_offsets(self, partitions, timeout):
        return dict.fromkeys(partitions, 4)


class ClientCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.cluster = Cluster()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.kafka.Admin", self.cluster))

    def client(self):
        return KafkaClient("kafka1:9092, kafka2:9092")


class KafkaClientTest(ClientCase):
    def test_hosts_may_be_a_string_or_a_list(self):
        for hosts in ("kafka1:9092, kafka2:9092", ["kafka1:9092", "kafka2:9092"]):
            KafkaClient(hosts, client_id=b"check")
            self.assertEqual("kafka1:9092,kafka2:9092", self.cluster.options["bootstrap.servers"])
            self.assertEqual("check", self.cluster.options["client.id"])

    def test_invalid_hosts_are_named_in_the_error(self):
        error = self.assertRaises(ConfigurationError, KafkaClient, "http://kafka1:9092")
        self.assertIn("http://kafka1:9092", str(error))

    def test_opening_a_client_requests_the_topics(self):
        self.cluster.down = RetriableError("no response from kafka1:9092")
        self.assertRaises(KafkaUnavailableError, self.client)

    def test_names_of_topics_are_bytes(self):
        client = self.client()
        self.assertIn(b"metrics", client.topics)
        self.assertNotIn(b"events", client.topics)

    def test_partitions_are_numbered(self):
        client = self.client()
        self.assertEqual([0, 1], client.get_partition_ids_for_topic(b"metrics"))
        self.assertEqual([], client.get_partition_ids_for_topic("events"))

    def test_offsets_are_returned_in_the_order_of_the_payloads(self):
        first, second, third = self.client().send_offset_request(
            [
                OffsetRequest(b"metrics", 1, -1, 1),
                OffsetRequest(b"metrics", 1, -2, 1),
                OffsetRequest(b"alarms", 0, -1, 1),
            ]
        )
        self.assertEqual((b"metrics", 1, 0, (11,)), first)
        self.assertEqual((4,), second.offsets)
        self.assertEqual((b"alarms", 0, 0, (10,)), third)

    def test_a_time_other_than_end_and_beginning_is_refused(self):
        request = OffsetRequest(b"metrics", 0, 1_700_000_000_000, 1)
        self.assertRaises(MisuseError, self.client().send_offset_request, [request])

    def test_a_closed_client_refuses_calls(self):
        client = self.client()
        client.close()
        client.close()
        self.assertRaises(ClosedError, client.committed_offsets, "1_metrics", "metrics")


class SimpleConsumerTest(ClientCase):
    def consumer(self, group="1_metrics", topic="metrics"):
        return SimpleConsumer(self.client(), group, topic, auto_commit=False)

    def test_offsets_belong_to_the_topic_and_are_0_without_a_commit(self):
        self.assertEqual({0: 7, 1: 0}, self.consumer().offsets)
        self.assertEqual({0: 0, 1: 0}, self.consumer("nobody").offsets)

    def test_offsets_are_read_again_on_request(self):
        consumer = self.consumer()
        self.cluster.committed[TopicPartition("metrics", 0)] = 9
        consumer.fetch_last_known_offsets()
        consumer.stop()
        self.assertEqual({0: 9, 1: 0}, consumer.offsets)

    def test_a_missing_topic_is_named(self):
        error = self.assertRaises(UnknownTopicOrPartitionError, self.consumer, topic="events")
        self.assertIn("'events'", str(error))

    def test_removed_calls_are_refused_with_the_remedy(self):
        consumer = self.consumer()
        for refused in (
            lambda: SimpleConsumer(self.client(), "1_metrics", "metrics"),
            lambda: list(consumer),
            consumer.get_message,
            lambda: consumer.get_messages(count=10, block=True),
        ):
            self.assertIn("get_kafka_consumer", str(self.assertRaises(MisuseError, refused)))
