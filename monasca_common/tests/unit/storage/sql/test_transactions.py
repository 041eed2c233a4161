# SPDX-License-Identifier: Apache-2.0
"""Transactions that threads share: whose work is in which, and who is told of a failure."""

import threading
from dataclasses import replace

import fixtures
import sqlalchemy as sa
from oslotest import base

from monasca_common.storage.errors import DuplicateKey, SchemaMismatch, StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.transactions import GroupedTransactions, Transactions
from monasca_common.storage.testing.database import SqlDatabase

_SECONDS = 50  # for a machine under load


class GroupedTransactionsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.database = SqlDatabase(self.addCleanup, StorageSettings("sqlite", f"sqlite:///{folder}/monasca.sqlite"))
        self.commits = 0

    def open(self):
        made = GroupedTransactions(self.database.settings)
        self.addCleanup(made.close)
        sa.event.listen(made._engine, "commit", lambda _connection: setattr(self, "commits", self.commits + 1))
        made.run(lambda connection: connection.exec_driver_sql("CREATE TABLE note (text TEXT PRIMARY KEY)"))
        self.commits = 0
        return made

    def behind_another(self, grouped, works):
        """What each of these works comes to, which all wait while another is under way."""
        begun, go_on = threading.Event(), threading.Event()

        def holds(_connection):
            begun.set()
            go_on.wait(_SECONDS)

        outcomes = [None] * len(works)

        def run(index, work):
            try:
                outcomes[index] = grouped.run(work)
            except Exception as error:
                outcomes[index] = error

        threads = [threading.Thread(target=grouped.run, args=(holds,), daemon=True)]
        threads[0].start()
        self.assertTrue(begun.wait(_SECONDS))
        for index, work in enumerate(works):
            threads.append(threading.Thread(target=run, args=(index, work), daemon=True))
            threads[-1].start()
            while len(grouped._waiting) <= index:
                threading.Event().wait(0.001)
        go_on.set()
        for thread in threads:
            thread.join(_SECONDS)
        return outcomes

    def notes(self):
        with schema.engine(self.database.settings.connection).connect() as connection:
            return sorted(connection.scalars(sa.text("SELECT text FROM note")))

    def test_what_waits_is_one_transaction_and_each_gets_its_own_result(self):
        self.database.prepare()
        grouped = self.open()
        outcomes = self.behind_another(grouped, [writes("a"), writes("b"), writes("c")])
        self.assertEqual(["a", "b", "c"], outcomes)
        self.assertEqual(["a", "b", "c"], self.notes())
        self.assertEqual(2, self.commits)

    def test_a_work_that_is_refused_takes_no_other_with_it(self):
        self.database.prepare()
        grouped = self.open()
        fault = ValueError("mine")
        outcomes = self.behind_another(grouped, [writes("a"), writes("a"), fails(fault), writes("b")])
        self.assertEqual("a", outcomes[0])
        self.assertIsInstance(outcomes[1], DuplicateKey)
        self.assertIs(fault, outcomes[2])
        self.assertEqual("b", outcomes[3])
        self.assertEqual(["a", "b"], self.notes())

    def test_all_are_told_that_the_database_is_unavailable(self):
        self.database.prepare()
        grouped = self.open()
        away = StorageUnavailable("away")
        self.assertEqual([away, away], self.behind_another(grouped, [fails(away), writes("b")]))
        self.assertEqual([], self.notes())
        self.assertEqual("c", grouped.run(writes("c")))

    def test_a_connection_that_was_closed_meanwhile_is_opened_again(self):
        self.database.prepare()
        grouped = self.open()
        died = []

        def dies_once(connection):
            if not died:
                died.append(connection)
                error = sa.exc.OperationalError("SELECT", {}, Exception("server closed the connection"))
                error.connection_invalidated = True
                raise error
            return writes("a")(connection)

        self.assertEqual("a", grouped.run(dies_once))
        self.assertEqual(["a"], self.notes())

    def test_a_database_of_another_revision_is_refused(self):
        grouped = GroupedTransactions(self.database.settings)
        self.addCleanup(grouped.close)
        self.assertRaises(SchemaMismatch, grouped.run, writes("a"))


def writes(text):
    def work(connection):
        connection.execute(sa.text("INSERT INTO note VALUES (:text)"), {"text": text})
        return text

    return work


def fails(error):
    def work(_connection):
        raise error

    return work


class WaitingForSqliteTest(base.BaseTestCase):
    """It has one writer at a time: a write of the API waits for the batch of the evaluator."""

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.settings = StorageSettings("sqlite", f"sqlite:///{folder}/monasca.sqlite", read_timeout_seconds=40.0)
        SqlDatabase(self.addCleanup, self.settings).prepare()

    def test_a_write_waits_as_long_as_for_a_lock_of_postgresql(self):
        waited_ms = Transactions(self.settings).run(lambda each: each.exec_driver_sql("PRAGMA busy_timeout").scalar())
        self.assertEqual(20_000, waited_ms)

    def test_who_waited_too_long_is_told_so(self):
        impatient = Transactions(replace(self.settings, read_timeout_seconds=0.1))
        with schema.engine(self.settings.connection, to_write=True).begin():
            error = self.assertRaises(StorageUnavailable, impatient.run, lambda _: None)
        self.assertIn("database is locked", str(error))
