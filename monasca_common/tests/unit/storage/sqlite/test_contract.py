# SPDX-License-Identifier: Apache-2.0
"""The contracts of storage with SQLite, and the limits of its reads."""

import sqlite3

import sqlalchemy as sa
from fixtures import MonkeyPatch

from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.errors import QueryTimeout, SchemaMismatch, StorageError, StorageUnavailable
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.connections import ReadConnections
from monasca_common.storage.sql.reader import SqlReader
from monasca_common.tests.contracts.storage import (
    FenceContract,
    KeyContract,
    OperationContract,
    RefusalContract,
    ResetContract,
    WriteContract,
)
from monasca_common.tests.contracts.storage.scenario import claim, measurement
from monasca_common.tests.threads import run_together
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class SqliteWriteTest(WriteContract, SqliteTestCase): ...


class SqliteFenceTest(FenceContract, SqliteTestCase): ...


class SqliteKeyTest(KeyContract, SqliteTestCase): ...


class SqliteRefusalTest(RefusalContract, SqliteTestCase): ...


class SqliteResetTest(ResetContract, SqliteTestCase): ...


class SqliteOperationTest(OperationContract, SqliteTestCase): ...


_FOR_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
_ALL = PageOf(10)
_TENANT = SeriesFilter("tenant")


def _run(statement):
    return lambda connection, _deadline: connection.exec_driver_sql(statement).all()


class SqliteReadBoundsTest(SqliteTestCase):
    def connections(self, **changes):
        settings = StorageSettings("sqlite", self.database.settings.connection, **changes)
        connections = ReadConnections(settings)
        self.addCleanup(connections.close)
        return connections

    def reader(self, connection, **changes):
        reader = SqlReader(StorageSettings("sqlite", connection, **changes))
        self.addCleanup(reader.close)
        return reader

    def test_a_query_that_takes_too_long_is_cancelled_and_its_connection_is_used_again(self):
        connections = self.connections(read_timeout_seconds=1.0, read_connections=1)
        self.assertRaises(QueryTimeout, connections.run, _run(_FOR_EVER))
        self.assertEqual([(1,)], connections.run(_run("SELECT 1")))

    def test_the_time_of_several_statements_adds_up(self):
        connections = self.connections(read_timeout_seconds=0.05)

        def work(connection, deadline):
            while True:
                connection.exec_driver_sql("SELECT 1").all()
                deadline.check()

        self.assertRaises(QueryTimeout, connections.run, work)

    def test_the_wait_of_a_read_for_a_connection_is_limited(self):
        connections = self.connections(read_timeout_seconds=0.1, read_connections=1)

        def work(_connection, _deadline):
            return self.assertRaises(StorageUnavailable, connections.run, _run("SELECT 1"))

        self.assertIn("read_connections", str(connections.run(work)))

    def test_a_reader_cannot_write(self):
        connections = self.connections()
        error = self.assertRaises(StorageError, connections.run, _run("DELETE FROM series"))
        self.assertIn("readonly", str(error))

    def test_a_read_in_progress_neither_blocks_the_writer_nor_sees_partial_writes(self):
        writer = self.database.writer()
        self.write_rows(writer, 0)
        connections = self.connections()

        def work(connection, _deadline):
            with connection.connection.dbapi_connection as raw:
                rows = raw.execute("SELECT series_id FROM measurements")
                rows.fetchone()
                self.write_rows(writer, 1)
                return 1 + len(rows.fetchall())

        self.assertEqual(1, connections.run(work))
        self.assertEqual([(2,)], connections.run(_run("SELECT count(*) FROM measurements")))

    def test_threads_share_a_reader(self):
        self.write_rows(self.database.writer(), 0)
        reader = self.reader(self.database.settings.connection, read_connections=3)
        found = run_together(lambda _number: [reader.names(_TENANT, _ALL) for _ in range(5)], range(8))
        self.assertEqual([[["cpu.user"]] * 5] * 8, found)

    def test_a_missing_file_is_unavailable_and_is_not_created(self):
        reader = self.reader(f"sqlite:///{self.folder}/none.sqlite")
        self.assertRaises(StorageUnavailable, reader.names, _TENANT, _ALL)
        self.assertRaises(
            sqlite3.OperationalError, sqlite3.connect, f"file:{self.folder}/none.sqlite?mode=ro", uri=True
        )

    def test_a_file_without_tables_is_an_error_with_the_remedy(self):
        path = f"{self.folder}/empty.sqlite"
        sqlite3.connect(path).execute("CREATE TABLE other (a)")
        error = self.assertRaises(SchemaMismatch, self.reader(f"sqlite:///{path}").names, _TENANT, _ALL)
        self.assertIn("db upgrade", str(error))

    def test_a_reader_opened_before_the_database_exists_reads_it_later(self):
        database = self.empty_database()
        reader = self.reader(database.settings.connection)
        self.assertRaises(StorageUnavailable, reader.names, _TENANT, _ALL)
        database.prepare()
        self.assertEqual([], reader.names(_TENANT, _ALL))

    def test_a_file_name_can_contain_characters_that_urls_quote(self):
        path = f"{self.folder}/a b#c?d.sqlite"
        sqlite3.connect(path).execute("CREATE TABLE other (a)")
        url = sa.URL.create("sqlite", database=path).render_as_string()
        self.useFixture(MonkeyPatch("monasca_common.storage.sql.schema.check_database", lambda *_: None))
        connections = ReadConnections(StorageSettings("sqlite", url))
        self.addCleanup(connections.close)
        self.assertEqual([("other",)], connections.run(_run("SELECT name FROM sqlite_master")))

    def write_rows(self, writer, number):
        writer.write(claim(number, number + 1), Rows(Kind.METRICS, [measurement(number)], [number], [b"%d" % number]))
