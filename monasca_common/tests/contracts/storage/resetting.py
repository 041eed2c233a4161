# SPDX-License-Identifier: Apache-2.0
"""The contract of `Writer.reset_offsets`: the next reader starts at the new offsets."""

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Capability, Kind, StoredOffset, Written
from monasca_common.storage.errors import RangeBeyondNext, TopicMismatch
from monasca_common.tests.contracts.storage.database import needs
from monasca_common.tests.contracts.storage.scenario import (
    GROUP,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Scenario,
    measurement,
    row,
)

_OTHER_ID = "another-topic-id"


@needs(Capability.OFFSETS)
class ResetContract(Scenario):
    def test_rows_of_a_recreated_topic_are_stored_after_a_reset(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(n) for n in range(5)])
        self.assertRaises(TopicMismatch, self.write, self.writer, Kind.METRICS, [measurement(9)], topic_id=_OTHER_ID)
        self.assertEqual({PARTITION: 5}, self.writer.reset_offsets(GROUP, {PARTITION: 0}, {PARTITION: _OTHER_ID}))
        written = self.write(self.writer, Kind.METRICS, [measurement(9)], topic_id=_OTHER_ID)
        self.assertEqual((Written(stored=1), 1), (written, self.next_offset(self.writer, _OTHER_ID)))
        self.assertRaises(TopicMismatch, self.next_offset, self.writer, TOPIC_ID)

    def test_rows_that_are_read_again_after_a_reset_are_stored_once(self) -> None:
        for kind in self.database.storage().kinds:
            partition = TopicPartition(kind, 0)
            rows = [row(kind, n) for n in range(4)]
            self.write(self.writer, kind, rows, topic=kind)
            self.assertEqual({partition: 4}, self.writer.reset_offsets(GROUP, {partition: 1}, {partition: TOPIC_ID}))
            self.assertEqual(Written(repeated=3), self.write(self.writer, kind, rows[1:], 1, topic=kind))
            self.assertEqual(4, len(self.stored(kind)))

    def test_a_concurrent_claim_from_the_former_offset_is_refused_or_skipped(self) -> None:
        writer, operator = self.database.writer(), self.database.writer()
        self.write(writer, Kind.METRICS, [measurement(n) for n in range(5)])
        operator.reset_offsets(GROUP, {PARTITION: 2}, {PARTITION: TOPIC_ID})
        error = self.assertRaises(RangeBeyondNext, self.write, writer, Kind.METRICS, [measurement(5)], 5)
        self.assertEqual(2, error.next_offset)
        operator.reset_offsets(GROUP, {PARTITION: 9}, {PARTITION: TOPIC_ID})
        self.assertEqual(Written(skipped=2), self.write(writer, Kind.METRICS, [measurement(n) for n in (5, 6)], 5))
        self.assertEqual(9, self.next_offset(writer))

    def test_a_reset_changes_only_its_group_and_partitions(self) -> None:
        other = TopicPartition(TOPIC, 1)
        for group in (GROUP, "another"):
            self.writer.begin(group, {PARTITION: 5, other: 6}, {PARTITION: TOPIC_ID, other: TOPIC_ID})
        self.writer.reset_offsets(GROUP, {PARTITION: 1}, {PARTITION: _OTHER_ID})
        self.assertEqual(
            {
                StoredOffset(GROUP, TOPIC, 0, _OTHER_ID, 1),
                StoredOffset(GROUP, TOPIC, 1, TOPIC_ID, 6),
                StoredOffset("another", TOPIC, 0, TOPIC_ID, 5),
                StoredOffset("another", TOPIC, 1, TOPIC_ID, 6),
            },
            set(self.database.storage().status().offsets),
        )

    def test_a_reset_stores_the_first_offset_of_a_partition(self) -> None:
        self.assertEqual({}, self.writer.reset_offsets(GROUP, {PARTITION: 7}, {PARTITION: TOPIC_ID}))
        self.assertEqual(7, self.next_offset(self.writer))

    def test_a_reset_to_none_removes_the_offset(self) -> None:
        self.writer.begin(GROUP, {PARTITION: 7}, {PARTITION: TOPIC_ID})
        self.assertEqual({PARTITION: 7}, self.writer.reset_offsets(GROUP, {PARTITION: None}, {}))
        self.assertEqual({PARTITION: 3}, self.writer.begin(GROUP, {PARTITION: 3}, {PARTITION: _OTHER_ID}))
