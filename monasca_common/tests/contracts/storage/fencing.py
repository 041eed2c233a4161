# SPDX-License-Identifier: Apache-2.0
"""The contract of offsets stored with rows: each row is stored once, even if two writers believe they own a
partition."""

from collections.abc import Callable
from typing import Any

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Capability, Kind, Rows, Writer, Written
from monasca_common.storage.errors import RangeBeyondNext, StorageUnavailable, TopicMismatch
from monasca_common.tests.contracts.storage.database import Database, needs
from monasca_common.tests.contracts.storage.scenario import (
    GROUP,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Scenario,
    claim,
    measurement,
    row,
)
from monasca_common.tests.threads import run_together

LOG_LENGTH = 300
_WRITERS = 3


@needs(Capability.TRANSACTIONAL_OFFSETS)
class FenceContract(Scenario):
    def test_the_first_claim_sets_the_first_offset(self) -> None:
        self.assertIsNone(self.next_offset(self.writer))
        self.assertEqual(
            Written(stored=2), self.write(self.writer, Kind.METRICS, [measurement(n) for n in range(2)], 40)
        )
        self.assertEqual(42, self.next_offset(self.writer))

    def test_a_second_begin_returns_the_stored_offset(self) -> None:
        first, second = self.database.writer(), self.database.writer()
        self.assertEqual({PARTITION: 7}, first.begin(GROUP, {PARTITION: 7}, {PARTITION: TOPIC_ID}))
        self.assertEqual({PARTITION: 7}, second.begin(GROUP, {PARTITION: 3}, {PARTITION: TOPIC_ID}))
        self.assertEqual({PARTITION: 7}, first.begin(GROUP, {PARTITION: 9}, {PARTITION: TOPIC_ID}))
        self.assertRaises(RangeBeyondNext, self.write, first, Kind.METRICS, [measurement()], 8)

    def test_only_stored_offsets_are_returned(self) -> None:
        other, third = TopicPartition(TOPIC, 1), TopicPartition("other", 0)
        self.writer.begin(GROUP, {PARTITION: 5, other: 0}, {PARTITION: TOPIC_ID, other: TOPIC_ID})
        asked = {PARTITION: TOPIC_ID, other: TOPIC_ID, third: "its-id"}
        self.assertEqual({PARTITION: 5, other: 0}, self.writer.next_offsets(GROUP, asked))
        self.assertEqual({}, self.writer.next_offsets("another group", asked))
        self.assertEqual({}, self.writer.next_offsets(GROUP, {}))
        self.assertEqual({}, self.writer.begin(GROUP, {}, {}))

    def test_groups_topics_and_partitions_have_separate_offsets(self) -> None:
        elsewhere: list[dict[str, Any]] = [{}, {"group": "another"}, {"topic": "other"}, {"partition": 1}]
        for number, changes in enumerate(elsewhere):
            rows = [measurement(number)]
            self.assertEqual(Written(stored=1), self.write(self.writer, Kind.METRICS, rows, number, **changes))
            self.assertEqual(1, self.next_offset(self.writer))
        self.assertEqual(4, len(self.stored(Kind.METRICS)))

    def test_a_claim_may_start_before_and_end_after_its_rows(self) -> None:
        written = self.writer.write(claim(0, 20), Rows(Kind.METRICS, [measurement(1), measurement(2)], [5, 11]))
        self.assertEqual((Written(stored=2), 20), (written, self.next_offset(self.writer)))
        self.assertEqual(Written(stored=1), self.write(self.writer, Kind.METRICS, [measurement(3)], 20))

    def test_a_claim_without_rows_advances_the_offset_and_never_rewinds_it(self) -> None:
        other = TopicPartition(TOPIC, 1)
        for start, end, expected in ((3, 3, 3), (3, 10, 10), (10, 10, 10), (5, 8, 10), (8, 12, 12)):
            self.assertEqual(Written(), self.writer.write(claim(start, end), Rows(Kind.METRICS, [], [])))
            self.writer.accounted(claim(start, end, partition=1))
            stored = self.writer.next_offsets(GROUP, {PARTITION: TOPIC_ID, other: TOPIC_ID})
            self.assertEqual({PARTITION: expected, other: expected}, stored)

    def test_reading_resumes_after_accounted_offsets(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        self.writer.accounted(claim(1, 3))
        self.assertEqual(3, self.next_offset(self.writer))
        self.assertEqual(Written(stored=1), self.write(self.writer, Kind.METRICS, [measurement(3)], 3))
        self.assertEqual([0.0, 3.0], sorted(each.value for each in self.stored(Kind.METRICS)))

    def test_rows_below_the_stored_offset_are_skipped_and_the_rest_stored(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(n) for n in range(10)])
        late = [measurement(n, value=100.0 + n) for n in range(5, 15)]
        self.assertEqual(Written(stored=5, skipped=5), self.write(self.writer, Kind.METRICS, late, 5))
        self.assertEqual(15, self.next_offset(self.writer))
        self.assertEqual(
            [*map(float, range(10)), *(100.0 + n for n in range(10, 15))],
            sorted(each.value for each in self.stored(Kind.METRICS)),
        )

    def test_a_completely_stored_claim_does_not_rewind_the_offset(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(n) for n in range(10)])
        self.assertEqual(Written(skipped=4), self.write(self.writer, Kind.METRICS, [measurement(n) for n in range(4)]))
        self.assertEqual(10, self.next_offset(self.writer))

    def test_a_claim_beyond_the_stored_offset_raises_an_error_with_that_offset(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        for error in (
            self.assertRaises(RangeBeyondNext, self.write, self.writer, Kind.METRICS, [measurement(1)], 2),
            self.assertRaises(RangeBeyondNext, self.writer.accounted, claim(2, 3)),
        ):
            self.assertEqual(1, error.next_offset)
        self.assertEqual((1, 1), (self.next_offset(self.writer), len(self.stored(Kind.METRICS))))

    def test_rows_of_a_recreated_topic_are_refused(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        other_id = "another-topic-id"
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.write(self.writer, Kind.METRICS, [measurement(1)], 1, topic_id=other_id),
            lambda: self.next_offset(self.writer, other_id),
            lambda: self.writer.begin(GROUP, {PARTITION: 0}, {PARTITION: other_id}),
            lambda: self.writer.accounted(claim(1, 2, topic_id=other_id)),
        )
        for call in calls:
            error = self.assertRaises(TopicMismatch, call)
            self.assertEqual((TOPIC, TOPIC_ID, other_id), (error.topic, error.stored_id, error.topic_id))
        self.assertEqual((1, 1), (self.next_offset(self.writer), len(self.stored(Kind.METRICS))))

    def test_an_unknown_topic_id_is_not_compared(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)])
        self.write(self.writer, Kind.METRICS, [measurement(1)], 1, topic_id=None)
        self.assertEqual(2, self.next_offset(self.writer, None))

    def test_a_topic_id_that_is_known_later_is_stored(self) -> None:
        self.write(self.writer, Kind.METRICS, [measurement(0)], topic_id=None)
        self.write(self.writer, Kind.METRICS, [measurement(1)], 1)
        self.write(self.writer, Kind.METRICS, [measurement(2)], 2, topic_id=None)
        self.assertRaises(TopicMismatch, self.next_offset, self.writer, "another-topic-id")

    def test_a_topic_id_that_is_known_later_is_stored_by_begin(self) -> None:
        self.writer.accounted(claim(0, 5, topic_id=None))
        self.assertEqual({PARTITION: 5}, self.writer.begin(GROUP, {PARTITION: 0}, {PARTITION: TOPIC_ID}))
        self.assertRaises(TopicMismatch, self.next_offset, self.writer, "another-topic-id")

    def test_a_repeated_call_stores_rows_that_were_rolled_back(self) -> None:
        rows = [measurement(n) for n in range(3)]
        with failpoints.armed("storage.in_transaction", "raise"):
            self.assertRaises(FailPointReached, self.write, self.writer, Kind.METRICS, rows)
        self.assertEqual((None, []), (self.next_offset(self.writer), self.stored(Kind.METRICS)))
        self.assertEqual(Written(stored=3), self.write(self.writer, Kind.METRICS, rows))
        # The self.writer must not have cached the series of the rolled-back transaction.
        self.assertEqual({each.series.name for each in rows}, {row.series.name for row in self.stored(Kind.METRICS)})

    def test_a_repeated_call_skips_rows_whose_commit_was_not_confirmed(self) -> None:
        kinds = self.database.storage().kinds
        for kind in kinds:
            rows = [row(kind, n) for n in range(3)]
            with failpoints.armed("storage.after_commit", "raise"):
                self.assertRaises(FailPointReached, self.write, self.writer, kind, rows, topic=kind)
            self.assertEqual(Written(skipped=3), self.write(self.writer, kind, rows, topic=kind))
            self.assertEqual(3, len(self.stored(kind)))

    def test_concurrent_writers_of_one_partition_store_each_row_once(self) -> None:
        writers = [self.database.writer() for _ in range(_WRITERS)]
        results = run_together(write_the_log, writers, range(_WRITERS))
        self.assertEqual(LOG_LENGTH, sum(result.stored for each in results for result in each))
        self.assertEqual(list(range(LOG_LENGTH)), numbers_of_the_log(self.database))
        self.assertEqual(LOG_LENGTH, self.next_offset(writers[0]))


def numbers_of_the_log(database: Database) -> list[int]:
    return sorted(int(entry.message.split()[1]) for _, entry in database.rows(Kind.LOGS))


def write_the_log(writer: Writer, number: int) -> list[Written]:
    """Write the whole log. Writers differ in batch size and message ids, so only offsets identify repeated rows."""
    position, step, results = 0, 7 + 4 * number, []
    while position < LOG_LENGTH:
        offsets = range(position, min(position + step, LOG_LENGTH))
        rows = [row(Kind.LOGS, offset) for offset in offsets]
        ids = [b"%d of %d" % (offset, number) for offset in offsets]
        try:
            results.append(writer.write(claim(position, offsets.stop), Rows(Kind.LOGS, rows, offsets, ids)))
            position = offsets.stop
        except RangeBeyondNext as error:
            position = error.next_offset
        except StorageUnavailable:
            continue
    return results
