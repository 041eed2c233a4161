# SPDX-License-Identifier: Apache-2.0
"""Daily partitions: made by whoever needs one first, dropped whole, and neither stops who writes or reads."""

import datetime
import threading

from monasca_common.storage.base import Kind, Pruned, Rows, Written
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.testing.database import NOW_MS
from monasca_common.storage.testing.scenario import claim, measurement, message_id, row
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.functional.waiting import Waiting
from monasca_common.tests.periodic import periodic

DAY_MS = 86_400_000
WRITERS = 6
DAYS = 12


class PartitionsCase(PostgresqlTestCase):
    def partitions(self, table="measurements"):
        query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass"
        return sorted(name for (name,) in self.session().execute(query, [table]))

    def write(self, writer, values, start=0, *, partition=0, kind=Kind.METRICS):
        offsets = range(start, start + len(values))
        ids = tuple(map(message_id, offsets))
        its_claim = claim(start, offsets.stop, partition=partition, topic=str(kind))
        return writer.write(its_claim, Rows(kind, values, offsets, ids))


class PartitionsTest(PartitionsCase):
    def test_the_days_around_are_made_with_the_first_write_and_when_the_day_turns(self):
        writer = self.database.writer()
        self.write(writer, [measurement(0)])
        self.assertEqual([_name(day) for day in range(-2, 3)], self.partitions())
        self.database.clock.now_ms += DAY_MS
        self.write(writer, [measurement(1)], 1)
        self.assertEqual([_name(day) for day in range(-2, 4)], self.partitions())

    def test_a_partition_has_the_day_of_its_name_and_the_indexes_of_its_table(self):
        for kind in (Kind.METRICS, Kind.LOGS):
            self.write(self.database.writer(), [row(kind, 0)], kind=kind)
        session = self.session()
        for table in ("measurements", "logs"):
            name = _name(0, table)
            [(least, most)] = session.execute(f"SELECT min(time), max(time) FROM {name}")
            self.assertEqual((NOW_MS, NOW_MS), (least, most))
            count = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass"
            of_table, of_partition = (session.execute(count, [each]).fetchone() for each in (table, name))
            self.assertEqual(of_table, of_partition)

    @periodic("a variant of a created partition")
    def test_a_day_that_a_row_needs_is_made_for_it(self):
        days = (-40, -30, -3)
        values = [measurement(-day, time_ms=NOW_MS + day * DAY_MS) for day in days]
        self.assertEqual(Written(stored=3), self.write(self.database.writer(), values))
        self.assertLess({_name(day) for day in days}, set(self.partitions()))

    @periodic("a variant of a created partition")
    def test_a_day_that_somebody_dropped_is_made_again(self):
        writer = self.database.writer()
        self.write(writer, [measurement(0)])
        self.session().execute(f"DROP TABLE {_name(0)}")
        self.assertEqual(Written(stored=1), self.write(writer, [measurement(1)], 1))

    @periodic("several writers at once; RaceTest is in the gate")
    def test_writers_that_need_the_same_days_at_once_all_store_their_rows(self):
        barrier = threading.Barrier(WRITERS)
        outcomes = []

        def run(number):
            with self.database.storage().open_writer() as writer:
                values = [measurement(number, time_ms=NOW_MS - day * DAY_MS) for day in range(DAYS)]
                barrier.wait()
                try:
                    outcomes.append(self.write(writer, values, partition=number))
                except Exception as error:
                    outcomes.append(error)

        _run_together(run, WRITERS)
        self.assertEqual([Written(stored=DAYS)] * WRITERS, outcomes)
        self.assertEqual(sorted(_name(day) for day in range(1 - DAYS, 3)), self.partitions())

    @periodic("a variant of a created partition")
    def test_making_a_partition_waits_for_no_transaction_that_writes(self):
        writer, other = self.database.writer(), self.session()
        self.write(writer, [measurement(0)])
        with other.transaction():
            other.execute(f"INSERT INTO measurements VALUES ('\\x00', {NOW_MS}, 1, NULL, 1)")
            far = measurement(1, time_ms=NOW_MS - 20 * DAY_MS)
            self.assertEqual(Written(stored=1), self.write(writer, [far], 1))

    @periodic("a variant of a created partition")
    def test_partitions_that_cannot_be_made_ahead_hold_up_no_row_that_has_one(self):
        database = self.empty_database(write_timeout_seconds=3.0)
        database.prepare()
        self.database = database
        writer = database.writer()
        self.write(writer, [measurement(0)])
        database.clock.now_ms += DAY_MS
        other = self.session()
        with other.transaction():
            other.execute("LOCK TABLE measurements IN SHARE UPDATE EXCLUSIVE MODE")
            self.assertEqual(Written(stored=1), self.write(writer, [measurement(1)], 1))
            far = measurement(2, time_ms=NOW_MS - 20 * DAY_MS)
            self.assertRaises(StorageUnavailable, self.write, writer, [far], 2)
        self.assertEqual(Written(stored=1), self.write(writer, [far], 2))


class PruningTest(Waiting, PartitionsCase):
    def setUp(self):
        super().setUp()
        self.later_ms = NOW_MS + self.database.settings.default_retention_days * DAY_MS

    def empty_database(self, **changes):
        return super().empty_database(**{"write_timeout_seconds": 5.0, **changes})

    def prune(self, now_ms):
        return list(self.database.storage().prune(now_ms))

    def test_a_day_goes_when_its_last_row_is_too_old(self):
        self.write(self.database.writer(), [measurement(0)])
        self.assertEqual([Pruned("measurements", 2, "partitions")], self.prune(self.later_ms))
        self.assertEqual([_name(day) for day in range(3)], self.partitions())
        end_of_day = (NOW_MS // DAY_MS + 1) * DAY_MS - NOW_MS
        self.assertEqual([], self.prune(self.later_ms + end_of_day - 1))
        self.assertEqual(
            [Pruned("measurements", 1, "partitions"), Pruned("series", 1, "rows")],
            self.prune(self.later_ms + end_of_day),
        )
        self.assertEqual([], self.database.rows(Kind.METRICS))

    @periodic("waits for a long read")
    def test_a_long_read_delays_pruning_and_no_writer(self):
        writer, reader = self.database.writer(), self.session()
        self.write(writer, [measurement(0)])
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM measurements")
        pruning = []

        def prune():
            try:
                pruning.append(self.prune(self.later_ms))
            except StorageUnavailable as error:
                pruning.append(error)

        thread = threading.Thread(target=prune)
        thread.start()
        watching, waits = self.session(), "SELECT count(*) FROM pg_locks WHERE NOT granted"
        self.wait_until(lambda: pruning or watching.execute(waits).fetchone()[0], "pruning that waits")
        written = beside = 0
        while not pruning:
            written += 1
            self.write(writer, [measurement(written)], written)
            beside += not pruning
        thread.join()
        self.assertIsInstance(pruning[0], StorageUnavailable)
        self.assertGreater(beside, 2)  # who is held up writes one, when pruning gives up
        reader.execute("ROLLBACK")
        # What was interrupted is finished by the next one.
        self.assertEqual([Pruned("measurements", 2, "partitions")], self.prune(self.later_ms))

    def test_what_was_detached_and_not_dropped_is_dropped_by_the_next_pruning(self):
        self.write(self.database.writer(), [measurement(0)])
        self.session().execute(f"ALTER TABLE measurements DETACH PARTITION {_name(-2)}")
        self.session().execute("CREATE TABLE measurements_backup (time int8)")
        self.assertEqual([Pruned("measurements", 2, "partitions")], self.prune(self.later_ms))
        [count] = (
            self.session().execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'measurements\\_%'").fetchone()
        )
        self.assertEqual(2 * 3 + 2, count)  # three days with their keys, the key's, and what is not ours to drop


def _name(day, table="measurements"):
    date = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC) + datetime.timedelta(days=day)
    return f"{table}_{date:%Y%m%d}"


def _run_together(run, count):
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
