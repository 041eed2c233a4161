# SPDX-License-Identifier: Apache-2.0


from dataclasses import replace

import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms import outbox
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.transitions import (
    MOST_MESSAGE_BYTES,
    MOST_METRICS,
    MOST_REASON_CHARACTERS,
    MOST_VALUES,
    AlarmChange,
    AlarmedMetric,
)
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

CHANGE = AlarmChange(
    tenant="t",
    alarm_id="a",
    definition_id="d",
    name="n",
    description="",
    severity="LOW",
    actions_enabled=True,
    old_state="OK",
    new_state="ALARM",
    reason="r",
    time_ms=5,
    link=None,
    lifecycle_state=None,
    metrics=[AlarmedMetric("m", {"host": "x"})],
)
SUB_ALARM = {"subAlarmExpression": {"metricDefinition": {"name": "m" * 150}}, "subAlarmState": "ALARM"}


class AlarmChangeTest(base.BaseTestCase):
    def test_a_small_change_keeps_everything(self):
        self.assertEqual(CHANGE.message, CHANGE.bounded().message)

    def test_the_largest_change_has_a_message_that_kafka_takes_by_default(self):
        dimensions = {f"{number:03}".ljust(255, "k"): "\U0001f600" * 255 for number in range(100)}
        values = [-1.7976931348623157e308] * 20_160
        largest = replace(
            CHANGE,
            name="\x01" * 255,
            description="\x01" * 255,
            link="\x01" * 512,
            reason="\x01" * 1_000_000,
            metrics=[AlarmedMetric("m", dimensions)] * 9_000,
            sub_alarms=[SUB_ALARM | {"currentValues": values}] * 100,
        ).bounded()
        self.assertLess(len(largest.message), MOST_MESSAGE_BYTES)
        self.assertEqual((9_000, MOST_REASON_CHARACTERS), (largest.metrics_total, len(largest.reason)))
        self.assertEqual(largest, AlarmChange.read(largest.message))

    def test_the_newest_values_and_the_first_metrics_are_kept(self):
        change = replace(
            CHANGE,
            metrics=[AlarmedMetric(str(number), {}) for number in range(MOST_METRICS + 1)],
            sub_alarms=[SUB_ALARM | {"currentValues": list(range(MOST_VALUES + 1))}],
        ).bounded()
        self.assertEqual([str(number) for number in range(MOST_METRICS)], [each.name for each in change.metrics])
        self.assertEqual(list(range(1, MOST_VALUES + 1)), change.sub_alarms[0]["currentValues"])

    def test_the_number_of_metrics_of_an_older_message_is_that_of_its_list(self):
        older = CHANGE.message.replace(b',"metrics_total":1', b"")
        self.assertEqual(1, AlarmChange.read(older).metrics_total)
        damaged = CHANGE.message.replace(b'"metrics_total":1', b'"metrics_total":[]')
        self.assertRaises(InvalidEnvelope, AlarmChange.read, damaged)


class TestOutbox(SqliteTestCase):
    def test_who_removes_a_row_late_removes_no_other_that_got_its_number(self):
        database = AlarmsDatabase(self.database.settings)
        self.addCleanup(database.close)

        def put(message_id):
            return database.write(
                lambda connection: outbox.put(connection, outbox.TRANSITION, "a", message_id, b"{}", 5)
            )

        first = put(b"1")
        outbox.remove(database, [first])  # by another request, which published it too
        second = put(b"2")
        self.assertEqual(first.number, second.number)
        outbox.remove(database, [first])
        self.assertEqual([b"2"], [row.message_id for row in database.rows(sa.select(tables.alarm_outbox))])
        outbox.remove(database, [first, second])
        outbox.remove(database, [])
        self.assertEqual([], database.rows(sa.select(tables.alarm_outbox)))

    def test_messages_about_one_alarm_keep_their_order_however_many_others_wait(self):
        database = AlarmsDatabase(self.database.settings)
        self.addCleanup(database.close)

        def put(key):
            return database.write(lambda connection: outbox.put(connection, outbox.TRANSITION, key, b"i", b"{}", 5))

        others = [put(f"other {number}") for number in range(3)]
        earlier, due = put("a"), put("a")
        oldest = outbox.oldest(database, before_ms=6, limit=2, due=due)
        self.assertEqual([earlier.number, due.number], [row.number for row in oldest])
        oldest = outbox.oldest(database, before_ms=6, limit=1, due=due)
        self.assertEqual([earlier.number], [row.number for row in oldest])
        oldest = outbox.oldest(database, before_ms=6, limit=3, due=due)
        self.assertEqual([others[0].number, earlier.number, due.number], [row.number for row in oldest])
