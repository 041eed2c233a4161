# SPDX-License-Identifier: Apache-2.0
"""Daily partitions and series are created by the first writer that needs them and removed by pruning, while others
write and read."""

import dataclasses
import datetime
import threading
import time
from unittest import mock

import psycopg
from fixtures import MonkeyPatch

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.storage.base import Kind, Pruned, Rows, Written
from monasca_common.storage.errors import RowsRefused, StorageUnavailable
from monasca_common.storage.postgresql import series
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.scenario import Scenario, claim, measurement, message_id, row
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.threads import run_together
from monasca_common.tests.waiting import Waiting

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
    def test_adjacent_days_are_created_with_the_first_write_and_when_the_day_changes(self):
        writer = self.database.writer()
        self.write(writer, [measurement(0)])
        self.assertEqual([_name(day) for day in range(-2, 3)], self.partitions())
        self.database.clock.now_ms += DAY_MS
        self.write(writer, [measurement(1)], 1)
        self.assertEqual([_name(day) for day in range(-2, 4)], self.partitions())

    def test_a_partition_has_the_day_in_its_name_and_the_indexes_of_its_table(self):
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
    def test_a_missing_day_is_created_for_a_row(self):
        days = (-40, -30, -3)
        values = [measurement(-day, time_ms=NOW_MS + day * DAY_MS) for day in days]
        self.assertEqual(Written(stored=3), self.write(self.database.writer(), values))
        self.assertLess({_name(day) for day in days}, set(self.partitions()))

    @periodic("a variant of a created partition")
    def test_a_dropped_day_is_created_again(self):
        writer = self.database.writer()
        self.write(writer, [measurement(0)])
        self.session().execute(f"DROP TABLE {_name(0)}")
        self.assertEqual(Written(stored=1), self.write(writer, [measurement(1)], 1))

    def test_a_dropped_day_refuses_no_row_of_a_batch_with_a_bad_row(self):
        writer = self.database.writer()
        self.write(writer, [measurement(0)])
        self.session().execute(f"DROP TABLE {_name(0)}")
        bad = measurement(2)
        bad = bad._replace(series=dataclasses.replace(bad.series, id=b"z" * 16, name="a\0b"))
        self.assertRaises(StorageUnavailable, self.write, writer, [measurement(1), bad], 1)
        refused = self.assertRaises(RowsRefused, self.write, writer, [measurement(1), bad], 1)
        self.assertEqual({1}, refused.reasons.keys())

    @periodic("several writers at once; the normal run contains RaceTest")
    def test_concurrent_writers_of_the_same_new_days_all_store_their_rows(self):
        def run(writer, number):
            values = [measurement(number, time_ms=NOW_MS - day * DAY_MS) for day in range(DAYS)]
            return self.write(writer, values, partition=number)

        writers = [self.database.writer() for _ in range(WRITERS)]
        self.assertEqual([Written(stored=DAYS)] * WRITERS, run_together(run, writers, range(WRITERS)))
        self.assertEqual(sorted(_name(day) for day in range(1 - DAYS, 3)), self.partitions())

    @periodic("a variant of a created partition")
    def test_creating_a_partition_does_not_wait_for_writing_transactions(self):
        writer, other = self.database.writer(), self.session()
        self.write(writer, [measurement(0)])
        with other.transaction():
            other.execute(f"INSERT INTO measurements VALUES ('\\x00', {NOW_MS}, 1, NULL, 1)")
            far = measurement(1, time_ms=NOW_MS - 20 * DAY_MS)
            self.assertEqual(Written(stored=1), self.write(writer, [far], 1))

    @periodic("a variant of a created partition")
    def test_a_failure_to_create_future_partitions_does_not_delay_other_rows(self):
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

    def test_a_day_is_removed_when_its_last_row_is_too_old(self):
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

    @periodic("waits until a long read ends")
    def test_a_long_read_delays_pruning_but_no_writer(self):
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
        self.assertGreater(beside, 2)  # a delayed writer stores its row when pruning stops
        reader.execute("ROLLBACK")
        # The next pruning completes the interrupted one.
        self.assertEqual([Pruned("measurements", 2, "partitions")], self.prune(self.later_ms))

    def test_a_detached_partition_is_dropped_by_the_next_pruning(self):
        self.write(self.database.writer(), [measurement(0)])
        self.session().execute(f"ALTER TABLE measurements DETACH PARTITION {_name(-2)}")
        self.session().execute("CREATE TABLE measurements_backup (time int8)")
        self.assertEqual([Pruned("measurements", 2, "partitions")], self.prune(self.later_ms))
        [count] = (
            self.session().execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'measurements\\_%'").fetchone()
        )
        self.assertEqual(2 * 3 + 2, count)  # three days with keys, the table of keys, and another table

    def test_a_partition_whose_removal_was_interrupted_stores_rows_after_the_retention_was_raised(self):
        old = NOW_MS - 2 * DAY_MS
        self.write(self.database.writer(), [measurement(0), measurement(1, time_ms=old)])
        reader, pruning = self.session(), self.session()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM measurements")
        pruning.execute("SET lock_timeout = '10ms'")
        detach = f"ALTER TABLE measurements DETACH PARTITION {_name(-2)} CONCURRENTLY"
        self.assertRaises(psycopg.errors.LockNotAvailable, pruning.execute, detach)
        reader.execute("ROLLBACK")
        written = self.write(self.database.writer(), [measurement(2, time_ms=old + 1)], 2)
        self.assertEqual(Written(stored=1), written)
        self.assertEqual(3, len(self.database.rows(Kind.METRICS)))


def _name(day, table="measurements"):
    date = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC) + datetime.timedelta(days=day)
    return f"{table}_{date:%Y%m%d}"


_PATIENCE_SECONDS = 120
_WAITS_FOR_PRUNING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class SeriesCase(Scenario, PostgresqlTestCase):
    """A writer knows the series 0, 1 and 2, of which only 0 has a measurement."""

    def setUp(self):
        super().setUp()
        self.writer = self.database.writer()
        self.write(self.writer, Kind.METRICS, [measurement(number) for number in range(3)])
        self.session().execute("DELETE FROM measurements WHERE value > 0")

    def prune(self):
        return list(self.database.storage().prune(NOW_MS))

    def store(self, number, writer=None):
        """Store one more measurement of this series."""
        offset = self.next_offset(self.writer)
        self.write(writer or self.writer, Kind.METRICS, [measurement(number, time_ms=NOW_MS + 1)], offset)

    def names(self):
        """Return the hosts of the stored series."""
        hosts = self.session().execute("SELECT dimensions ->> 'host' FROM series ORDER BY 1").fetchall()
        return [int(host.removeprefix("host-")) for (host,) in hosts]

    def orphans(self):
        query = "SELECT count(*) FROM measurements WHERE series_id NOT IN (SELECT id FROM series)"
        return self.session().execute(query).fetchone()[0]

    def at(self, point, happening):
        """Call a function once, at this fail point of a writer or of pruning."""
        left = [happening]

        def reached(name):
            if name == point and left:
                left.pop()()

        for module in ("postgresql.series", "sql.writer"):
            self.useFixture(MonkeyPatch(f"monasca_common.storage.{module}.fail_point", reached))

    def store_beside(self, number):
        """Store in a thread, and return when it waits for pruning."""
        thread = threading.Thread(target=self.store, args=(number,))
        self.addCleanup(thread.join)
        thread.start()
        self.wait_for_a_waiter()
        return thread

    def wait_for_a_waiter(self):
        session, deadline = self.session(), time.monotonic() + _PATIENCE_SECONDS
        while not session.execute(_WAITS_FOR_PRUNING).fetchone()[0]:
            self.assertLess(time.monotonic(), deadline, "no session waits for a lock")
            time.sleep(0.01)


class SeriesPruningTest(SeriesCase):
    def test_only_series_without_a_measurement_are_pruned(self):
        self.assertEqual([Pruned("series", 2, "rows")], self.prune())
        self.assertEqual([0], self.names())
        self.assertEqual([], self.prune())

    def test_a_pruned_series_is_recreated_with_its_next_measurement(self):
        self.prune()
        self.store(1)
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    def test_pruning_steps_are_limited_whatever_they_find(self):
        self.useFixture(MonkeyPatch("monasca_common.storage.postgresql.series.SERIES_A_STEP", 2))
        self.write(self.writer, Kind.METRICS, [measurement(number) for number in range(3, 13)], 3)
        self.session().execute("DELETE FROM measurements WHERE value > 6")
        removed = [step.removed for step in self.prune()]
        self.assertEqual((8, True), (sum(removed), max(removed) <= 2), removed)
        self.assertEqual([0, 3, 4, 5, 6], sorted(self.names()))

    def test_pruning_that_fails_within_its_transaction_removes_nothing(self):
        with failpoints.armed("prune.series_removed", "raise"):
            self.assertRaises(FailPointReached, self.prune)
        self.assertEqual([0, 1, 2], self.names())
        self.store(1)
        self.assertEqual([Pruned("series", 1, "rows")], self.prune())
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    @periodic("waits for time-outs")
    def test_a_long_write_delays_pruning_by_at_most_its_time_out(self):
        database = self.empty_database(write_timeout_seconds=3.0)
        database.prepare()
        self.database, self.writer = database, database.writer()
        self.write(self.writer, Kind.METRICS, [measurement(1)])
        session = self.session()
        session.execute("DELETE FROM measurements")
        with session.transaction():
            session.execute(series.HOLD)
            began = time.monotonic()
            self.assertIn("prune again", str(self.assertRaises(StorageUnavailable, self.prune)))
            self.assertLess(time.monotonic() - began, 60.0)
        self.assertEqual([Pruned("series", 1, "rows")], self.prune())


class SeriesRaceTest(SeriesCase):
    def prune_within_a_write(self):
        self.at("storage.before_series", self.prune)
        self.store(1)

    def prune_beside_a_write(self):
        self.at("storage.in_transaction", self.prune_in_a_thread)
        self.store(1)
        for thread in self.threads:
            thread.join()

    def prune_in_a_thread(self):
        self.threads = [threading.Thread(target=self.prune)]
        for thread in self.threads:
            thread.start()
        self.wait_for_a_waiter()

    def write_within_a_pruning(self):
        threads = []
        self.at("prune.series_removed", lambda: threads.append(self.store_beside(1)))
        self.prune()
        for thread in threads:
            thread.join()

    def test_a_write_detects_concurrent_pruning(self):
        self.prune_within_a_write()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    def test_pruning_waits_for_a_write_and_keeps_its_series(self):
        self.prune_beside_a_write()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    def test_a_write_waits_for_pruning_and_creates_its_series_again(self):
        self.write_within_a_pruning()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_does_not_read_the_generation_is_detected(self):
        def hold(connection):
            connection.execute(series.HOLD)
            return 0

        with mock.patch.object(series, "hold", hold):
            self.prune()
            self.store(1)
        self.assertEqual(1, self.orphans())

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_reads_the_generation_while_it_waits_is_detected(self):
        def hold(connection):
            together = series.SELECT_GENERATION + b", (" + series.HOLD + b") AS held"
            return connection.execute(together).fetchone()[0]

        with mock.patch.object(series, "hold", hold):
            self.write_within_a_pruning()
        self.assertEqual(1, self.orphans())

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_without_the_lock_is_detected(self):
        def hold(connection):
            generation = connection.execute(series.SELECT_GENERATION).fetchone()[0]
            self.prune()
            return generation

        with mock.patch.object(series, "hold", hold):
            self.store(1)
        self.assertEqual(1, self.orphans())

    def test_concurrent_writers_and_pruning_leave_no_measurement_without_its_series(self):
        done = threading.Event()

        def write(partition):
            with self.database.storage().open_writer() as writer:
                for turn in range(60):
                    row = measurement(turn % 5, time_ms=NOW_MS + 1 + turn)
                    self.write(writer, Kind.METRICS, [row], turn, partition=partition)

        def remove():
            session = self.session()
            while not done.is_set():
                session.execute("DELETE FROM measurements")
                self.prune()

        remover = threading.Thread(target=remove)
        remover.start()
        try:
            run_together(write, (1, 2, 3))
        finally:
            done.set()
            remover.join()
        self.assertEqual(0, self.orphans())
