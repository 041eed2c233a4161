# SPDX-License-Identifier: Apache-2.0
"""The contract of offsets that move without rows: over dead letters, and over offsets that cannot be read."""

from __future__ import annotations

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Capability, Kind, Written
from monasca_common.storage.errors import RangeBeyondNext, TopicMismatch
from monasca_common.storage.testing.database import needs
from monasca_common.storage.testing.scenario import GROUP, PARTITION, TOPIC, TOPIC_ID, Scenario, claim, measurement

_AGAIN = "second-of-its-name"


class AccountingContract(Scenario):
    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_what_is_accounted_for_is_where_reading_goes_on(self) -> None:
        writer = self.database.writer()
        self.write(writer, Kind.METRICS, [measurement(0)])
        writer.accounted(claim(1, 3))
        self.assertEqual(3, self.next_offset(writer))
        self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [measurement(3)], 3))
        self.assertEqual([0.0, 3.0], sorted(each.value for each in self.stored(Kind.METRICS)))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_a_partition_may_begin_with_what_has_no_rows(self) -> None:
        writer = self.database.writer()
        writer.accounted(claim(40, 42))
        self.assertEqual(42, self.next_offset(writer))
        writer.accounted(claim(7, 7, partition=1))
        other = TopicPartition(TOPIC, 1)
        self.assertEqual({other: 7}, writer.next_offsets(GROUP, {other: TOPIC_ID}))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_accounting_for_the_same_again_changes_nothing(self) -> None:
        writer = self.database.writer()
        writer.accounted(claim(0, 5))
        for start, end in ((0, 5), (0, 3), (2, 2), (5, 5)):
            writer.accounted(claim(start, end))
            self.assertEqual(5, self.next_offset(writer))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_a_claim_that_begins_below_moves_the_offset_to_its_end(self) -> None:
        writer = self.database.writer()
        writer.accounted(claim(0, 5))
        writer.accounted(claim(3, 8))
        self.assertEqual(8, self.next_offset(writer))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_a_claim_beyond_the_stored_offset_accounts_for_nothing(self) -> None:
        writer = self.database.writer()
        self.write(writer, Kind.METRICS, [measurement(0)])
        error = self.assertRaises(RangeBeyondNext, writer.accounted, claim(2, 3))
        self.assertEqual((1, 1), (error.next_offset, self.next_offset(writer)))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_a_topic_that_was_made_again_is_not_accounted_for(self) -> None:
        writer = self.database.writer()
        writer.accounted(claim(0, 5))
        self.assertRaises(TopicMismatch, writer.accounted, claim(5, 6, topic_id=_AGAIN))
        self.assertEqual(5, self.next_offset(writer))

    @needs(Capability.TRANSACTIONAL_OFFSETS)
    def test_an_id_that_is_told_later_is_stored_when_a_partition_is_begun_again(self) -> None:
        writer = self.database.writer()
        writer.accounted(claim(0, 5, topic_id=None))
        self.assertEqual({PARTITION: 5}, writer.begin(GROUP, {PARTITION: 0}, {PARTITION: TOPIC_ID}))
        self.assertRaises(TopicMismatch, self.next_offset, writer, _AGAIN)

    def test_a_claim_that_ends_before_it_begins_is_its_callers_bug(self) -> None:
        self.assertRaises(ValueError, self.database.writer().accounted, claim(5, 4))
