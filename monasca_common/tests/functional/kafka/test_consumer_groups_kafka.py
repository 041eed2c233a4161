# SPDX-License-Identifier: Apache-2.0
"""Consumers of one group on a real broker: partitions are assigned, revoked and lost, under each group protocol."""

import threading
import time
from typing import Any, ClassVar

from confluent_kafka.admin import AdminClient

from monasca_common.kafka.consumer.commit import CommitResult
from monasca_common.kafka.errors import FatalError, RetriableError, StaleCommit
from monasca_common.kafka.message import Batch, PartitionBatch, TopicPartition
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.consumer_case import (
    BUSY_SECONDS,
    CLASSIC,
    EAGER,
    KIP_848,
    SECONDS,
    ConsumerCase,
    Recorder,
    all_of,
)
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS


class ProtocolCase(ConsumerCase):
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
class TestStaticMembership(ConsumerCase):
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
