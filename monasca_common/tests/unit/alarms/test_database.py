# SPDX-License-Identifier: Apache-2.0
"""Transactions that write a few rows of the alarms database."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fixtures
import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.storage.errors import DuplicateKey, LockTimeout, SchemaMismatch, StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.tests.contracts.storage.database import SqlDatabase


class WriteTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.database = SqlDatabase(self.addCleanup, StorageSettings("sqlite", f"sqlite:///{folder}/monasca.sqlite"))

    def open(self, **changes):
        made = AlarmsDatabase(replace(self.database.settings, **changes))
        self.addCleanup(made.close)
        return made

    def prepared(self, **changes):
        self.database.prepare()
        made = self.open(**changes)
        made.write(lambda connection: connection.exec_driver_sql("CREATE TABLE note (text TEXT PRIMARY KEY)"))
        return made

    def notes(self):
        with schema.engine(self.database.settings.connection).connect() as connection:
            return sorted(connection.scalars(sa.text("SELECT text FROM note")))

    def test_each_of_several_threads_has_its_own_transaction_and_result(self):
        database = self.prepared()
        texts = [f"{number:02}" for number in range(30)]
        with ThreadPoolExecutor(8) as pool:
            self.assertEqual(texts, list(pool.map(database.write, map(writes, texts))))
        self.assertEqual(texts, self.notes())

    def test_a_failed_work_changes_nothing(self):
        database = self.prepared()
        database.write(writes("a"))
        self.assertRaises(DuplicateKey, database.write, writes("a"))
        fault = ValueError("mine")

        def fails(connection):
            writes("b")(connection)
            raise fault

        self.assertIs(fault, self.assertRaises(ValueError, database.write, fails))
        database.write(writes("c"))
        self.assertEqual(["a", "c"], self.notes())

    def test_a_connection_that_was_closed_while_idle_is_opened_again(self):
        database = self.prepared()
        pooled = database._writes.raw_connection()
        raw = pooled.dbapi_connection
        pooled.close()
        raw.close()
        self.assertEqual("a", database.write(writes("a")))

    def test_a_call_without_a_free_connection_fails_after_the_time_limit(self):
        database = self.prepared(read_timeout_seconds=0.2)
        with database._writes.begin():
            error = self.assertRaises(StorageUnavailable, database.write, writes("a"))
        self.assertIn("every connection is busy", str(error))

    def test_a_database_of_another_revision_is_refused(self):
        self.assertRaises(SchemaMismatch, self.open().write, writes("a"))


def writes(text):
    def work(connection):
        connection.execute(sa.text("INSERT INTO note VALUES (:text)"), {"text": text})
        return text

    return work


class WaitingForSqliteTest(base.BaseTestCase):
    """SQLite allows one writer at a time: a write of the API waits for the batch of the evaluator."""

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.settings = StorageSettings("sqlite", f"sqlite:///{folder}/monasca.sqlite", read_timeout_seconds=40.0)
        SqlDatabase(self.addCleanup, self.settings).prepare()

    def test_a_write_waits_as_long_as_for_a_lock_of_postgresql(self):
        waited_ms = AlarmsDatabase(self.settings).write(
            lambda each: each.exec_driver_sql("PRAGMA busy_timeout").scalar()
        )
        self.assertEqual(20_000, waited_ms)

    def test_a_write_that_waits_too_long_fails_with_an_error(self):
        impatient = AlarmsDatabase(replace(self.settings, read_timeout_seconds=0.1))
        with schema.engine(self.settings.connection, to_write=True).begin():
            error = self.assertRaises(LockTimeout, impatient.write, lambda _: None)
        self.assertIn("database is locked", str(error))
