# SPDX-License-Identifier: Apache-2.0
"""Staged windows and series become stored windows and alarms; tests with SQLite."""

from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.partials import WindowPartial, readings_of
from monasca_common.kafka.clock import VirtualClock
from monasca_common.models.readings import Reading
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.evaluate import alarms, definitions, windows
from monasca_common.pipeline.evaluate.batch import StagedMerge
from monasca_common.pipeline.evaluate.definitions import SubExpressionIndex
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.watermark import Scan
from monasca_common.pipeline.evaluate.windows import FoldedRow, WindowFold
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

NOW_MS = 1_767_268_800_000


class StagedMergeCase(DatabaseCase):
    def setUp(self):
        super().setUp()
        database = AlarmsDatabase(StorageSettings("sqlite", self.url))
        self.addCleanup(database.close)
        self.definitions, self.alarms = AlarmDefinitions(database), Alarms(database)
        self.offset = 0

    def define(self, expression, *match_by, name="d"):
        made = self.definitions.create("t", AlarmDefinition(name, expression, match_by=match_by), NOW_MS)
        return made.id

    def known(self):
        with self.offset_store.reading() as connection:
            return definitions.load_snapshot(connection)

    def folded(self, known, measurements):
        index, folding = SubExpressionIndex(known.sub_expressions), WindowFold()
        for name, dimensions, second, value in measurements:
            one = Series(series_id("t", "r", name, dimensions), "t", "r", name, dimensions)
            for target in index.targets(one):
                folding.series(target, one).add((float(NOW_MS + second * 1000), 0, self.offset, value), NOW_MS)
            self.offset += 1
        return list(folding.rows())

    def batch(self, *measurements, known=None):
        """Merge a batch of (name, dimensions, second, value), and return the number of new alarms."""
        known = known or self.known()
        rows = self.folded(known, measurements)
        staged = StagedAttempts("batch", (7,), len(rows))
        with self.offset_store.writing() as connection:
            staging.insert(connection, tables.alarm_staging, FoldedRow._fields, "batch", 7, rows, NOW_MS)
            # An attempt that failed.
            staging.insert(connection, tables.alarm_staging, FoldedRow._fields, "batch", 8, rows, NOW_MS)
            windows.check_staged(connection, staged)
            windows.drop_changed(connection, staged)
            windows.merge_staged(connection, staged, {each.id: each for each in known.sub_expressions})
            made = alarms.create_alarms(connection, staged, NOW_MS)
            alarms.mark_changed(connection, staged)
            staging.clear(connection, tables.alarm_staging, "batch", NOW_MS)
        self.assertEqual([], self.rows(tables.alarm_staging, "batch"))
        return made


class FirstStateTest(StagedMergeCase):
    """A complete merge, which ends before the next pass starts."""

    def setUp(self):
        super().setUp()
        clock = VirtualClock(start_ms=NOW_MS + 60_000)
        self.runner = PassRunner(self.offset_store, "job", 0, 0, clock, page_alarms=2)
        self.merging = StagedMerge("job", 0, 0, self.runner, clock)
        self.scan = Scan(NOW_MS + 60_000, frozenset({0}), {0: NOW_MS + 60_000}, frozenset({NOW_MS}))

    def merge(self, *measurements):
        known = self.known()
        rows = self.folded(known, measurements)
        staged = StagedAttempts("batch", (7,), len(rows))
        with self.offset_store.writing() as connection:
            staging.insert(connection, tables.alarm_staging, FoldedRow._fields, "batch", 7, rows, NOW_MS)
            self.merging.merge(connection, staged, known, self.scan)

    def states(self):
        return sorted((values[0], state) for values, state in self.rows(tables.alarm, "match_values", "state"))

    # Rule 49
    def test_an_alarm_of_last_is_created_with_its_first_state(self):
        self.define("last(cpu) > 5", "host")
        self.merge(("cpu", {"host": "a"}, 1, 9.0), ("cpu", {"host": "b"}, 1, 1.0))
        self.assertEqual([("a", "ALARM"), ("b", "OK")], self.states())
        self.assertEqual(2, self.runner.run(self.scan).transitions)
        self.assertEqual(2, len(self.rows(tables.alarm_outbox, "number")))

    def test_an_alarm_with_windows_is_evaluated_by_the_next_pass(self):
        self.define("last(cpu) > 5 and max(cpu) > 5", "host")
        self.merge(("cpu", {"host": "a"}, 1, 9.0))
        self.assertEqual([("a", "UNDETERMINED")], self.states())

    def test_more_alarms_than_a_page_are_evaluated_by_the_next_pass(self):
        self.define("last(cpu) > 5", "host")
        self.merge(*(("cpu", {"host": host}, 1, 9.0) for host in "abc"))
        self.assertEqual(["ALARM", "ALARM", "UNDETERMINED"], sorted(state for _, state in self.states()))
        self.assertEqual(3, self.runner.run(self.scan).transitions)
        self.assertEqual(["ALARM"] * 3, [state for _, state in self.states()])


class AlarmsTest(StagedMergeCase):
    def test_a_new_series_creates_an_alarm_with_the_series_and_the_initial_state(self):
        definition = self.define("max(cpu) > 5", "host")
        self.assertEqual(1, self.batch(("cpu", {"host": "a"}, 1, 1.0)))
        columns = ("id", "definition_id", "match_values", "state", "state_updated", "created")
        ((alarm_id, *alarm),) = self.rows(tables.alarm, *columns)
        self.assertEqual([definition, ["a"], "UNDETERMINED", NOW_MS, NOW_MS], alarm)
        self.assertEqual(
            [(alarm_id, "t", "cpu", {"host": "a"})],
            self.rows(tables.alarm_metric, "alarm_id", "tenant", "name", "dimensions"),
        )
        self.assertEqual([(alarm_id, "UNDETERMINED", 0)], self.rows(tables.sub_alarm, "alarm_id", "state", "windows"))
        self.assertEqual([(alarm_id,)], self.rows(tables.alarm_changed, "alarm_id"))
        self.assertEqual(0, self.batch(("cpu", {"host": "a"}, 2, 1.0)))

    def test_a_later_series_joins_the_existing_alarm(self):
        self.define("max(cpu) > 5", "host")
        self.batch(("cpu", {"host": "a", "core": "0"}, 1, 1.0))
        self.assertEqual(0, self.batch(("cpu", {"host": "a", "core": "1"}, 2, 1.0)))
        metrics = self.rows(tables.alarm_metric, "dimensions")
        self.assertEqual(["0", "1"], sorted(dimensions["core"] for (dimensions,) in metrics))

    def test_alarms_are_found_by_the_dimensions_of_all_their_series(self):
        self.define("max(cpu) > 5", "host")
        self.batch(("cpu", {"host": "a", "core": "0"}, 1, 1.0))
        self.batch(("cpu", {"host": "a", "core": "1"}, 2, 1.0))
        found = self.rows(tables.alarm_dimension, "tenant", "metric_name", "name", "value")
        pairs = [("core", "0"), ("core", "1"), ("host", "a"), ("host", "a")]
        self.assertEqual([("t", "cpu", *pair) for pair in pairs], sorted(found))

    def test_a_recreated_alarm_has_no_data_from_before_its_deletion(self):
        self.define("last(cpu) > 5", "host")
        self.batch(("cpu", {"host": "a"}, 1, 9.0), ("cpu", {"host": "b"}, 1, 9.0))
        alarms = {host: alarm_id for alarm_id, (host,) in self.rows(tables.alarm, "id", "match_values")}
        self.alarms.delete("t", alarms["a"])
        self.assertEqual(1, self.batch(("cpu", {"host": "a"}, 2, 1.0), ("cpu", {"host": "b"}, 2, 1.0)))
        found = [readings_of(readings) for (readings,) in self.rows(tables.alarm_window, "readings")]
        self.assertEqual([[1.0], [9.0, 1.0]], sorted([each.quantity for each in some] for some in found))

    def test_an_alarm_of_two_sub_expressions_is_created_with_the_second_and_has_the_earlier_windows(self):
        self.define("max(cpu) > 5 and max(mem) > 5", "host")
        self.assertEqual(0, self.batch(("cpu", {"host": "a"}, 1, 9.0)))
        self.assertEqual([], self.rows(tables.alarm, "id"))
        self.assertEqual(1, self.batch(("mem", {"host": "a"}, 2, 9.0)))
        self.assertEqual(2, len(self.rows(tables.alarm_part, "alarm_id")))
        self.assertEqual(2, len(self.rows(tables.alarm_metric, "alarm_id")))
        self.assertEqual(2, len(self.rows(tables.alarm_window, "windows")))

    def test_an_alarm_is_evaluated_if_a_measurement_can_have_decided_it(self):
        self.define("max(cpu) > 5", "host")
        self.batch(("cpu", {"host": "a"}, 1, 1.0))
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_changed.delete())
        self.batch(("cpu", {"host": "a"}, 2, 1.0))
        self.assertEqual([], self.rows(tables.alarm_changed, "alarm_id"))
        self.batch(("cpu", {"host": "a"}, 3, 9.0))
        self.batch(("cpu", {"host": "a"}, 4, 9.0))
        self.assertEqual(1, len(self.rows(tables.alarm_changed, "alarm_id")))


class WindowsTest(StagedMergeCase):
    COLUMNS = ("record_count", "sums", "least", "greatest", "newest", "readings")

    def test_batches_are_added_and_long_sums_are_shortened(self):
        self.define("sum(cpu) > 5")
        readings = [Reading(float(NOW_MS + second * 1000), 0, second, 0.1) for second in range(59)]
        for reading in readings:
            self.batch(("cpu", {}, reading.offset, reading.quantity))
        (sub,) = self.known().sub_expressions
        ((count, sums, *ends, _),) = self.rows(tables.alarm_window, *self.COLUMNS)
        whole = WindowPartial.of(sub.expression, readings)
        self.assertLess(len(sums.split()), 40)
        found = WindowPartial(count, tuple(map(float, sums.split())), *ends).normalised(sub.expression)
        self.assertEqual(whole, found)

    def test_the_readings_of_last_are_one_row(self):
        self.define("last(cpu) > 5")
        for second in range(200):
            self.batch(("cpu", {}, second, 1.0))
            with self.offset_store.writing() as connection:
                connection.execute(tables.alarm_changed.delete())  # like a pass that evaluates the alarm
        ((start, readings),) = self.rows(tables.alarm_window, "window_start", "readings")
        self.assertEqual(0, start)
        self.assertLess(len(readings_of(readings)), 200)
        self.assertEqual(199, readings_of(readings)[-1].offset)

    def test_a_window_of_an_older_generation_is_replaced_and_never_replaces_a_newer_one(self):
        definition = self.define("max(cpu) > 5")
        self.batch(("cpu", {}, 1, 9.0))
        before = self.known()
        self.definitions.change(
            "t", definition, lambda stored: AlarmDefinition(stored.name, "min(cpu) > 5"), NOW_MS + 1
        )
        self.batch(("cpu", {}, 2, 7.0), known=before)
        self.assertEqual([(0, 1)], self.rows(tables.alarm_window, "windows", "record_count"))
        self.batch(("cpu", {}, 3, 8.0))
        self.assertEqual([(1, 1)], self.rows(tables.alarm_window, "windows", "record_count"))

    def test_staged_rows_of_a_deleted_definition_are_ignored(self):
        definition = self.define("max(cpu) > 5")
        before = self.known()
        self.definitions.delete("t", definition)
        self.assertEqual(0, self.batch(("cpu", {}, 1, 9.0), known=before))
        for table in (tables.alarm_window, tables.alarm_series):
            self.assertEqual([], self.rows(table, "sub_expression_id"))

    def test_missing_staged_rows_are_an_error(self):
        with self.offset_store.writing() as connection:
            self.assertRaises(StagingLost, windows.check_staged, connection, StagedAttempts("batch", (7,), 1))


class DefinitionsSnapshotTest(StagedMergeCase):
    def test_definitions_are_read_again_only_after_a_change(self):
        self.define("max(cpu) > 5 or min(mem) < 1", "host")
        known = self.known()
        self.assertEqual(["cpu", "mem"], sorted(each.expression.metric_name for each in known.sub_expressions))
        with self.offset_store.reading() as connection:
            self.assertIs(known, definitions.load_snapshot(connection, known))
        self.define("max(cpu) > 6", name="e")
        with self.offset_store.reading() as connection:
            self.assertEqual(3, len(definitions.load_snapshot(connection, known).sub_expressions))
