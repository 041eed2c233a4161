# SPDX-License-Identifier: Apache-2.0
"""Consumer behaviour that does not depend on the driver: positions, commits of batches, misuse, calls after close."""

from oslotest import base

from monasca_common.kafka.errors import ClosedError, MisuseError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka

TOPIC = "metrics"
FIRST = TopicPartition(TOPIC, 0)
FOREIGN = TopicPartition(TOPIC, 99)


class ConsumerCallsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic(TOPIC, 2)
        self.consumer = self.kafka.consumer(TOPIC)

    def publish(self, count):
        with self.kafka.producer(topics_without_message_id=frozenset({TOPIC})) as producer:
            records = [Record(b"%d" % number, partition=number % 2) for number in range(count)]
            producer.publish(TOPIC, records).raise_for_undelivered()

    def polled(self, count):
        """Poll until this number of messages was returned; return a list of batches."""
        batches = []
        while sum(map(len, batches)) < count:
            batches.append(self.consumer.poll(timeout=5.0))
        return batches

    # Rule 12
    def test_committing_a_batch_commits_all_of_it(self):
        self.publish(6)
        for batch in self.polled(6):
            results = self.consumer.commit(batch)
            self.assertEqual({part.topic_partition for part in batch.partitions}, set(results))
            self.assertTrue(all(result.committed for result in results.values()))
        self.assertEqual({FIRST: 3, TopicPartition(TOPIC, 1): 3}, self.kafka.broker.committed("test-group"))

    def test_committing_an_empty_batch_has_no_effect(self):
        self.assertEqual({}, dict(self.consumer.commit(self.consumer.poll(timeout=0.0))))

    def test_an_offset_of_a_partition_that_is_not_owned_is_stale(self):
        self.consumer.poll(timeout=0.0)
        result = self.consumer.commit({FOREIGN: 7})[FOREIGN]
        self.assertTrue(result.stale)
        self.assertIn("never assigned", str(result.error))

    def test_the_position_is_the_offset_that_is_read_next(self):
        self.publish(6)
        self.polled(6)
        self.assertEqual(3, self.consumer.position(FIRST))
        self.consumer.seek(FIRST, 2)
        self.assertEqual(2, self.consumer.position(FIRST))
        self.polled(1)
        self.assertEqual(3, self.consumer.position(FIRST))
        self.assertIsNone(self.consumer.position(FOREIGN))

    def test_seeking_in_a_partition_that_is_not_owned_is_misuse(self):
        self.consumer.poll(timeout=0.0)
        self.assertRaises(MisuseError, self.consumer.seek, FOREIGN, 0)

    def test_a_message_without_an_id_is_identified_by_its_place(self):
        self.publish(1)
        [message] = self.polled(1)[-1]
        self.assertEqual(b"metrics/0/0", message.message_id)

    def test_a_closed_consumer_refuses_every_call_but_close(self):
        self.consumer.poll(timeout=0.0)
        self.consumer.close()
        self.consumer.close()
        for call, *arguments in (
            (self.consumer.poll,),
            (self.consumer.commit, {FIRST: 0}),
            (self.consumer.seek, FIRST, 0),
            (self.consumer.pause, [FIRST]),
            (self.consumer.assignment,),
            (self.consumer.lag,),
        ):
            self.assertRaises(ClosedError, call, *arguments)
