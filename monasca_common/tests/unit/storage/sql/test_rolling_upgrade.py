# SPDX-License-Identifier: Apache-2.0
"""A database that a newer program has upgraded: who may still run on it. The revisions 9001 and 9002 are made up."""

from pathlib import Path

import fixtures
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.storage.sql import migrations, schema, tables
from monasca_common.storage.testing.scenario import Scenario, measurement
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

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
        """Upgrades the database by one more step."""
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

    def test_on_a_compatible_step_writers_readers_and_jobs_go_on(self):
        self.newer_program("9001", schema.REVISION)
        self.assertEqual([schema.REVISION], self.oldest_stored())
        writer = self.database.writer()
        self.assertEqual(Written(stored=1), self.write(writer, Kind.METRICS, [measurement()]))
        self.assertEqual(["cpu.user"], self.reads())
        OffsetStore(self.database.settings.connection).check()
        status = self.database.storage().status()
        self.assertEqual(("9001", True, 1), (status.found, status.usable, len(status.offsets)))

    def test_on_an_incompatible_step_none_of_them_starts(self):
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

    def test_what_one_step_took_away_a_later_one_does_not_give_back(self):
        self.newer_program("9001", "9001")
        self.newer_program("9002", schema.REVISION)
        self.assertEqual(["9001"], self.oldest_stored())
        self.assertRaises(SchemaMismatch, self.database.storage().open_writer)

    def test_a_step_that_does_not_say_who_may_run_on_it_is_not_made(self):
        self.assertRaises(AttributeError, self.newer_program, "9001", None)
        self.assertEqual(schema.REVISION, self.database.storage().status().found)


class SqliteRollingUpgradeTest(RollingUpgrade, SqliteTestCase): ...
