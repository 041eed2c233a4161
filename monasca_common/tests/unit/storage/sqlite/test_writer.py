# SPDX-License-Identifier: Apache-2.0
"""Behaviour that only SQLite has: errors of the file, threads of one process, a fork, and rows that only SQLite
refuses."""

import contextlib
import errno
import os
import resource
import sqlite3
from pathlib import Path

from fixtures import MonkeyPatch

from monasca_common.kafka import failpoints
from monasca_common.kafka.errors import ForkedError
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import RowsRefused, SchemaMismatch, StorageUnavailable
from monasca_common.storage.sql import writer as sql_writer
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.scenario import Scenario, make_series, measurement, row
from monasca_common.tests.threads import run_together
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class SqliteWriterTest(Scenario, SqliteTestCase):
    @property
    def file(self):
        return self.database.storage().path

    def pragma(self, name):
        with sqlite3.connect(self.file) as connection:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

    def test_the_file_is_in_wal_mode_so_that_readers_do_not_wait_for_the_writer(self):
        self.assertEqual("wal", self.pragma("journal_mode"))
        writer = self.database.writer()
        self.write(writer, Kind.METRICS, [measurement()])
        writer._connection.execute("BEGIN IMMEDIATE")
        self.assertEqual(1, len(self.stored(Kind.METRICS)))
        writer._connection.execute("ROLLBACK")

    def test_a_commit_is_written_to_disk_before_it_returns(self):
        full = 2
        self.assertEqual(full, self.database.writer()._connection.execute("PRAGMA synchronous").fetchone()[0])

    def test_only_rows_with_numbers_that_the_database_cannot_hold_are_refused(self):
        rows = [measurement(0), measurement(1, version=2**63), measurement(2)]
        error = self.assertRaises(RowsRefused, self.write, self.database.writer(), Kind.METRICS, rows)
        self.assertEqual({1}, set(error.reasons))
        self.assertIn("too large", error.reasons[1])

    def test_rows_that_are_refused_only_together_do_not_become_dead_letters(self):
        writer = self.database.writer()
        self.addCleanup(setattr, sql_writer, "find_refused", sql_writer.find_refused)
        sql_writer.find_refused = lambda count, trial: {}
        self.assertRaises(StorageUnavailable, self.write, writer, Kind.METRICS, [measurement(version=2**63)])

    def test_a_file_that_is_locked_for_too_long_is_unavailable_and_then_written(self):
        database = self.empty_database(write_timeout_seconds=0.05)
        database.prepare()
        writer = database.writer()
        other = sqlite3.connect(database.storage().path, isolation_level=None)
        self.addCleanup(other.close)
        other.execute("BEGIN IMMEDIATE")
        error = self.assertRaises(StorageUnavailable, self.write, writer, Kind.METRICS, [measurement()])
        self.assertIn("locked", str(error))
        other.execute("ROLLBACK")
        self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [measurement()]))

    def test_a_full_disk_is_unavailable_and_the_same_call_works_once_there_is_room(self):
        writer = self.database.writer()
        rows = [measurement(n, time_ms=NOW_MS + n) for n in range(5000)]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        self.assertRaises(StorageUnavailable, self.write, writer, Kind.METRICS, rows)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertEqual([], self.stored(Kind.METRICS))
        self.assertEqual(Written(stored=5000), self.write(writer, Kind.METRICS, rows))
        self.assertEqual(rows, self.stored(Kind.METRICS))

    def test_a_file_that_is_not_a_database_is_unavailable(self):
        self.file.write_bytes(b"no database" * 1000)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        self.assertRaises(StorageUnavailable, self.database.storage().open_writer)
        self.assertRaises(StorageUnavailable, self.database.storage().status)
        self.assertRaises(StorageUnavailable, self.database.storage().upgrade)

    def test_a_folder_that_is_missing_is_named(self):
        self.file.unlink()
        os.rename(self.folder, f"{self.folder}-away")
        self.addCleanup(os.rename, f"{self.folder}-away", self.folder)
        for call in (self.database.storage().open_writer, self.database.storage().upgrade):
            self.assertIn(self.folder, str(self.assertRaises(StorageUnavailable, call)))

    def test_a_folder_that_cannot_be_read_is_unavailable(self):
        def broken(path):
            raise OSError(errno.EIO, "Input/output error", str(path))

        for name in ("is_dir", "exists"):
            with MonkeyPatch(f"pathlib.Path.{name}", broken):
                error = self.assertRaises(StorageUnavailable, self.database.storage().open_writer)
            self.assertIn("Input/output error", str(error))

    def test_tables_of_an_older_program_are_recognized_by_their_revision(self):
        with sqlite3.connect(self.file) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0000'")
        error = self.assertRaises(SchemaMismatch, self.database.storage().open_writer)
        self.assertIn("revision 0000", str(error))
        self.assertIn("use a new database", str(error))

    def test_threads_of_one_process_write_in_turns(self):
        writers = [self.database.writer() for _ in range(4)]

        def run(writer, number):
            for turn in range(20):
                row = measurement(number, time_ms=NOW_MS + turn)
                self.write(writer, Kind.METRICS, [row], turn, partition=number)

        run_together(run, writers, range(4))
        self.assertEqual(80, len(self.stored(Kind.METRICS)))

    def test_series_are_cached_only_after_the_commit(self):
        writer = self.database.writer()
        with failpoints.armed("storage.in_transaction", "raise"):
            self.assertRaises(FailPointReached, self.write, writer, Kind.METRICS, [measurement()])
        self.assertEqual(set(), writer._known)
        self.write(writer, Kind.METRICS, [measurement()])
        self.assertEqual({measurement().series.id}, writer._known)

    def test_the_cache_of_series_is_limited(self):
        self.addCleanup(setattr, sql_writer, "_MAX_KNOWN_SERIES", sql_writer._MAX_KNOWN_SERIES)
        sql_writer._MAX_KNOWN_SERIES = 10
        writer = self.database.writer()
        for turn in range(5):
            self.write(writer, Kind.METRICS, [measurement(turn * 4 + n) for n in range(4)], turn * 4)
            self.assertLessEqual(len(writer._known), 10)
        self.assertEqual(20, len(self.stored(Kind.METRICS)))

    def test_a_closed_writer_raises_an_error_and_can_be_closed_again(self):
        writer = self.database.writer()
        writer.close()
        writer.close()
        self.assertRaises(ValueError, self.write, writer, Kind.METRICS, [measurement()])

    def test_a_writer_is_not_used_in_a_child_of_its_process(self):
        writer = self.database.writer()
        self.addCleanup(setattr, writer, "_pid", writer._pid)
        writer._pid -= 1
        self.assertRaises(ForkedError, self.write, writer, Kind.METRICS, [measurement()])

    def test_pruning_in_small_steps_keeps_recent_rows_of_each_series(self):
        from monasca_common.storage.sqlite import prune

        self.addCleanup(setattr, prune, "ROWS_A_STEP", prune.ROWS_A_STEP)
        prune.ROWS_A_STEP = 7
        series = [make_series(host=f"host-{n}") for n in range(5)]
        rows = [measurement(series=each, time_ms=NOW_MS + n) for each in series for n in range(20)]
        self.write(self.database.writer(), Kind.METRICS, rows)
        days = self.database.settings.default_retention_days
        steps = list(self.database.storage().prune(NOW_MS + 13 + days * 86_400_000))
        self.assertEqual(5 * 13, sum(step.removed for step in steps))
        self.assertTrue(all(step.removed <= 7 and step.table == "measurements" for step in steps), steps)
        expected = [row for row in rows if row.time_ms >= NOW_MS + 13]
        self.assertEqual(sorted(expected, key=lambda row: (row.time_ms, row.series.id)), self.stored(Kind.METRICS))

    def test_rows_with_a_key_are_pruned_in_small_steps(self):
        self.useFixture(MonkeyPatch("monasca_common.storage.sqlite.prune.ROWS_A_STEP", 7))
        self.write(self.database.writer(), Kind.LOGS, [row(Kind.LOGS, n, time_ms=NOW_MS + n) for n in range(20)])
        days = self.database.settings.default_retention_days
        steps = list(self.database.storage().prune(NOW_MS + 17 + days * 86_400_000))
        self.assertEqual([("logs", 7), ("logs", 7), ("logs", 3)], [(step.table, step.removed) for step in steps])
        self.assertEqual(3, len(self.stored(Kind.LOGS)))

    def test_a_pruning_step_that_finds_no_rows_is_also_limited(self):
        from monasca_common.storage.sqlite import prune

        self.useFixture(MonkeyPatch("monasca_common.storage.sqlite.prune.SERIES_A_STEP", 10))
        self.write(self.database.writer(), Kind.METRICS, [measurement(n) for n in range(95)])
        statements = []

        def connect(*arguments, **named):
            connection = connect_to_file(*arguments, **named)
            connection.set_trace_callback(statements.append)
            return connection

        connect_to_file = prune.connect
        self.useFixture(MonkeyPatch("monasca_common.storage.sqlite.prune.connect", connect))
        self.assertEqual([], list(self.database.storage().prune(NOW_MS)))
        transactions = " ".join(statement.split()[0] for statement in statements).split("BEGIN")
        self.assertGreater(len(transactions), 2 * 9)
        self.assertLess(max(map(len, map(str.split, transactions))), 5 * 10)

    def test_series_without_measurements_are_pruned_and_recreated_with_the_next_one(self):
        writer = self.database.writer()
        self.write(writer, Kind.METRICS, [measurement(n) for n in range(3)])
        later_ms = NOW_MS + (self.database.settings.default_retention_days + 1) * 86_400_000
        removed = {step.table: step.removed for step in self.database.storage().prune(later_ms)}
        self.assertEqual({"measurements": 3, "series": 3}, removed)
        self.database.clock.now_ms = later_ms
        self.write(writer, Kind.METRICS, [measurement(1, time_ms=later_ms)], 3)
        self.assertEqual([measurement(1, time_ms=later_ms)], self.stored(Kind.METRICS))


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


class PrivateFilesTest(Scenario, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.fresh = self.empty_database()
        self.path = Path(self.folder) / "monasca.sqlite"

    def modes(self):
        return {path.name: mode(path) for path in Path(self.folder).iterdir()}

    def test_the_database_and_its_other_files_are_private(self):
        with umask(0o022):
            self.fresh.prepare()
            self.assertEqual(0o600, mode(self.path))
            self.write(self.fresh.writer(), Kind.METRICS, [measurement()])
            names = {f"monasca.sqlite{suffix}" for suffix in ("", "-wal", "-shm")}
            self.assertEqual(dict.fromkeys(names, 0o600), self.modes())

    def test_an_existing_file_keeps_its_permissions(self):
        with umask(0o022):
            self.path.touch(mode=0o644)
            self.fresh.prepare()
            self.assertEqual(0o644, mode(self.path))

    def test_the_folder_keeps_its_permissions(self):
        os.chmod(self.folder, 0o755)
        self.fresh.prepare()
        self.assertEqual(0o755, mode(Path(self.folder)))

    def test_the_target_of_a_link_is_private(self):
        target = self.path.with_name("elsewhere.sqlite")
        self.path.symlink_to(target)
        with umask(0o022):
            self.fresh.prepare()
            self.assertEqual(0o600, mode(target))

    def test_a_job_without_a_database_leaves_no_file_readable_by_others(self):
        with umask(0o022):
            self.assertRaises(SchemaMismatch, OffsetStore(f"sqlite:///{self.path}").check)
            self.assertEqual({"monasca.sqlite": 0o600}, self.modes())
