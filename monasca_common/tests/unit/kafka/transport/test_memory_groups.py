# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import MemoryConsumer, MemoryProducer, VirtualClock

GROUP = "test-group"


def numbers(partitions):
    return sorted(tp.partition for tp in partitions)


class Reader:
    """A member of the group that records its events."""

    def __init__(self, kafka, **changes):
        self.transport = MemoryConsumer(kafka.consumer_settings("t", GROUP, **changes))
        self.transport.subscribe(["t"], self)
        self.events = []
        self.during_revoke = lambda: None

    def on_assign(self, partitions):
        self.events.append(("assign", numbers(partitions)))
        self.transport.assign_owned(dict.fromkeys(partitions, 0))

    def on_revoke(self, partitions):
        self.events.append(("revoke", numbers(partitions)))
        self.during_revoke()

    def on_lost(self, partitions):
        self.events.append(("lost", numbers(partitions)))

    def poll(self):
        fetched = self.transport.poll(100, 0)
        parts = [PartitionBatch(partition, 1, columns) for partition, columns in fetched.parts]
        return [*fetched.events, *(message for part in parts for message in part)]

    def news(self):
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events


class GroupCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 4)

    def reader(self, **changes):
        reader = Reader(self.kafka, **changes)
        self.addCleanup(reader.transport.close)
        return reader

    def produce(self, *partitions):
        producer = MemoryProducer(self.kafka.producer_settings(), batch_bytes=1_000_000, on_error=print)
        for partition in partitions:
            producer.produce_record("t", b"v", None, partition, 0, (), partition)

    def member_id(self, index):
        return self.broker.members(GROUP)[index]

    def owned(self):
        return [numbers(member.owned) for member in self.broker.group(GROUP).members.values()]

    def two_settled_readers(self, **changes):
        first, second = self.reader(**changes), self.reader(**changes)
        for reader in (first, second, first, second):
            reader.poll()
        first.events.clear()
        second.events.clear()
        return first, second


class IncrementalTest(GroupCase):
    def test_a_second_member_receives_its_half_after_the_first_revoked_it(self):
        first, second = self.reader(), self.reader()
        first.poll()
        second.poll()
        self.assertEqual([], second.events)
        first.poll()
        self.assertEqual([("assign", [0, 1, 2, 3]), ("revoke", [0, 1])], first.events)
        second.poll()
        self.assertEqual([("assign", [0, 1])], second.events)

    def test_kept_partitions_are_read_without_an_interruption(self):
        first, second = self.two_settled_readers()
        third = self.reader()
        third.poll()
        first.poll()
        second.poll()
        self.assertEqual(1, len(first.events + second.events))

    def test_a_partition_is_reassigned_only_after_the_callback_of_its_owner_returned(self):
        first, second = self.reader(), self.reader()
        first.poll()
        second.poll()
        seen = []
        first.during_revoke = lambda: seen.append((second.poll(), second.news()))
        first.poll()
        first.during_revoke = lambda: None
        self.assertEqual([([], [])], seen)

    def test_members_without_a_partition_are_idle(self):
        readers = [self.reader() for _ in range(5)]
        for _ in range(3):
            for reader in readers:
                reader.poll()
        self.assertEqual([0, 1, 1, 1, 1], sorted(map(len, self.owned())))

    def test_a_waiting_poll_wakes_for_a_rebalance(self):
        first, second = self.reader(), self.reader()
        first.poll()
        revoked = threading.Event()
        first.during_revoke = revoked.set
        poller = threading.Thread(target=lambda: first.transport.poll(1, 1000), daemon=True)
        poller.start()
        second.poll()
        self.assertTrue(revoked.wait(50))
        self.clock.advance(1000)
        poller.join(50)


class LostTest(GroupCase):
    def test_a_member_whose_session_expired_rejoins_at_its_next_poll(self):
        first, second = self.two_settled_readers()
        self.broker.expire_member(GROUP, self.member_id(0))
        second.poll()
        self.assertEqual([("assign", [2, 3])], second.news())
        self.assertEqual("UNKNOWN_MEMBER_ID", self.assert_commit_refused(first))
        first.poll()
        self.assertEqual([("lost", [2, 3])], first.news())
        second.poll()
        first.poll()
        self.assertEqual([[2, 3], [0, 1]], sorted(self.owned(), reverse=True))

    def assert_commit_refused(self, reader):
        return self.assertRaises(TransportError, reader.transport.commit, {TopicPartition("t", 3): 1}).name

    def test_the_partitions_of_a_killed_member_move_and_its_consumer_fails(self):
        first, second = self.two_settled_readers()
        self.broker.kill_member(GROUP, self.member_id(0))
        second.poll()
        self.assertEqual([("assign", [2, 3])], second.events)
        self.assertRaises(TransportError, first.poll)
        first.transport.close()
        self.assertEqual([], first.events)

    def test_a_member_that_polls_too_late_is_notified_and_then_loses_its_partitions(self):
        first = self.reader(max_poll_interval_seconds=60)
        second = self.reader(max_poll_interval_seconds=3600)
        for reader in (first, second, first, second):
            reader.poll()
        first.events.clear()
        second.events.clear()
        self.clock.advance(61)
        second.poll()
        self.assertEqual([("assign", [2, 3])], second.events)
        self.assertEqual("UNKNOWN_MEMBER_ID", self.assert_commit_refused(first))
        [element] = first.poll()
        self.assertEqual("_MAX_POLL_EXCEEDED", element.error.name)
        self.assertEqual([], first.events)
        first.poll()
        self.assertEqual([("lost", [2, 3])], first.events)

    def test_a_revoke_that_outlives_the_poll_interval_ends_the_membership(self):
        first, second = self.reader(max_poll_interval_seconds=60), self.reader(max_poll_interval_seconds=3600)
        first.poll()
        second.poll()
        first.during_revoke = lambda: self.clock.advance(61)
        [element] = first.poll()
        self.assertEqual("_MAX_POLL_EXCEEDED", element.error.name)
        first.poll()
        self.assertIn(("lost", [2, 3]), first.events)

    def test_a_lost_member_that_closes_commits_nothing_but_is_notified_of_the_loss(self):
        reader = self.reader()
        reader.poll()
        self.broker.expire_member(GROUP, self.member_id(0))
        reader.transport.close()
        self.assertEqual(("lost", [0, 1, 2, 3]), reader.events[-1])

    def test_an_unknown_member_is_refused_with_the_list_of_members(self):
        error = self.assertRaises(ConfigurationError, self.broker.kill_member, GROUP, "nobody")
        self.assertIn("nobody", str(error))


class CommitTest(GroupCase):
    def test_a_client_outside_the_group_may_commit_only_while_it_is_empty(self):
        stranger = MemoryConsumer(self.kafka.consumer_settings("t", GROUP))
        stranger.commit({TopicPartition("t", 0): 1})
        reader = self.reader()
        reader.poll()
        error = self.assertRaises(TransportError, stranger.commit, {TopicPartition("t", 0): 2})
        self.assertEqual("UNKNOWN_MEMBER_ID", error.name)

    def test_deleting_a_topic_deletes_its_committed_offsets(self):
        reader = self.reader()
        reader.poll()
        reader.transport.commit({TopicPartition("t", 0): 1})
        self.broker.delete_topic("t")
        self.assertEqual({}, self.broker.committed(GROUP))


class ReadingTest(GroupCase):
    def test_a_partition_paused_when_it_was_revoked_is_still_paused_when_it_comes_back(self):
        first, second = self.reader(), self.reader()
        first.poll()
        first.transport.pause([TopicPartition("t", 0)])
        second.poll()
        first.poll()
        second.transport.close()
        self.produce(0, 1)
        self.assertEqual([1], [message.partition for message in first.poll()])
