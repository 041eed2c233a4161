# SPDX-License-Identifier: Apache-2.0

import threading

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from monasca_common.storage import schema, tables
from monasca_common.tests.functional.postgresql_case import PostgresqlTestCase


class PostgresqlSchemaTest(PostgresqlTestCase):
    def test_the_steps_come_to_the_tables_that_queries_are_made_of(self):
        def ours(_object, name, kind, _reflected, _compared):
            return kind != "table" or name in tables.metadata.tables

        with schema.engine(self.database.settings.connection).connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True, "include_object": ours})
            self.assertEqual([], compare_metadata(context, tables.metadata))
            partitioned = connection.scalars(sa.text("SELECT relname FROM pg_class WHERE relkind = 'p'"))
            self.assertEqual({"measurements", "alarm_history", "logs", "events"}, set(partitioned))
            ordered_by_bytes = connection.scalars(
                sa.text(
                    "SELECT column_name FROM information_schema.columns WHERE collation_name = 'C'"
                    " AND table_name = 'series'"
                )
            )
            self.assertEqual({"tenant", "region", "name"}, set(ordered_by_bytes))

    def test_programs_that_upgrade_at_once_do_it_one_after_the_other(self):
        database = self.empty_database()
        failures = []

        def upgrade():
            try:
                database.prepare()
            except Exception as failure:
                failures.append(failure)

        threads = [threading.Thread(target=upgrade) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], failures)
        self.assertEqual(schema.REVISION, database.storage().status().found)
