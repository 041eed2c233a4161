# SPDX-License-Identifier: Apache-2.0
"""Changes of definitions and alarms by users, between two batches of the job evaluate and during a batch; and the
separation of tenants."""

import contextlib
import json
from dataclasses import replace
from unittest import mock

from monasca_common.alarms.alarm_queries import WhichAlarms
from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase, Slice
from monasca_common.kafka import failpoints
from monasca_common.pipeline.evaluate import passes
from monasca_common.storage import StorageSettings
from monasca_common.tests.functional.pipeline.test_evaluate import MINUTE_MS, EvaluateCase
from monasca_common.tests.periodic import periodic

NEW_ALARM = ("UNDETERMINED", "ALARM", "a")
OF_SERIES = ("alarm", "alarm_part", "alarm_series", "alarm_window", "sub_alarm", "alarm_metric", "alarm_dimension")


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
