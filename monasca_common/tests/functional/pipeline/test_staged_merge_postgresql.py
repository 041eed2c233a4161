# SPDX-License-Identifier: Apache-2.0
"""Changes by the API before and during the merge of a batch, from another session."""

from concurrent import futures
from unittest import mock

import sqlalchemy as sa

from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions, next_version
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.kafka.clock import SystemClock
from monasca_common.models.series import Series, series_id
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
        self.merging = StagedMerge("job", 0, 0, runner, SystemClock())
        self.definition = self.define("d", "max(cpu) > 5")

    def define(self, name, expression):
        made = AlarmDefinition(name, expression, match_by=("host",))
        return self.definitions.create("t", made, NOW_MS).id

    def merge(self, host="a", before_merge=lambda: None, before_commit=lambda: None):
        """Merge a measurement of cpu."""
        with self.offset_store.reading() as connection:
            known = definitions.load_snapshot(connection)
        folding = WindowFold()
        dimensions = {"host": host}
        series = Series(series_id("t", "r", "cpu", dimensions), "t", "r", "cpu", dimensions)
        for target in SubExpressionIndex(known.sub_expressions).targets(series):
            folding.series(target, series).add((float(NOW_MS), 0, 0, 9.0), NOW_MS)
        rows = list(folding.rows())
        before_merge()
        clear = staging.clear

        def cleared(*arguments):
            clear(*arguments)
            before_commit()

        with mock.patch.object(staging, "clear", cleared), self.offset_store.writing() as connection:
            staging.insert(connection, tables.alarm_staging, FoldedRow._fields, host, 7, rows, NOW_MS)
            staged = StagedAttempts(host, (7,), len(rows))
            return self.merging.merge(connection, staged, known, SCAN)

    def stored(self, *which):
        with self.offset_store.reading() as connection:
            return [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in which]

    def test_definitions_and_alarms_do_not_change_until_the_commit(self):
        refused = []

        def change():
            with self.offset_store.writing() as connection:
                connection.exec_driver_sql("SET LOCAL lock_timeout = 50")
                refused.append(self.assertRaises(sa.exc.OperationalError, next_version, connection).orig.sqlstate)
                connection.rollback()

        self.assertEqual(1, self.merge(before_commit=change))
        self.assertEqual(["55P03"], refused)

    def test_windows_of_a_replaced_function_are_ignored(self):
        def change():
            new = AlarmDefinition("d", "max(cpu, 120) > 5", match_by=("host",))
            self.definitions.change("t", self.definition, lambda _: new, NOW_MS)

        self.assertEqual(1, self.merge(before_merge=change))
        self.assertEqual([1, 0], self.stored(tables.alarm, tables.alarm_window))
        self.assertEqual(0, self.merge())
        self.assertEqual([1, 1], self.stored(tables.alarm, tables.alarm_window))

    def test_a_deleted_definition_leaves_no_rows(self):
        self.assertEqual(0, self.merge(before_merge=lambda: self.definitions.delete("t", self.definition)))
        self.assertEqual([0, 0, 0], self.stored(tables.alarm, tables.alarm_window, tables.alarm_series))

    def test_a_deleted_alarm_is_recreated_with_all_its_rows(self):
        self.merge()
        (alarm_id,) = self.session().execute("SELECT id FROM alarm").fetchone()
        self.assertEqual(1, self.merge("a", before_merge=lambda: self.alarms.delete("t", alarm_id)))
        self.assertEqual([1, 1, 1], self.stored(tables.alarm, tables.alarm_part, tables.sub_alarm))

    def test_a_merge_waits_for_a_deletion(self):
        self.merge()
        with self.offset_store.writing() as deleting, futures.ThreadPoolExecutor(1) as merging:
            next_version(deleting)
            deleting.execute(tables.alarm_window.delete())
            merged = merging.submit(self.merge)
            self.assertRaises(futures.TimeoutError, merged.result, 0.3)
            deleting.commit()
            self.assertEqual(0, merged.result(30))
        self.assertEqual([1, 1], self.stored(tables.alarm, tables.alarm_window))
