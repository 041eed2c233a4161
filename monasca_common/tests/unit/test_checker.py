# SPDX-License-Identifier: Apache-2.0
"""The checker of crash tests, on histories made by hand."""

from oslotest import base

from monasca_common.tests.checker import LostOrDuplicated, Told, check, each_once

ACKED, FAILED, UNKNOWN = Told.ACKED, Told.FAILED, Told.UNKNOWN


class CheckerTest(base.BaseTestCase):
    def test_every_acknowledged_message_once_is_all_well(self):
        verdict = check({1: ACKED, 2: ACKED}, [2, 1])
        self.assertTrue(verdict.clean, str(verdict))
        self.assertEqual(2, verdict.stored)

    def test_an_acknowledged_message_without_a_row_is_lost(self):
        verdict = check({1: ACKED, 2: ACKED}, [1])
        self.assertEqual({2}, verdict.lost)
        self.assertFalse(verdict.clean)

    def test_two_rows_of_one_message_are_a_duplicate(self):
        verdict = check({1: ACKED}, [1, 1])
        self.assertEqual({1}, verdict.duplicate)
        self.assertFalse(verdict.clean)

    def test_two_rows_of_a_message_of_unknown_outcome_are_a_duplicate_too(self):
        self.assertEqual({1}, check({1: UNKNOWN}, [1, 1]).duplicate)

    def test_a_row_that_nobody_sent_is_a_phantom(self):
        verdict = check({1: ACKED}, [1, 9])
        self.assertEqual({9}, verdict.phantom)
        self.assertFalse(verdict.clean)

    def test_a_row_of_a_message_that_surely_failed_is_a_phantom(self):
        self.assertEqual({1}, check({1: FAILED}, [1]).phantom)

    def test_a_failed_message_without_a_row_is_all_well(self):
        self.assertTrue(check({1: FAILED}, []).clean)

    def test_an_unknown_message_may_be_there_or_not(self):
        verdict = check({1: UNKNOWN, 2: UNKNOWN}, [2])
        self.assertTrue(verdict.clean)
        self.assertEqual({1}, verdict.open)

    def test_a_dead_letter_is_not_lost_and_its_repeats_are_one(self):
        verdict = check({1: ACKED, 2: ACKED}, [1], dead=[2, 2])
        self.assertTrue(verdict.clean)
        self.assertEqual((1, 1), (verdict.stored, verdict.dead))

    def test_a_row_that_is_a_dead_letter_too_is_a_duplicate(self):
        self.assertEqual({1}, check({1: ACKED}, [1], dead=[1]).duplicate)

    def test_a_dead_letter_of_what_nobody_sent_is_a_phantom(self):
        self.assertEqual({7}, check({}, [], dead=[7]).phantom)

    def test_nothing_sent_and_nothing_stored_is_all_well(self):
        self.assertTrue(check({}, []).clean)

    def test_lost_and_duplicated_messages_raise_one_class_of_error(self):
        check({1: ACKED}, [1]).raise_unless_clean()
        for rows in ([], [1, 1]):
            error = self.assertRaises(LostOrDuplicated, check({1: ACKED}, rows).raise_unless_clean)
            self.assertIsInstance(error, self.failureException)

    def test_a_failed_check_in_a_block_of_each_once_raises_it(self):
        with each_once():
            self.assertEqual(1, 1)

        @each_once()
        def count():
            self.assertEqual(1, 2)

        self.assertIn("1 != 2", str(self.assertRaises(LostOrDuplicated, count)))

    def test_other_errors_in_a_block_of_each_once_stay_what_they_are(self):
        @each_once()
        def read():
            raise OSError("no broker")

        self.assertRaises(OSError, read)
