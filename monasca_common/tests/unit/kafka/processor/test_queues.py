# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.kafka.processor.queues import Lanes, Load, Task
from monasca_common.kafka.transport.memory import VirtualClock

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Raw:
    """The part of a client's message that a lane needs."""

    def __init__(self, offset, key=None):
        self._offset, self._key = offset, key

    def offset(self):
        return self._offset

    def key(self):
        return self._key

    def value(self):
        return b"%d" % self._offset


def batch(*offsets, partition=TP, epoch=1, key=None):
    return PartitionBatch(partition, epoch, [Raw(offset, key) for offset in offsets])


def offsets(tasks):
    return [offset for task in tasks if task is not None for offset in task.part.offsets]


class TaskTest(base.BaseTestCase):
    @given(st.integers(1, 9), st.data())
    def test_dividing_a_task_neither_loses_nor_duplicates_a_message(self, count, data):
        task = Task(batch(*range(count)))
        handled = data.draw(st.integers(0, count))
        failed = data.draw(st.integers(0, count - handled))
        everything = list(range(count))
        self.assertEqual(everything, offsets(task.split(handled, failed)))
        if count > 1:
            self.assertEqual(everything, offsets(task.halves()))

    def test_a_part_of_a_task_keeps_its_attempts(self):
        task = Task(batch(1, 2, 3))
        task.failed(5)
        task.failed(9)
        part = task.select([2])
        self.assertEqual((2, 5, 0), (part.attempts, part.first_failed_ms, part.tries))

    def test_a_slice_of_all_messages_returns_the_task_itself(self):
        task = Task(batch(1, 2))
        self.assertIs(task, task.split(2, 0)[0])

    def test_a_range_without_messages_has_a_name(self):
        self.assertEqual("t/0 offsets 5 to 7", str(Task(PartitionBatch(TP, 1, (), 5, 8))))


class LanesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.lanes = Lanes(self.clock)

    def ready(self):
        """Take all available tasks, and return their offsets."""
        taken = []
        while self.lanes._ready:
            taken.append(self.lanes.next())
        return taken

    def test_joined_tasks_use_as_much_memory_as_one_task_of_their_messages(self):
        lanes = Lanes(self.clock, batch_size=10)
        for offset in range(3):
            lanes.add(batch(offset))
        lane, task = lanes.next()
        self.assertEqual([0, 1, 2], task.part.offsets)
        self.assertEqual({TP: Load(3, task.size)}, lanes.loads())
        lanes.add(batch(3))
        lanes.finished(lane, task, (), 0)
        self.assertEqual({TP: Load(1, Task(batch(3)).size)}, lanes.loads())

    def test_only_one_thread_at_a_time_handles_a_lane(self):
        self.lanes.add(batch(1))
        self.lanes.add(batch(2))
        ((lane, task),) = self.ready()
        self.lanes.finished(lane, task, (), 0)
        self.assertEqual([2], offsets(task for _, task in self.ready()))

    def test_the_remaining_messages_of_a_task_precede_later_tasks(self):
        self.lanes.add(batch(1, 2))
        self.lanes.add(batch(3))
        ((lane, task),) = self.ready()
        self.lanes.finished(lane, task, task.halves(), 0)
        order = []
        while taken := self.ready():
            ((lane, task),) = taken
            order += task.part.offsets
            self.lanes.finished(lane, task, (), 0)
        self.assertEqual([1, 2, 3], order)

    def test_a_waiting_lane_is_queued_again_after_its_delay(self):
        self.lanes.add(batch(1))
        ((lane, task),) = self.ready()
        self.lanes.finished(lane, task, (task,), 10)
        self.clock.advance(9)
        self.lanes.wake()
        self.assertEqual([], self.ready())
        self.assertEqual(10, self.lanes.next_wake())
        self.clock.advance(1)
        self.lanes.wake()
        self.assertEqual(1, len(self.ready()))

    def test_the_load_includes_queued_messages_and_messages_in_flight(self):
        self.lanes.add(batch(1, 2))
        self.lanes.add(batch(3))
        ((lane, task),) = self.ready()
        self.assertEqual(3, self.lanes.loads()[TP].messages)
        self.lanes.finished(lane, task, (), 0)
        self.assertEqual(1, self.lanes.loads()[TP].messages)
        self.assertGreater(self.lanes.loads()[TP].bytes, 0)

    def test_a_closed_lane_returns_no_task_and_other_partitions_continue(self):
        self.lanes.add(batch(1))
        self.lanes.add(batch(2, partition=OTHER))
        self.lanes.close([TP])
        self.assertEqual([2], offsets(task for _, task in self.ready()))
        self.assertEqual({}, self.lanes.in_flight([TP]))
        self.assertEqual({OTHER: 1}, self.lanes.in_flight([OTHER]))

    def test_results_of_a_dropped_lane_are_ignored(self):
        self.lanes.add(batch(1))
        ((lane, task),) = self.ready()
        self.lanes.drop([TP])
        self.lanes.add(batch(1, epoch=2))
        self.lanes.finished(lane, task, (task,), 0)
        self.assertEqual(1, self.lanes.loads()[TP].messages)
        ((again, _),) = self.ready()
        self.assertEqual((2, True), (again.epoch, lane.dead))

    def test_a_dropped_lane_is_not_kept_for_its_next_attempt(self):
        self.lanes.add(batch(1))
        ((lane, task),) = self.ready()
        self.lanes.drop([TP])
        self.lanes.finished(lane, task, (task,), 3600)
        self.assertIsNone(self.lanes.next_wake())

    def test_a_key_is_always_in_the_same_lane(self):
        lanes = self.lanes = Lanes(self.clock, by_key=True)
        for number in range(12):
            lanes.add(batch(number, key=b"k%d" % (number % 4)))
        homes = {}
        for lane in lanes._lanes.values():
            for task in lane.tasks:
                for key in task.part.keys:
                    self.assertIs(lane, homes.setdefault(key, lane))
        self.assertEqual(4, len(homes))
        self.assertEqual(4, len(lanes._lanes))

    def test_keys_are_handled_concurrently_and_done_keys_are_removed(self):
        lanes = self.lanes = Lanes(self.clock, by_key=True)
        for number in range(3):
            lanes.add(batch(number, key=b"k%d" % number))
        lanes.add(batch(3, key=b"k0"))
        handed_out = self.ready()
        self.assertEqual([b"k0", b"k1", b"k2"], [task.part.keys[0] for _, task in handed_out])
        for lane, task in handed_out:
            lanes.finished(lane, task, (), 0)
        ((lane, task),) = self.ready()
        self.assertEqual((b"k0", 3), (task.part.keys[0], task.part.offsets[0]))
        lanes.finished(lane, task, (), 0)
        self.assertEqual({}, lanes._lanes)

    def test_messages_without_a_key_do_not_wait_for_other_messages(self):
        lanes = self.lanes = Lanes(self.clock, by_key=True)
        lanes.add(batch(1))
        lanes.add(batch(2))
        self.assertEqual(2, len(self.ready()))

    def test_halted_lanes_return_no_task(self):
        self.lanes.add(batch(1))
        self.lanes.halt()
        self.lanes.add(batch(2))
        self.assertEqual([], self.ready())


class GatheringTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()

    def lanes(self, fill_seconds=0.0, **choices):
        return Lanes(self.clock, batch_size=4, fill_seconds=fill_seconds, **choices)

    def taken(self, lanes):
        """Take the only available task, and return its offsets; empty if there is no task."""
        lanes.wake()
        if not lanes._ready:
            return []
        self.lane, self.task = lanes.next()
        return self.task.part.offsets

    def test_messages_that_arrive_during_a_call_are_handled_together_up_to_a_full_batch(self):
        lanes = self.lanes()
        for offset in range(6):
            lanes.add(batch(offset))
        self.assertEqual([0, 1, 2, 3], self.taken(lanes))
        lanes.finished(self.lane, self.task, (), 0)
        self.assertEqual([4, 5], self.taken(lanes))
        self.assertEqual(2, lanes.loads()[TP].messages)

    def test_attempted_tasks_are_not_joined_with_new_ones(self):
        lanes = self.lanes()
        lanes.add(batch(0))
        self.taken(lanes)
        lanes.add(batch(1))
        lanes.finished(self.lane, self.task, (self.task,), 0)
        self.assertEqual([0], self.taken(lanes))

    def test_a_gathered_batch_starts_at_the_start_of_its_first_part(self):
        lanes = self.lanes()
        lanes.add(PartitionBatch(TP, 1, [Raw(7)], 5))
        lanes.add(PartitionBatch(TP, 1, [Raw(9)], 8))
        self.taken(lanes)
        self.assertEqual((5, 10), (self.task.part.start_offset, self.task.part.next_offset))

    def test_a_batch_waits_to_be_full_for_its_time_and_no_longer(self):
        lanes = self.lanes(fill_seconds=10)
        lanes.add(batch(0))
        self.clock.advance(6)
        lanes.add(batch(1))
        self.assertEqual([], self.taken(lanes))
        self.assertEqual(10, lanes.next_wake())
        self.clock.advance(4)
        self.assertEqual([0, 1], self.taken(lanes))

    def test_a_full_batch_does_not_wait(self):
        lanes = self.lanes(fill_seconds=10)
        lanes.add(batch(0))
        lanes.add(batch(1, 2, 3, 4))
        self.assertEqual([0], self.taken(lanes))
        lanes.finished(self.lane, self.task, (), 0)
        self.assertEqual([1, 2, 3, 4], self.taken(lanes))

    def test_messages_of_one_key_wait_for_a_full_batch(self):
        lanes = self.lanes(fill_seconds=10, by_key=True)
        lanes.add(batch(0, key=b"a"))
        lanes.add(batch(1, 2, 3, key=b"b"))
        lanes.add(batch(4, key=b"a"))
        self.assertEqual([], self.taken(lanes))
        lanes.add(batch(5, key=b"b"))
        self.assertEqual([1, 2, 3, 5], self.taken(lanes))
        self.assertFalse(self.task.contiguous)  # otherwise, offset 4 would count as done
        self.clock.advance(10)
        self.assertEqual([0, 4], self.taken(lanes))

    def test_a_message_without_a_key_does_not_wait_for_others(self):
        lanes = self.lanes(fill_seconds=10, by_key=True)
        lanes.add(batch(0))
        self.assertEqual([0], self.taken(lanes))

    def test_new_messages_do_not_shorten_the_delay_after_a_failure(self):
        lanes = self.lanes(fill_seconds=1)
        lanes.add(batch(0, 1, 2, 3))
        self.taken(lanes)
        lanes.finished(self.lane, self.task, (self.task,), 30)
        lanes.add(batch(4, 5, 6, 7))
        self.clock.advance(29)
        self.assertEqual([], self.taken(lanes))
        self.clock.advance(1)
        self.assertEqual([0, 1, 2, 3], self.taken(lanes))
