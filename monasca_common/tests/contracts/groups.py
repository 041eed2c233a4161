# SPDX-License-Identifier: Apache-2.0
"""The contract of groups: when owners of partitions change, no message is lost, repeated needlessly, or committed
late."""

from collections.abc import Sequence
from itertools import chain

from monasca_common.kafka.consumer.commit import CommitResult
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.message import Batch, Record, TopicPartition
from monasca_common.tests.contracts.cluster import Capability, needs
from monasca_common.tests.contracts.scenario import Recorder, Scenario


class GroupContract(Scenario):
    def member(self, listener: RebalanceListener | None = None) -> KafkaConsumer:
        return self.cluster.consumer(self.topic, self.group, listener=listener)

    def owner_of_all(self, listener: RebalanceListener | None = None) -> KafkaConsumer:
        consumer = self.member(listener)
        self.settle(consumer, until=self.own(consumer, 4))
        return consumer

    def share(self, first: KafkaConsumer, second: KafkaConsumer) -> None:
        """Poll both consumers until each owns half of the partitions."""
        self.settle(first, second, until=lambda: len(first.assignment()) == len(second.assignment()) == 2)

    # Joining and leaving

    def test_two_members_share_a_topic_and_one_of_them_reads_each_message(self) -> None:
        first, second = self.owner_of_all(), self.member()
        self.share(first, second)
        self.assertEqual(set(self.partitions(self.topic)), first.assignment() | second.assignment())
        self.fill(self.topic, 5)
        found: list[bytes] = []
        for _ in self.attempts(lambda: f"{len(found)} messages"):
            if len(found) >= 20:
                break
            found.extend(message.message_id for reader in (first, second) for message in reader.poll(timeout=0.1))
        self.assertEqual((20, 20), (len(found), len(set(found))))

    def test_remaining_members_resume_at_the_offsets_of_a_leaving_member(self) -> None:
        first, second = self.owner_of_all(), self.member()
        self.share(first, second)
        self.fill(self.topic, 2)
        for reader in (first, second):
            for batch in self.await_batches(reader, 4):
                reader.commit(batch)
        second.close()
        self.assertEqual([], self.settle(first, until=self.own(first, 4)))
        self.publish(self.topic, [Record(b"new", partition=number) for number in range(4)])
        self.assertEqual([b"new"] * 4, [message.value for message in self.read(first, 4)])

    def test_the_partitions_of_a_killed_member_move(self) -> None:
        other = self.cluster.new_member(self.topic, self.group)
        reader = self.member()
        self.settle(reader, until=self.own(reader, 2))
        other.kill()
        self.settle(reader, until=self.own(reader, 4))
        self.fill(self.topic, 1)
        self.assertEqual(4, len(self.read(reader, 4)))

    def test_a_listener_receives_assigned_and_revoked_partitions(self) -> None:
        listener = Recorder()
        first, second = self.owner_of_all(listener), self.member()
        self.assertEqual(self.partitions(self.topic), sorted(chain(*listener.received("assigned"))))
        self.share(first, second)
        gone = set(self.partitions(self.topic)) if self.cluster.eager else second.assignment()
        self.assertEqual(gone, set(chain(*listener.received("revoked"))))
        self.assertEqual([], [*chain(*listener.received("lost"))])

    def test_closing_revokes_everything(self) -> None:
        listener = Recorder()
        self.owner_of_all(listener).close()
        self.assertEqual(self.partitions(self.topic), sorted(chain(*listener.received("revoked"))))

    def test_the_start_offset_of_a_listener_overrides_the_committed_offset(self) -> None:
        self.fill(self.topic, 3)
        reader = self.member(Recorder(starts=dict.fromkeys(self.partitions(self.topic), 2)))
        self.assertEqual({2}, {message.offset for message in self.read(reader, 4)})

    # Rule 18
    @needs(Capability.MORE_PARTITIONS)
    def test_a_partition_added_later_is_read_from_its_beginning(self) -> None:
        quick = {"topic.metadata.refresh.interval.ms": "500"}
        reader = self.cluster.consumer(self.topic, self.group, start="latest", options=quick)
        # While the group's start offsets are unknown, a partition does not count as added later.
        self.settle(reader, until=lambda: None not in map(reader.position, self.partitions(self.topic)))
        self.cluster.add_partition(self.topic)
        self.publish(self.topic, [Record(b"first", partition=4)])
        self.assertEqual([b"first"], [message.value for message in self.read(reader, 1)])

    # Commits

    # Rule 14
    def test_a_batch_polled_before_a_revoke_is_not_committed_after_it(self) -> None:
        self.fill(self.topic, 2)
        first = self.member()
        batches = self.await_batches(first, 8)
        second = self.member()
        self.share(first, second)
        results = self.commit_all(first, batches)
        for partition in second.assignment():
            self.assertTrue(results[partition].stale, partition)
        self.assertEqual(dict.fromkeys(second.assignment(), 0), second.seek_to_committed())
        if not self.cluster.eager:
            self.assertTrue(all(results[partition].committed for partition in first.assignment()))

    def commit_all(self, consumer: KafkaConsumer, batches: Sequence[Batch]) -> dict[TopicPartition, CommitResult]:
        results: dict[TopicPartition, CommitResult] = {}
        for batch in batches:
            results.update(consumer.commit(batch))
        return results

    @needs(Capability.COMMITS_AMID_REBALANCE, patience_seconds=10.0)  # a rebalance of the mock cluster takes 3 s
    def test_a_commit_within_revoked_still_counts(self) -> None:
        self.fill(self.topic, 2)
        batches: list[Batch] = []
        results: list[CommitResult] = []
        first = self.member(Recorder(on_revoked=lambda *_: results.extend(self.commit_all(first, batches).values())))
        batches += self.await_batches(first, 8)
        second = self.member()
        self.share(first, second)
        self.assertEqual([None] * 4, [result.error for result in results[:4]])
        self.assertEqual(dict.fromkeys(second.assignment(), 2), second.seek_to_committed())

    # Rule 14
    def test_a_broker_stores_a_lower_commit_of_a_member_that_does_not_own_the_partition(self) -> None:
        # Other modules have fences because a real broker stores this commit, even if a fake broker refuses it.
        first, second = self.owner_of_all(), self.member()
        self.fill(self.topic, 3)
        self.share(first, second)
        foreign = min(second.assignment())
        second.commit({foreign: 3})
        first._transport.commit({foreign: 1})
        self.assertEqual(1, second.seek_to_committed()[foreign])

    # Pauses and losses

    # Rule 19
    def test_a_revoked_pause_ends_when_the_partition_is_assigned_again(self) -> None:
        first = self.owner_of_all()
        first.pause(self.partitions(self.topic))
        second = self.member()
        self.share(first, second)
        moved = sorted(second.assignment())
        second.close()
        self.settle(first, until=self.own(first, 4))
        self.publish(self.topic, [Record(b"v", partition=partition.partition) for partition in moved])
        self.assertEqual(moved, sorted({TopicPartition(m.topic, m.partition) for m in self.read(first, 2)}))

    def test_a_member_that_polls_too_late_loses_everything_and_may_not_commit(self) -> None:
        self.fill(self.topic, 1)
        listener = Recorder()
        first = self.cluster.consumer(
            self.topic, self.group, listener=listener, max_poll_interval_seconds=self.cluster.max_poll_interval_seconds
        )
        batches = self.await_batches(first, 4)
        self.cluster.outlive_poll_interval(first)
        for _ in self.attempts(lambda: "no partition was lost"):
            if any(listener.received("lost")):
                break
            first.poll(timeout=0.1)
        self.assertEqual(self.partitions(self.topic), sorted(chain(*listener.received("lost"))))
        self.assertEqual([], [*chain(*listener.received("revoked"))])
        self.assertTrue(all(result.stale for result in self.commit_all(first, batches).values()))
