# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a writer at critical points, with both databases: no row is lost or stored twice. Each mutant lacks
one guarantee and must be detected; otherwise the test above it proves nothing."""

import json
import os
import signal
import subprocess
import sys

import fixtures

from monasca_common.storage.base import Kind
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_LENGTH = 120
_BATCH = 10
_PATIENCE_SECONDS = 200


class StorageCrash:
    """``self.database`` is a prepared database."""

    def setUp(self):
        super().setUp()
        self.progress = os.path.join(self.useFixture(fixtures.TempDir()).path, "progress")

    def write(self, *, kill_at=None, mutant=None):
        """Continue writing to the end, or to the fail point that kills the writer."""
        facts = {
            "driver": self.database.settings.driver,
            "connection": self.database.settings.connection,
            "progress": self.progress,
            "length": _LENGTH,
            "batch": _BATCH,
            "mutant": mutant,
        }
        armed = {"MONASCA_FAIL_POINTS": f"{kill_at[0]}=kill@{kill_at[1]}"} if kill_at else {}
        ended = subprocess.run(
            [sys.executable, "-m", "monasca_common.tests.functional.storage.storage_program", json.dumps(facts)],
            env={**os.environ, **armed},
            timeout=_PATIENCE_SECONDS,
            capture_output=True,
            text=True,
        )
        self.assertEqual(-signal.SIGKILL if kill_at else 0, ended.returncode, ended.stderr)

    def crash_and_finish(self, point, mutant=None):
        """Kill the writer in the first batch of lines, of measurements and of events, and then let it finish."""
        for pass_number in (1, 6, 7):
            self.write(kill_at=(point, pass_number), mutant=mutant)
        self.write(mutant=mutant)

    def copies(self):
        """Return how often each line is stored."""
        lines = [int(line.message.split()[1]) for _, line in self.database.rows(Kind.LOGS)]
        return {number: lines.count(number) for number in range(_LENGTH)}

    def copies_of_events(self):
        """Return how often each event is stored."""
        ids = [message_id for message_id, _ in self.database.rows(Kind.EVENTS)]
        return {number: ids.count(b"event-%d" % number) for number in range(_LENGTH)}

    @each_once()
    def assert_each_once(self):
        self.assertEqual(dict.fromkeys(range(_LENGTH), 1), self.copies())
        self.assertEqual(dict.fromkeys(range(_LENGTH), 1), self.copies_of_events())
        measured = self.database.rows(Kind.METRICS)
        self.assertEqual([float(n) for n in range(_LENGTH)], sorted(each.value for each in measured))
        # Check the series of each measurement too: after a rollback, a writer must not assume that a series exists.
        self.assertEqual({"cpu.user"}, {each.series.name for each in measured})
        stored = {each.topic: each.next_offset for each in self.database.storage().status().offsets}
        self.assertEqual({"logs": _LENGTH, "metrics": _LENGTH, "events": _LENGTH}, stored)

    def test_after_a_kill_within_the_transaction_its_rows_are_stored_later(self):
        self.crash_and_finish("storage.in_transaction")
        self.assert_each_once()

    def test_after_a_kill_after_the_commit_repeated_rows_are_not_stored_again(self):
        self.crash_and_finish("storage.after_commit")
        self.assert_each_once()

    # Rule 23
    @periodic("mutant; the normal run contains test_mutant_that_trusts_kafkas_offsets of the persister")
    def test_mutant_that_compares_no_offsets_is_detected(self):
        self.crash_and_finish("storage.after_commit", "compares_no_offsets")
        self.assertEqual(2, max(self.copies().values()))

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_stores_offsets_in_another_transaction_is_detected(self):
        self.crash_and_finish("storage.in_transaction", "stores_the_offset_in_a_transaction_of_its_own")
        self.assertEqual(2, max(self.copies().values()))

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_treats_each_row_by_id_as_new_is_detected(self):
        self.write(mutant="stores_by_id_as_if_every_row_were_new")
        self.assertEqual(dict.fromkeys(range(_LENGTH), 2), self.copies_of_events())


class SqliteCrashTest(StorageCrash, SqliteTestCase): ...


class PostgresqlCrashTest(StorageCrash, PostgresqlTestCase):
    # With SQLite this mutant would lose no event: the writer inserts a row with the recorded time, whichever process
    # recorded it.
    # Rule 25
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_stores_ids_in_another_transaction_is_detected(self):
        self.crash_and_finish("storage.in_transaction", "notes_ids_in_a_transaction_of_its_own")
        self.assertEqual(0, min(self.copies_of_events().values()))
