# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka import Message, TopicPartition, dead_letters
from monasca_common.operations.dead_letters import ReplayLog

ONE = TopicPartition("metrics.dlq", 1)
LETTER = ((dead_letters.ORIGIN_TOPIC, b"metrics"),)


class NotesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.notes = ReplayLog("g")

    def letters(self, *offsets):
        for offset in offsets:
            self.notes.read(Message(*ONE, offset, 0, None, b"x", LETTER))

    def note(self, offset, *numbers, of=None):
        """Return a note at ``offset`` that lists these dead letters. ``of``: the group that wrote it, by default the
        tested group."""
        record = ReplayLog(of or "g").note(ONE, numbers)
        self.notes.read(Message(*ONE, offset, 0, record.key, record.value, ()))

    def handled(self):
        return [offset for offset in range(100) if self.notes.is_handled(ONE, offset)]

    def test_dead_letters_are_pending_until_a_note_of_the_group_lists_them(self):
        self.letters(4, 5, 6, 9)
        for offset, group in ((10, "another"), (11, "g/1")):
            self.note(offset, 5, 6, 9, of=group)
        self.assertEqual((4, []), (self.notes.pending_count(), self.handled()))
        self.note(12, 5, 6, 9)
        self.assertEqual((1, [5, 6, 9]), (self.notes.pending_count(), self.handled()))

    def test_offsets_without_a_message_are_not_dead_letters(self):
        self.letters(4, 90)
        self.note(91, 4, 5, 6)
        self.note(99, 90)
        self.assertEqual((0, [4, 90]), (self.notes.pending_count(), self.handled()))

    def test_a_note_affects_only_earlier_offsets_that_were_read(self):
        self.letters(50, 51)
        self.note(52, 1, 2, 3)
        self.note(53, 53, 54, 55)
        self.letters(54, 55)
        self.assertEqual((4, []), (self.notes.pending_count(), self.handled()))

    def test_an_offset_read_twice_counts_once(self):
        self.letters(4, 5, 4, 5)
        self.assertEqual(2, self.notes.pending_count())
