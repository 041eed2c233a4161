# SPDX-License-Identifier: Apache-2.0
"""Evaluation passes. Tests with PostgreSQL inherit the mixin, too.

These tests failed with each of the following mutants: a page that stores its position in a separate transaction (empty
windows count twice), `watermark.hold` without its comparison, an outbox that is cleared before publication, and a page
that ignores a state set by hand.
"""

import json
from collections import namedtuple
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import fixtures
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from sqlalchemy import event

from monasca_common.alarms import evaluation
from monasca_common.alarms.alarm_metrics import add_metrics
from monasca_common.alarms.database import AlarmsDatabase, new_id
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.evaluation import AlarmState, EvaluationSpan
from monasca_common.alarms.expression import parse
from monasca_common.alarms.partials import WindowPartial, readings_of, readings_text, runs
from monasca_common.alarms.transitions import MOST_MESSAGE_BYTES, MOST_METRICS, AlarmChange
from monasca_common.kafka import failpoints
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import MessageTooLarge
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.serialization.registry_client import MAX_BACKOFF_SECONDS
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.testing import Fail, MemoryKafka, MemoryRegistry, VirtualClock
from monasca_common.models import avro
from monasca_common.models.readings import Reading, sums_of, sums_text
from monasca_common.pipeline.errors import EvaluatorFenced
from monasca_common.pipeline.evaluate import cleanup, definitions, passes, transitions, watermark
from monasca_common.pipeline.evaluate.cleanup import Cleanup
from monasca_common.pipeline.evaluate.definitions import load_definitions
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.evaluate.watermark import BUCKET_MS, EvaluatorState, Scan
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeWriter
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.alarms.evaluator import DELAY_MS, Evaluator, window_start_ms
from monasca_common.tests.unit.alarms.test_evaluation import (
    END_MS,
    expressions,
    in_batches,
    in_batches_with_late_ones,
    measurements,
)
from monasca_common.tests.unit.alarms.test_expression import text_of
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

TENANT = "t"
MAXIMUM = "max(m) > 1"
DAY_MS = 86_400_000
POINTS = ("evaluate.inside_page", "evaluate.between_pages", "evaluate.after_commit")
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


StateChange = namedtuple("StateChange", "old new time_ms reason")


class StoredAlarms:
    """Alarms of one definition, whose measurements are merged by SQL as a batch does."""

    def __init__(self, database, offset_store, text, count=1):
        self.offset_store = offset_store
        self.definitions = AlarmDefinitions(database)
        self.definition = self.definitions.create(TENANT, AlarmDefinition(new_id(), text), 0)
        self.expression = parse(text)
        self.job = self.definition.id
        self.ids = [f"{number}-{self.definition.id}" for number in range(count)]
        self.offset = 0
        with offset_store.writing() as connection:
            self.subs = definitions.load_definitions(connection, [self.definition.id])[
                self.definition.id
            ].sub_expressions
            watermark.save(connection, self.job, EvaluatorState(0, DELAY_MS))
            for alarm_id in self.ids:
                self._insert(connection, alarm_id)

    def _insert(self, connection, alarm_id):
        state, key = AlarmState.new(self.expression), self.key(alarm_id)
        times = dict.fromkeys(("state_updated", "updated", "created"), 0)
        connection.execute(
            tables.alarm.insert().values(
                id=alarm_id,
                tenant=TENANT,
                definition_id=self.definition.id,
                match_key=key,
                match_values=[],
                state=state.state,
                **times,
            )
        )
        metric = {"alarm_id": alarm_id, "series_id": key, "tenant": TENANT, "name": "m", "dimensions": {"a": "b"}}
        connection.execute(tables.alarm_metric.insert().values(metric))
        for sub, sub_alarm in zip(self.subs, state.sub_alarms, strict=True):
            of = {"alarm_id": alarm_id, "sub_expression_id": sub.id}
            connection.execute(tables.alarm_part.insert().values(**of, match_key=key))
            row = {"state": sub_alarm.state, "current_values": [], "windows": 0, "empty_evaluations": 0}
            connection.execute(tables.sub_alarm.insert().values(**of, **row))

    def key(self, alarm_id):
        return alarm_id.encode()[:16]

    def arrive(self, alarm_id, measured):
        """Merge measurements of (time, value, position of the sub-alarm)."""
        with self.offset_store.writing() as connection:
            for time_ms, value, position in measured:
                self._arrive(connection, alarm_id, self.subs[position], Reading(time_ms, 0, self.offset, value))
                self.offset += 1
            changed = sa.select(tables.alarm_changed).where(tables.alarm_changed.c.alarm_id == alarm_id)
            if connection.execute(changed).first() is None:
                connection.execute(tables.alarm_changed.insert().values(alarm_id=alarm_id))

    def _arrive(self, connection, alarm_id, stored, reading):
        sub, table = stored.expression, tables.alarm_window
        is_last = sub.function == "last"
        start_ms = 0 if is_last else window_start_ms(sub, reading.timestamp_ms)
        partial = WindowPartial.of(sub, [reading])
        readings = [reading] if is_last else partial.decisive
        of = {"sub_expression_id": stored.id, "match_key": self.key(alarm_id), "window_start": start_ms}
        where = [table.c[name] == value for name, value in of.items()]
        row = connection.execute(sa.select(table).where(*where)).one_or_none()
        if row is not None:
            connection.execute(table.delete().where(*where))
            known = WindowPartial(row.record_count, sums_of(row.sums), row.least, row.greatest, row.newest)
            partial = partial.merge(known, sub)
            readings = [*readings, *readings_of(row.readings)]
            readings = runs(sub, readings) if is_last else readings
        values = of | {
            "windows": stored.windows,
            "record_count": partial.count,
            "sums": sums_text(partial.sums),
            "least": partial.least,
            "greatest": partial.greatest,
            "newest": partial.newest_ms,
            "readings": readings_text(readings),
        }
        connection.execute(table.insert().values(values))

    def delete(self):
        self.definitions.delete(TENANT, self.definition.id)
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_outbox.delete())


def scan(after_ms, watermark_ms):
    """Scan with a broker that was available all the time."""
    return Scan(watermark_ms, {0}, {}, set(range(after_ms // BUCKET_MS * BUCKET_MS, watermark_ms, BUCKET_MS)))


def _series(alarm_id, name, dimensions):
    """Return a row of the series of an alarm; ``name`` identifies the series."""
    return {
        "alarm_id": alarm_id,
        "series_id": name.ljust(16),
        "tenant": TENANT,
        "name": "m",
        "dimensions": dimensions,
    }


class PassesContract:
    def open_alarms(self):
        self.alarms_database = AlarmsDatabase(self.settings)
        self.addCleanup(self.alarms_database.close)

    def alarms(self, text=MAXIMUM, count=1):
        return StoredAlarms(self.alarms_database, self.offset_store, text, count)

    def runner(self, alarms, page_alarms=2, **changes):
        changes = {"delay_ms": DELAY_MS, "grace_ms": 0} | changes
        return PassRunner(self.offset_store, alarms.job, page_alarms=page_alarms, **changes)

    def clean_up(self, alarms, now_ms):
        Cleanup(self.offset_store, alarms.job).run(now_ms)

    def rows(self, table):
        with self.offset_store.reading() as connection:
            return connection.execute(sa.select(table).order_by(*table.primary_key.columns)).all()

    def reported(self, alarm_id):
        """Return the transitions of the alarm in the outbox, in order."""
        messages = [json.loads(row.value)["alarm-transitioned"] for row in self.rows(tables.alarm_outbox)]
        names = ("oldState", "newState", "timestamp", "stateChangeReason")
        return [StateChange(*(each[name] for name in names)) for each in messages if each["alarmId"] == alarm_id]

    def expected(self, evaluator):
        return [
            StateChange(each.old_state, each.new_state, each.timestamp_ms, each.reason)
            for each in evaluator.transitions
        ]

    def stored(self, alarms):
        with self.offset_store.reading() as connection:
            return watermark.load(connection, alarms.job)

    @few
    @given(expressions, st.data())
    def test_pages_and_crashes_do_not_change_the_result(self, expression, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        self.check_evaluation(expression, in_batches(data.draw, measured), data)

    @few
    @given(st.integers(1, 3), st.integers(1, 6), expressions, st.data())
    def test_small_pages_and_late_measurements_do_not_change_the_result(self, shown, page_periods, expression, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        with (
            mock.patch.object(evaluation, "MOST_VALUES", shown),
            mock.patch.object(passes, "PAGE_PERIODS", page_periods),
        ):
            self.check_evaluation(expression, in_batches_with_late_ones(data.draw, measured), data)

    def check_evaluation(self, expression, batches, data):
        alarms = self.alarms(text_of(expression), data.draw(st.integers(1, 4)))
        evaluators = {alarm_id: Evaluator(alarms.expression) for alarm_id in alarms.ids}
        try:
            watermark_ms = 0
            for arrived, next_ms in batches:
                for number, (alarm_id, evaluator) in enumerate(evaluators.items(), 1):
                    own = [one for one in arrived if one.time_ms % number == 0]
                    if own:
                        alarms.arrive(alarm_id, own)
                    evaluator.batch(own, next_ms)
                self.run_perhaps_crashing(alarms, data.draw, scan(watermark_ms, next_ms))
                watermark_ms = next_ms
            for alarm_id, evaluator in evaluators.items():
                self.assertEqual(self.expected(evaluator), self.reported(alarm_id))
            states = {row.id: row.state for row in self.rows(tables.alarm)}
            self.assertEqual({key: each.alarm.state for key, each in evaluators.items()}, states)
            self.assertEqual(END_MS, self.stored(alarms).evaluated_to_ms)
        finally:
            alarms.delete()

    def run_perhaps_crashing(self, alarms, draw, scanned):
        runner = self.runner(alarms, draw(st.integers(1, 3)))
        crash = draw(st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 3)))
        if crash:
            with failpoints.armed(crash[0], f"raise@{crash[1]}"), suppress(FailPointReached):
                runner.run(scanned)
            runner = self.runner(alarms, draw(st.integers(1, 3)))
            runner.finish()
        runner.run(scanned)
        self.clean_up(alarms, scanned.scan_ms)

    def test_alarms_with_many_periods_have_their_own_pages(self):
        alarms = self.alarms("avg(m) > 1 times 40", count=3)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(minute * 60_000, 2.0, 0) for minute in range(40)])
        with (
            mock.patch.object(passes, "PAGE_PERIODS", 79),
            mock.patch.object(passes, "load_alarms", wraps=passes.load_alarms) as load,
        ):
            self.runner(alarms, 1000).run(scan(0, 40 * 60_000 + DELAY_MS))
        self.assertEqual([1, 1, 1], [len(call.args[1]) for call in load.call_args_list])
        self.assertEqual({"ALARM"}, {row.state for row in self.rows(tables.alarm)})

    # Rule 46
    def test_one_of_two_concurrent_evaluators_is_fenced(self):
        alarms = self.alarms(count=3)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        first, second = self.runner(alarms, 1), self.runner(alarms, 1)
        with failpoints.armed("evaluate.between_pages", "raise"), suppress(FailPointReached):
            first.run(scan(0, 2000))
        stale = self.stored(alarms)
        second.finish()
        self.assertRaises(EvaluatorFenced, first._run_pages, stale)
        self.assertRaises(EvaluatorFenced, first._open, stale, scan(0, 2000))
        self.assertEqual([1, 1, 1], [len(self.reported(alarm_id)) for alarm_id in alarms.ids])

    def test_a_fenced_evaluator_does_not_overwrite_a_stored_idle_period(self):
        alarms = self.alarms("last(m) > 1")
        self.runner(alarms).run(Scan(1000, {0, 1}))
        stale = self.stored(alarms)
        merged = watermark.advanced(stale, Scan(1_000_000, {1}, {0: 1000}), 0)
        self.assertEqual(1, len(merged.idle_periods))
        with self.offset_store.writing() as connection:
            watermark.save(connection, alarms.job, merged)
        self.assertRaises(EvaluatorFenced, self.runner(alarms)._open, stale, Scan(1500, {1}))
        self.assertEqual(merged, self.stored(alarms))

    def test_a_state_set_by_hand_during_an_evaluation_is_kept(self):
        alarms = self.alarms(count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        load = passes.load_alarms

        def set_meanwhile(connection, *of_page):
            loaded = load(connection, *of_page)
            own = tables.alarm.update().where(tables.alarm.c.id == alarms.ids[0])
            connection.execute(own.values(state="OK", state_updated=5))
            return loaded

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.evaluate.passes.load_alarms", set_meanwhile))
        self.runner(alarms).run(scan(0, 2000))
        self.assertEqual(["OK", "ALARM"], [row.state for row in self.rows(tables.alarm)])
        self.assertEqual(["ALARM", "ALARM"], [row.state for row in self.rows(tables.sub_alarm)])
        self.assertEqual([0, 1], [len(self.reported(alarm_id)) for alarm_id in alarms.ids])

    def test_values_without_a_change_are_stored_only_if_another_sub_alarm_could_publish_them(self):
        for text, written in (("avg(m) > 5", [1.0]), ("avg(m) > 5 or avg(n) > 5", [2.0])):
            alarms = self.alarms(text)
            try:
                for time_ms, value in ((1000, 1.0), (61_000, 2.0)):
                    alarms.arrive(alarms.ids[0], [(time_ms, value, position) for position in range(len(alarms.subs))])
                    self.runner(alarms).run(scan(time_ms, time_ms + 59_000 + DELAY_MS))
                rows = [row for row in self.rows(tables.sub_alarm) if row.alarm_id == alarms.ids[0]]
                self.assertEqual([("OK", written)] * len(rows), [(row.state, row.current_values) for row in rows])
            finally:
                alarms.delete()

    def test_a_new_threshold_evaluates_the_windows_again_and_a_new_period_restarts_them(self):
        alarms = self.alarms()
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        (sub,) = self.rows(tables.sub_alarm)
        self.assertEqual(60_000, sub.decided)
        alarms.definitions.change(
            TENANT, alarms.definition.id, lambda before: replace(before, expression="max(m) > 5"), 1
        )
        self.assertEqual(0, self.rows(tables.sub_alarm)[0].decided)
        self.runner(alarms).run(scan(2000, 90_000))
        self.assertEqual("OK", self.rows(tables.alarm)[0].state)
        alarms.definitions.change(
            TENANT, alarms.definition.id, lambda before: replace(before, expression="max(m, 120) > 5"), 1
        )
        self.runner(alarms).run(scan(90_000, 150_000))
        self.assertEqual(
            ("UNDETERMINED", 1), (self.rows(tables.sub_alarm)[0].state, self.rows(tables.sub_alarm)[0].windows)
        )

    # Rule 47
    def test_a_longer_delay_after_a_restart_decides_no_window_twice(self):
        alarms = self.alarms("avg(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 0.0, 0)])
        self.runner(alarms).run(scan(0, 150_000))
        later = self.runner(alarms, delay_ms=90_000)
        for after_ms, until_ms, empty in ((150_000, 209_000, 1), (209_000, 269_999, 1), (269_999, 270_000, 2)):
            later.run(scan(after_ms, until_ms))
            self.assertEqual(empty, self.rows(tables.sub_alarm)[0].empty_evaluations, until_ms)
        self.assertEqual(
            [("OK", 90_000), ("UNDETERMINED", 270_000)],
            [(each.new, each.time_ms) for each in self.reported(alarms.ids[0])],
        )

    # Rule 47
    def test_a_shorter_delay_after_a_restart_skips_no_window(self):
        alarms = self.alarms("avg(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 0.0, 0), (61_000, 2.0, 0), (121_000, 0.0, 0)])
        self.runner(alarms, delay_ms=90_000).run(scan(0, 200_000))
        self.runner(alarms).run(scan(200_000, 211_000))
        reported = [(each.new, each.time_ms) for each in self.reported(alarms.ids[0])]
        self.assertEqual([("OK", 150_000), ("ALARM", 150_001), ("OK", 210_000)], reported)

    def test_an_interrupted_pass_is_finished_with_its_original_delay(self):
        alarms = self.alarms("avg(m) > 1", count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 0.0, 0)])
        with failpoints.armed("evaluate.between_pages", "raise"), suppress(FailPointReached):
            self.runner(alarms, 1).run(scan(0, 150_000))
        later = self.runner(alarms, 1, delay_ms=90_000)
        later.finish()
        later.run(scan(150_000, 211_000))
        self.assertEqual([1, 1], [row.empty_evaluations for row in self.rows(tables.sub_alarm)])

    def test_after_a_longer_delay_a_repeated_decision_has_the_time_of_the_newest_scan(self):
        alarms = self.alarms("last(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        self.change(alarms, "last(m) > 5")
        self.runner(alarms, delay_ms=90_000).run(scan(2000, 3000))
        self.assertEqual(
            [("ALARM", 1000), ("OK", 3000)], [(each.new, each.time_ms) for each in self.reported(alarms.ids[0])]
        )

    def test_a_new_period_of_last_is_evaluated_without_a_new_reading(self):
        alarms = self.alarms("last(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        self.change(alarms, "last(m, 120) > 5 times 3")
        self.runner(alarms).run(scan(2000, 3000))
        self.assertEqual(["ALARM", "OK"], [each.new for each in self.reported(alarms.ids[0])])

    def test_a_new_threshold_or_structure_of_last_is_evaluated_without_a_new_reading(self):
        alarms = self.alarms("last(m) > 1 or last(n) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0), (1000, 0.0, 1)])
        self.runner(alarms).run(scan(0, 2000))
        for time_ms, text in ((3000, "last(m) > 1 and last(n) > 1"), (4000, "last(m) > 1 and last(n) < 1")):
            self.change(alarms, text)
            self.runner(alarms).run(scan(time_ms - 1000, time_ms))
        reported = [(each.new, each.time_ms) for each in self.reported(alarms.ids[0])]
        self.assertEqual([("ALARM", 1000), ("OK", 2000), ("ALARM", 3000)], reported)

    def test_new_thresholds_before_the_next_evaluation_do_not_undo_a_new_structure(self):
        alarms = self.alarms("last(m) > 1 or last(n) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0), (1000, 0.0, 1)])
        self.runner(alarms).run(scan(0, 2000))
        self.change(alarms, "last(m) > 1 and last(n) > 1")
        self.change(alarms, "last(m) > 1.5 and last(n) > 1.5")
        self.runner(alarms).run(scan(2000, 3000))
        self.assertEqual(["ALARM", "OK"], [each.new for each in self.reported(alarms.ids[0])])

    def test_two_new_thresholds_in_one_change_publish_no_intermediate_state(self):
        alarms = self.alarms("last(m) > 1 or last(n) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0), (1000, 0.0, 1)])
        self.runner(alarms).run(scan(0, 2000))
        self.change(alarms, "last(m) > 5 or last(n) > -1")
        self.runner(alarms).run(scan(2000, 3000))
        self.assertEqual(["ALARM"], [each.new for each in self.reported(alarms.ids[0])])
        self.assertEqual(["ALARM", "OK"], sorted(row.state for row in self.rows(tables.sub_alarm)))

    def test_a_state_set_by_hand_is_recomputed_only_after_a_change_of_structure(self):
        alarms = self.alarms("last(m) > 1 and last(n) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0), (1000, 0.0, 1)])
        self.runner(alarms).run(scan(0, 2000))
        self.change(alarms, "last(m) > 1 or last(n) > 1")
        self.runner(alarms).run(scan(2000, 3000))
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm.update().values(state="OK", state_updated=3500))
            connection.execute(tables.alarm_changed.insert().values(alarm_id=alarms.ids[0]))
        self.runner(alarms).run(scan(3000, 4000))
        self.change(alarms, "last(m) > 1.5 or last(n) > 1")
        self.runner(alarms).run(scan(4000, 5000))
        self.assertEqual("OK", self.rows(tables.alarm)[0].state)

    def test_a_definition_changed_during_a_pass_is_applied_to_alarms_already_evaluated(self):
        alarms = self.alarms("last(m) > 1", count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        with failpoints.armed("evaluate.between_pages", "raise"), suppress(FailPointReached):
            self.runner(alarms, 1).run(scan(0, 2000))
        self.change(alarms, "last(m) > 5")
        self.runner(alarms, 1).finish()
        self.runner(alarms, 1).run(scan(2000, 3000))
        self.assertEqual(["OK", "OK"], [row.state for row in self.rows(tables.alarm)])
        self.assertEqual([], self.rows(tables.alarm_changed))

    def change(self, alarms, text):
        alarms.definitions.change(TENANT, alarms.definition.id, lambda before: replace(before, expression=text), 1)

    def test_a_crash_inside_a_page_counts_no_empty_window_twice(self):
        alarms = self.alarms("avg(m) > 1", count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 0.0, 0)])
        for minute in (1, 2, 3):
            scanned = scan(minute * 60_000 - DELAY_MS, minute * 60_000 + DELAY_MS)
            for number in (1, 2):
                with failpoints.armed("evaluate.inside_page", f"raise@{number}"), suppress(FailPointReached):
                    self.runner(alarms, 1).run(scanned)
            self.runner(alarms, 1).finish()
            empty = {row.empty_evaluations for row in self.rows(tables.sub_alarm)}
            self.assertEqual({minute - 1}, empty)

    def test_before_the_first_batch_nothing_is_evaluated(self):
        alarms = self.alarms()
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_evaluator.delete())
        self.assertEqual(0, self.runner(alarms).run(scan(0, 1000)).alarms)

    def test_without_due_windows_only_the_evaluation_time_advances(self):
        alarms = self.alarms("last(m) > 1")
        report = self.runner(alarms).run(scan(0, DAY_MS))
        self.assertEqual((0, DAY_MS), (report.alarms, self.stored(alarms).evaluated_to_ms))

    def test_a_measurement_of_a_fast_clock_is_decided_as_soon_as_its_window_has_started(self):
        alarms = self.alarms(count=2)
        alarms.arrive(alarms.ids[0], [(61_000, 2.0, 0)])
        alarms.arrive(alarms.ids[1], [(1000, 2.0, 0)])
        runner = self.runner(alarms)
        states = []
        for after_ms, until_ms in ((0, 58_000), (58_000, 59_000), (59_000, 62_000), (62_000, 63_000)):
            report = runner.run(scan(after_ms, until_ms))
            states.append((self.rows(tables.alarm)[0].state, report.alarms))
        self.assertEqual([("UNDETERMINED", 2), ("UNDETERMINED", 1), ("ALARM", 1), ("ALARM", 0)], states)
        self.assertEqual(61_000, self.reported(alarms.ids[0])[0].time_ms)

    def test_unneeded_windows_and_series_are_deleted(self):
        alarms = self.alarms("max(m) > 1 times 2")
        alarms.arrive(alarms.ids[0], [(1000, 0.0, 0), (61_000, 0.0, 0), (121_000, 0.0, 0)])
        sub = {"sub_expression_id": alarms.subs[0].id, "match_values": [], "dimensions": {}}
        with self.offset_store.writing() as connection:
            for series, key, seen in ((b"1", alarms.key(alarms.ids[0]), 0), (b"2", b"x", 0), (b"3", b"y", DAY_MS)):
                row = sub | {"series_id": series * 16, "match_key": key, "seen": seen}
                connection.execute(tables.alarm_series.insert().values(row))
        runner = self.runner(alarms)
        runner.run(scan(0, 150_000))
        self.clean_up(alarms, DAY_MS + 1)
        self.assertEqual([60_000, 120_000], sorted(row.window_start for row in self.rows(tables.alarm_window)))
        self.assertEqual({b"1" * 16, b"3" * 16}, {bytes(row.series_id) for row in self.rows(tables.alarm_series)})

    def test_portions_of_sub_expressions_are_cleaned_up_in_separate_transactions(self):
        alarms = self.alarms("max(m) > 1 and max(n) > 1 and max(o) > 1")
        (alarm_id,) = alarms.ids
        with self.offset_store.writing() as connection:
            for position in range(3):
                for name, seen in ((b"old", 0), (b"new", DAY_MS)):
                    self.insert_series(connection, alarms, alarm_id, position, name, seen)
        alarms.arrive(alarm_id, [(1000, 2.0, position) for position in range(3)])
        self.runner(alarms).run(scan(0, 150_000))
        with (
            mock.patch.object(cleanup, "PORTION", 2),
            mock.patch.object(cleanup, "delete_windows", wraps=cleanup.delete_windows) as delete,
        ):
            self.clean_up(alarms, DAY_MS + 1)
        self.assertEqual([2, 1], [len(call.args[1]) for call in delete.call_args_list])
        self.assertEqual([b"new"] * 3, [bytes(row.series_id).strip() for row in self.rows(tables.alarm_series)])
        self.assertEqual([], self.rows(tables.alarm_window))

    def test_a_transaction_of_the_cleanup_deletes_a_limited_number_of_rows(self):
        alarms = self.alarms()
        with self.offset_store.writing() as connection:
            for number in range(5):
                self.insert_series(connection, alarms, alarms.ids[0], 0, b"old %d" % number, 0)
            self.insert_series(connection, alarms, alarms.ids[0], 0, b"new", DAY_MS)
        alarms.arrive(alarms.ids[0], [(1000 + 60_000 * number, 2.0, 0) for number in range(5)])
        self.runner(alarms).run(scan(0, 900_000))
        sizes = []
        with mock.patch.object(cleanup, "MOST_ROWS", 2), mock.patch.object(cleanup.definitions, "lock_version") as lock:
            lock.side_effect = lambda _: sizes.append(
                [len(self.rows(table)) for table in (tables.alarm_series, tables.alarm_window)]
            )
            self.clean_up(alarms, DAY_MS + 1)
        self.assertEqual([[6, 5], [4, 5], [2, 5], [1, 3], [1, 1]], sizes)
        self.assertEqual([], self.rows(tables.alarm_window))

    def test_old_series_of_an_alarm_are_deleted_once_a_new_one_is_seen(self):
        alarms = self.alarms()
        sub = {"sub_expression_id": alarms.subs[0].id, "match_values": [], "dimensions": {}}
        sub |= {"match_key": alarms.key(alarms.ids[0])}
        kept = []
        for now_ms, new in ((DAY_MS + 2, (b"1", b"2")), (2 * DAY_MS, (b"3",))):
            with self.offset_store.writing() as connection:
                for series in new:
                    row = sub | {"series_id": series * 16, "seen": now_ms - DAY_MS - 1 if series < b"3" else now_ms}
                    connection.execute(tables.alarm_series.insert().values(row))
            self.clean_up(alarms, now_ms)
            kept.append({bytes(row.series_id) for row in self.rows(tables.alarm_series)})
        self.assertEqual([{b"1" * 16, b"2" * 16}, {b"3" * 16}], kept)

    def test_rows_are_deleted_after_the_clock_went_back(self):
        alarms = self.alarms()
        cleanup = Cleanup(self.offset_store, alarms.job)
        cleanup.run(9 * DAY_MS)
        with self.offset_store.writing() as connection:
            self.insert_series(connection, alarms, "gone", 0, b"old", 0)
        cleanup.run(2 * DAY_MS)
        self.assertEqual([], self.rows(tables.alarm_series))

    def test_deleted_series_are_removed_from_the_metrics_of_their_alarms(self):
        alarms = self.alarms("max(m) > 1 and avg(m) > 1", count=2)
        first, second = alarms.ids
        # One series of the first alarm was seen today and three were not; no series of the second alarm was seen today.
        series = [(first, 0, b"old"), (first, 0, b"new"), (first, 1, b"old"), (first, 0, b"kept"), (first, 1, b"new")]
        series += [(first, 0, b"shared"), (first, 1, b"shared"), (second, 0, b"last"), (second, 1, b"last")]
        seen = {b"new": 2 * DAY_MS}
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_metric.delete())
            for alarm_id, position, name in series:
                self.insert_series(connection, alarms, alarm_id, position, name, seen.get(name, 0))
            for alarm_id, name in dict.fromkeys((alarm_id, name) for alarm_id, _, name in series):
                self.insert_metric(connection, alarm_id, name)
        self.runner(alarms).run(scan(0, 1000))
        self.clean_up(alarms, 2 * DAY_MS)
        expected = {(first, b"new"), (second, b"last")}
        for table in (tables.alarm_metric, tables.alarm_dimension):
            self.assertEqual(expected, {(row.alarm_id, bytes(row.series_id).strip()) for row in self.rows(table)})

    def test_a_series_of_another_sub_expression_stays_a_metric_of_the_alarm(self):
        alarms = self.alarms("max(m) > 1 and avg(m) > 1")
        (alarm_id,) = alarms.ids
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_metric.delete())
            for position, name, seen in ((0, b"old", 0), (0, b"new", 2 * DAY_MS), (1, b"old", 0)):
                self.insert_series(connection, alarms, alarm_id, position, name, seen)
            for name in (b"old", b"new"):
                self.insert_metric(connection, alarm_id, name)
        self.runner(alarms).run(scan(0, 1000))
        self.clean_up(alarms, 2 * DAY_MS)
        self.assertEqual({b"old", b"new"}, {bytes(row.series_id).strip() for row in self.rows(tables.alarm_metric)})
        self.assertEqual(2, len(self.rows(tables.alarm_series)))

    def insert_series(self, connection, alarms, alarm_id, position, name, seen):
        row = {"sub_expression_id": alarms.subs[position].id, "series_id": name.ljust(16), "seen": seen}
        row |= {"match_key": alarms.key(alarm_id), "match_values": [], "dimensions": {}}
        connection.execute(tables.alarm_series.insert().values(row))

    def insert_metric(self, connection, alarm_id, name):
        add_metrics(connection, [_series(alarm_id, name, {"a": name.decode()})])

    def test_the_reading_of_last_is_deleted_with_the_last_of_its_series(self):
        alarms = self.alarms("last(m) > 1")
        sub = {"sub_expression_id": alarms.subs[0].id, "match_values": [], "dimensions": {}}
        with self.offset_store.writing() as connection:
            for key, seen in (("gone", 0), ("seen", DAY_MS)):
                alarms._arrive(connection, key, alarms.subs[0], Reading(1000, 0, 0, 2.0))
                row = sub | {"series_id": alarms.key(key) * 4, "match_key": alarms.key(key), "seen": seen}
                connection.execute(tables.alarm_series.insert().values(row))
            alarms._arrive(connection, alarms.ids[0], alarms.subs[0], Reading(1000, 0, 1, 2.0))
        runner = self.runner(alarms)
        runner.run(scan(0, DAY_MS))
        self.clean_up(alarms, DAY_MS + 1)
        kept = {bytes(row.match_key) for row in self.rows(tables.alarm_window)}
        self.assertEqual({b"seen", alarms.key(alarms.ids[0])}, kept)

    def test_after_a_crash_before_clearing_transitions_are_published_again_with_the_same_ids(self):
        alarms = self.alarms(count=3)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        producer = RecordingProducer()
        publisher = TransitionPublisher(self.offset_store, producer, "transitions")
        with failpoints.armed("evaluate.before_clearing", "raise"):
            self.assertRaises(FailPointReached, publisher.publish)
        self.assertEqual(3, len(self.rows(tables.alarm_outbox)))
        self.assertEqual((3, 0), publisher.publish())
        self.assertEqual(([], (0, 0)), (self.rows(tables.alarm_outbox), publisher.publish()))
        first, again = producer.bulks
        self.assertEqual(first, again)

    def test_transitions_that_kafka_does_not_accept_are_kept(self):
        alarms = self.alarms(count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        self.assertEqual(1, self.publish(RecordingProducer([1])))
        self.assertEqual([alarms.ids[1]], [row.key for row in self.rows(tables.alarm_outbox)])

    def test_more_transitions_than_the_producer_can_hold_are_published_in_steps(self):
        alarms = self.alarms(count=3)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("transitions", 1)
        self.assertEqual(3, self.publish(kafka.producer(budget_messages=2)))
        self.assertEqual(alarms.ids, [each.key.decode() for each in kafka.broker.records("transitions")])
        self.assertEqual([], self.rows(tables.alarm_outbox))

    def test_transitions_are_published_after_a_fatal_error_of_the_producer(self):
        alarms = self.alarms(count=1)
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("transitions", 1)
        publisher = TransitionPublisher(self.offset_store, kafka.producer(), "transitions")
        kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        self.assertEqual([(0, 1), (1, 0), (0, 0)], [publisher.publish() for _ in range(3)])

    def test_transitions_in_avro_wait_for_the_schema_registry(self):
        alarms = self.alarms()
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        (row,) = self.rows(tables.alarm_outbox)
        registry, producer, clock = self.useFixture(MemoryRegistry()), RecordingProducer(), VirtualClock()
        client = "monasca_common.kafka.serialization.registry_client.SystemClock"
        self.useFixture(fixtures.MonkeyPatch(client, lambda: clock))
        schemas = SchemaRegistrySettings(url=registry.url, auto_register=True)
        writer = EnvelopeWriter(schemas, avro.TRANSITIONS, "transitions")
        publisher = TransitionPublisher(self.offset_store, producer, "transitions", writer)
        registry.stop()
        self.assertEqual(((0, 1), 1), (publisher.publish(), len(self.rows(tables.alarm_outbox))))
        registry.start()
        self.assertEqual((0, 1), publisher.publish())
        clock.advance(MAX_BACKOFF_SECONDS)
        self.assertEqual(((1, 0), []), (publisher.publish(), self.rows(tables.alarm_outbox)))
        (((*_, value),),) = producer.bulks
        self.assertEqual(AlarmChange.read(row.value), AlarmChange.read(EnvelopeReader(schemas).text(value)))

    def test_a_message_too_large_for_the_topic_is_counted_and_does_not_delay_others(self):
        alarms = self.alarms(count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        producer = RecordingProducer([0], MessageTooLarge("transitions", 5, 4))
        publisher = TransitionPublisher(self.offset_store, producer, "transitions")
        registry = CollectorRegistry()
        registry.register(publisher.lost)
        lost = partial(registry.get_sample_value, "monasca_pipeline_lost_transitions_total", {"job": "evaluate"})
        self.assertEqual(0, lost())
        self.assertEqual(((1, 0), 1), (publisher.publish(), lost()))
        self.assertEqual([], self.rows(tables.alarm_outbox))

    def test_the_message_of_a_large_alarm_has_its_first_metrics_and_their_number(self):
        alarms = self.alarms()
        hosts = [f"host-{number:04}" for number in range(9_000)]
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_metric.delete())
            series = [_series(alarms.ids[0], host.encode(), {"hostname": host, "path": "x" * 200}) for host in hosts]
            add_metrics(connection, series)
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 2000))
        (row,) = self.rows(tables.alarm_outbox)
        reported = json.loads(row.value)["alarm-transitioned"]
        self.assertEqual(9_000, reported["metrics_total"])
        self.assertEqual(hosts[:MOST_METRICS], [each["dimensions"]["hostname"] for each in reported["metrics"]])
        self.assertLess(len(row.value), MOST_MESSAGE_BYTES)

    def publish(self, producer):
        return TransitionPublisher(self.offset_store, producer, "transitions").publish()[0]

    # Rule 48
    def test_a_change_of_an_alarm_is_sent_after_the_previous_one_is_acknowledged(self):
        alarms = self.alarms("last(m) > 1", count=2)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0), (2000, 0.0, 0), (3000, 2.0, 0)])
        self.runner(alarms).run(scan(0, 4000))
        producer = RecordingProducer([0])
        self.assertEqual(1, self.publish(producer))
        first, second = (alarm_id.encode() for alarm_id in alarms.ids)
        self.assertEqual([[first, second]], [[key for _, key, *_ in bulk] for bulk in producer.bulks])
        producer.failing = ()
        self.assertEqual(5, self.publish(producer))
        sent = [json.loads(value)["alarm-transitioned"] for bulk in producer.bulks[1:] for *_, value in bulk]
        times = [each["timestamp"] for each in sent if each["alarmId"] == alarms.ids[0]]
        self.assertEqual([1000, 2000, 3000], times)

    def test_transitions_of_a_stuck_partition_block_no_others(self):
        self.useFixture(fixtures.MockPatchObject(transitions, "_MOST_AT_ONCE", 2))
        alarms = self.alarms("last(m) > 1", count=3)
        for alarm_id in alarms.ids:
            alarms.arrive(alarm_id, [(1000, 2.0, 0), (2000, 0.0, 0)])
        self.runner(alarms).run(scan(0, 4000))
        producer = RecordingProducer()
        producer.stuck = alarms.ids[0].encode()
        publisher = TransitionPublisher(self.offset_store, producer, "transitions")
        self.assertEqual([(0, 1), (4, 1), (0, 1)], [publisher.publish() for _ in range(3)])
        self.assertEqual(alarms.ids[:1] * 2, [row.key for row in self.rows(tables.alarm_outbox)])
        producer.stuck = None
        self.assertEqual(((2, 0), []), (publisher.publish(), self.rows(tables.alarm_outbox)))


Left = namedtuple("Left", "index error")
Taken = namedtuple("Taken", "failed unknown")


class RecordingProducer:
    def __init__(self, failing=(), error=None):
        self.bulks = []
        self.failing = failing
        self.error = error or OSError("away")
        self.stuck = None  # a key whose partition accepts nothing

    settings = ProducerSettings(ConnectionSettings("nowhere:1"))

    def health(self):
        return SimpleNamespace(finished=False)

    def publish(self, topic, records):
        self.bulks.append([(topic, each.key, each.message_id, each.value) for each in records])
        stuck = [index for index, each in enumerate(records) if each.key == self.stuck]
        return Taken([Left(index, self.error) for index in (*self.failing, *stuck)], [])


class SqlitePassesTest(PassesContract, DatabaseCase):
    def setUp(self):
        super().setUp()
        self.settings = StorageSettings("sqlite", self.url)
        self.open_alarms()

    def test_a_page_reads_only_its_part_of_the_tables(self):
        """Reading all windows of each alarm would take 25 s for a page of 2,000 alarms."""
        alarms = self.alarms("avg(m) > 1", count=500)
        with self.offset_store.writing() as connection:
            window = "0, 0, 1, '1.0', 1, 1, 1000, ''"
            connection.execute(
                sa.text(f"INSERT INTO alarm_window SELECT sub_expression_id, match_key, {window} FROM alarm_part")
            )
            connection.execute(sa.text("ANALYZE"))
        with self.offset_store.writing() as connection:
            reported = []
            event.listen(connection, "before_cursor_execute", lambda *each: reported.append(each[2:4]))
            span = EvaluationSpan(30_000, 90_000, 90_000, 30_000)
            rows = passes.next_alarms(connection, span, "", 100)
            definitions = load_definitions(connection, [alarms.definition.id])
            self.assertEqual(100, len(passes.load_alarms(connection, rows, definitions, span)))
            raw = connection.connection.dbapi_connection
            plans = [step for each in reported for (*_, step) in raw.execute(f"EXPLAIN QUERY PLAN {each[0]}", each[1])]
        self.assertIn("alarm_window", "".join(plans))
        for table in ("alarm", "sub_alarm", "alarm_part", "alarm_window"):
            self.assertNotIn(f"SCAN {table}", plans)
