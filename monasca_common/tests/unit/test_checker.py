# SPDX-License-Identifier: Apache-2.0
"""Test the checker of crash tests with fixed histories."""

from oslotest import base

from monasca_common.tests.checker import LostOrDuplicated, ReportedOutcome, check, each_once

ACKED, FAILED, UNKNOWN = ReportedOutcome.ACKED, ReportedOutcome.FAILED, ReportedOutcome.UNKNOWN


class CheckerTest(base.BaseTestCase):
    def test_a_history_with_each_acknowledged_message_once_is_clean(self):
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

    def test_two_rows_of_a_message_with_unknown_outcome_are_a_duplicate(self):
        self.assertEqual({1}, check({1: UNKNOWN}, [1, 1]).duplicate)

    def test_a_row_of_an_unsent_message_is_a_phantom(self):
        verdict = check({1: ACKED}, [1, 9])
        self.assertEqual({9}, verdict.phantom)
        self.assertFalse(verdict.clean)

    def test_a_row_of_a_failed_message_is_a_phantom(self):
        self.assertEqual({1}, check({1: FAILED}, [1]).phantom)

    def test_a_failed_message_without_a_row_is_clean(self):
        self.assertTrue(check({1: FAILED}, []).clean)

    def test_a_message_with_unknown_outcome_can_have_a_row_or_not(self):
        verdict = check({1: UNKNOWN, 2: UNKNOWN}, [2])
        self.assertTrue(verdict.clean)
        self.assertEqual({1}, verdict.open)

    def test_a_dead_letter_is_not_lost_and_its_repeats_count_once(self):
        verdict = check({1: ACKED, 2: ACKED}, [1], dead=[2, 2])
        self.assertTrue(verdict.clean)
        self.assertEqual((1, 1), (verdict.stored, verdict.dead))

    def test_a_row_with_a_dead_letter_is_a_duplicate(self):
        self.assertEqual({1}, check({1: ACKED}, [1], dead=[1]).duplicate)

    def test_a_dead_letter_of_an_unsent_message_is_a_phantom(self):
        self.assertEqual({7}, check({}, [], dead=[7]).phantom)

    def test_an_empty_history_is_clean(self):
        self.assertTrue(check({}, []).clean)

    def test_lost_and_duplicated_messages_raise_one_class_of_error(self):
        check({1: ACKED}, [1]).raise_unless_clean()
        for rows in ([], [1, 1]):
            error = self.assertRaises(LostOrDuplicated, check({1: ACKED}, rows).raise_unless_clean)
            self.assertIsInstance(error, self.failureException)

    def test_each_once_raises_the_failure_of_a_check_in_its_block(self):
        with each_once():
            self.assertEqual(1, 1)

        @each_once()
        def count():
            self.assertEqual(1, 2)

        self.assertIn("1 != 2", str(self.assertRaises(LostOrDuplicated, count)))

    def test_other_errors_in_a_block_of_each_once_are_unchanged(self):
        @each_once()
        def read():
            raise OSError("no broker")

        self.assertRaises(OSError, read)
