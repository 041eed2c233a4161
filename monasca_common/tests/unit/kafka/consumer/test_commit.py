# SPDX-License-Identifier: Apache-2.0
import threading
from typing import Any, cast

from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.consumer.commit import Committer
from monasca_common.kafka.errors import CommitUnknown, StaleCommit, TransportError
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition
from monasca_common.kafka.transport.client_thread import ClientThread

A, B = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class Coordinator:
    """A transport that responds to commits when the test requests it."""

    clock = SystemClock()

    def __init__(self):
        self.sent: list[dict[TopicPartition, int]] = []
        self.answers: dict[TopicPartition, TransportError] = {}
        self.held = threading.Event()
        self.held.set()

    def commit(self, offsets):
        self.sent.append(dict(offsets))
        self.held.wait(50)
        return {partition: self.answers.get(partition) for partition in offsets}


class TestCommitter(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.coordinator = cast(Any, Coordinator())
        self.addCleanup(self.coordinator.held.set)
        self.over: set[TopicPartition] = set()
        self.released = threading.Event()
        thread = ClientThread("test-calls", self.coordinator.clock, remedy="")
        self.committer = Committer(thread, self.coordinator, self.refusal)

    def refusal(self, partition, progress):
        return StaleCommit("its assignment has ended") if partition in self.over else None

    def test_each_partition_has_its_own_result(self):
        refused = TransportError("no such partition", code=3)
        self.coordinator.answers[B] = refused
        results = self.committer.commit({A: OffsetAndEpoch(1, 5), B: OffsetAndEpoch(1, 7)}, 10)
        self.assertEqual((True, None), (results[A].committed, results[A].error))
        self.assertEqual((False, refused, 7), (results[B].committed, results[B].error, results[B].next_offset))

    def test_a_commit_omits_a_stale_partition_and_sends_the_others(self):
        self.over.add(A)
        results = self.committer.commit({A: OffsetAndEpoch(1, 5), B: OffsetAndEpoch(1, 7)}, 10)
        self.assertEqual([{B: 7}], self.coordinator.sent)
        self.assertEqual((True, False), (results[A].stale, results[B].stale))

    def test_without_a_response_in_time_the_outcome_is_unknown(self):
        self.coordinator.held.clear()
        results = self.committer.commit({A: OffsetAndEpoch(1, 5)}, 0.01)
        self.assertIsInstance(results[A].error, CommitUnknown)

    def test_a_queued_commit_is_dropped_when_its_caller_stops_waiting(self):
        self.coordinator.held.clear()
        self.committer.commit({A: OffsetAndEpoch(1, 5)}, 0.01)
        self.committer.commit({A: OffsetAndEpoch(1, 6)}, 0.01)
        self.coordinator.held.set()
        self.assertTrue(self.committer.thread.settle(10))
        self.assertEqual([{A: 5}], self.coordinator.sent)

    # Rule 14
    def test_the_epoch_is_checked_when_the_commit_is_sent(self):
        self.coordinator.held.clear()
        self.committer.commit({A: OffsetAndEpoch(1, 5)}, 0.01)
        second = threading.Thread(target=self.committer.commit, args=({B: OffsetAndEpoch(1, 7)}, 10))
        second.start()
        self.over.add(B)
        self.coordinator.held.set()
        second.join(50)
        self.assertEqual([{A: 5}], self.coordinator.sent)

    def test_a_failed_commit_is_an_error_and_the_next_commit_works(self):
        self.coordinator.commit, works = lambda offsets: 1 / 0, self.coordinator.commit
        self.assertIn("ZeroDivisionError", str(self.committer.commit({A: OffsetAndEpoch(1, 5)}, 10)[A].error))
        self.coordinator.commit = works
        self.assertTrue(self.committer.commit({A: OffsetAndEpoch(1, 5)}, 10)[A].committed)

    def test_settling_waits_for_current_calls(self):
        self.coordinator.held.clear()
        self.committer.commit({A: OffsetAndEpoch(1, 5)}, 0.01)
        self.assertFalse(self.committer.thread.settle(0.01))
        self.coordinator.held.set()
        self.assertTrue(self.committer.thread.settle(10))

    def test_the_client_is_released_after_the_last_commit_and_close_waits_at_most_its_time_out(self):
        self.coordinator.held.clear()
        self.committer.commit({A: OffsetAndEpoch(1, 5)}, 0.01)
        order: list[list[dict[TopicPartition, int]]] = []

        def release():
            order.append(list(self.coordinator.sent))
            self.released.set()

        self.assertFalse(self.committer.thread.finish(release, 0.01))
        self.assertEqual([], order)
        self.coordinator.held.set()
        self.released.wait(50)
        self.assertEqual([[{A: 5}]], order)
