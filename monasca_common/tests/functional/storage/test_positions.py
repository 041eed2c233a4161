# SPDX-License-Identifier: Apache-2.0
"""10,000 partitions on a real PostgreSQL, through psycopg and through SQLAlchemy."""

import contextlib

import psycopg
from fixtures import MonkeyPatch

from monasca_common.storage.positions import POSTGRESQL
from monasca_common.storage.sql import schema
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.storage.test_positions import GROUP, ManyPartitions

MOST_STATEMENTS = 20  # a statement for each took 19 s and 54 s


class PsycopgPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with psycopg.connect(self.database.settings.connection.replace("+psycopg", "")) as connection:
            yield connection.execute

    def test_the_driver_says_few_statements_however_many_partitions_there_are(self):
        execute, executed = psycopg.Cursor.execute, []

        def counted(cursor, *arguments, **named):
            executed.append(arguments)
            return execute(cursor, *arguments, **named)

        writer = self.database.writer()
        # None is said for each in a loop of the client's own either.
        self.useFixture(MonkeyPatch("psycopg.Cursor.executemany", self.fail))
        self.useFixture(MonkeyPatch("psycopg.Cursor.execute", counted))
        for call in (lambda: writer.begin(GROUP, self.many, self.ids), lambda: writer.next_offsets(GROUP, self.ids)):
            executed.clear()
            self.assertEqual(self.many, call())
            self.assertTrue(0 < len(executed) < MOST_STATEMENTS, len(executed))


@periodic("second driver; PsycopgPositionsTest is in the gate")
class SqlAlchemyPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with schema.engine(self.database.settings.connection).begin() as connection:
            yield connection.exec_driver_sql
