# SPDX-License-Identifier: Apache-2.0
"""The job evaluate with a real Kafka, Spark and database: each transition is published once, despite crashes and
changes by users. For random definitions, the transitions equal those of a simple reference evaluator."""

import contextlib
import json
import time
from dataclasses import replace
from random import Random
from unittest import mock

from monasca_common.alarms.alarm_queries import WhichAlarms
from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase, Slice
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.expression import FUNCTIONS, And, Expression, Or, SubExpression
from monasca_common.kafka import failpoints
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.evaluate import passes, watermark
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.settings import BatchLimits
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.storage import StorageSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline.pipeline_case import KafkaPipelineCase, SetClock, SharedSpark
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.reference import Change, Measurement
from monasca_common.tests.unit.alarms.test_evaluation import in_order_of_history
from monasca_common.tests.unit.alarms.test_expression import text_of
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS, envelope

MINUTE_MS = 60_000
DAY_MS = 86_400_000
NEW_ALARM = ("UNDETERMINED", "ALARM", "a")
OF_SERIES = ("alarm", "alarm_part", "alarm_series", "alarm_window", "sub_alarm", "alarm_metric", "alarm_dimension")
DEFINITIONS = 40
BATCHES = 6
END_MS = 24 * MINUTE_MS
DELAY_MS = 5_000


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


class ChangesCase(EvaluateCase):
    def setUp(self):
        super().setUp()
        database = AlarmsDatabase(StorageSettings(self.database, self.url))
        self.addCleanup(database.close)
        self.alarms = Alarms(database)

    def change(self, definition, **facts):
        self.definitions.change("t", definition, lambda before: replace(before, **facts), self.created_ms + 1)

    def ids(self, tenant="t"):
        with contextlib.closing(self.alarms.iter_found(WhichAlarms(tenant), (), Slice(100))) as found:
            return [each.id for each in found]

    def set_by_hand(self, alarm_id, state):
        self.alarms.change("t", alarm_id, lambda before: replace(before, state=state), self.clock.now_ms)

    def in_the_middle(self, job, act):
        """Run a step, and call ``act`` once after the batch is computed and before it is merged."""
        stage, acted = job._fold.stage, []

        def staged_and_acted(*arguments):
            staged = stage(*arguments)
            if not acted:
                acted.append(act())
            return staged

        with mock.patch.object(job._fold, "stage", staged_and_acted):
            job.step()

    def alarming(self, text="max(cpu) > 5"):
        """Return the definition, a job, and the alarm that the job has published."""
        definition, job = self.define(text, "hostname"), self.evaluation()
        self.measure(9.0)
        job.step()
        self.assertEqual([NEW_ALARM], self.changes())
        return definition, job, self.ids()[0]

    def messages(self):
        return [json.loads(each.value())["alarm-transitioned"] for each in self.read(self.transitions_topic, 1)]


class DefinitionTest(ChangesCase):
    def test_a_definition_can_change_between_two_batches(self):
        definition, job, _ = self.alarming()
        self.change(definition, expression="max(cpu) > 10")
        self.measure(9.5)
        self.clock.now_ms += MINUTE_MS
        job.step()
        self.assertEqual([NEW_ALARM, ("ALARM", "OK", "a")], self.changes())

    def test_a_definition_can_be_deleted_between_two_batches(self):
        definition, job, _ = self.alarming()
        self.definitions.delete("t", definition)
        self.measure(1.0)
        self.clock.now_ms += MINUTE_MS
        job.step()
        self.assertEqual([NEW_ALARM], self.changes())
        self.assertEqual({table: [0] for table in OF_SERIES}, self.counts())

    def counts(self):
        return {table: self.scalars(f"SELECT count(*) FROM {table}") for table in OF_SERIES}

    def test_a_definition_deleted_during_publication_leaves_only_the_message(self):
        definition, job = self.define("max(cpu) > 5", "hostname"), self.evaluation()
        self.measure(9.0)
        with failpoints.armed("evaluate.after_commit", "raise"):
            self.assertRaises(failpoints.FailPointReached, job.step)
        self.definitions.delete("t", definition)
        job.step()
        self.assertEqual([NEW_ALARM], self.changes())
        self.assertEqual({table: [0] for table in OF_SERIES}, self.counts())

    @periodic("a variant of test_a_definition_can_change_between_two_batches")
    def test_alarms_of_a_disabled_definition_change_states_with_disabled_actions(self):
        definition, job, _ = self.alarming("last(cpu) > 5")
        self.change(definition, actions_enabled=False)
        self.event_ms += 1
        self.measure(1.0)
        job.step()
        reported = [(each["newState"], each["actionsEnabled"]) for each in self.messages()]
        self.assertEqual([("ALARM", True), ("OK", False)], reported)

    @periodic("a variant of test_a_definition_can_change_between_two_batches")
    def test_a_definition_disabled_during_a_batch_is_disabled_in_that_batch(self):
        definition, job = self.define("max(cpu) > 5", "hostname"), self.evaluation()
        self.measure(9.0)
        self.in_the_middle(job, lambda: self.change(definition, actions_enabled=False))
        self.assertEqual([("ALARM", False)], [(each["newState"], each["actionsEnabled"]) for each in self.messages()])


@periodic("the normal run tests changes between two batches in DefinitionTest")
class AlarmTest(ChangesCase):
    def test_a_deleted_alarm_is_recreated_with_another_id_when_its_series_continues(self):
        _, job, alarm_id = self.alarming()
        self.alarms.delete("t", alarm_id)
        job.step()
        self.assertEqual([], self.ids())
        self.measure(9.0)
        job.step()
        self.assertEqual([NEW_ALARM, NEW_ALARM], self.changes())
        self.assertEqual(1, len(set(self.ids()) - {alarm_id}))

    def test_an_alarm_deleted_during_a_batch_is_recreated_with_that_batch(self):
        _, job, alarm_id = self.alarming("count(cpu) > 0")
        self.measure(9.0)
        self.in_the_middle(job, lambda: self.alarms.delete("t", alarm_id))
        self.assertEqual([NEW_ALARM, NEW_ALARM], self.changes())
        # The earlier measurements were deleted with the alarm.
        self.assertEqual([1], self.scalars("SELECT record_count FROM alarm_window"))

    def test_a_state_set_by_hand_during_a_batch_is_kept_until_the_next_decision(self):
        _, job, alarm_id = self.alarming()
        self.event_ms += 1
        self.measure(1.0)
        self.in_the_middle(job, lambda: self.set_by_hand(alarm_id, "OK"))
        self.assertEqual("OK", self.alarms.get("t", alarm_id).state)
        self.clock.now_ms += MINUTE_MS
        job.step()
        self.assertEqual([NEW_ALARM, ("ALARM", "OK", "a"), ("OK", "ALARM", "a")], self.changes())


@periodic("DefinitionTest runs the same tests on SQLite")
class PostgresqlDefinitionTest(DefinitionTest):
    database = "postgresql"


@periodic("AlarmTest runs the same tests on SQLite")
class PostgresqlAlarmTest(AlarmTest):
    database = "postgresql"


class StateSetByHandTest(ChangesCase):
    database = "postgresql"  # SQLite has one writer

    def test_a_state_set_by_hand_while_its_page_is_evaluated_is_kept(self):
        _, job, alarm_id = self.alarming("last(cpu) > 5")
        load = passes.load_alarms

        def set_meanwhile(*arguments):
            loaded = load(*arguments)
            self.set_by_hand(alarm_id, "UNDETERMINED")
            return loaded

        self.event_ms += 1
        self.measure(1.0)
        with mock.patch.object(passes, "load_alarms", set_meanwhile):
            job.step()
        self.assertEqual("UNDETERMINED", self.alarms.get("t", alarm_id).state)
        self.assertEqual([NEW_ALARM, ("ALARM", "UNDETERMINED", "a")], self.changes())


class TenantsTest(ChangesCase):
    def test_three_tenants_with_equal_definitions_and_series_never_see_each_other(self):
        tenants = ("t", "u", "v")
        for tenant in tenants:
            self.define("max(cpu) > 5", "hostname", tenant=tenant)
        job = self.evaluation()
        for tenant, value in zip(tenants, (9.0, 1.0, 9.0), strict=True):
            self.measure(value, tenant=tenant)
        self.measure(9.0, tenant="w")
        job.step()
        self.assertEqual([1, 1, 1], [len(self.ids(tenant)) for tenant in tenants])
        self.clock.now_ms += MINUTE_MS
        job.step()
        reported = {(each["tenantId"], each["alarmId"], each["newState"]) for each in self.messages()}
        states = dict(zip(tenants, ("ALARM", "OK", "ALARM"), strict=True))
        self.assertEqual({(tenant, self.ids(tenant)[0], state) for tenant, state in states.items()}, reported)


class RandomEvaluationTest(EvaluateCase):
    def test_the_transitions_are_those_of_the_plain_reference(self):
        random = Random(20)
        self.base_ms = (self.created_ms // HOUR_MS + 2) * HOUR_MS
        watermarks = [*sorted(random.sample(range(1000, 16 * MINUTE_MS), BATCHES - 1)), END_MS]
        expressions = [_expression(random, f"m{number}") for number in range(DEFINITIONS)]
        for number, expression in enumerate(expressions):
            self.define(text_of(expression), name=f"d{number}")
        batches = [_batches(random, expression, watermarks) for expression in expressions]
        job = self.evaluation(one_task_offsets=0, min_partitions=3, delay_seconds=DELAY_MS // 1000)
        # The clock jumps between batches, and on a busy machine a batch can take longer than such a jump.
        with mock.patch.multiple(watermark, LONGEST_SILENCE_MS=2**52, LONGEST_STEP_MS=2**52):
            for position, watermark_ms in enumerate(watermarks):
                self.clock.now_ms = self.base_ms + watermark_ms
                texts = [self.text(number, one) for number, own in enumerate(batches) for one in own[position][0]]
                random.shuffle(texts)
                self.publish(list(map(Record, texts)))
                job.step()
        found = self.state_changes()
        reported = 0
        for number, (expression, own) in enumerate(zip(expressions, batches, strict=True)):
            changes = in_order_of_history(reference.changes(expression, own, DELAY_MS))
            expected = [each._replace(timestamp_ms=self.base_ms + each.timestamp_ms) for each in changes]
            self.assertEqual(expected, found.get((f"d{number}", None), []), (text_of(expression), own))
            reported += len(expected)
        self.assertGreater(reported, 2 * DEFINITIONS)

    def text(self, number, one):
        meta = {"tenantId": "t", "region": "r"}
        dimensions = {"position": str(one.sub)}
        return envelope(f"m{number}", self.base_ms + one.time_ms, one.value, dimensions=dimensions, meta=meta)


def _expression(random, name):
    """Generate an expression of one or two sub-expressions."""
    subs = [
        SubExpression(
            random.choice(FUNCTIONS),
            name,
            (("position", str(position)),),
            random.random() < 0.3,
            random.choice(["LT", "LTE", "GT", "GTE"]),
            random.choice([-1.5, 0.0, 1.0, 2.0, 2.5]),
            random.choice([60, 60, 120, 180]),
            random.choice([1, 1, 2, 3]),
        )
        for position in range(random.choice([1, 1, 2]))
    ]
    return Expression(subs[0] if len(subs) == 1 else random.choice([And, Or])(tuple(subs)))


def _batches(random, expression, watermarks):
    """Generate (measurements, watermark) of each batch. The first batch has a series for each sub-expression. The
    measurements of a single sub-expression can be late."""
    positions = len(expression.sub_expressions)
    values = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 0.1]
    batches = [([Measurement(each, random.choice(values), each) for each in range(positions)], watermarks[0])]
    batches += [([], each) for each in watermarks[1:]]
    for time_ms in sorted(random.sample(range(10, 16 * MINUTE_MS), random.randrange(40))):
        one = Measurement(time_ms, random.choice(values), random.randrange(positions))
        first = next(number for number, each in enumerate(watermarks) if each >= time_ms)
        late = random.randrange(2) if positions == 1 else 0
        batches[min(first + late, len(watermarks) - 1)][0].append(one)
    return batches


@periodic("RandomEvaluationTest runs the same test on SQLite")
class PostgresqlRandomEvaluationTest(RandomEvaluationTest):
    database = "postgresql"
