# SPDX-License-Identifier: Apache-2.0
"""The examples on a real Kafka, each as a process of its own."""

import uuid
from collections import Counter

import confluent_kafka

from monasca_common.devbroker import ApiKey, Fault
from monasca_common.devbroker.fixtures import SharedKafkaCluster
from monasca_common.tests.example_case import ExampleCase
from monasca_common.tests.functional.consumer_case import QUICK_GROUPS

SLOW_ANSWER_SECONDS = 2.5


class ExamplesTest(ExampleCase):
    def setUp(self):
        super().setUp()
        # The settings of the other functional tests, so that a process starts one cluster for all of them.
        self.kafka = self.useFixture(SharedKafkaCluster(proxied=True, config=QUICK_GROUPS))
        self.group = f"example-{uuid.uuid4().hex[:8]}"

    def on_kafka(self, topic, *lines):
        return self.configure(topic, self.group, f"bootstrap_servers = {self.kafka.cluster.bootstrap_servers}", *lines)

    def test_what_is_produced_is_consumed_and_committed(self):
        topic = self.kafka.topic(partitions=2)
        config = self.on_kafka(topic)

        self.succeeds("produce.py", config, "--topic", topic, "--count", "7")
        said = self.succeeds("consume.py", config, "--count", "7")

        self.assertIn("7 readings", said)
        offsets = self.kafka.cluster.admin.group_offsets(f"{self.group}-readers")
        self.assertEqual(7, sum(offsets.values()))

    def test_what_has_no_answer_yet_is_unknown_and_its_retry_waits_for_it(self):
        topic = self.kafka.topic()
        config = self.on_kafka(topic, "publish_timeout_seconds = 1")
        self.kafka.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=SLOW_ANSWER_SECONDS, times=1))

        said = self.succeeds("produce.py", config, "--topic", topic, "--count", "5")

        self.assertIn("delivered 0, failed 0, unknown 5", said)
        self.assertIn("delivered 5, failed 0, unknown 0", said)
        self.assertIn(f"number 4 is at {topic}/0/4", said)  # and so the log holds nothing twice

    def test_producing_to_nobody_fails_within_its_patience(self):
        config = self.configure(
            "readings", self.group, "bootstrap_servers = 127.0.0.1:9", "publish_timeout_seconds = 1"
        )

        done = self.fails("produce.py", config, "--patience_seconds", "1")

        self.assertIn("delivered 0", done.stdout)

    def test_bad_readings_become_dead_letters_that_tell_where_they_came_from(self):
        topic = f"example-{uuid.uuid4().hex[:8]}"

        said = self.succeeds("retry_dead_letters.py", self.on_kafka(topic))

        self.assertIn("the database is away", said)
        self.assertIn("stored 2, dead letters 3", said)
        for reason in (
            "monasca_common.kafka.errors.Poison: 900 degrees in oven",
            "KeyError: 'celsius'",
            "SerializationError",
        ):
            self.assertIn(reason, said)
        self.assertIn("after 3 attempts", said)
        self.assertIn(f"came from {topic}/0/", said)

    def test_dead_letters_are_sent_back_under_the_ids_that_they_had(self):
        topic = f"example-{uuid.uuid4().hex[:8]}"
        config = self.on_kafka(topic)
        self.succeeds("retry_dead_letters.py", config)
        # Another reader than the one that printed them.
        config.write_text(config.read_text().replace("-inspectors", "-replay"))

        said = self.succeeds("replay_dead_letters.py", config)

        self.assertIn("3 sent back", said)
        ids = Counter(dict(message.headers())["message-id"] for message in self.log_of(topic, 8))
        self.assertEqual([1, 1, 2, 2, 2], sorted(ids.values()))

    def log_of(self, topic, count):
        """Read by a client that shares nothing with the library."""
        reader = confluent_kafka.Consumer({**self.kafka.cluster.direct_options(), "group.id": "independent"})
        self.addCleanup(reader.close)
        reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return reader.consume(count, timeout=20)

    def test_a_serializer_of_another_package_is_found_by_its_name(self):
        config = self.on_kafka(self.kafka.topic())

        said = self.succeeds("custom_plugin.py", config, path=self.installed("csv_serializer"))

        self.assertIn("read [['hall', '21.5', 'said, and quoted']]", said)
