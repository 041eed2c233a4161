# SPDX-License-Identifier: Apache-2.0
"""The tables and sessions of jobs in a real PostgreSQL, with changes from other sessions."""

import time
from concurrent import futures
from dataclasses import replace
from unittest import mock

import sqlalchemy as sa
import testtools
from sqlalchemy import event

from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions, next_version
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.evaluation import EvaluationSpan
from monasca_common.kafka.clock import SystemClock
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.evaluate import definitions, passes
from monasca_common.pipeline.evaluate.batch import StagedMerge
from monasca_common.pipeline.evaluate.definitions import SubExpressionIndex, load_definitions
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.watermark import Scan
from monasca_common.pipeline.evaluate.windows import FoldedRow, WindowFold
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql import tables
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.pipeline.aggregate.test_usage_table import GoldenMerge
from monasca_common.tests.unit.pipeline.evaluate.test_passes import PassesContract
from monasca_common.tests.waiting import PATIENCE_SECONDS

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


#: The columns in which copies of an alarm differ, with their values for a copy.
_OWN = {
    "alarm": "id=id, match_key=match_key",
    "sub_alarm": "alarm_id=id",
    "alarm_part": "alarm_id=id, match_key=match_key",
    "alarm_window": "match_key=match_key",
}


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlCrashTest"
)
class PostgresqlPassesTest(PassesContract, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.settings = self.database.settings
        self.offset_store = OffsetStore(self.settings.connection)
        self.open_alarms()

    def test_a_page_reads_only_its_part_of_the_tables(self):
        alarms = self.alarms("avg(m) > 1")
        self.copy(alarms.ids[0], 20_000)
        with self.offset_store.writing() as connection:
            passes.prefer_indexes(connection)
            statements = []
            event.listen(connection, "before_cursor_execute", lambda *each: statements.append(each[2:4]))
            span = EvaluationSpan(30_000, 90_000, 90_000, 30_000)
            rows = passes.next_alarms(connection, span, "5", 400)
            definitions = load_definitions(connection, [alarms.definition.id])
            self.assertEqual(400, len(passes.load_alarms(connection, rows, definitions, span)))
            plans = [self.plan(connection, *each) for each in statements]
        self.assertIn("alarm_window_pkey", "".join(plans))
        for table in ("alarm", "sub_alarm", "alarm_part", "alarm_window"):
            self.assertNotIn(f"Seq Scan on {table} ", "".join(f"{plan} " for plan in plans))

    def copy(self, alarm_id, count):
        """Create this number of copies of the alarm, each with a window."""
        copies = "SELECT md5(i::text) AS id, decode(md5(i::text), 'hex') AS match_key"
        windows = "window_start, windows, record_count, sums, least, greatest, newest, readings"
        with self.offset_store.writing() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO alarm_window SELECT sub_expression_id, match_key, 0, 0, 1, '1.0', 1, 1, 1000, '' "
                    "FROM alarm_part"
                )
            )
            for table, others in (
                ("alarm", "tenant, definition_id, match_values, state, state_updated, updated, created"),
                ("sub_alarm", "sub_expression_id, state, current_values, windows, empty_evaluations"),
                ("alarm_part", "sub_expression_id"),
                ("alarm_window", f"sub_expression_id, {windows}"),
            ):
                own = _OWN[table].split(", ")
                columns = ", ".join(f"n.{each.partition('=')[2]}" for each in own)
                names = ", ".join(each.partition("=")[0] for each in own)
                rows = f"WITH n AS ({copies} FROM generate_series(1, {count}) AS i) SELECT {columns}, {others}"
                connection.execute(sa.text(f"INSERT INTO {table} ({names}, {others}) {rows} FROM {table}, n"))
            connection.execute(sa.text("ANALYZE"))

    def plan(self, connection, statement, parameters):
        raw = connection.connection.dbapi_connection
        return "\n".join(row[0] for row in raw.execute(f"EXPLAIN {statement}", parameters))


SOURCE = Source("aggregate", "metrics", "an-id")
RANGES = [OffsetRange(0, 0, 5)]
PATIENT = Bounds(statement_seconds=PATIENCE_SECONDS, lock_seconds=PATIENCE_SECONDS, idle_seconds=PATIENCE_SECONDS)


class SessionsTest(PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.url = self.database.settings.connection
        OffsetStore(self.url).begin(SOURCE, {0: 0})

    # Rule 23
    def test_the_transaction_of_a_frozen_driver_ends_so_that_its_successor_continues(self):
        frozen, successor = OffsetStore(self.url, replace(PATIENT, idle_seconds=3.0)), OffsetStore(self.url, PATIENT)
        transaction = frozen.advance(SOURCE, RANGES)
        transaction.__enter__()  # the driver stays silent from now on, like a frozen process
        with successor.advance(SOURCE, RANGES):
            pass
        self.assertRaises(StorageUnavailable, transaction.__exit__, None, None, None)
        self.assertEqual({0: 5}, successor.next_offsets(SOURCE))

    def test_a_wait_for_a_lock_is_limited(self):
        impatient = OffsetStore(self.url, replace(PATIENT, lock_seconds=0.2))
        with OffsetStore(self.url).advance(SOURCE, RANGES):
            began = time.monotonic()
            with testtools.ExpectedException(StorageUnavailable, ".*lock timeout.*"), impatient.advance(SOURCE, RANGES):
                pass
            self.assertLess(time.monotonic() - began, PATIENCE_SECONDS / 2)

    def test_the_time_of_a_statement_is_limited(self):
        slow = OffsetStore(self.url, replace(PATIENT, statement_seconds=0.2))
        with (
            testtools.ExpectedException(StorageUnavailable, ".*statement timeout.*"),
            slow.writing() as connection,
        ):
            connection.execute(sa.text("SELECT pg_sleep(60)"))

    def test_a_job_has_all_limits_by_default(self):
        with OffsetStore(self.url).writing() as connection:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            found = {name: connection.scalar(sa.text(f"SHOW {name}")) for name in names}
        self.assertEqual(dict(zip(names, ("10min", "3min", "2min"), strict=True)), found)


class PostgresqlGoldenMergeTest(GoldenMerge, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.offset_store = OffsetStore(self.database.settings.connection)
