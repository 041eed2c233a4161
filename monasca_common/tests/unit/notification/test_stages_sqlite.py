# SPDX-License-Identifier: Apache-2.0
"""Notification stages with SQLite and a manually advanced clock. The PostgreSQL tests reuse the mixins.

The tests call the handlers directly; `Receivers` replaces the notifier.
"""

import contextlib
import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from unittest import mock

import fixtures
import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.silences import Silence, Silences
from monasca_common.alarms.transitions import AlarmedMetric
from monasca_common.kafka import Message, RetryPolicy, failpoints
from monasca_common.notification.deferred_sender import DeferredSender
from monasca_common.notification.delivery import NotificationDelivery
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.handlers import NotificationHandler
from monasca_common.notification.ledger import Ledger
from monasca_common.notification.metrics import NotificationMetrics
from monasca_common.notification.notification import notification_of
from monasca_common.notification.pipeline import Pipeline
from monasca_common.notification.retries import Retry
from monasca_common.notification.settings import ProcessorSettings
from monasca_common.notification.stages import Inhibition, StageRules
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

SECOND_MS, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000
LEASE_MS = 30_000
MAX_ATTEMPTS = 3
HOST = "Host is down"


class Receivers:
    """A notifier. ``taken``: (notification, address) of each message; ``fails``: whether attempts fail."""

    def __init__(self):
        self.taken = []
        self.fails = False

    def destination(self, address):
        return address

    def send(self, notification, address):
        if self.fails:
            raise SendFailed("responded with 500")
        self.taken.append((notification, address))
        return "responded with 200"


class SameThread(Executor):
    """Run each call in the thread that submits it."""

    def submit(self, call, *arguments):
        future = Future()
        future.set_result(call(*arguments))
        return future


class StagesCase:
    rules = StageRules()

    def setUp(self):
        super().setUp()
        self.clock = self.database.clock
        self.alarms_database = AlarmsDatabase(self.database.settings)
        self.addCleanup(self.alarms_database.close)
        self.methods = NotificationMethods(self.alarms_database)
        self.notifier = Receivers()
        self.actions = 0
        self.start()

    def start(self, rules=None):
        """Start a process without the memory of the previous one."""
        if rules is not None:
            self.rules = rules
        self.metrics = NotificationMetrics()
        self.delivery = NotificationDelivery(
            Ledger(self.alarms_database),
            {"WEBHOOK": self.notifier},
            RetryPolicy(attempts=MAX_ATTEMPTS, backoff_seconds=0.1),
            ProcessorSettings(number=8),
            self.clock,
            self.metrics,
        )
        self.pipeline = Pipeline(self.alarms_database, self.rules, self.clock, self.metrics.count)
        executor = ThreadPoolExecutor(4)
        self.addCleanup(executor.shutdown)
        self.changes = NotificationHandler(
            self.methods,
            self.pipeline,
            self.delivery,
            self.clock,
            envelopes=EnvelopeReader(),
            executor=executor,
        )
        self.releases = self.release()

    def release(self):
        return DeferredSender(
            self.pipeline, self.methods, self.changes, SameThread(), 64, self.clock, 0.0, MemberStatus("deferred")
        )

    def method(self, name="hook", *, definition="d1", states=("ALARM", "OK", "UNDETERMINED"), period=0, tenant="t1"):
        """Create a method with actions for these states, and return its id."""
        asked = NotificationMethod(f"{name} {self.actions}", "WEBHOOK", f"http://{name}/", period)
        made = self.methods.create(tenant, asked, 1)
        self.act(made.id, definition, states)
        return made.id

    def act(self, method_id, definition="d1", states=("ALARM", "OK", "UNDETERMINED")):
        for state in states:
            self.actions += 1
            row = {"definition_id": definition, "state": state, "position": self.actions, "method_id": method_id}
            self.write(tables.alarm_action.insert().values(row))

    def define(self, own_id, name, *, severity="LOW", tenant="t1"):
        row = {"id": own_id, "tenant": tenant, "name": name, "description": "", "expression": "", "match_by": []}
        row |= {"severity": severity, "deterministic": False, "actions_enabled": True}
        self.write(tables.alarm_definition.insert().values(row | {"created": 1, "updated": 1}))

    def write(self, statement):
        self.alarms_database.write(lambda connection: connection.execute(statement))

    def alarm(self, own_id="a1", state="ALARM", *, definition="d1", hostname="h1", tenant="t1", **facts):
        """Store the new state of the alarm, and return its change."""
        alarm, metric, dimension = tables.alarm, tables.alarm_metric, tables.alarm_dimension
        values = {"state": state, "state_updated": self.clock.now_ms, "lifecycle_state": None}
        before = self.alarms_database.rows(sa.select(alarm.c.state).where(alarm.c.id == own_id))
        facts = {"old_state": before[0][0] if before else "OK", **facts}
        if before:
            self.write(alarm.update().where(alarm.c.id == own_id).values(values))
        else:
            row = {"id": own_id, "tenant": tenant, "definition_id": definition, "match_key": own_id.encode()}
            row |= {"match_values": [], "updated": 1, "created": 1}
            series = {"alarm_id": own_id, "series_id": own_id.encode(), "tenant": tenant}
            self.write(alarm.insert().values(row | values))
            self.write(metric.insert().values(series | {"name": "up", "dimensions": {"hostname": hostname}}))
            named = {"name": "hostname", "value": hostname, "metric_name": "up"}
            self.write(dimension.insert().values(series | named))
        return change(
            alarm_id=own_id,
            definition_id=definition,
            tenant=tenant,
            new_state=state,
            time_ms=self.clock.now_ms,
            **{"metrics": [AlarmedMetric("up", {"hostname": hostname})], **facts},
        )

    def handle(self, made):
        """Let the service handle the change."""
        self.changes(_read("alarm-state-transitions", made.message))
        self.deliver()

    def wait(self, ms=0):
        """Advance the clock, and let the service handle due notifications."""
        self.clock.now_ms += ms
        self.releases.release_due()
        self.deliver()

    def deliver(self):
        """Let the service run all attempts that no process has claimed, as if they were due."""
        table = tables.notification_deferred
        unclaimed = (table.c.kind == "scheduled", table.c.message_id == "")
        while True:
            self.write(table.update().where(*unclaimed).values(due=self.clock.now_ms))
            if not self.releases.send_retries():
                break

    def scheduled(self):
        """Return the stored retries in the order in which they are due."""
        table = tables.notification_deferred
        columns = [table.c[name] for name in ("notification_id", "method_id", "number", "due", "value")]
        statement = sa.select(*columns).where(table.c.kind == "scheduled").order_by(table.c.due)
        return [Retry.read(*row) for row in self.alarms_database.rows(statement)]

    def attempt(self, retry):
        """Run an attempt, and return the following retry, if any."""
        following = self.changes.attempt(retry)
        self.pipeline.deferred.complete(retry, following, self.clock.now_ms)
        return following

    def silence(self, dimensions, ms, *, tenant="t1"):
        now_ms = self.clock.now_ms
        made = Silence(tenant, dimensions, now_ms, now_ms + ms, "ann", "disks")
        return Silences(self.alarms_database).create(made, now_ms)

    def sent(self):
        """Return the messages that were sent since the last call: the alarms and their states."""
        taken, self.notifier.taken = self.notifier.taken, []
        return [
            " ".join(sorted(f"{each.alarm_id}:{each.new_state}" for each in notification.changes))
            for notification, _ in taken
        ]

    def ledger(self):
        """Return the state of each notification, by alarm."""
        table = tables.notification
        rows = self.alarms_database.rows(sa.select(table.c.alarm_id, table.c.state).order_by(table.c.alarm_id))
        return [tuple(row) for row in rows]

    def held(self):
        rows = self.alarms_database.rows(sa.select(tables.notification_deferred.c.kind))
        return sorted(kind for (kind,) in rows)


def _read(topic, value):
    return Message(topic, 0, 0, None, None, value, ())


class SilencesContract(StagesCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")
        self.define("d2", "cpu", tenant="t2")

    def test_at_the_end_of_a_silence_methods_that_were_not_notified_are_notified_once(self):
        self.method()
        self.silence({"hostname": "h1"}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("a2", hostname="h2"))
        self.assertEqual((["a2:ALARM"], [("a1", "silenced"), ("a2", "sent")]), (self.sent(), self.ledger()))
        self.wait(HOUR_MS - 1)
        self.assertEqual([], self.sent())
        self.start()
        self.wait(1)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))
        self.wait(HOUR_MS)
        self.assertEqual([], self.sent())

    def test_an_alarm_that_ended_during_the_silence_is_not_sent(self):
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1", "OK"))
        self.wait(HOUR_MS)
        self.assertEqual(([], []), (self.sent(), self.held()))
        self.assertEqual([("a1", "silenced")] * 2, self.ledger())

    def test_a_silenced_return_to_ok_is_sent_to_methods_that_were_notified_of_the_alarm(self):
        self.method()
        self.handle(self.alarm("a1"))
        self.silence({}, HOUR_MS)
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1", "OK"))
        self.wait(HOUR_MS)
        self.assertEqual(["a1:ALARM", "a1:OK"], self.sent())

    def test_a_return_to_ok_is_not_sent_if_the_alarm_was_not_sent(self):
        self.method()
        made = self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        ended = self.alarm("a1", "OK")
        Silences(self.alarms_database).delete("t1", made.id)
        self.handle(ended)
        self.wait(HOUR_MS)
        self.assertEqual(([], []), (self.sent(), self.held()))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_deleting_a_silence_ends_it(self):
        self.method()
        made = self.silence({}, HOUR_MS)
        self.silence({"hostname": "h2"}, HOUR_MS)
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}", hostname=f"h{number}"))
        Silences(self.alarms_database).delete("t1", made.id)
        self.wait()
        self.assertEqual((["a1:ALARM"], ["silenced"]), (self.sent(), self.held()))

    # Rule 58
    def test_a_silence_deleted_while_a_change_is_planned_does_not_withhold_it(self):
        method = self.method()
        made = self.silence({}, HOUR_MS)
        changed = self.alarm("a1")
        [facts] = self.pipeline.facts(changed, [method])
        Silences(self.alarms_database).delete("t1", made.id)
        self.assertTrue(self.pipeline.defers(notification_of(changed, method), self.methods.get("t1", method), facts))
        self.wait()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_a_silence_deleted_during_its_release_does_not_withhold_notifications(self):
        method = self.method()
        made = self.silence({}, HOUR_MS)
        changed = self.alarm("a1")
        self.handle(changed)
        facts = self.pipeline.facts(changed, [method])
        Silences(self.alarms_database).delete("t1", made.id)
        with mock.patch.object(self.pipeline, "_facts", return_value=facts):
            self.releases.release_due()
        self.wait()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_a_silence_affects_only_its_tenant(self):
        self.method()
        self.method("other", definition="d2", tenant="t2")
        self.silence({}, HOUR_MS, tenant="t2")
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("b1", definition="d2", tenant="t2"))
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_change_that_is_read_twice_is_silenced_once(self):
        self.method()
        self.silence({}, HOUR_MS)
        made = self.alarm("a1")
        self.handle(made)
        self.handle(made)
        self.assertEqual((["silenced"], [("a1", "silenced")]), (self.held(), self.ledger()))
        self.wait(HOUR_MS)
        self.handle(made)
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_notification_sent_by_hand_during_the_silence_is_not_sent_at_its_end(self):
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.write(tables.notification.update().values(state="sent", attempts=1))
        self.wait(HOUR_MS)
        self.assertEqual(([], []), (self.sent(), self.held()))

    def test_a_silenced_notification_is_sent_although_its_ledger_row_was_removed(self):
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.write(tables.notification.delete())
        self.wait(HOUR_MS)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_a_method_deleted_during_the_silence_sends_nothing(self):
        method = self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        self.methods.delete("t1", method)
        self.wait(HOUR_MS)
        self.assertEqual(([], []), (self.sent(), self.held()))

    def test_a_crash_after_a_claim_loses_nothing(self):
        self.method()
        self.silence({}, HOUR_MS)
        self.handle(self.alarm("a1"))
        with failpoints.armed("notification.after_claim", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.wait, HOUR_MS)
        self.start()
        self.wait(LEASE_MS)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))


class RepeatsContract(StagesCase):
    def acknowledge(self, own_id="a1", state="ACKNOWLEDGED"):
        self.write(tables.alarm.update().where(tables.alarm.c.id == own_id).values(lifecycle_state=state))

    def test_an_alarm_is_sent_each_minute_until_it_leaves_the_state(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.sent())
        for _ in range(3):
            self.wait(MINUTE_MS - 1)
            self.assertEqual([], self.sent())
            self.start()
            self.wait(1)
            self.assertEqual(["a1:ALARM"], self.sent())
        self.handle(self.alarm("a1", "OK"))
        self.wait(MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual((["a1:OK"], []), (self.sent(), self.held()))

    def test_each_repeat_has_its_own_id(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.wait(MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(3, len({notification.id for notification, _ in self.notifier.taken}))

    def test_an_acknowledged_alarm_is_not_repeated_until_its_acknowledgement_is_removed(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.acknowledge()
        self.wait(MINUTE_MS)
        self.start()
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"], self.sent())
        self.acknowledge(state=None)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_silenced_alarm_is_not_repeated(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.silence({}, 2 * MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"], self.sent())
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_repeats_start_after_a_silence(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.silence({}, MINUTE_MS)
        self.handle(self.alarm("a1"))
        self.wait(MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM"] * 2, self.sent())

    def test_repeats_continue_although_the_alarm_left_its_state_during_a_silence(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.silence({}, 2 * MINUTE_MS)
        for state in ("OK", "ALARM"):
            self.wait(SECOND_MS)
            self.handle(self.alarm("a1", state))
        self.assertEqual(["a1:ALARM"], self.sent())
        self.wait(2 * MINUTE_MS)
        self.wait(MINUTE_MS)
        self.assertEqual((["a1:ALARM"] * 2, ["repeat"]), (self.sent(), self.held()))

    def test_repeats_continue_after_a_silence_that_began_during_an_attempt(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        state = tables.notification.c.state
        self.write(tables.notification.update().values(state="sending"))
        self.silence({}, MINUTE_MS)
        for changed in ("OK", "ALARM"):
            self.clock.now_ms += 1
            self.handle(self.alarm("a1", changed))
        self.write(tables.notification.update().where(state == "sending").values(state="sent"))
        for _ in range(3):
            self.wait(MINUTE_MS)
        self.assertEqual((["a1:ALARM"] * 3, ["repeat"]), (self.sent(), self.held()))

    def test_a_failed_repeat_is_not_sent_after_its_alarm_has_ended(self):
        self.define("d1", "cpu")
        self.method(period=60, states=("ALARM",))
        self.handle(self.alarm("a1"))
        self.clock.now_ms += MINUTE_MS
        self.releases.release_due()
        self.notifier.fails = True
        self.releases.send_retries()
        self.notifier.fails = False
        self.alarm("a1", "OK")
        self.deliver()
        self.assertEqual((["a1:ALARM"], ["repeat"]), (self.sent(), self.held()))

    def test_an_ended_alarm_is_not_repeated(self):
        self.define("d1", "cpu")
        method = self.method(period=60)
        for number, end in enumerate(
            (
                lambda: self.write(tables.alarm.delete()),
                lambda: self.write(tables.alarm_definition.update().values(actions_enabled=False)),
                lambda: self.write(tables.alarm_action.delete()),
                lambda: self.methods.delete("t1", method),
            )
        ):
            self.handle(self.alarm(f"a{number}"))
            end()
            self.wait(MINUTE_MS)
            self.assertEqual([f"a{number}:ALARM"], self.sent()[:1])
            self.assertEqual([], self.sent())
            self.write(tables.alarm_definition.update().values(actions_enabled=True))
            self.write(tables.notification_deferred.delete())
            self.write(tables.alarm_action.delete())
            self.act(method)

    def test_missed_repeats_are_not_sent_later(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.wait(10 * MINUTE_MS + SECOND_MS)
        self.wait()
        self.assertEqual(["a1:ALARM"] * 2, self.sent())
        self.wait(MINUTE_MS - SECOND_MS)
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_repeat_delayed_by_a_missing_process_until_the_next_repeat_is_skipped(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.clock.now_ms += MINUTE_MS
        self.releases.release_due()
        self.wait(MINUTE_MS + 1)
        self.assertEqual(["a1:ALARM"] * 2, self.sent())

    def test_a_repeat_that_waited_for_a_slot_until_the_next_repeat_is_skipped(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.clock.now_ms += MINUTE_MS
        self.releases.release_due()
        [retry] = self.scheduled()
        busy = mock.patch.object(self.delivery._slots, "slot", lambda *_: contextlib.nullcontext(None))
        with busy:
            self.assertLessEqual(self.attempt(retry).due_ms, self.clock.now_ms + 2 * SECOND_MS)
        self.wait(MINUTE_MS + 1)
        self.assertEqual(["a1:ALARM"] * 2, self.sent())

    def test_a_crash_neither_duplicates_nor_ends_repeats(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        with failpoints.armed("notification.after_claim", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.wait, MINUTE_MS)
        self.start()
        self.deliver()
        self.wait(LEASE_MS)
        self.assertEqual(["a1:ALARM"] * 2, self.sent())
        self.wait(MINUTE_MS)
        self.assertEqual((["a1:ALARM"], ["repeat"]), (self.sent(), self.held()))

    def test_each_state_except_ok_is_repeated(self):
        self.define("d1", "cpu")
        self.method(period=60)
        for state, kinds in (("OK", []), ("UNDETERMINED", ["repeat"])):
            self.handle(self.alarm("a1", state))
            self.assertEqual(([f"a1:{state}"], kinds), (self.sent(), self.held()))
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:UNDETERMINED"], self.sent())


class GroupsContract(StagesCase):
    rules = StageRules(group_by=("definition",), group_wait_ms=10 * SECOND_MS)

    def test_alarms_of_a_definition_are_one_message_after_the_group_wait(self):
        self.method()
        self.act_of_another = self.method("other", definition="d2")
        self.handle(self.alarm("a1"))
        self.wait(9 * SECOND_MS)
        self.handle(self.alarm("a2", "OK"))
        self.handle(self.alarm("b1", definition="d2"))
        self.assertEqual(([], ["held"] * 3), (self.sent(), self.held()))
        self.start()
        self.wait(SECOND_MS)
        self.assertEqual((["a1:ALARM a2:OK"], ["held"]), (self.sent(), self.held()))
        self.wait(9 * SECOND_MS)
        self.assertEqual((["b1:ALARM"], []), (self.sent(), self.held()))
        self.assertEqual({"sent"}, {state for _, state in self.ledger()})

    def test_a_change_after_a_group_message_is_in_the_next_message(self):
        self.method()
        self.handle(self.alarm("a1"))
        self.wait(10 * SECOND_MS)
        self.handle(self.alarm("a2"))
        self.wait(9 * SECOND_MS)
        self.handle(self.alarm("a3"))
        self.wait(SECOND_MS)
        self.assertEqual(["a1:ALARM", "a2:ALARM a3:ALARM"], self.sent())

    # Rule 56
    def test_a_change_read_again_with_other_rules_is_sent_only_in_its_group(self):
        self.method()
        made = self.alarm("a1")
        self.handle(made)
        self.start(StageRules())
        self.handle(made)
        self.assertEqual([], self.sent())
        self.wait(10 * SECOND_MS)
        self.handle(made)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_each_method_and_each_value_of_a_dimension_has_its_group(self):
        self.start(StageRules(group_by=("hostname",), group_wait_ms=SECOND_MS))
        self.method()
        self.method()
        for number in range(4):
            self.handle(self.alarm(f"a{number}", hostname=f"h{number % 2}"))
        self.wait(SECOND_MS)
        self.assertEqual(["a0:ALARM a2:ALARM"] * 2 + ["a1:ALARM a3:ALARM"] * 2, sorted(self.sent()))

    def test_the_most_severe_alarm_of_a_group_is_first(self):
        self.method()
        self.handle(self.alarm("a1", "OK", severity="CRITICAL"))
        self.handle(self.alarm("a2", severity="LOW"))
        self.handle(self.alarm("a3", severity="HIGH"))
        self.wait(10 * SECOND_MS)
        [(notification, _)] = self.notifier.taken
        self.assertEqual(["a3", "a2", "a1"], [each.alarm_id for each in notification.changes])

    def test_a_failed_group_is_retried_with_all_members_and_the_same_id(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.notifier.fails = True
        self.clock.now_ms += 10 * SECOND_MS
        self.releases.release_due()
        [retry] = self.scheduled()
        self.attempt(retry)
        self.start()
        self.notifier.fails = False
        self.deliver()
        self.assertEqual((["a1:ALARM a2:ALARM"], []), (self.sent(), self.held()))

    def test_giving_up_a_group_message_gives_up_its_members(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.notifier.fails = True
        self.wait(10 * SECOND_MS)
        self.assertEqual(([], {"given up"}), (self.held(), {state for _, state in self.ledger()}))

    def test_deleting_a_method_gives_up_its_group_messages(self):
        method = self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.clock.now_ms += 10 * SECOND_MS
        self.releases.release_due()
        self.methods.delete("t1", method)
        self.deliver()
        self.assertEqual(([], [], {"given up"}), (self.sent(), self.held(), {state for _, state in self.ledger()}))

    # Rule 55
    def test_a_crash_between_release_and_attempt_sends_the_same_message(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.clock.now_ms += 10 * SECOND_MS
        self.releases.release_due()
        self.start()
        self.handle(self.alarm("a3"))
        self.wait(LEASE_MS)
        self.assertEqual({"a1:ALARM a2:ALARM", "a3:ALARM"}, set(self.sent()))
        self.assertEqual([], self.held())

    def test_a_crash_after_the_claim_sends_it_once(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        with failpoints.armed("notification.after_claim", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.wait, 10 * SECOND_MS)
        self.start()
        self.wait(LEASE_MS)
        self.assertEqual((["a1:ALARM a2:ALARM"], []), (self.sent(), self.held()))

    def test_a_crash_after_the_message_was_sent_finishes_its_members(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))

        self.clock.now_ms += 10 * SECOND_MS
        self.releases.release_due()
        with failpoints.armed("notification.after_attempt", "raise"):
            self.releases.send_retries()
        self.assertEqual(["held", "held", "scheduled"], self.held())
        self.start()
        self.wait(LEASE_MS)
        self.assertEqual((["a1:ALARM a2:ALARM"], []), (self.sent(), self.held()))
        self.assertEqual({"sent"}, {state for _, state in self.ledger()})

    # Rule 55
    def test_only_one_of_two_processes_sends_a_group(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.clock.now_ms += 10 * SECOND_MS
        deferred = self.pipeline.deferred
        rows = deferred.due(self.clock.now_ms, 9)
        members = deferred.members(rows[0].group_key)
        self.releases.release_due()
        self.useFixture(
            fixtures.MonkeyPatch("monasca_common.notification.deferred.DeferredNotifications.due", lambda *_: rows)
        )
        self.useFixture(
            fixtures.MonkeyPatch(
                "monasca_common.notification.deferred.DeferredNotifications.members", lambda *_: members
            )
        )
        self.release().release_due()
        self.assertEqual(1, len(self.scheduled()))
        self.deliver()
        self.assertEqual(["a1:ALARM a2:ALARM"], self.sent())

    def test_a_waiting_notification_that_was_sent_by_hand_is_not_in_the_group_message(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        table = tables.notification
        self.write(table.update().where(table.c.alarm_id == "a1").values(state="sent", attempts=1))
        self.wait(10 * SECOND_MS)
        self.assertEqual((["a2:ALARM"], []), (self.sent(), self.held()))

    def test_tenants_have_separate_group_messages(self):
        self.method()
        self.method("other", definition="d2", tenant="t2")
        self.start(StageRules(group_by=("hostname",), group_wait_ms=SECOND_MS))
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("b1", definition="d2", tenant="t2"))
        self.wait(SECOND_MS)
        self.assertEqual(["a1:ALARM", "b1:ALARM"], sorted(self.sent()))

    def test_a_change_silenced_while_it_waits_leaves_its_group(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}", hostname=f"h{number}"))
        self.silence({"hostname": "h1"}, HOUR_MS)
        self.wait(10 * SECOND_MS)
        self.assertEqual((["a2:ALARM"], ["silenced"]), (self.sent(), self.held()))

    def test_members_of_several_megabytes_are_separate_messages(self):
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}", reason="x" * 5_000_000))
        self.handle(self.alarm("a3"))
        self.clock.now_ms += 10 * SECOND_MS
        for _ in range(3):
            self.wait()
        self.assertEqual((["a1:ALARM", "a2:ALARM", "a3:ALARM"], []), (sorted(self.sent()), self.held()))

    def test_an_unexpected_failure_blocks_no_other_group(self):
        self.method()
        self.method("other", definition="d2")
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("b1", definition="d2"))
        found = NotificationMethods.notified

        def fails(methods, tenant, definition, state):
            if definition == "d1":
                raise ValueError("a flaw")
            return found(methods, tenant, definition, state)

        with fixtures.MonkeyPatch("monasca_common.alarms.notification_methods.NotificationMethods.notified", fails):
            self.wait(10 * SECOND_MS)
            self.assertEqual(["b1:ALARM"], self.sent())
        self.wait(MINUTE_MS)
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_changes_without_the_grouping_dimension_form_one_group(self):
        self.start(StageRules(group_by=("region", "definition"), group_wait_ms=SECOND_MS))
        self.method()
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}", metrics=()))
        self.wait(SECOND_MS)
        self.assertEqual(["a1:ALARM a2:ALARM"], self.sent())

    def test_periodic_members_of_a_group_are_repeated(self):
        self.define("d1", "cpu")
        self.method(period=60)
        for number in (1, 2):
            self.handle(self.alarm(f"a{number}"))
        self.wait(10 * SECOND_MS)
        self.wait(MINUTE_MS)
        self.assertEqual(["a1:ALARM", "a1:ALARM a2:ALARM", "a2:ALARM"], sorted(self.sent()))

    def test_repeats_continue_after_the_silence_of_a_group_in_which_the_alarm_returned(self):
        self.define("d1", "cpu")
        self.method(period=60)
        self.handle(self.alarm("a1"))
        self.wait(10 * SECOND_MS)
        self.handle(self.alarm("a1", "OK"))
        self.wait(SECOND_MS)
        self.handle(self.alarm("a1"))
        self.silence({}, MINUTE_MS)
        self.wait(9 * SECOND_MS)
        self.assertEqual(["a1:ALARM"], self.sent())
        for _ in range(2):
            self.wait(MINUTE_MS)
        self.assertEqual((["a1:ALARM"] * 2, ["repeat"]), (self.sent(), self.held()))


class LimitsContract(StagesCase):
    rules = StageRules(max_per_minute=2)

    def test_messages_above_the_limit_of_a_minute_become_one_digest_at_its_end(self):
        self.method()
        for number in range(5):
            self.handle(self.alarm(f"a{number}"))
            self.wait(SECOND_MS)
        self.assertEqual((["a0:ALARM", "a1:ALARM"], ["held"] * 3), (self.sent(), self.held()))
        self.start()
        self.wait(54 * SECOND_MS)
        self.assertEqual([], self.sent())
        self.wait(SECOND_MS)
        self.assertEqual((["a2:ALARM a3:ALARM a4:ALARM"], []), (self.sent(), self.held()))
        self.handle(self.alarm("a5"))
        self.handle(self.alarm("a6"))
        self.assertEqual(["a5:ALARM"], self.sent())

    def test_each_method_has_its_own_limit(self):
        for _ in range(3):
            self.method()
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"] * 3, self.sent())

    def test_a_later_change_does_not_overtake_a_waiting_digest(self):
        self.method()
        for number in range(3):
            self.handle(self.alarm(f"a{number}"))
        self.clock.now_ms += MINUTE_MS
        self.handle(self.alarm("a2", "OK"))
        self.assertEqual(["a0:ALARM", "a1:ALARM"], self.sent())
        self.wait()
        [(notification, _)] = self.notifier.taken
        self.assertEqual(
            {("a2", "ALARM"), ("a2", "OK")}, {(each.alarm_id, each.new_state) for each in notification.changes}
        )

    def test_a_large_digest_is_several_messages_that_count_towards_the_limit(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.notification.deferred.MOST_MEMBERS", 2))
        self.start(StageRules(max_per_minute=1))
        self.method()
        for number in range(4):
            self.handle(self.alarm(f"a{number}"))
            self.clock.now_ms += 1
        self.wait(MINUTE_MS)
        self.assertEqual(["a0:ALARM", "a1:ALARM a2:ALARM"], self.sent())
        self.wait(MINUTE_MS)
        self.assertEqual((["a3:ALARM"], []), (self.sent(), self.held()))

    def test_a_change_read_again_while_its_digest_is_sent_is_only_in_the_digest(self):
        self.method()
        changes = [self.alarm(f"a{number}") for number in range(4)]
        for each in changes:
            self.handle(each)
        self.clock.now_ms += MINUTE_MS
        self.releases.release_due()
        [_digest] = self.pipeline.deferred.claim_retries(self.clock.now_ms, self.clock.now_ms + LEASE_MS, 9)
        with mock.patch.object(self.delivery._slots, "slot", lambda *_: contextlib.nullcontext(None)):
            self.changes(_read("alarm-state-transitions", changes[2].message))
        self.deliver()
        self.wait(LEASE_MS)
        self.assertEqual((["a0:ALARM", "a1:ALARM", "a2:ALARM a3:ALARM"], []), (self.sent(), self.held()))

    def test_minutes_of_inactive_methods_are_removed_with_the_ledger(self):
        for _ in range(2):
            self.method()
        self.handle(self.alarm("a1"))
        rates = sa.select(tables.notification_rate.c.method_id)
        self.assertEqual(2, len(self.alarms_database.rows(rates)))
        Ledger(self.alarms_database).prune(self.clock.now_ms)
        self.assertEqual(2, len(self.alarms_database.rows(rates)))
        Ledger(self.alarms_database).prune(self.clock.now_ms + 1)
        self.assertEqual([], list(self.alarms_database.rows(rates)))

    def test_a_group_counts_as_one_message_towards_the_limit(self):
        self.start(StageRules(group_by=("definition",), group_wait_ms=SECOND_MS, max_per_minute=1))
        method = self.method()
        self.act(method, "d2")
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("b1", definition="d2"))
        self.handle(self.alarm("b2", definition="d2"))
        self.wait(SECOND_MS)
        self.assertEqual(1, len(self.sent()))
        self.wait(MINUTE_MS)
        self.assertEqual((1, []), (len(self.sent()), self.held()))


class InhibitionContract(StagesCase):
    rules = StageRules(inhibitions=(Inhibition(("hostname",), definition=HOST),))

    def setUp(self):
        super().setUp()
        self.define("d1", "service")
        self.define("host", HOST, severity="CRITICAL")
        self.act(self.method(), "host")

    def host(self, state="ALARM", hostname="h1", tenant="t1"):
        return self.alarm(f"host-{hostname}", state, definition="host", hostname=hostname, tenant=tenant, name=HOST)

    def test_a_host_that_is_down_inhibits_its_services_until_it_is_up(self):
        self.handle(self.host())
        self.handle(self.alarm("a1"))
        self.handle(self.alarm("a2", hostname="h2"))
        self.assertEqual(["host-h1:ALARM", "a2:ALARM"], self.sent())
        self.assertIn(("a1", "inhibited"), self.ledger())
        self.start()
        for _ in range(3):
            self.wait(MINUTE_MS)
        self.assertEqual(([], ["inhibited"]), (self.sent(), self.held()))
        self.handle(self.host("OK"))
        self.wait(MINUTE_MS)
        self.assertEqual((["host-h1:OK", "a1:ALARM"], []), (self.sent(), self.held()))

    def test_services_that_recover_with_their_host_are_not_sent(self):
        self.handle(self.host())
        self.handle(self.alarm("a1"))
        self.wait(SECOND_MS)
        self.handle(self.host("OK"))
        self.handle(self.alarm("a1", "OK"))
        self.wait(MINUTE_MS)
        self.assertEqual((["host-h1:ALARM", "host-h1:OK"], []), (self.sent(), self.held()))

    def test_a_host_of_another_tenant_inhibits_nothing(self):
        self.define("host2", HOST, tenant="t2")
        self.alarm("other", definition="host2", tenant="t2")
        self.handle(self.alarm("a1"))
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_an_alarm_of_many_hosts_inhibits_the_services_of_each(self):
        self.handle(self.host())
        row = {"alarm_id": "host-h1", "tenant": "t1", "name": "up", "dimensions": {"hostname": "another"}}
        rows = [row | {"series_id": b"%d" % number} for number in range(10_000)]
        self.alarms_database.write(lambda connection: connection.execute(tables.alarm_metric.insert(), rows))
        self.handle(self.alarm("a1"))
        self.assertEqual(["host-h1:ALARM"], self.sent())

    def test_an_alarm_of_several_megabytes_is_inhibited_and_sent(self):
        metrics = [AlarmedMetric("up", {"hostname": f"h{number}", "text": "x" * 250}) for number in range(1, 15_000)]
        made = self.alarm("a1", metrics=metrics)
        self.assertGreater(len(made.message), 4_000_000)
        self.handle(self.host())
        self.handle(made)
        self.assertEqual(["host-h1:ALARM"], self.sent())
        self.handle(self.host("OK"))
        self.wait(MINUTE_MS)
        self.assertEqual(["host-h1:OK", "a1:ALARM"], self.sent())

    def test_a_change_with_few_fields_is_accepted(self):
        made = self.alarm("a1")
        least = {"tenantId": "t1", "alarmId": "a1", "alarmDefinitionId": "d1", "newState": "ALARM", "x": {}}
        self.handle(self.host())
        self.silence({"hostname": "h1"}, HOUR_MS)
        reported = {"alarm-transitioned": {**least, "timestamp": made.time_ms}}
        self.changes(_read("alarm-state-transitions", json.dumps(reported).encode()))
        self.assertEqual(["host-h1:ALARM", "a1:ALARM"], self.sent())

    def test_a_change_with_a_dimension_that_databases_refuse_is_accepted(self):
        self.handle(self.alarm("a1", metrics=[AlarmedMetric("up", {"hostname": "h\0"})]))
        self.assertEqual(["a1:ALARM"], self.sent())

    def test_a_host_that_goes_down_while_the_group_waits_inhibits_its_services(self):
        self.start(StageRules(("definition",), SECOND_MS, 0, self.rules.inhibitions))
        self.handle(self.alarm("a1"))
        self.handle(self.host())
        self.wait(SECOND_MS)
        self.assertEqual((["host-h1:ALARM"], ["inhibited"]), (self.sent(), self.held()))


class SilencesInSqliteTest(SilencesContract, SqliteTestCase):
    pass


class RepeatsInSqliteTest(RepeatsContract, SqliteTestCase):
    pass


class GroupsInSqliteTest(GroupsContract, SqliteTestCase):
    pass


class LimitsInSqliteTest(LimitsContract, SqliteTestCase):
    pass


class InhibitionInSqliteTest(InhibitionContract, SqliteTestCase):
    pass
