# SPDX-License-Identifier: Apache-2.0
"""A batch of several hours has the same transitions as one batch per second. Spark is not used."""

import itertools
import json
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monasca_common.alarms.database import AlarmsDatabase, new_id
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.expression import FUNCTIONS, And, Expression, Or, SubExpression
from monasca_common.kafka.clock import VirtualClock
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.evaluate import definitions, watermark
from monasca_common.pipeline.evaluate.batch import StagedMerge
from monasca_common.pipeline.evaluate.cleanup import Cleanup
from monasca_common.pipeline.evaluate.definitions import SubExpressionIndex
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.watermark import BUCKET_MS, EvaluatorState, Scan
from monasca_common.pipeline.evaluate.windows import FoldedRow, WindowFold
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.alarms.test_evaluation import END_MS, in_batches, measurements
from monasca_common.tests.unit.alarms.test_expression import text_of
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

DELAY_MS = 30_000
_numbers = itertools.count()
few = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def expressions(draw):
    """Generate expressions of up to three metrics, so that an alarm is created after the first measurement."""
    subs = [
        SubExpression(
            draw(st.sampled_from(FUNCTIONS)),
            f"m{position}",
            (),
            draw(st.booleans()),
            draw(st.sampled_from(["LT", "LTE", "GT", "GTE"])),
            draw(st.sampled_from([0.0, 1.0, 2.0])),
            draw(st.sampled_from([60, 60, 120])),
            draw(st.sampled_from([1, 1, 2, 3])),
        )
        for position in range(draw(st.integers(1, 3)))
    ]
    return Expression(subs[0] if len(subs) == 1 else draw(st.sampled_from([And, Or]))(tuple(subs)))


class CatchUpTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        database = AlarmsDatabase(StorageSettings("sqlite", self.url))
        self.addCleanup(database.close)
        self.definitions = AlarmDefinitions(database)

    @few
    @given(expressions(), st.data())
    def test_transitions_match_the_reference_wherever_batches_are_split(self, expression, data):
        measured = data.draw(measurements(len(expression.sub_expressions)))
        whole = self.transitions(text_of(expression), [(measured, END_MS)])
        self.assertEqual(whole, self.transitions(text_of(expression), in_batches(data.draw, measured)))

    def test_no_transition_precedes_the_creation_of_an_alarm(self):
        measured = [(1_000, 5.0, 0), (70_000, 0.0, 0), (600_000, 0.0, 1)]
        text = "max(m0, deterministic) > 1 or max(m1, deterministic) > 1"
        self.assertEqual([], self.transitions(text, [(measured, END_MS)]))
        self.assertEqual([], self.transitions(text, one_by_one(measured)))

    def test_earlier_measurements_of_the_window_in_which_an_alarm_is_created_count(self):
        measured = [(1_000, 5.0, 0), (600_000, 5.0, 0), (610_000, 0.0, 1)]
        text = "max(m0, deterministic) > 1 or max(m1, deterministic) > 1"
        expected = [("ALARM", 600_000), ("OK", 750_000)]
        self.assertEqual(expected, [change[:2] for change in self.transitions(text, [(measured, END_MS)])])
        self.assertEqual(expected, [change[:2] for change in self.transitions(text, one_by_one(measured))])

    def test_each_change_of_last_is_published_with_the_time_of_its_measurement(self):
        measured = [(number * 1_000, float(number % 2), 0) for number in range(1, 1_000)]
        found = [change[:2] for change in self.transitions("last(m0) > 0", [(measured, END_MS)])]
        self.assertEqual([("ALARM" if value else "OK", time_ms) for time_ms, value, _ in measured], found)

    def test_evaluated_measurements_of_last_are_removed(self):
        measured = [(number * 1_000, float(number % 2), 0) for number in range(1, 1_000)]
        cut = [measured[start : start + 100] for start in range(0, len(measured), 100)]
        kept = []

        def count_readings(_):
            ((readings,),) = self.rows(tables.alarm_window, "readings")
            kept.append(len(readings.split()))

        with mock.patch.object(Cleanup, "run", lambda *arguments: count_readings(arguments)):
            found = self.transitions("last(m0) > 0", [(some, some[-1][0]) for some in cut])
        self.assertEqual(len(measured), len(found))
        self.assertLess(max(kept), 2 * 128)

    def test_the_newest_value_of_last_before_the_alarm_exists_counts(self):
        measured = [(1_000, 5.0, 0), (2_000, 0.0, 0), (3_000, 5.0, 0), (60_000, 0.0, 1), (61_000, 0.0, 0)]
        text = "last(m0, deterministic) > 1 or last(m1, deterministic) > 1"
        for batches in ([(measured, END_MS)], one_by_one(measured)):
            found = [change[:2] for change in self.transitions(text, batches)]
            self.assertEqual([("ALARM", 3_000), ("OK", 61_000)], found)

    def transitions(self, text, batches):
        """Return (new state, time, reason, values) of each transition. Each measurement arrives in Kafka at its own
        time."""
        number = next(_numbers)
        text = text.replace("(m", f"(x{number}.m")
        definition = self.definitions.create("t", AlarmDefinition(new_id(), text), 0)
        job, clock = definition.id, VirtualClock(start_ms=0)
        runner, cleanup = PassRunner(self.offset_store, job, DELAY_MS, 0, clock), Cleanup(self.offset_store, job)
        merging = StagedMerge(job, DELAY_MS, 0, runner, clock)
        with self.offset_store.writing() as connection:
            watermark.save(connection, job, EvaluatorState(0, DELAY_MS, watermarks_ms={0: 0}))
        known_ms = offset = 0
        for measured, watermark_ms in batches:
            clock.advance((watermark_ms - known_ms) / 1000)
            arrivals = set(range(known_ms // BUCKET_MS * BUCKET_MS, watermark_ms, BUCKET_MS))
            scan = Scan(watermark_ms, frozenset({0}), {}, arrivals)
            with self.offset_store.reading() as connection:
                known = definitions.load_snapshot(connection)
            rows = folded(known, measured, f"x{number}", offset)
            if rows:
                staged = StagedAttempts("batch", (7,), len(rows))
                with self.offset_store.writing() as connection:
                    staging.insert(connection, tables.alarm_staging, FoldedRow._fields, "batch", 7, rows, 0)
                    merging.merge(connection, staged, known, scan)
            runner.run(scan)
            cleanup.run(clock.time_ms())
            known_ms, offset = watermark_ms, offset + len(measured)
        messages = [json.loads(value)["alarm-transitioned"] for (value,) in self.rows(tables.alarm_outbox, "value")]
        self.definitions.delete("t", definition.id)
        with self.offset_store.writing() as connection:
            connection.execute(tables.alarm_outbox.delete())
        return [
            (
                each["newState"],
                each["timestamp"],
                each["stateChangeReason"].replace(f"x{number}.", ""),
                [sub["currentValues"] for sub in each["subAlarms"]],
            )
            for each in messages
        ]


def folded(known, measured, prefix, offset):
    index, folding = SubExpressionIndex(known.sub_expressions), WindowFold()
    series = {}
    for number, (time_ms, value, position) in enumerate(measured, offset):
        if position not in series:
            name = f"{prefix}.m{position}"
            one = Series(series_id("t", "r", name, {}), "t", "r", name, {})
            series[position] = [folding.series(target, one) for target in index.targets(one)]
        for each in series[position]:
            each.add((float(time_ms), 0, number, value), time_ms)
    return list(folding.rows())


def one_by_one(measured):
    return [*(([one], one[0]) for one in measured), ([], END_MS)]
