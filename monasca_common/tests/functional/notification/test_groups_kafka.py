# SPDX-License-Identifier: Apache-2.0
"""Groups with a real Kafka: each alarm is in one message, whichever process sends it and however often."""

import collections
import json

import sqlalchemy as sa

from monasca_common.notification.deferred_sender import DeferredSender
from monasca_common.storage.sql import tables
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.changed_command import patch
from monasca_common.tests.functional.notification.test_notification_kafka import NotificationKafkaCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.notification.notification_case import ids
from monasca_common.tests.waiting import PATIENCE_SECONDS

ALARMS, AT_ONCE, DEATHS = 40, 8, 5
_NEVER_MS = 2**53


def forgets_who_is_in_a_message():
    run = DeferredSender.run

    def unsealed_run(releases):
        # The deferred notifications are sent with the next message.
        table = tables.notification_deferred
        statement = table.update().where(table.c.kind == "held").values(message_id="", due=_NEVER_MS)
        releases._deferred._database.write(lambda connection: connection.execute(statement))
        run(releases)

    patch(DeferredSender, "run", unsealed_run)


class GroupCrashTest(NotificationKafkaCase):
    more_configuration = "[notification]\ngroup_by = definition\ngroup_wait = 0.2\n"

    def setUp(self):
        super().setUp()
        self.hook = self.receiver()
        self.method(self.hook.url())

    def messages(self):
        """Return {id of a message: its alarms}."""
        bodies = [(headers["Idempotency-Key"], json.loads(body)) for _, headers, body in list(self.hook.requests)]
        return {key: {each["alarm_id"] for each in body.get("alarms", [body])} for key, body in bodies}

    def alarms(self):
        return set().union(*self.messages().values())

    def held(self):
        return len(self.alarms_database.rows(sa.select(tables.notification_deferred.c.id)))

    def crash(self, fail_points):
        process = self.start(fail_points, deaths=DEATHS)
        for start in range(0, ALARMS, AT_ONCE):
            self.publish(range(start, start + AT_ONCE))
        self.wait_until(
            lambda: len(self.alarms()) == ALARMS, lambda: f"{ALARMS} notified instead of {len(self.alarms())}"
        )
        self.wait_until(self.deaths, "a death")
        self.wait_until(lambda: not self.held(), lambda: f"{self.held()} are held")
        process.terminate()
        self.assertEqual(0, process.wait(PATIENCE_SECONDS))

    @each_once()
    def assert_each_alarm_is_in_one_message(self):
        self.assertEqual(ALARMS, sum(map(len, self.messages().values())))
        repeats = dict(self.ledger("id", "repeats"))
        doubles = {key: times - 1 for key, times in collections.Counter(ids(self.hook)).items()}
        self.assertEqual([], [key for key, times in doubles.items() if times > repeats[key]])
        self.assertEqual({("sent",)}, set(self.ledger("state")))

    @periodic("a variant of test_after_a_kill_after_sending_each_alarm_is_in_one_message")
    def test_after_a_kill_between_seal_and_claim_each_alarm_is_in_one_message(self):
        self.crash("notification.after_fix=kill")
        self.assert_each_alarm_is_in_one_message()

    @periodic("a variant of test_after_a_kill_after_sending_each_alarm_is_in_one_message")
    def test_after_a_kill_before_the_members_end_each_alarm_is_in_one_message(self):
        self.crash("notification.after_attempt=kill")
        self.assert_each_alarm_is_in_one_message()

    def test_after_a_kill_after_sending_each_alarm_is_in_one_message(self):
        self.crash("notification.after_send=kill")
        self.assert_each_alarm_is_in_one_message()

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_forgets_the_members_of_a_message_sends_an_alarm_in_two_messages(self):
        self.publish(range(3))
        self.start("notification.after_send=kill", mutant=forgets_who_is_in_a_message, deaths=1)
        self.wait_until(self.deaths, "a death")
        self.publish([3])
        self.wait_until(lambda: len(self.alarms()) == 4, lambda: f"4 notified, and not {self.alarms()}")
        self.assertGreater(sum(map(len, self.messages().values())), 4)
