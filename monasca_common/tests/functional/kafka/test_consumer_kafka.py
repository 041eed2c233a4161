# SPDX-License-Identifier: Apache-2.0
"""A single consumer on a real broker: reading, committing, start offsets, and seeking. Consumers of one group:
partitions are assigned, revoked and lost, under each group protocol."""

import threading
import time
from typing import Any, ClassVar

from confluent_kafka.admin import AdminClient, NewPartitions

from monasca_common.kafka.consumer.commit import CommitResult
from monasca_common.kafka.errors import CommitUnknown, FatalError, RetriableError, StaleCommit
from monasca_common.kafka.message import Batch, PartitionBatch, TopicPartition
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.tests.checker import each_once
from monasca_common.tests.contracts.scenario import Recorder
from monasca_common.tests.functional.kafka.consumer_case import (
    BUSY_SECONDS,
    CLASSIC,
    EAGER,
    KIP_848,
    SECONDS,
    ConsumerCase,
    all_of,
)
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS


class Member(threading.Thread):
    """Polls on a separate thread until stopped, then closes; keeps every value and error."""

    def __init__(self, consumer):
        super().__init__(daemon=True)
        self.consumer = consumer
        self.values = []
        self.errors = []
        self.raised = None
        self._stopping = threading.Event()
        self.start()

    def run(self):
        try:
            while not self._stopping.is_set():
                batch = self.consumer.poll(timeout=0.05)
                self.values += [message.value for message in batch]
                self.errors += batch.errors
                self.consumer.commit(batch)
        except Exception as error:
            self.raised = error
        self.consumer.close()

    def stop(self):
        self._stopping.set()
        self.join(SECONDS)


class MemberCase(ConsumerCase):
    def member(self, topics, **arguments):
        member = Member(self.consumer(topics, **arguments))
        self.addCleanup(member.stop)
        return member


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


class TestStarting(MemberCase):
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


class ProtocolCase(MemberCase):
    protocol: ClassVar[dict[str, Any]] = {}

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic(partitions=4)


class Protocol(ProtocolCase):
    """Tests for every group protocol; the subclasses name the protocol."""

    def given_away(self):
        """Return whether the broker has assigned the topic's partitions to members of the group."""
        client = AdminClient(self.cluster.direct_options())
        (group,) = client.describe_consumer_groups([self.group]).values()
        members = group.result(SECONDS).members
        return sum(len(member.assignment.topic_partitions) for member in members) == 4

    def test_two_members_share_the_partitions_and_the_other_takes_over_when_one_leaves(self):
        first, second = (self.member(self.topic, **self.protocol) for _ in range(2))
        self.wait_until(lambda: len(first.consumer.assignment()) == len(second.consumer.assignment()) == 2)
        self.put(self.topic, 100, partitions=4)
        self.wait_until(lambda: len(first.values) + len(second.values) >= 100)
        second.stop()
        self.put(self.topic, 100, partitions=4, first=100)
        self.wait_until(lambda: len(first.values) + len(second.values) >= 200)
        everything = sorted(int(value) for value in first.values + second.values)
        with each_once():
            self.assertEqual(list(range(200)), everything)
        # A new partition can still be without a leader.
        lasting = [error for error in first.errors + second.errors if not isinstance(error, RetriableError)]
        self.assertEqual([], lasting)

    @periodic("the unit tests check the same behaviour")
    def test_a_member_that_closes_before_its_assignment_leaves_immediately(self):
        listener = Recorder()
        consumer = self.consumer(self.topic, listener=listener, **self.protocol)
        consumer.poll(timeout=0)
        self.wait_until(self.given_away)
        consumer.close()
        self.assertEqual([], self.admin.group_members(self.group))
        self.assertEqual([], listener.received("assigned"))

    def test_work_finished_within_a_revoke_is_committed(self):
        self.put(self.topic, 40, partitions=4)
        committed = []

        def finish(partitions, deadline):
            committed.append(consumer.commit(dict.fromkeys(partitions, 10)))

        listener = Recorder(on_revoked=finish)
        consumer = self.consumer(self.topic, listener=listener, **self.protocol)
        self.read(consumer, 40)
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: other.consumer.assignment() and listener.received("revoked"))
        self.assertTrue(all(result.committed for results in committed for result in results.values()))
        revoked = {partition for partitions in listener.received("revoked") for partition in partitions}
        offsets = self.admin.group_offsets(self.group)
        self.assertEqual({10}, {offsets[partition] for partition in revoked})
        self.assertFalse(other.values, "a committed message was read again")

    def test_a_batch_of_a_former_assignment_is_not_committed(self):
        self.put(self.topic, 40, partitions=4)
        consumer = self.consumer(self.topic, **self.protocol)
        parts: dict[TopicPartition, PartitionBatch] = {}
        while len(parts) < 4:
            for part in consumer.poll(timeout=0.5).partitions:
                parts[part.topic_partition] = part
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(other.consumer.assignment()) == 2)
        moved = other.consumer.assignment()
        self.wait_until(lambda: {self.admin.group_offsets(self.group).get(partition) for partition in moved} == {10})
        before = self.admin.group_offsets(self.group)
        results = consumer.commit(Batch(tuple(parts[partition] for partition in moved)))
        self.assertEqual({True}, {result.stale for result in results.values()})
        self.assertEqual(before, self.admin.group_offsets(self.group))
        stale = Batch((parts[next(iter(moved))],))
        self.assertRaises(StaleCommit, consumer.next_offsets, stale)

    @periodic("the unit tests check the same behaviour")
    def test_a_listener_that_raises_does_not_break_the_rebalance(self):
        def fail(partitions, deadline):
            raise RuntimeError("the database is unavailable")

        consumer = self.consumer(self.topic, listener=Recorder(on_revoked=fail), **self.protocol)
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(other.consumer.assignment()) == 2)
        self.assertEqual(1, consumer.health().listener_failures)

    def test_a_paused_partition_that_is_revoked_is_read_when_assigned_again(self):
        consumer = self.consumer(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        consumer.pause(consumer.assignment())
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(other.consumer.assignment()) == 2)
        back = other.consumer.assignment()
        other.stop()
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        self.put(self.topic, 40, partitions=4)
        consumer.resume(set(all_of(self.topic, 4)) - back)
        self.assertEqual(40, len(self.read(consumer, 40)))

    @periodic("waits for max.poll.interval; the unit tests cover the loss")
    def test_lost_partitions_are_reported_to_a_process_that_polls_too_rarely(self):
        self.put(self.topic, 40, partitions=4)
        listener = Recorder()
        slow = self.consumer(self.topic, listener=listener, max_poll_interval_seconds=6.0, **self.protocol)
        messages = self.read(slow, 40)
        time.sleep(7)
        quick = self.member(self.topic, **self.protocol)
        self.wait_until(lambda: len(quick.consumer.assignment()) == 4)
        self.wait_until(lambda: len(quick.values) == 40)
        late = slow.commit({TopicPartition(self.topic, 0): 3})
        self.assertFalse(late[TopicPartition(self.topic, 0)].committed)
        errors = self.errors_until(slow, lambda: listener.received("lost"))
        self.assertIn("_MAX_POLL_EXCEEDED", [getattr(error, "name", None) for error in errors])
        self.assertEqual([all_of(self.topic, 4)], listener.received("lost"))
        self.assertEqual([], listener.received("revoked"))
        self.assertEqual(40, len(messages))
        # The quick consumer commits shortly after it has reported its messages.
        self.wait_until(
            lambda: set(self.admin.group_offsets(self.group).values()) == {10}, "only the commits of this member"
        )

    def test_a_commit_by_another_thread_waits_neither_for_a_poll_nor_for_a_callback(self):
        """The threads share an identity, because the client otherwise admits one caller at a time."""
        committed = []

        def commit_elsewhere(partitions, deadline):
            results: list[CommitResult] = []
            thread = threading.Thread(target=lambda: results.extend(consumer.commit({partitions[0]: 0}).values()))
            thread.start()
            thread.join(BUSY_SECONDS)  # a call would get no response before this callback returns
            committed.append([result.committed for result in results])

        consumer = self.consumer(self.topic, listener=Recorder(on_revoked=commit_elsewhere), **self.protocol)
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        poller = threading.Thread(target=consumer.poll, kwargs={"timeout": PATIENCE_SECONDS})
        poller.start()
        time.sleep(0.2)
        begun = time.monotonic()
        self.assertTrue(consumer.commit({TopicPartition(self.topic, 0): 0})[TopicPartition(self.topic, 0)].committed)
        self.assertLess(time.monotonic() - begun, BUSY_SECONDS)
        self.put(self.topic, 1)
        poller.join(PATIENCE_SECONDS)
        consumer.close()
        self.assertEqual([[True]], committed)


class TestClassicCooperative(Protocol):
    protocol: ClassVar[dict[str, Any]] = CLASSIC

    def test_kept_partitions_are_not_interrupted(self):
        listener = Recorder()
        consumer = self.consumer(self.topic, listener=listener, **self.protocol)
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(other.consumer.assignment()) == 2)
        self.assertEqual(2, len(listener.received("revoked")[0]))
        self.assertEqual(consumer.assignment(), set(all_of(self.topic, 4)) - set(listener.received("revoked")[0]))


@periodic("second protocol; the normal run contains TestEagerRebalance")
class TestClassicEager(Protocol):
    protocol: ClassVar[dict[str, Any]] = EAGER


class TestEagerRebalance(ProtocolCase):
    protocol: ClassVar[dict[str, Any]] = EAGER

    def test_all_partitions_are_revoked_and_assigned_again(self):
        listener = Recorder()
        consumer = self.consumer(self.topic, listener=listener, **self.protocol)
        self.poll_until(consumer, lambda: len(consumer.assignment()) == 4)
        other = self.member(self.topic, **self.protocol)
        self.poll_until(consumer, lambda: len(other.consumer.assignment()) == 2)
        self.assertEqual([all_of(self.topic, 4)], listener.received("revoked"))

    def test_a_partition_out_of_range_resumes_and_other_partitions_lose_nothing(self):
        self.put(self.topic, 40, partitions=4)
        dead = TopicPartition(self.topic, 2)
        consumer = self.consumer(self.topic, listener=Recorder(starts={dead: 99}), **self.protocol)
        messages = self.poll_until(consumer, lambda: dead in consumer._assignment.out_of_range)
        consumer.seek(dead, 0)
        while len(messages) < 40:
            messages += self.read(consumer, 40 - len(messages))
        with each_once():
            self.assertEqual(set(range(40)), {int(message.value) for message in messages})


@periodic("second protocol; the normal run contains Kip848ProcessorTest")
class TestKip848(Protocol):
    protocol: ClassVar[dict[str, Any]] = KIP_848


@periodic("uses the group protocol that other tests cover")
class TestStaticMembership(MemberCase):
    def test_a_static_member_that_restarts_in_time_keeps_its_partitions_without_a_rebalance(self):
        topic = self.fixture.topic(partitions=4)
        listener = Recorder()
        stays = self.member(topic, listener=listener, group_instance_id="a", session_timeout_seconds=PATIENCE_SECONDS)
        leaves = self.member(topic, group_instance_id="b", session_timeout_seconds=PATIENCE_SECONDS)
        self.wait_until(lambda: len(stays.consumer.assignment()) == len(leaves.consumer.assignment()) == 2)
        its_own, before = leaves.consumer.assignment(), len(listener.events)
        leaves.stop()
        back = self.member(topic, group_instance_id="b", session_timeout_seconds=PATIENCE_SECONDS)
        self.wait_until(lambda: back.consumer.assignment() == its_own)
        self.assertEqual(before, len(listener.events))

    def test_a_static_member_fenced_by_another_process_is_reported(self):
        topic = self.fixture.topic()
        first = self.member(topic, group_instance_id="a", session_timeout_seconds=PATIENCE_SECONDS)
        self.wait_until(lambda: first.consumer.assignment())
        second = self.member(topic, group_instance_id="a", session_timeout_seconds=PATIENCE_SECONDS)
        self.wait_until(lambda: second.consumer.assignment())
        self.wait_until(lambda: first.raised is not None)
        self.assertIsInstance(first.raised, FatalError)
        self.assertIn("group.instance.id", str(first.errors[0]))

    def test_a_kip_848_group_refuses_a_second_member_with_the_same_static_id(self):
        topic = self.fixture.topic()
        first = self.member(topic, group_instance_id="a", **KIP_848)
        self.wait_until(lambda: first.consumer.assignment())
        second = self.member(topic, group_instance_id="a", **KIP_848)
        self.wait_until(lambda: second.raised is not None)
        self.assertIsInstance(second.raised, FatalError)
        self.assertIsNone(first.raised)


del Protocol  # the base class is not a test case
