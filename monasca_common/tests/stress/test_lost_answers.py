# SPDX-License-Identifier: Apache-2.0
"""The scenario of lost responses with many seeds; each seed selects other requests whose responses are lost."""

from monasca_common.tests.functional.kafka.test_lost_answers import LargeNeighboursCase, LostAnswersCase

SEEDS = range(20)


class TestLostAnswers(LostAnswersCase):
    def test_with_lost_responses_every_message_is_in_the_log_and_read_once(self):
        for self.seed in SEEDS:
            aftermath = self.lose_answers()
            self.fixture.proxy.clear()
            self.check_that_all_was_delivered(aftermath)
            self.check_that_a_reader_sees_each_once(aftermath)
            self.check_that_the_log_holds_each_once(aftermath)


class TestLargeNeighbours(LargeNeighboursCase):
    def test_with_lost_responses_a_record_too_large_duplicates_no_other_record(self):
        for self.seed in SEEDS:
            log, _ = self.publish_beside_large_records()
            self.fixture.proxy.clear()
            self.check_that_the_log_holds_each_once(log)
