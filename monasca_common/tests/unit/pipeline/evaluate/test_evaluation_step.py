# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress
from types import SimpleNamespace

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.transport.memory.clock import VirtualClock
from monasca_common.pipeline.evaluate import progress
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.pipeline.evaluate.publishing import TransitionPublisher
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.pipeline.source.topic import Extent
from monasca_common.storage import StorageSettings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.evaluate.rounds_contract import MAXIMUM, RecordingProducer, StoredAlarms


class EmptyTopic:
    def topic_id(self):
        return "id"

    def extents(self):
        return {0: Extent(0, 0)}

    def starts(self, partitions):
        return dict.fromkeys(partitions, 0)


class EvaluationStepTest(ConfigurationTestCase, DatabaseCase):
    """Without records, Spark has nothing to do."""

    def setUp(self):
        super().setUp()
        settings = evaluate_settings(self.with_kafka(database=f"connection = {self.url}"))
        database = AlarmsDatabase(StorageSettings("sqlite", self.url))
        self.addCleanup(database.close)
        self.alarms = StoredAlarms(database, self.offset_store, MAXIMUM)
        with self.offset_store.writing() as connection:
            progress.save(connection, settings.stream.name, StoredProgress(0, settings.delay_seconds * 1000))
        publisher = TransitionPublisher(self.offset_store, RecordingProducer(), settings.alarm_transitions_topic)
        spark = SimpleNamespace(conf={})
        clock = VirtualClock(start_ms=2000)
        self.evaluation = Evaluation(spark, settings, EmptyTopic(), self.offset_store, publisher, clock)

    def test_what_a_crash_left_of_a_round_is_in_the_report_too(self):
        self.alarms.arrive(self.alarms.ids[0], [(1000, 2.0, 0)])
        with failpoints.armed("evaluate.inside_chunk", "raise"), suppress(FailPointReached):
            self.evaluation.step()
        report = self.evaluation.step()
        self.assertEqual((1, 1, 0), (report.round.alarms, report.round.transitions, report.round.delay_ms))
        self.assertEqual((1, {"plan", "evaluate", "publish"}), (report.published, set(report.stage_seconds)))
        self.assertEqual(0, self.evaluation.step().round.alarms)
