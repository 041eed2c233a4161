# SPDX-License-Identifier: Apache-2.0
"""Series are pruned beside writers, and no measurement is without its series."""

import threading
import time
from unittest import mock

from fixtures import MonkeyPatch

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.storage.base import Kind, Pruned
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.postgresql import series
from monasca_common.storage.testing.database import NOW_MS
from monasca_common.storage.testing.scenario import Scenario, measurement
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic

_PATIENCE_SECONDS = 120
_WAITS_FOR_PRUNING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class SeriesCase(Scenario, PostgresqlTestCase):
    """A writer knows the series 0, 1 and 2, of which 0 alone has a measurement."""

    def setUp(self):
        super().setUp()
        self.writer = self.database.writer()
        self.write(self.writer, Kind.METRICS, [measurement(number) for number in range(3)])
        self.session().execute("DELETE FROM measurements WHERE value > 0")

    def prune(self):
        return list(self.database.storage().prune(NOW_MS))

    def store(self, number, writer=None):
        """One more measurement of this series."""
        offset = self.next_offset(self.writer)
        self.write(writer or self.writer, Kind.METRICS, [measurement(number, time_ms=NOW_MS + 1)], offset)

    def names(self):
        """The hosts whose series are stored."""
        hosts = self.session().execute("SELECT dimensions ->> 'host' FROM series ORDER BY 1").fetchall()
        return [int(host.removeprefix("host-")) for (host,) in hosts]

    def orphans(self):
        query = "SELECT count(*) FROM measurements WHERE series_id NOT IN (SELECT id FROM series)"
        return self.session().execute(query).fetchone()[0]

    def at(self, point, happening):
        """Once, at this fail point of a writer or of pruning."""
        left = [happening]

        def reached(name):
            if name == point and left:
                left.pop()()

        for module in ("series", "writer"):
            self.useFixture(MonkeyPatch(f"monasca_common.storage.postgresql.{module}.fail_point", reached))

    def store_beside(self, number):
        """In a thread, which has to wait for pruning before this returns."""
        thread = threading.Thread(target=self.store, args=(number,))
        self.addCleanup(thread.join)
        thread.start()
        self.wait_for_a_waiter()
        return thread

    def wait_for_a_waiter(self):
        session, deadline = self.session(), time.monotonic() + _PATIENCE_SECONDS
        while not session.execute(_WAITS_FOR_PRUNING).fetchone()[0]:
            self.assertLess(time.monotonic(), deadline, "nobody waits for a lock")
            time.sleep(0.01)


class SeriesPruningTest(SeriesCase):
    def test_series_without_a_measurement_go_and_the_others_stay(self):
        self.assertEqual([Pruned("series", 2, "rows")], self.prune())
        self.assertEqual([0], self.names())
        self.assertEqual([], self.prune())

    def test_a_series_that_was_pruned_comes_back_with_its_next_measurement(self):
        self.prune()
        self.store(1)
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    def test_steps_are_bounded_whatever_they_find(self):
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
    def test_a_write_that_goes_on_holds_pruning_up_for_its_time_out_and_no_longer(self):
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

    def test_pruning_within_a_write_is_seen_by_it(self):
        self.prune_within_a_write()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    def test_pruning_waits_for_a_write_and_leaves_its_series(self):
        self.prune_beside_a_write()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    def test_a_write_waits_for_pruning_and_makes_its_series_again(self):
        self.write_within_a_pruning()
        self.assertEqual(([0, 1], 0), (self.names(), self.orphans()))

    # Rule 25
    @periodic("the test that it would break is in the gate")
    def test_a_writer_without_the_generation_is_caught(self):
        def hold(connection):
            connection.execute(series.HOLD)
            return 0

        with mock.patch.object(series, "hold", hold):
            self.prune()
            self.store(1)
        self.assertEqual(1, self.orphans())

    @periodic("the test that it would break is in the gate")
    def test_a_writer_that_reads_the_generation_while_it_waits_is_caught(self):
        def hold(connection):
            together = series.SELECT_GENERATION + b", (" + series.HOLD + b") AS held"
            return connection.execute(together).fetchone()[0]

        with mock.patch.object(series, "hold", hold):
            self.write_within_a_pruning()
        self.assertEqual(1, self.orphans())

    @periodic("the test that it would break is in the gate")
    def test_a_writer_without_the_lock_is_caught(self):
        def hold(connection):
            generation = connection.execute(series.SELECT_GENERATION).fetchone()[0]
            self.prune()
            return generation

        with mock.patch.object(series, "hold", hold):
            self.store(1)
        self.assertEqual(1, self.orphans())

    def test_writers_and_pruning_at_once_leave_no_measurement_without_its_series(self):
        done = threading.Event()
        failures = []

        def write(partition):
            try:
                with self.database.storage().open_writer() as writer:
                    for turn in range(60):
                        row = measurement(turn % 5, time_ms=NOW_MS + 1 + turn)
                        self.write(writer, Kind.METRICS, [row], turn, partition=partition)
            except Exception as failure:
                failures.append(failure)

        def remove():
            session = self.session()
            while not done.is_set():
                session.execute("DELETE FROM measurements")
                self.prune()

        remover = threading.Thread(target=remove)
        writers = [threading.Thread(target=write, args=(partition,)) for partition in (1, 2, 3)]
        for thread in (remover, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        remover.join()
        self.assertEqual(([], 0), (failures, self.orphans()))
