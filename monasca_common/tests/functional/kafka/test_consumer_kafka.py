# SPDX-License-Identifier: Apache-2.0
"""A single consumer on a real broker: reading, committing, start offsets, and seeking."""

import time

from confluent_kafka.admin import AdminClient, NewPartitions

from monasca_common.kafka.errors import CommitUnknown
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.consumer_case import BUSY_SECONDS, SECONDS, ConsumerCase, Recorder, all_of
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS


class TestReading(ConsumerCase):
    def test_every_message_arrives_once_and_in_partition_order(self):
        topic = self.fixture.topic(partitions=3)
        self.put(topic, 300, partitions=3)
        messages = self.read(self.consumer(topic), 300)
        for number in range(3):
            values = [int(message.value) for message in messages if message.partition == number]
            with each_once():
                self.assertEqual(list(range(number, 300, 3)), values)

    def test_topics_of_a_batch_are_separate(self):
        first, second = self.fixture.topic(), self.fixture.topic()
        self.put(first, 5)
        self.put(second, 5, first=100)
        messages = self.read(self.consumer([first, second]), 10)
        self.assertEqual(list(range(5)), [int(m.value) for m in messages if m.topic == first])
        self.assertEqual(list(range(100, 105)), [int(m.value) for m in messages if m.topic == second])

    # Rule 15
    def test_a_poll_does_not_wait_for_a_full_batch(self):
        topic = self.fixture.topic()
        consumer = self.consumer(topic)
        self.poll_until(consumer, consumer.assignment)
        self.put(topic, 3)
        batches = []
        begun = time.monotonic()
        while sum(map(len, batches)) < 3:
            batches.append(consumer.poll(timeout=PATIENCE_SECONDS))
        self.assertLess(time.monotonic() - begun, BUSY_SECONDS)


class TestCommitting(ConsumerCase):
    def test_a_committed_batch_is_not_read_again(self):
        topic = self.fixture.topic()
        self.put(topic, 10)
        consumer = self.consumer(topic)
        batch = self.poll_batch(consumer)
        results = consumer.commit(batch)
        self.assertTrue(all(result.committed for result in results.values()))
        consumer.close()
        self.put(topic, 1, first=10)
        self.assertEqual([b"10"], [message.value for message in self.read(self.consumer(topic), 1)])

    # Rule 12
    def test_commits_are_next_to_read_even_after_a_seek_back(self):
        topic = self.fixture.topic()
        partition = TopicPartition(topic, 0)
        self.put(topic, 10)
        consumer = self.consumer(topic)
        self.read(consumer, 10)
        consumer.seek(partition, 4)
        self.assertEqual(4, consumer.position(partition))
        consumer.commit({partition: 4})
        self.assertEqual({partition: 4}, self.admin.group_offsets(self.group))

    def test_the_tracked_prefix_is_committed(self):
        topic = self.fixture.topic()
        partition = TopicPartition(topic, 0)
        self.put(topic, 10)
        consumer = self.consumer(topic)
        batch = self.poll_batch(consumer)
        tracker = OffsetTracker(100)
        for part in batch.partitions:
            tracker.received(part)
            for offset in (0, 1, 2, 7):
                tracker.done_range(partition, part.epoch, offset, offset + 1)
        consumer.commit(tracker.committable())
        self.assertEqual({partition: 3}, self.admin.group_offsets(self.group))

    # Rule 14
    def test_a_commit_without_response_delays_neither_the_caller_nor_polls_nor_close(self):
        topic = self.fixture.topic()
        partition = TopicPartition(topic, 0)
        self.put(topic, 5)
        consumer = self.consumer(topic)
        self.read(consumer, 5)
        fault = self.fixture.proxy.add(Fault.drop_request(ApiKey.OFFSET_COMMIT))
        begun = time.monotonic()
        result = consumer.commit({partition: 5}, timeout=0.5)[partition]
        self.assertIsInstance(result.error, CommitUnknown)
        self.assertLess(time.monotonic() - begun, 0.5 + BUSY_SECONDS)
        self.put(topic, 1, first=5)
        self.assertEqual([b"5"], [message.value for message in self.read(consumer, 1)])
        self.assertGreater(fault.taken, 0)
        begun = time.monotonic()
        consumer.close(1.0)
        self.assertLess(time.monotonic() - begun, 2.0 + BUSY_SECONDS)

    def poll_batch(self, consumer):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            batch = consumer.poll(timeout=0.5)
            if len(batch):
                return batch
        raise AssertionError("nothing arrived")


class TestStarting(ConsumerCase):
    def test_latest_is_committed_before_anything_is_read(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 10, partitions=2)
        consumer = self.consumer(topic, start="latest")
        self.poll_until(consumer, consumer.assignment)
        self.assertEqual(dict.fromkeys(all_of(topic, 2), 5), self.admin.group_offsets(self.group))
        consumer.close()
        self.put(topic, 2, partitions=2, first=10)
        values = [message.value for message in self.read(self.consumer(topic, start="latest"), 2)]
        self.assertEqual([b"10", b"11"], sorted(values))

    def test_a_partition_added_later_starts_at_its_beginning(self):
        topic = self.fixture.topic()
        consumer = self.consumer(topic, start="latest", options={"topic.metadata.refresh.interval.ms": "500"})
        self.poll_until(consumer, consumer.assignment)
        client = AdminClient({**self.cluster.direct_options()})
        client.create_partitions([NewPartitions(topic, 2)])[topic].result(SECONDS)
        self.put(topic, 4, partitions=2)
        values = sorted(message.value for message in self.read(consumer, 4))
        self.assertEqual([b"0", b"1", b"2", b"3"], values)

    def test_the_second_member_of_a_fresh_group_does_not_start_earlier_than_the_first(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 20, partitions=2)
        members = [self.member(topic, start="latest") for _ in range(2)]
        self.wait_until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        self.wait_until(
            lambda: all(member.consumer.lag() == dict.fromkeys(member.consumer.assignment(), 0) for member in members)
        )
        self.put(topic, 2, partitions=2, first=20)
        self.wait_until(lambda: sum(len(member.values) for member in members) >= 2)
        self.assertEqual([b"20", b"21"], sorted(members[0].values + members[1].values))

    def test_the_offsets_of_the_listener_override_those_of_the_group(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 20, partitions=2)
        listener = Recorder(starts={TopicPartition(topic, 1): 7})
        messages = self.read(self.consumer(topic, listener=listener), 13)
        self.assertEqual([7, 8, 9], [message.offset for message in messages if message.partition == 1])

    def test_chosen_partitions_follow_the_same_rules(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 10, partitions=2)
        partition = TopicPartition(topic, 1)
        consumer = self.consumer(topic, partitions=[partition])
        messages = self.read(consumer, 5)
        self.assertEqual({1}, {message.partition for message in messages})
        self.assertTrue(consumer.commit({partition: 3})[partition].committed)
        consumer.close()
        again = self.read(self.consumer(topic, partitions=[partition]), 2)
        self.assertEqual([3, 4], [message.offset for message in again])

    @periodic("long outage; the normal run contains test_broker_faults")
    def test_an_unavailable_broker_at_the_start_only_delays_it(self):
        topic = self.fixture.topic()
        self.put(topic, 3)
        fault = self.fixture.proxy.add(Fault.cut_request(ApiKey.OFFSET_FETCH))
        consumer = self.consumer(topic)
        self.poll_until(consumer, lambda: fault.taken > 0)
        self.fixture.proxy.remove(fault)
        messages = self.poll_until(consumer, lambda: consumer.position(TopicPartition(topic, 0)) == 3)
        self.assertEqual([b"0", b"1", b"2"], [message.value for message in messages])
