# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.message import TopicPartition

A, B = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class TestAssignment(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.assignment = Assignment()

    def test_an_added_partition_waits_until_its_position_is_known(self):
        self.assignment.add([A])
        self.assertEqual({A}, self.assignment.waiting)
        self.assignment.started({A: 7})
        self.assertEqual((set(), {A: 7}), (self.assignment.waiting, self.assignment.positions))

    def test_each_assignment_has_its_own_epoch(self):
        self.assignment.add([A])
        first = self.assignment.epoch(A) or 0
        self.assignment.remove([A])
        self.assertIsNone(self.assignment.epoch(A))
        self.assignment.add([A])
        self.assertGreater(self.assignment.epoch(A) or 0, first)

    def test_an_incremental_assignment_keeps_the_epochs_of_other_partitions(self):
        self.assignment.add([A])
        before = self.assignment.epoch(A)
        self.assignment.add([B])
        self.assertEqual(before, self.assignment.epoch(A))

    def test_a_removed_partition_leaves_no_state(self):
        self.assignment.add([A])
        self.assignment.started({A: 7})
        self.assignment.paused.add(A)
        self.assignment.out_of_range.add(A)
        self.assignment.remove([A])
        state = self.assignment
        self.assertEqual(({}, set(), set(), set()), (state.positions, state.paused, state.out_of_range, state.owned))

    def test_a_poll_ignores_partitions_removed_before_it(self):
        self.assignment.add([A, B])
        self.assignment.remove([A])
        self.assignment.doubtful.clear()
        self.assignment.remove([B])
        self.assertEqual({B}, self.assignment.doubtful)

    def test_a_new_position_revives_a_partition_that_was_out_of_range(self):
        self.assignment.add([A])
        self.assignment.out_of_range.add(A)
        self.assignment.started({A: 3})
        self.assertEqual(set(), self.assignment.out_of_range)
