# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from monasca_common.kafka.clock import VirtualClock
from monasca_common.pipeline.evaluate import gauges, watermark
from monasca_common.pipeline.evaluate.gauges import KNOWN_SECONDS, EvaluationMetrics
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

NOON_MS = 1_767_268_800_000
OF_JOB = {"job": "evaluate"}


class EvaluationMetricsTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock(start_ms=NOON_MS)
        self.registry = EvaluationMetrics(self.url, "job", self.clock).registry

    def value(self, name, **labels):
        return self.registry.get_sample_value(f"monasca_pipeline_{name}", OF_JOB | labels)

    def begin(self):
        with self.offset_store.writing() as connection:
            stored = EvaluatorState(NOON_MS - 60_000, 0, watermarks_ms={0: NOON_MS - 2000, 1: NOON_MS - 1000})
            watermark.save(connection, "job", stored)

    def test_gauges_have_ages_states_and_unpublished_transitions(self):
        self.begin()
        with self.offset_store.writing() as connection:
            for number, state in enumerate(("OK", "OK", "ALARM")):
                texts = {"id": str(number), "tenant": "t", "definition_id": "d", "match_values": [], "state": state}
                times = dict.fromkeys(("state_updated", "updated", "created"), 0)
                connection.execute(tables.alarm.insert().values(**texts, **times, match_key=bytes([number] * 16)))
            connection.execute(tables.alarm_outbox.insert().values(key="a", message_id=b"id", value=b"{}"))
        ages = [self.value("horizon_age_seconds", partition=partition) for partition in "01"]
        self.assertEqual((60, [2, 1]), (self.value("evaluation_delay_seconds"), ages))
        states = [self.value("alarms", state=state) for state in ("OK", "UNDETERMINED", "ALARM")]
        self.assertEqual(([2, 0, 1], 1), (states, self.value("unpublished_transitions")))

    def test_ages_grow_between_database_queries(self):
        self.begin()
        with mock.patch.object(gauges, "read_gauges", wraps=gauges.read_gauges) as read:
            self.value("alarms", state="OK")
            self.clock.advance(KNOWN_SECONDS - 1)
            self.assertEqual(60 + KNOWN_SECONDS - 1, self.value("evaluation_delay_seconds"))
            self.assertEqual(1, read.call_count)
            self.clock.advance(1)
            self.value("alarms", state="OK")
            self.assertEqual(2, read.call_count)

    def test_before_the_first_batch_the_gauges_are_missing(self):
        self.assertIsNone(self.value("evaluation_delay_seconds"))

    def test_without_a_database_the_gauges_are_missing(self):
        registry = EvaluationMetrics("sqlite:////nowhere/at/all.sqlite", "job", self.clock).registry
        self.assertIsNone(registry.get_sample_value("monasca_pipeline_evaluation_delay_seconds", OF_JOB))
