# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import testtools
from testtools.matchers import Contains

from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore
from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable, TopicMismatch
from monasca_common.storage.sql.tables import aggregate_period
from monasca_common.tests.threads import run_together
from monasca_common.tests.unit.pipeline.database_case import SOURCE, DatabaseCase

ROW = {"job": "j", "specification": "s", "period_start": 0, "version": 1, "published": 0, "provisional": False}


class OffsetStoreTest(DatabaseCase):
    def test_the_next_batch_starts_at_the_stored_offsets(self):
        self.assertEqual({}, self.offset_store.next_offsets(SOURCE))
        self.assertEqual({0: 5, 1: 0}, self.offset_store.begin(SOURCE, {0: 5, 1: 0}))
        self.assertEqual({0: 5, 1: 0}, self.offset_store.next_offsets(SOURCE))

    def test_offsets_of_another_process_are_not_overwritten(self):
        self.offset_store.begin(SOURCE, {0: 5})
        self.assertEqual({0: 5, 1: 7}, self.offset_store.begin(SOURCE, {0: 9, 1: 7}))

    def test_results_and_offsets_are_stored_together(self):
        self.offset_store.begin(SOURCE, {0: 0, 1: 0})
        with self.offset_store.advance(SOURCE, [_range(1, 0, 4), _range(0, 0, 3)]) as connection:
            connection.execute(aggregate_period.insert().values(ROW))
        self.assertEqual({0: 3, 1: 4}, self.offset_store.next_offsets(SOURCE))
        self.assertEqual(1, len(self.rows(aggregate_period, "job")))

    def test_neither_results_nor_offsets_are_stored_if_the_block_fails(self):
        self.offset_store.begin(SOURCE, {0: 0})
        with (
            testtools.ExpectedException(ZeroDivisionError),
            self.offset_store.advance(SOURCE, [_range(0, 0, 3)]) as connection,
        ):
            connection.execute(aggregate_period.insert().values(ROW))
            raise ZeroDivisionError
        self.assertEqual({0: 0}, self.offset_store.next_offsets(SOURCE))
        self.assertEqual([], self.rows(aggregate_period, "job"))

    def test_the_second_of_two_drivers_of_a_batch_is_fenced(self):
        self.offset_store.begin(SOURCE, {0: 0, 1: 0})
        self.advance((0, 0, 3))
        for ranges in ([(0, 0, 3)], [(0, 0, 5)], [(1, 0, 1), (0, 0, 3)]):
            error = self.assertRaises(Fenced, self.advance, *ranges)
            self.assertThat(
                str(error), Contains("metrics/0 begins at offset 0, but all records below offset 3 are stored")
            )
        self.assertEqual({0: 3, 1: 0}, self.offset_store.next_offsets(SOURCE))

    def test_offsets_after_the_stored_ones_are_not_skipped(self):
        self.offset_store.begin(SOURCE, {0: 0})
        self.assertRaises(Fenced, self.advance, (0, 2, 3))

    def test_a_partition_without_a_stored_offset_is_not_advanced(self):
        error = self.assertRaises(Fenced, self.advance, (0, 0, 3))
        self.assertThat(str(error), Contains("nothing is stored"))

    def test_a_new_partition_fences_a_transaction_over_all_partitions(self):
        self.offset_store.begin(SOURCE, {0: 0, 1: 4})
        ranges = [_range(0, 0, 3), _range(1, 4, 4)]
        with self.offset_store.advance(SOURCE, ranges, are_all=True):
            pass
        self.offset_store.begin(SOURCE, {2: 0})
        again = [_range(0, 3, 5), _range(1, 4, 4)]
        advance = self.offset_store.advance(SOURCE, again, are_all=True)
        advance.__enter__()
        self.assertRaises(Fenced, advance.__exit__, None, None, None)
        self.assertEqual({0: 3, 1: 4, 2: 0}, self.offset_store.next_offsets(SOURCE))
        self.advance((0, 3, 5))  # other processes do not wait for it

    def test_only_one_of_two_concurrent_transactions_succeeds(self):
        self.offset_store.begin(SOURCE, {0: 0})

        def write(_number):
            try:
                with OffsetStore(self.url).advance(SOURCE, [_range(0, 0, 3)]):
                    return "stored"
            except Fenced:
                return "fenced"

        self.assertEqual(["fenced", "stored"], sorted(run_together(write, range(2))))
        self.assertEqual({0: 3}, self.offset_store.next_offsets(SOURCE))

    def test_groups_and_topics_have_separate_offsets(self):
        self.offset_store.begin(SOURCE, {0: 0})
        for other in (replace(SOURCE, group="other"), replace(SOURCE, topic="other")):
            self.assertEqual({}, self.offset_store.next_offsets(other))
            self.assertRaises(Fenced, self.advance, (0, 0, 1), source=other)

    def test_a_recreated_topic_is_another_topic(self):
        self.offset_store.begin(SOURCE, {0: 0})
        again = replace(SOURCE, topic_id="second-id")
        self.assertRaises(TopicMismatch, self.offset_store.next_offsets, again)
        self.assertRaises(TopicMismatch, self.offset_store.begin, again, {1: 0})
        self.assertRaises(TopicMismatch, self.advance, (0, 0, 1), source=again)
        # Topics of a broker that reports no ids are assumed to be the same.
        self.assertEqual({0: 0}, self.offset_store.next_offsets(replace(SOURCE, topic_id=None)))

    def test_refused_rows_do_not_stop_a_replay(self):
        error = self.assertRaises(StorageUnavailable, OffsetStore("sqlite:////nowhere/at/all").next_offsets, SOURCE)
        self.assertThat(str(error), Contains("unable to open database file"))

    def test_a_database_without_tables_is_an_error_with_the_remedy(self):
        error = self.assertRaises(SchemaMismatch, OffsetStore("sqlite://").check)
        self.assertThat(str(error), Contains("monasca-common db upgrade"))
        self.offset_store.check()


def _range(*numbers):
    return OffsetRange(*numbers)
