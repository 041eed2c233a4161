# SPDX-License-Identifier: Apache-2.0

import uuid

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from monasca_common.storage.base import StorageStatus
from monasca_common.storage.errors import StorageError, StorageUnavailable
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema, tables
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.threads import run_together
from monasca_common.tests.unit.storage.sql.test_schema import RollingUpgrade


class PostgresqlSchemaTest(PostgresqlTestCase):
    def test_the_migrations_create_the_tables_of_the_queries(self):
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

    def test_a_missing_database_is_created(self):
        url, name = self.url_of_no_database()
        storage = open_storage(StorageSettings("postgresql", url))

        self.assertEqual(StorageStatus(None, schema.REVISION), storage.status())
        storage.upgrade()

        self.addCleanup(self.execute, f'DROP DATABASE "{name}" WITH (FORCE)')
        self.assertEqual(schema.REVISION, storage.status().found)
        storage.upgrade()

    def test_without_permission_to_create_a_database_the_error_has_the_remedy(self):
        url, name = self.url_of_no_database()
        user = f"poor_{name}"
        self.execute(f'CREATE ROLE "{user}" LOGIN')
        self.addCleanup(self.execute, f'DROP ROLE "{user}"')
        poor = sa.make_url(url).set(username=user).render_as_string(hide_password=False)
        error = self.assertRaises(StorageError, open_storage(StorageSettings("postgresql", poor)).upgrade)
        self.assertIn(f'run CREATE DATABASE "{name}" OWNER "{user}"', str(error))

    def test_a_silent_server_is_reported_as_unavailable_instead_of_without_a_database(self):
        storage = open_storage(StorageSettings("postgresql", "postgresql://nobody@127.0.0.1:1/monasca"))
        self.assertRaises(StorageUnavailable, storage.status)
        self.assertRaises(StorageUnavailable, storage.upgrade)

    def url_of_no_database(self):
        """Return a URL of the shared server with the name of a missing database, and the name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        return sa.make_url(self.new_url()).set(database=name).render_as_string(hide_password=False), name

    def execute(self, statement):
        self.session().execute(statement)

    def test_concurrent_upgrades_run_one_after_another(self):
        database = self.empty_database()
        run_together(lambda _number: database.prepare(), range(3))
        self.assertEqual(schema.REVISION, database.storage().status().found)


class PostgresqlRollingUpgradeTest(RollingUpgrade, PostgresqlTestCase):
    pass
