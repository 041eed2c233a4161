# SPDX-License-Identifier: Apache-2.0
"""10,000 partitions on a real PostgreSQL, through psycopg and through SQLAlchemy."""

import contextlib
import time

import psycopg

from monasca_common.storage.positions import POSTGRESQL
from monasca_common.storage.sql import schema
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.unit.storage.test_positions import GROUP, ManyPartitions

MOST_SECONDS = 5.0  # a statement for each took 19 s and 54 s


class PsycopgPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with psycopg.connect(self.database.settings.connection.replace("+psycopg", "")) as connection:
            yield connection.execute

    def test_the_driver_takes_a_fraction_of_the_time_that_a_statement_for_each_takes(self):
        writer = self.database.writer()
        for call in (lambda: writer.begin(GROUP, self.many, self.ids), lambda: writer.next_offsets(GROUP, self.ids)):
            began = time.monotonic()
            self.assertEqual(self.many, call())
            self.assertLess(time.monotonic() - began, MOST_SECONDS)


class SqlAlchemyPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with schema.engine(self.database.settings.connection).begin() as connection:
            yield connection.exec_driver_sql
