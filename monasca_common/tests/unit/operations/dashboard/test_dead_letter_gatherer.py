# SPDX-License-Identifier: Apache-2.0
"""The dashboard's number of pending dead letters, with an in-memory broker."""

from unittest import mock

from oslotest import base

from monasca_common.kafka import Record, RetriableError, TopicPartition, dead_letters
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.operations.dashboard import dead_letter_panel
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterGatherer
from monasca_common.operations.dead_letters import DeadLetterReplay
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.settings import DLQ_GROUP

LETTERS = TopicPartition("metrics.dlq", 0)


class MemoryAdmin:
    """An `Admin` of an in-memory broker."""

    def __init__(self, broker):
        self._broker = broker

    def partition_counts(self):
        return {topic: len(self._broker.topic(topic).partitions) for topic in self._broker.topics()}

    def group_offsets(self, group):
        return self._broker.committed(group)

    def first_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[0] for each in partitions}

    def end_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[1] for each in partitions}


class GathererTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.producer = self.kafka.producer()
        for topic in ("metrics", "metrics.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        self.gather = DeadLetterGatherer(
            MemoryAdmin(self.kafka.broker), self.kafka.connection(), (), timeout_seconds=60
        )

    def bury(self, count, *, origin="metrics"):
        headers = ((dead_letters.ORIGIN_TOPIC, origin.encode()), (dead_letters.ERROR_CLASS, b"ValueError"))
        records = [Record(b"x", headers=headers)] * count
        self.producer.publish("metrics.dlq", records).raise_for_undelivered()

    def replay(self, **arguments):
        with self.kafka.consumer("metrics.dlq", DLQ_GROUP, partitions=[LETTERS]) as consumer:
            return len(list(DeadLetterReplay(consumer, **arguments).send(self.producer)))

    def figures(self):
        (topic,) = self.gather(0)
        return topic

    def reasons(self):
        return {reason.origin_topic: reason.count for reason in self.figures().reasons}

    def test_replayed_dead_letters_after_a_pending_one_are_not_counted(self):
        self.bury(1, origin="gone")
        self.bury(5)
        self.assertEqual((6, {"gone": 1, "metrics": 5}), (self.figures().pending, self.reasons()))
        self.assertEqual(6, self.replay())
        self.assertEqual((1, {"gone": 1}), (self.figures().pending, self.reasons()))
        self.bury(2)
        self.assertEqual((3, {"gone": 1, "metrics": 2}), (self.figures().pending, self.reasons()))

    def test_reasons_count_all_pending_dead_letters(self):
        self.bury(501)
        self.bury(1, origin="gone")
        self.assertEqual({"gone": 1, "metrics": 501}, self.reasons())

    def test_a_long_origin_is_truncated(self):
        self.bury(1, origin="t" * 100_000)
        self.assertEqual({"t" * 300: 1}, self.reasons())

    def test_a_first_check_after_a_replay_has_the_same_counts(self):
        self.bury(1, origin="gone")
        self.bury(5)
        self.replay()
        self.assertEqual((1, {"gone": 1}), (self.figures().pending, self.reasons()))

    def test_offsets_without_a_message_are_not_dead_letters(self):
        self.bury(2)
        self.kafka.broker.skip_offsets(*LETTERS, 1)
        self.replay()
        self.kafka.broker.skip_offsets(*LETTERS, 1)
        self.assertEqual((0, 0, ()), (self.figures().pending, self.figures().unread, self.figures().reasons))

    def test_dead_letters_of_a_limited_replay_are_not_counted(self):
        self.bury(1)
        self.bury(4, origin="log")
        self.kafka.broker.create_topic("log", 1)
        self.replay(chosen=lambda letter: letter.origin_topic == "log")
        self.replay(limit=1)
        self.assertEqual(1, self.kafka.broker.committed(DLQ_GROUP)[LETTERS])  # notes follow it
        self.assertEqual(0, self.figures().pending)

    def test_only_the_first_dead_letters_of_a_large_topic_are_read(self):
        self.patch(dead_letter_panel, "_MAX_OFFSETS", 4)
        self.bury(1, origin="gone")
        self.bury(6)
        found = self.figures()
        self.assertEqual((4, 3), (found.pending, found.unread))
        self.replay()  # the note is at offset 7
        found = self.figures()
        self.assertEqual((4, 4), (found.pending, found.unread))

    def test_an_unchanged_topic_is_not_read_again(self):
        self.bury(3)
        self.figures()
        with mock.patch.object(LogReader, "messages", side_effect=RetriableError("read again")):
            self.assertEqual(3, self.figures().pending)

    def test_a_check_after_a_failed_one_is_complete(self):
        self.bury(3)
        self.figures()
        self.bury(2)
        with mock.patch.object(LogReader, "messages", side_effect=RetriableError("no broker")):
            self.assertRaises(RetriableError, self.gather, 0)
        self.assertEqual(5, self.figures().pending)

    def test_deletions_and_offset_resets_change_the_counts(self):
        self.bury(4)
        self.replay(limit=3)
        self.assertEqual(1, self.figures().pending)
        with self.kafka.consumer("metrics.dlq", DLQ_GROUP, partitions=[LETTERS]) as consumer:
            consumer.commit({LETTERS: 0})
        self.assertEqual(4, self.figures().pending)
        self.kafka.broker.delete_records(*LETTERS, 3)
        self.assertEqual(1, self.figures().pending)
