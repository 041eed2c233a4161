# SPDX-License-Identifier: Apache-2.0
"""What the API changes while a batch is merged. Each test runs it inside the merge's transaction, from another session:
whoever waited for the other would wait for its own lock's time-out, and fail.

Seen red: a merge that holds the version from its beginning (the definition is not created), one that does not look at
the definitions again (the batch is stored), and one that waits for locks (it ends as a deadlock does).
"""

from unittest import mock

import sqlalchemy as sa

from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions, next_version
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.kafka.clock import SystemClock
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.errors import DefinitionsChanged
from monasca_common.pipeline.evaluate import definitions
from monasca_common.pipeline.evaluate.batch import StagedMerge
from monasca_common.pipeline.evaluate.definitions import SubExpressionIndex
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.watermark import Scan
from monasca_common.pipeline.evaluate.windows import FoldedRow, WindowFold
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql import tables
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase

NOW_MS = 1_767_268_800_000
SCAN = Scan(NOW_MS, {0})


class ApiDuringMergeTest(PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.database = self.empty_database(read_timeout_seconds=4.0)
        self.database.prepare()
        alarms_database = AlarmsDatabase(self.database.settings)
        self.addCleanup(alarms_database.close)
        self.definitions, self.alarms = AlarmDefinitions(alarms_database), Alarms(alarms_database)
        self.offset_store = OffsetStore(self.database.settings.connection)
        runner = PassRunner(self.offset_store, "job", 0, 0)
        self.merging = StagedMerge("job", 0, 0, self.offset_store, runner, SystemClock())
        self.definition = self.define("d", "max(cpu) > 5")
        self.other = self.define("other", "max(mem) > 5")

    def define(self, name, expression):
        made = AlarmDefinition(name, expression, match_by=("host",))
        return self.definitions.create("t", made, NOW_MS).id

    def merge(self, host="a", meanwhile=lambda: None, **changes):
        """Merge a measurement of cpu; call ``meanwhile`` when all of it is merged, before it is committed."""
        with self.offset_store.reading() as connection:
            known = definitions.load_snapshot(connection)
        folding = WindowFold()
        dimensions = {"host": host}
        series = Series(series_id("t", "r", "cpu", dimensions), "t", "r", "cpu", dimensions)
        for target in SubExpressionIndex(known.sub_expressions).targets(series):
            folding.series(target, series).add((float(NOW_MS), 0, 0, 9.0), NOW_MS)
        rows = list(folding.rows())
        clear = staging.clear

        def cleared(*arguments):
            clear(*arguments)
            meanwhile()

        with mock.patch.object(staging, "clear", cleared), self.offset_store.writing() as connection:
            staging.insert(connection, tables.alarm_staging, FoldedRow._fields, host, 7, rows, NOW_MS)
            staged = StagedAttempts((7,), len(rows))
            return self.merging.merge(connection, host, staged, known, SCAN, **({"is_last": False} | changes))

    def stored(self, *which):
        with self.offset_store.reading() as connection:
            return [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in which]

    def test_a_definition_is_created_and_another_deleted_without_waiting_for_it(self):
        made = self.merge(
            meanwhile=lambda: [self.define("new", "max(cpu) > 7"), self.definitions.delete("t", self.other)]
        )
        self.assertEqual((1, [1, 1, 0]), (made, self.stored(tables.alarm, tables.alarm_window, tables.alarm_staging)))

    def test_a_definition_of_the_batch_that_changes_meanwhile_is_computed_again(self):
        def change():
            made = AlarmDefinition("d", "max(cpu, 120) > 5", match_by=("host",))
            self.definitions.change("t", self.definition, lambda _: made, NOW_MS)

        self.assertRaises(DefinitionsChanged, self.merge, meanwhile=change)
        self.assertEqual([0, 0], self.stored(tables.alarm, tables.alarm_window))
        self.assertEqual(1, self.merge())

    def test_a_definition_of_the_batch_that_is_deleted_meanwhile_leaves_nothing(self):
        self.assertRaises(
            DefinitionsChanged, self.merge, meanwhile=lambda: self.definitions.delete("t", self.definition)
        )
        self.assertEqual([0, 0, 0], self.stored(tables.alarm, tables.alarm_window, tables.alarm_series))

    def test_an_alarm_that_is_deleted_meanwhile_is_made_again_whole(self):
        self.merge()
        (alarm_id,) = self.session().execute("SELECT id FROM alarm").fetchone()
        self.assertRaises(DefinitionsChanged, self.merge, "b", lambda: self.alarms.delete("t", alarm_id))
        self.assertEqual(1, self.merge("b"))
        self.assertEqual([1, 1, 1], self.stored(tables.alarm, tables.alarm_part, tables.sub_alarm))

    def test_who_is_deleting_what_it_merges_goes_first(self):
        self.merge()
        with self.offset_store.writing() as deleting:
            next_version(deleting)
            deleting.execute(tables.alarm_window.delete())
            self.assertRaises(DefinitionsChanged, self.merge)
        self.assertEqual([1, 0], self.stored(tables.alarm, tables.alarm_window))
        self.assertEqual(0, self.merge())

    def test_the_last_attempt_lets_nobody_in_between(self):
        blocked = []

        def change():
            with self.offset_store.writing() as connection:
                connection.exec_driver_sql("SET LOCAL lock_timeout = 50")
                blocked.append(self.assertRaises(sa.exc.OperationalError, next_version, connection).orig.sqlstate)
                connection.rollback()

        self.assertEqual(1, self.merge(meanwhile=change, is_last=True))
        self.assertEqual(["55P03"], blocked)
