# SPDX-License-Identifier: Apache-2.0
"""The job evaluate with a real Kafka, Spark and database: each transition is published once, despite crashes."""

import json
import time
from unittest import mock

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.kafka import failpoints
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.settings import BatchLimits
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.storage import StorageSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline.pipeline_case import KafkaPipelineCase, SetClock, SharedSpark
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.alarms.reference import Change
from monasca_common.tests.unit.pipeline.pipeline_case import envelope

MINUTE_MS = 60_000
DAY_MS = 86_400_000


class EvaluateCase(KafkaPipelineCase):
    """Metrics have the minute that has just started on the test's clock, which is ahead of Kafka's clock."""

    def setUp(self):
        super().setUp()
        self.transitions_topic = self.fixture.topic(1)
        database = AlarmsDatabase(StorageSettings(self.database, self.url))
        self.addCleanup(database.close)
        self.definitions = AlarmDefinitions(database)
        self.created_ms = time.time_ns() // 1_000_000
        self.event_ms = (self.created_ms // MINUTE_MS + 2) * MINUTE_MS
        self.clock = SetClock(self.event_ms + 1000)

    def define(self, expression, *match_by, name="d", tenant="t"):
        definition = AlarmDefinition(name, expression, match_by=match_by)
        return self.definitions.create(tenant, definition, self.created_ms).id

    def evaluation(self, **changes):
        own = {name: changes.pop(name, 0) for name in ("delay_seconds", "outage_grace_seconds")}
        limits = BatchLimits(changes.pop("duplicates_lookback", 0), changes.pop("one_task_offsets", 10_000))
        stream = self.stream(**changes)
        settings = EvaluateSettings(stream, alarm_transitions_topic=self.transitions_topic, **own, limits=limits)
        topic = SourceTopic(stream.consumer)
        self.addCleanup(topic.close)
        publisher = TransitionPublisher(self.offset_store, self.producer, self.transitions_topic)
        spark = self.useFixture(SharedSpark()).session
        return Evaluation(spark, settings, topic, self.offset_store, publisher, self.clock)

    def measure(self, value, name="cpu", host="a", tenant="t", message_id=None, partition=None):
        meta = {"tenantId": tenant, "region": "r"}
        text = envelope(name, self.event_ms, value, dimensions={"hostname": host}, meta=meta)
        self.publish([Record(text, message_id=message_id, partition=partition)])

    def transitions(self):
        """Return (message id, old state, new state, value of hostname) of each published transition."""
        found = []
        for message in self.read(self.transitions_topic, 1):
            transition = json.loads(message.value())["alarm-transitioned"]
            host = transition["metrics"][0]["dimensions"]["hostname"]
            message_id = dict(message.headers())[MESSAGE_ID_HEADER]
            found.append((message_id, transition["oldState"], transition["newState"], host))
        return found

    def changes(self):
        return [each[1:] for each in self.transitions()]

    def assert_changes(self, *expected):
        """Check that no measurement was lost or counted twice."""
        changes = self.changes()
        with each_once():
            self.assertEqual([*expected], changes)

    def state_changes(self):
        """Return the transitions in order, by (name of the definition, value of hostname), for a reader that
        handles each message id once; and check that the history has each transition once."""
        messages = {
            dict(each.headers())[MESSAGE_ID_HEADER]: each.value() for each in self.read(self.transitions_topic, 1)
        }
        found, rows = {}, []
        for value in messages.values():
            message = json.loads(value)["alarm-transitioned"]
            host = message["metrics"][0]["dimensions"].get("hostname")
            found.setdefault((message["alarmName"], host), []).append(
                Change(
                    message["oldState"],
                    message["newState"],
                    message["timestamp"],
                    tuple(sub["subAlarmState"] for sub in message["subAlarms"]),
                    tuple(tuple(sub["currentValues"]) for sub in message["subAlarms"]),
                )
            )
            rows.append((message["alarmId"], message["timestamp"], message["oldState"], message["newState"]))
        with each_once():
            self.assertEqual(len(set(rows)), len(rows))
        return found


class StepTest(EvaluateCase):
    def test_a_deciding_measurement_creates_an_alarm_and_its_transition_in_one_step(self):
        self.define("max(cpu) > 5", "hostname")
        job = self.evaluation()
        self.measure(9.0)
        self.measure(1.0, host="b")
        report = job.step()
        self.assertEqual((2, 2, 1), (report.done, report.results["new_alarms"], report.results["transitions"]))
        self.assertEqual([("UNDETERMINED", "ALARM", "a")], self.changes())
        job.step()
        self.assertEqual(1, len(self.transitions()))

    def test_an_ended_window_is_evaluated_without_new_messages(self):
        self.define("avg(cpu) > 5", "hostname")
        job = self.evaluation(one_task_offsets=0)
        self.measure(4.0)
        self.measure(8.0)
        self.measure(1.0, host="b")
        self.assertEqual([], job.step() and self.changes())
        self.clock.now_ms += 2 * MINUTE_MS
        job.step()
        self.assertEqual({("UNDETERMINED", "ALARM", "a"), ("UNDETERMINED", "OK", "b")}, set(self.changes()))

    def test_an_invalid_metric_or_one_too_far_ahead_is_a_dead_letter(self):
        self.define("max(cpu) > 5")
        self.publish([b"{", envelope("cpu", self.event_ms + 86_400_000, 9.0, meta={"tenantId": "t", "region": "r"})])
        self.assertEqual(2, self.evaluation().step().results["rejected"])
        self.assertEqual(2, len(self.read(self.dlq, 1)))
        self.assertEqual([], self.changes())

    def test_metrics_of_another_tenant_create_no_alarm(self):
        self.define("max(cpu) > 5")
        self.measure(9.0, tenant="other")
        self.evaluation().step()
        self.assertEqual([], self.scalars("SELECT id FROM alarm"))

    def test_a_later_series_joins_its_alarm(self):
        self.define("max(cpu) > 5")
        job = self.evaluation()
        for host in "ab":
            self.measure(1.0, host=host)
            job.step()
        self.assertEqual([2], self.scalars("SELECT count(*) FROM alarm_metric"))
        self.assertEqual(["a", "b"], sorted(self.scalars("SELECT value FROM alarm_dimension")))

    def test_copies_of_a_message_count_once(self):
        self.define("count(cpu) > 2", "hostname")
        job = self.evaluation(duplicates_lookback=100)
        for partition in (0, 0, 1):
            self.measure(1.0, message_id=b"a", partition=partition)
        self.measure(1.0, message_id=b"b", partition=1)
        self.assertEqual(2, job.step().results["duplicates"])
        self.measure(1.0, message_id=b"a", partition=0)
        job.step()
        self.assert_changes()
        self.measure(1.0, message_id=b"c", partition=0)
        job.step()
        self.assert_changes(("UNDETERMINED", "ALARM", "a"))

    def test_a_function_changed_while_a_batch_is_computed_ignores_that_batch(self):
        definition = self.define("max(cpu) > 5", "hostname")
        self.define("max(mem) > 5", "hostname", name="other")
        job = self.evaluation()
        self.measure(9.0)
        self.measure(9.0, name="mem", host="b")
        stage = job._fold.stage

        def overtaken(*arguments):
            staged = stage(*arguments)
            changed = AlarmDefinition("d", "min(cpu) > 100", match_by=("hostname",))
            self.definitions.change("t", definition, lambda _: changed, self.created_ms + 1)
            return staged

        with mock.patch.object(job._fold, "stage", overtaken):
            job.step()
        other = ("UNDETERMINED", "ALARM", "b")
        self.assertEqual([other], self.changes())
        self.assertEqual([0], self.scalars("SELECT count(*) FROM alarm_staging"))
        self.measure(9.0)
        job.step()
        self.assertEqual([other, ("UNDETERMINED", "OK", "a")], self.changes())

    @periodic("DefinitionTest deletes a definition between two batches")
    def test_a_definition_deleted_while_a_batch_is_computed_leaves_no_rows(self):
        definition = self.define("max(cpu) > 5", "hostname")
        job = self.evaluation()
        self.measure(9.0)
        stage = job._fold.stage

        def overtaken(*arguments):
            staged = stage(*arguments)
            self.definitions.delete("t", definition)
            return staged

        with mock.patch.object(job._fold, "stage", overtaken):
            job.step()
        for table in ("alarm", "alarm_series", "alarm_window", "alarm_part", "alarm_changed", "alarm_staging"):
            self.assertEqual([0], self.scalars(f"SELECT count(*) FROM {table}"), table)
        self.assertEqual([], self.changes())

    def test_one_of_two_evaluators_is_fenced_and_each_transition_is_published_once(self):
        self.define("count(cpu) > 1", "hostname")
        first, second = self.evaluation(), self.evaluation()
        self.measure(1.0)
        stage = first._fold.stage

        def overtaken(*arguments):
            staged = stage(*arguments)
            second.step()
            return staged

        with mock.patch.object(first._fold, "stage", overtaken):
            self.assertRaises(Fenced, first.step)
        first.step()
        counts = self.scalars("SELECT record_count FROM alarm_window")
        with each_once():
            self.assertEqual([1], counts)
        self.measure(1.0)
        second.step()
        first.step()
        self.assert_changes(("UNDETERMINED", "ALARM", "a"))


@periodic("PostgresqlCrashTest runs the same test on PostgreSQL")
class CrashTest(EvaluateCase):
    POINTS = (
        *("pipeline.before_staging", "pipeline.after_staging", "pipeline.inside_transaction", "pipeline.after_commit"),
        *("evaluate.inside_page", "evaluate.after_commit", "evaluate.before_clearing"),
    )

    # Rules 45, 48
    def test_after_a_crash_the_next_process_publishes_each_transition_once(self):
        self.define("max(cpu) > 5", "hostname")
        self.evaluation().step()
        for number, point in enumerate(self.POINTS):
            self.measure(9.0, host=f"h{number}")
            with failpoints.armed(point, "raise"):
                self.assertRaises(failpoints.FailPointReached, self.evaluation().step)
            self.evaluation().step()
        found = set(self.transitions())
        hosts = [f"h{number}" for number in range(len(self.POINTS))]
        with each_once():
            self.assertEqual([("UNDETERMINED", "ALARM", host) for host in hosts], sorted(each[1:] for each in found))
            self.assertEqual(len(hosts), len({each[0] for each in found}))
            self.assertEqual([0], self.scalars("SELECT count(*) FROM alarm_outbox"))


@periodic("StepTest runs the same tests on SQLite")
class PostgresqlStepTest(StepTest):
    database = "postgresql"


class PostgresqlCrashTest(CrashTest):
    database = "postgresql"
