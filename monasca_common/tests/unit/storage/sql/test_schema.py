# SPDX-License-Identifier: Apache-2.0
"""The schema, and a database that was upgraded by a newer program. The revisions 9001 and 9002 do not exist."""

from pathlib import Path

import fixtures
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from oslotest import base
from sqlalchemy.dialects import postgresql

from monasca_common.models.rows import AlarmTransition, Event, LogEntry
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.storage.sql import migrations, schema, tables
from monasca_common.tests.contracts.storage.scenario import Scenario, measurement
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_OF_POSTGRESQL = {"series_by_dimensions"}  # indexes that SQLite does not have


class SchemaTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.engine = schema.engine(f"sqlite:///{folder}/monasca.sqlite", to_write=True)

    def upgrade(self):
        with self.engine.begin() as connection:
            schema.upgrade(connection)

    def test_the_revision_is_that_of_the_newest_migration(self):
        scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
        self.assertEqual([schema.REVISION], scripts.get_heads())

    def test_the_migrations_create_the_tables_of_the_queries(self):
        self.upgrade()
        with self.engine.connect() as connection:
            options = {"compare_type": True, "include_object": lambda _, name, *__: name not in _OF_POSTGRESQL}
            context = MigrationContext.configure(connection, opts=options)
            self.assertEqual([], compare_metadata(context, tables.metadata))

    def test_measurements_have_no_rowid(self):
        self.upgrade()
        with self.engine.connect() as connection:
            made = connection.scalar(sa.text("SELECT sql FROM sqlite_master WHERE name = 'measurements'"))
        self.assertIn("WITHOUT ROWID", made)

    def test_a_repeated_upgrade_is_not_an_error(self):
        self.upgrade()
        self.upgrade()
        with self.engine.connect() as connection:
            self.assertEqual(schema.REVISION, schema.revision(connection.exec_driver_sql, "sqlite"))

    def test_a_failed_upgrade_is_rolled_back(self):
        with self.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE events (in_the_way INTEGER)"))
        self.assertRaises(sa.exc.OperationalError, self.upgrade)
        with self.engine.connect() as connection:
            self.assertEqual(["events"], sa.inspect(connection).get_table_names())

    def test_a_newer_schema_is_refused_and_not_changed(self):
        self.upgrade()
        with self.engine.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        self.assertIn("upgrade the program", str(self.assertRaises(SchemaMismatch, self.upgrade)))
        self.assertIn("upgrade the program", str(self.assertRaises(SchemaMismatch, schema.check, "9999")))

    def test_a_schema_of_an_unreleased_build_is_refused_with_the_remedy(self):
        self.upgrade()
        with self.engine.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0021'"))
        self.assertIn("use a new database", str(self.assertRaises(SchemaMismatch, self.upgrade)))

    def test_the_error_of_a_missing_or_old_schema_has_the_remedy(self):
        for found, remedy in ((None, "monasca-common db upgrade"), ("0000", "use a new database")):
            self.assertIn(remedy, str(self.assertRaises(SchemaMismatch, schema.check, found)))

    def test_rows_have_the_columns_of_their_tables_in_order(self):
        for row, table in ((AlarmTransition, "alarm_history"), (LogEntry, "logs"), (Event, "events")):
            columns = [column.name for column in tables.metadata.tables[table].columns]
            self.assertEqual(["time", "message_id", *row._fields[1:]], columns)


class PostgresqlSchemaTest(base.BaseTestCase):
    def test_rows_are_partitioned_by_their_time(self):
        for name in ("measurements", "alarm_history", "logs", "events"):
            made = str(sa.schema.CreateTable(tables.metadata.tables[name]).compile(dialect=postgresql.dialect()))
            self.assertIn("PARTITION BY RANGE (time)", made)

    def test_a_url_without_a_client_uses_psycopg(self):
        engine = schema.engine("postgresql://user:secret@localhost/monasca")
        self.assertEqual("psycopg", engine.dialect.driver)


STEP = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
{declaration}


def upgrade():
    op.create_table("of_{revision}", sa.Column("id", sa.Integer, primary_key=True))
"""


class RollingUpgrade(Scenario):
    def setUp(self):
        super().setUp()
        self.steps = Path(self.useFixture(fixtures.TempDir()).path)
        self.before = schema.REVISION

    def newer_program(self, revision, oldest_program):
        """Upgrade the database by one more step."""
        declaration = f'oldest_program = "{oldest_program}"' if oldest_program else ""
        text = STEP.format(revision=revision, before=self.before, declaration=declaration)
        (self.steps / f"{revision}.py").write_text(text)
        folder = Path(migrations.__file__).parent
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.set_main_option("version_locations", f"{folder / 'versions'} {self.steps}")
        with schema.engine(self.database.settings.connection, to_write=True).begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        self.before = revision

    def oldest_stored(self):
        with schema.engine(self.database.settings.connection).connect() as connection:
            return connection.scalars(sa.select(tables.oldest_program.c.revision)).all()

    def reads(self):
        reader = self.database.storage().open_reader()
        self.addCleanup(reader.close)
        return reader.names(SeriesFilter("tenant"), PageOf(10))

    def test_after_a_compatible_step_writers_readers_and_jobs_continue(self):
        self.newer_program("9001", schema.REVISION)
        self.assertEqual([schema.REVISION], self.oldest_stored())
        writer = self.database.writer()
        self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [measurement()]))
        self.assertEqual(["cpu.user"], self.reads())
        OffsetStore(self.database.settings.connection).check()
        status = self.database.storage().status()
        self.assertEqual(("9001", True, 1), (status.found, status.usable, len(status.offsets)))

    def test_after_an_incompatible_step_no_writer_reader_or_job_starts(self):
        self.newer_program("9001", schema.REVISION)
        self.newer_program("9002", "9002")
        for start in (
            self.database.storage().open_writer,
            self.reads,
            OffsetStore(self.database.settings.connection).check,
        ):
            error = self.assertRaises(SchemaMismatch, start)
            self.assertIn("upgrade the program", str(error))
        status = self.database.storage().status()
        self.assertEqual(("9002", False, ()), (status.found, status.usable, status.offsets))

    def test_a_compatible_step_does_not_undo_an_incompatible_one(self):
        self.newer_program("9001", "9001")
        self.newer_program("9002", schema.REVISION)
        self.assertEqual(["9001"], self.oldest_stored())
        self.assertRaises(SchemaMismatch, self.database.storage().open_writer)

    def test_a_step_without_a_declared_compatibility_is_not_applied(self):
        self.assertRaises(AttributeError, self.newer_program, "9001", None)
        self.assertEqual(schema.REVISION, self.database.storage().status().found)


class SqliteRollingUpgradeTest(RollingUpgrade, SqliteTestCase): ...
