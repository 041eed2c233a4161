# SPDX-License-Identifier: Apache-2.0
"""The mission's scenario over many seeds: in each, other requests lose their answers."""

from monasca_common.tests.functional.kafka.lost_answers_case import LargeNeighboursCase, LostAnswersCase

SEEDS = range(20)


class TestLostAnswers(LostAnswersCase):
    def test_whichever_answers_are_lost_every_message_is_read_once_and_in_the_log_once(self):
        for self.seed in SEEDS:
            aftermath = self.lose_answers()
            self.fixture.proxy.clear()
            self.check_that_all_was_delivered(aftermath)
            self.check_that_a_reader_sees_each_once(aftermath)
            self.check_that_the_log_holds_each_once(aftermath)


class TestLargeNeighbours(LargeNeighboursCase):
    def test_whichever_answers_are_cut_a_record_too_large_doubles_no_neighbour(self):
        for self.seed in SEEDS:
            log, _ = self.publish_beside_large_records()
            self.fixture.proxy.clear()
            self.check_that_the_log_holds_each_once(log)
