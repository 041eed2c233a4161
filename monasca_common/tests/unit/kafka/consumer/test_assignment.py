# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.message import TopicPartition

A, B = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class TestAssignment(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.assignment = Assignment()

    def test_what_is_given_waits_until_its_position_is_known(self):
        self.assignment.give([A])
        self.assertEqual({A}, self.assignment.waiting)
        self.assignment.started({A: 7})
        self.assertEqual((set(), {A: 7}), (self.assignment.waiting, self.assignment.positions))

    def test_each_assignment_has_an_epoch_of_its_own(self):
        self.assignment.give([A])
        first = self.assignment.epoch(A) or 0
        self.assignment.take([A])
        self.assertIsNone(self.assignment.epoch(A))
        self.assignment.give([A])
        self.assertGreater(self.assignment.epoch(A) or 0, first)

    def test_an_incremental_assignment_leaves_the_epochs_of_the_rest(self):
        self.assignment.give([A])
        before = self.assignment.epoch(A)
        self.assignment.give([B])
        self.assertEqual(before, self.assignment.epoch(A))

    def test_what_is_taken_leaves_nothing_behind(self):
        self.assignment.give([A])
        self.assignment.started({A: 7})
        self.assignment.held.add(A)
        self.assignment.out_of_range.add(A)
        self.assignment.take([A])
        state = self.assignment
        self.assertEqual(({}, set(), set(), set()), (state.positions, state.held, state.out_of_range, state.owned))

    def test_a_stamp_forgets_what_was_taken_before_it(self):
        self.assignment.give([A, B])
        self.assignment.take([A])
        self.assignment.stamp()
        self.assignment.take([B])
        self.assertEqual({B}, self.assignment.given_up)

    def test_a_new_position_revives_what_was_out_of_range(self):
        self.assignment.give([A])
        self.assignment.out_of_range.add(A)
        self.assignment.started({A: 3})
        self.assertEqual(set(), self.assignment.out_of_range)
