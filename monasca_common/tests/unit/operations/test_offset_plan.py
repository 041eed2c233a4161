# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.offset_plan import GroupOffset, LogSpan, Move, PartitionOffsets

_PARTITION = TopicPartition("metrics", 0)


def standing(stored, first=100, end=200, *, stored_id="a", topic_id="a"):
    kept = None if stored is None else GroupOffset(stored, stored_id)
    return PartitionOffsets(_PARTITION, kept, LogSpan(topic_id, first, end))


def counts(each, target):
    move = Move(each, target)
    return (move.skipped, move.read_again)


class TestResetEffects(base.BaseTestCase):
    def test_a_shift_forwards_skips_messages(self):
        self.assertEqual((30, 0), counts(standing(150), 180))

    def test_a_shift_backwards_reads_messages_again(self):
        self.assertEqual((0, 30), counts(standing(150), 120))

    def test_a_reset_to_the_current_position_changes_nothing(self):
        self.assertEqual((0, 0), counts(standing(150), 150))

    def test_messages_deleted_by_retention_are_lost_and_not_skipped(self):
        self.assertEqual((0, 0), counts(standing(60), 100))
        self.assertEqual((50, 0), counts(standing(60), 150))

    def test_nothing_beyond_the_end_is_read_again(self):
        self.assertEqual((0, 20), counts(standing(900), 180))

    def test_an_offset_of_a_deleted_topic_is_not_compared(self):
        self.assertEqual((0, 0), counts(standing(900, 0, 20, stored_id="a", topic_id="b"), 0))
        self.assertEqual((20, 0), counts(standing(5, 0, 20, stored_id="a", topic_id="b"), 20))

    def test_without_a_stored_offset_only_messages_before_the_target_are_skipped(self):
        self.assertEqual((0, 0), counts(standing(None), 100))
        self.assertEqual((100, 0), counts(standing(None), 200))


class TestPositionProblems(base.BaseTestCase):
    def test_problems_of_a_position_are_named(self):
        for each, problem in (
            (standing(150), ""),
            (standing(100), ""),
            (standing(200), ""),
            (standing(None), ""),
            (standing(99), "1 deleted unread"),
            (standing(60, first=5_000), "4,940 deleted unread"),
            (standing(201), "beyond the end of the log"),
            (standing(150, topic_id="b"), "topic deleted and recreated"),
            (PartitionOffsets(_PARTITION, GroupOffset(3), None), "no such partition"),
        ):
            self.assertEqual(problem, each.problem)

    def test_kafka_keeps_no_topic_id_so_none_is_compared(self):
        self.assertEqual("", standing(150, stored_id=None, topic_id="b").problem)

    def test_remaining_messages_are_counted_from_the_position(self):
        left = [each.left for each in (standing(150), standing(60), standing(None), standing(900))]
        self.assertEqual([50, 100, 100, 0], left)
