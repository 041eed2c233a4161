# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
from oslotest import base

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.expression import parse
from monasca_common.kafka import failpoints
from monasca_common.kafka.clock import VirtualClock
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.models.numbers import GREATEST
from monasca_common.models.series import Series
from monasca_common.pipeline.evaluate import batch, watermark
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.definitions import IndexedSubExpression
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs.job import UNDELIVERED
from monasca_common.pipeline.source.topic import Extent, SourceTopic
from monasca_common.pipeline.spark.counts import Greatest
from monasca_common.pipeline.windows import FUTURE_MS
from monasca_common.storage import StorageSettings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.evaluate.test_passes import MAXIMUM, RecordingProducer, StoredAlarms
from monasca_common.tests.unit.pipeline.pipeline_case import envelope

HOUR_MS = 3_600_000


class EmptyTopic:
    def topic_id(self):
        return "id"

    def extents(self):
        return {0: Extent(0, 0)}

    def starts(self, partitions):
        return dict.fromkeys(partitions, 0)


class EvaluationStepTest(ConfigurationTestCase, DatabaseCase):
    """A batch without records needs no Spark."""

    def setUp(self):
        super().setUp()
        settings = evaluate_settings(self.with_kafka(database=f"connection = {self.url}"))
        database = AlarmsDatabase(StorageSettings("sqlite", self.url))
        self.addCleanup(database.close)
        self.alarms = StoredAlarms(database, self.offset_store, MAXIMUM)
        with self.offset_store.writing() as connection:
            watermark.save(connection, settings.stream.name, EvaluatorState(0, settings.delay_seconds * 1000))
        self.producer = RecordingProducer()
        publisher = TransitionPublisher(self.offset_store, self.producer, settings.alarm_transitions_topic)
        spark = SimpleNamespace(conf={})
        clock = VirtualClock(start_ms=2000)
        self.evaluation = Evaluation(spark, settings, EmptyTopic(), self.offset_store, publisher, clock)

    def test_the_report_includes_the_finished_part_of_an_interrupted_pass(self):
        self.alarms.arrive(self.alarms.ids[0], [(1000, 2.0, 0)])
        with failpoints.armed("evaluate.inside_page", "raise"), suppress(FailPointReached):
            self.evaluation.step()
        report = self.evaluation.step()
        self.assertEqual((1, 1), (report.results["evaluated_alarms"], report.results["transitions"]))
        self.assertEqual(
            (1, {"plan", "evaluate", "publish"}), (report.results["published_transitions"], set(report.stage_seconds))
        )
        self.assertEqual(0, self.evaluation.step().results["evaluated_alarms"])

    def test_the_report_counts_undelivered_transitions_so_that_once_does_not_end_with_success(self):
        self.alarms.arrive(self.alarms.ids[0], [(1000, 2.0, 0)])
        self.producer.failing = [0]
        report = self.evaluation.step()
        self.assertEqual(
            (1, 1, 0), tuple(map(report.results.get, ("transitions", UNDELIVERED, "published_transitions")))
        )


class SteppingClock(VirtualClock):
    """A clock whose wall clock is ``step_ms`` ahead of its monotonic time."""

    step_ms = 0

    def time_ms(self):
        return super().time_ms() + self.step_ms


class AcceptedTimeTest(ConfigurationTestCase, DatabaseCase):
    """The driver itself reads the records, from the memory broker."""

    def setUp(self):
        super().setUp()
        self.clock = SteppingClock(start_ms=10 * HOUR_MS)
        kafka = self.useFixture(MemoryKafka(clock=self.clock))
        for name in ("metrics", "metrics.dlq"):
            kafka.broker.create_topic(name, 1)
        settings = evaluate_settings(self.with_kafka(database=f"connection = {self.url}"))
        consumer, producer = kafka.consumer_settings("metrics", "g"), kafka.producer_settings()
        settings = replace(settings, stream=replace(settings.stream, consumer=consumer, producer=producer))
        database = AlarmsDatabase(StorageSettings("sqlite", self.url))
        self.addCleanup(database.close)
        StoredAlarms(database, self.offset_store, MAXIMUM)
        topic = SourceTopic(consumer)
        self.addCleanup(topic.close)
        publisher = TransitionPublisher(self.offset_store, RecordingProducer(), settings.alarm_transitions_topic)
        spark = SimpleNamespace(conf={})
        self.evaluation = Evaluation(spark, settings, topic, self.offset_store, publisher, self.clock)
        self.producer = kafka.producer(linger_ms=0)
        self.evaluation.step()

    def rejected(self, step_ms, *times):
        """Return the number of measurements with these times that the first batch after the step rejects."""
        self.clock.step_ms = step_ms
        records = [Record(envelope("m", time_ms, meta={"tenantId": "t", "region": "r"})) for time_ms in times]
        self.producer.publish("metrics", records).raise_for_undelivered()
        return self.evaluation.step().results["rejected"]

    def test_after_a_step_forward_measurements_of_the_new_time_are_accepted(self):
        latest_ms = 11 * HOUR_MS + FUTURE_MS
        self.assertEqual(1, self.rejected(HOUR_MS, 10 * HOUR_MS, 11 * HOUR_MS, latest_ms, latest_ms + 1))

    def test_after_a_step_back_measurements_of_the_earlier_time_are_still_accepted(self):
        latest_ms = 10 * HOUR_MS + FUTURE_MS
        self.assertEqual(1, self.rejected(-HOUR_MS, 9 * HOUR_MS, latest_ms, latest_ms + 1))


DAY_MS = 86_400_000
META = {"tenantId": "t", "region": "r"}


class ArrivalsTest(base.BaseTestCase):
    """A record is (partition, offset, Kafka's time in ms)."""

    def last(self, *batches):
        """Combine the results of the tasks of a batch."""
        greatest, whole = Greatest(), {}
        for records in batches:
            whole = greatest.addInPlace(whole, self.arrivals(records)[0])
        return whole

    def arrivals(self, records):
        found = []
        on_nothing = lambda *_: None  # noqa: E731
        definitions = batch.portable_definitions([], 100)
        folding = batch.RecordFold(definitions, 0, on_nothing, on_nothing, lambda *each: found.append(each))
        rows = [
            dict(zip(("partition", "offset", "kafka_ms"), each, strict=True)) | {"value": b"{}"} for each in records
        ]
        list(folding([pa.RecordBatch.from_pylist(rows)]))
        return found[0]

    def test_the_last_record_of_a_partition_counts_even_if_an_earlier_one_is_a_day_ahead(self):
        records = [(0, 5, 1_000), (1, 5, 7_000), (0, 6, 2_000 + DAY_MS), (0, 7, 3_000)]
        self.assertEqual({0: (7, 3_000), 1: (5, 7_000)}, self.last(records))

    def test_a_last_record_of_a_clock_that_is_ahead_of_others_does_not_count(self):
        records = [(0, 5, 1_000 + DAY_MS), (0, 6, 2_000), (0, 7, 3_000), (0, 8, 4_000 + DAY_MS)]
        self.assertEqual({0: (8, 3_000)}, self.last(records))

    def test_the_last_record_counts_after_a_pause_of_all_producers(self):
        records = [(0, 5, 1_000), (0, 6, 2_000), (0, 7, 3_000 + DAY_MS)]
        self.assertEqual({0: (7, 3_000 + DAY_MS)}, self.last(records))

    def test_the_last_record_counts_in_any_order_of_the_tasks(self):
        tasks = [(0, 7, 3_000)], [(0, 6, 2_000 + DAY_MS)]
        self.assertEqual({0: (7, 3_000)}, self.last(*tasks))
        self.assertEqual({0: (7, 3_000)}, self.last(*reversed(tasks)))

    def test_arrivals_are_stored_by_bucket(self):
        self.assertEqual({0, 20_000}, self.arrivals([(0, 1, 1_000), (0, 2, 9_999), (1, 1, 20_000)])[1])


class TaskFoldTest(base.BaseTestCase):
    def test_series_without_a_definition_are_not_kept(self):
        sub = parse("max(m) > 1").sub_expressions[0]
        matcher = batch._Matcher([IndexedSubExpression("s", 0, "t", (), 0, sub)], 100)
        task = batch._TaskFold(matcher)
        one, other = (Series(name.encode(), "t", "r", name, {}) for name in ("m", "n"))
        self.assertEqual((1, 0), (len(task.folded(one)), len(task.folded(other))))
        self.assertEqual([b"m"], list(task.known))


class SpecialValuesTest(base.BaseTestCase):
    def test_nan_is_not_a_measurement_and_infinity_is_the_greatest_float(self):
        counts = []
        sub = parse("max(cpu) > 1").sub_expressions[0]
        fold = batch.RecordFold(
            batch.portable_definitions([IndexedSubExpression("cpu", 0, "t", (), 0, sub)], 100),
            DAY_MS,
            lambda *_: None,
            lambda *given: counts.append(given),
            lambda *_: None,
        )
        values = [envelope("cpu", 1000 + n, value, meta=META) for n, value in enumerate(("NaN", 3.0, "-Infinity"))]
        rows = [{"partition": 0, "offset": n, "kafka_ms": 0, "value": value} for n, value in enumerate(values)]
        (folded,) = fold([pa.RecordBatch.from_pylist(rows)])
        (window,) = (each for each in folded.to_pylist() if each["record_count"])
        self.assertEqual((2, -GREATEST, 3.0), (window["record_count"], window["least"], window["greatest"]))
        self.assertEqual([(2, 0, {0: 1002.0}, 1)], counts)


class RejectedTest(base.BaseTestCase):
    def test_the_maximum_number_of_dimensions_is_that_of_the_other_services(self):
        value = envelope("cpu", 1, 1.0, meta=META, dimensions={str(number): "x" for number in range(101)})
        row = {"partition": 0, "offset": 7, "kafka_ms": 0, "value": value}
        for most, offsets in ((100, [7]), (101, [])):
            rejected = []
            definitions = batch.portable_definitions([], most)
            fold = batch.RecordFold(
                definitions, 9, lambda _, found, to=rejected: to.extend(found), *[lambda *_: None] * 2
            )
            list(fold([pa.RecordBatch.from_pylist([row])]))
            self.assertEqual(offsets, rejected)

    def test_records_that_are_not_metrics_or_too_new_for_their_definition_are_rejected(self):
        rejected, counts = [], []
        fold = batch.RecordFold(
            batch.portable_definitions([IndexedSubExpression("cpu", 0, "t", (), 0, parse("cpu > 1").root)], 100),
            1_000,
            lambda _, found: rejected.extend(sorted(found)),
            lambda _, number, *__: counts.append(number),
            lambda *_: None,
        )
        values = [b"{", *(envelope(name, DAY_MS, 1.0, meta=META) for name in ("cpu", "mem"))]
        rows = [
            {"partition": 0, "offset": offset, "kafka_ms": 0, "value": value} for offset, value in enumerate(values)
        ]
        list(fold([pa.RecordBatch.from_pylist(rows)]))
        self.assertEqual(([0, 1], [2]), (rejected, counts))
