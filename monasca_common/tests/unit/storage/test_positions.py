# SPDX-License-Identifier: Apache-2.0
"""Tests of the rule for first reads, and of the number of statements with SQLite. `functional.storage` tests
PostgreSQL."""

import contextlib
import sqlite3

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Claim
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.positions import SQLITE, StoredPositions, first_reads
from monasca_common.storage.sql import schema
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

ZERO, ONE, TWO = (TopicPartition("metrics", number) for number in range(3))
MANY = 10_000
GROUP = "1_metrics"


class FirstReadsTest(base.BaseTestCase):
    def resolve(self, partitions):
        self.asked = partitions
        return dict.fromkeys(partitions, 7)

    def test_a_topic_without_stored_offsets_starts_as_configured(self):
        self.assertEqual({ZERO: 7, ONE: 7}, first_reads([ONE, ZERO], {}, self.resolve))
        self.assertEqual([ZERO, ONE], self.asked)

    def test_an_added_partition_is_read_from_its_start(self):
        self.assertEqual({TWO: 0}, first_reads([ZERO, TWO], {ZERO: 5, ONE: 3}, self.fail))

    def test_the_option_is_not_used_if_all_partitions_have_offsets(self):
        self.assertEqual({}, first_reads([ZERO], {ZERO: 5}, self.fail))
        self.assertEqual({}, first_reads([], {}, self.fail))


class ManyPartitions:
    """Subclasses have ``self.transaction()``, which opens a transaction as an `Execute`, and a ``dialect``."""

    def setUp(self):
        super().setUp()
        self.statements = []
        self.many = {TopicPartition("metrics", number): number for number in range(MANY)}
        self.ids = dict.fromkeys(self.many, "an-id")

    @contextlib.contextmanager
    def positions(self):
        """Open a transaction, and record its statements in ``self.statements``."""
        self.statements.clear()
        with self.transaction() as execute:

            def counted(statement, parameters):
                self.statements.append(statement)
                return execute(statement, parameters)

            yield StoredPositions(counted, self.dialect)

    # Rule 23
    def test_starting_and_reading_ten_thousand_partitions_takes_one_statement_each(self):
        with self.positions() as positions:
            self.assertEqual(self.many, positions.begin(GROUP, self.many, self.ids))
        self.assertEqual(1, len(self.statements))
        with self.positions() as positions:
            self.assertEqual(self.many, positions.next_offsets(GROUP, self.ids))
        self.assertEqual(1, len(self.statements))
        with self.positions() as positions:
            self.assertEqual(self.many, positions.begin(GROUP, dict.fromkeys(self.many, 9), self.ids))
        self.assertEqual(1, len(self.statements))

    def test_advancing_ten_thousand_partitions_takes_two_statements(self):
        claims = {Claim(GROUP, *each, "an-id", start, start + 5): each for each, start in self.many.items()}
        with self.positions() as positions:
            positions.begin(GROUP, self.many, self.ids)
        with self.positions() as positions:
            stored = positions.lock(GROUP, self.many)
            self.assertEqual(StoredNext(3, "an-id"), stored[TopicPartition("metrics", 3)])
            positions.advance({claim: stored[each] for claim, each in claims.items()})
        self.assertEqual(2, len(self.statements))
        with self.positions() as positions:
            moved = {each.partition: start + 5 for each, start in self.many.items()}
            self.assertEqual(moved, positions.of_topic(GROUP, "metrics", "an-id"))

    def test_an_offset_that_changed_after_it_was_read_is_not_advanced(self):
        claim = Claim(GROUP, *ZERO, "an-id", 0, 5)
        with self.positions() as positions:
            positions.begin(GROUP, {ZERO: 0}, self.ids)
        with self.positions() as positions:
            stored = positions.hold(claim)
            positions.reset(GROUP, {ZERO: 3}, self.ids)
            error = self.assertRaises(StorageUnavailable, positions.advance, {claim: stored})
            self.assertIn("the stored offset of metrics/0 changed", str(error))
            self.assertEqual({ZERO: 3}, positions.next_offsets(GROUP, {ZERO: "an-id"}))

    def test_resetting_ten_thousand_partitions_takes_three_statements(self):
        with self.positions() as positions:
            positions.begin(GROUP, self.many, self.ids)
        half = {each: offset + 1 if offset % 2 else None for each, offset in self.many.items()}
        with self.positions() as positions:
            self.assertEqual(self.many, positions.reset(GROUP, half, self.ids))
        self.assertEqual(3, len(self.statements))
        with self.positions() as positions:
            kept = {each: offset for each, offset in half.items() if offset is not None}
            self.assertEqual(kept, positions.next_offsets(GROUP, self.ids))


class SqlitePositionsTest(ManyPartitions, SqliteTestCase):
    dialect = SQLITE

    @contextlib.contextmanager
    def transaction(self):
        with contextlib.closing(sqlite3.connect(self.database.storage().path)) as connection, connection:
            yield connection.execute

    def test_each_call_of_the_driver_takes_one_statement(self):
        writer = self.database.writer()
        writer._connection.set_trace_callback(self.statements.append)
        for call in (
            lambda: writer.begin(GROUP, self.many, self.ids),
            lambda: writer.next_offsets(GROUP, self.ids),
        ):
            self.statements.clear()
            self.assertEqual(self.many, call())
            self.assertEqual(["BEGIN", "WITH", "COMMIT"], [each.split()[0] for each in self.statements])


class SqlAlchemySqlitePositionsTest(ManyPartitions, SqliteTestCase):
    dialect = SQLITE

    @contextlib.contextmanager
    def transaction(self):
        engine = schema.engine(self.database.settings.connection, to_write=True)
        with engine.begin() as connection:
            yield connection.exec_driver_sql
