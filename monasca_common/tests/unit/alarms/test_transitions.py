# SPDX-License-Identifier: Apache-2.0


from dataclasses import replace

from oslotest import base

from monasca_common.alarms import outbox
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.evaluation import MOST_VALUES
from monasca_common.alarms.transitions import (
    MOST_MESSAGE_BYTES,
    MOST_METRICS,
    MOST_REASON_CHARACTERS,
    AlarmChange,
    AlarmedMetric,
)
from monasca_common.models.errors import InvalidEnvelope
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
    def test_a_small_change_is_published_completely(self):
        self.assertEqual(CHANGE.message, CHANGE.bounded().message)

    def test_the_largest_change_fits_the_default_message_size_of_kafka(self):
        dimensions = {f"{number:03}".ljust(255, "k"): "\U0001f600" * 255 for number in range(100)}
        values = [-1.7976931348623157e308] * MOST_VALUES
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

    def test_a_shortened_list_has_the_first_metrics(self):
        change = replace(
            CHANGE,
            metrics=[AlarmedMetric(str(number), {}) for number in range(MOST_METRICS + 1)],
        ).bounded()
        self.assertEqual([str(number) for number in range(MOST_METRICS)], [each.name for each in change.metrics])

    def test_the_number_of_metrics_of_an_older_message_is_the_length_of_its_list(self):
        older = CHANGE.message.replace(b',"metrics_total":1', b"")
        self.assertEqual(1, AlarmChange.read(older).metrics_total)
        damaged = CHANGE.message.replace(b'"metrics_total":1', b'"metrics_total":[]')
        self.assertRaises(InvalidEnvelope, AlarmChange.read, damaged)


class OutboxTest(SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.alarms_database = AlarmsDatabase(self.database.settings)
        self.addCleanup(self.alarms_database.close)

    def put(self, alarm_id, time_ms):
        change = replace(CHANGE, alarm_id=alarm_id, time_ms=time_ms)
        self.alarms_database.write(lambda connection: outbox.put(connection, [change]))

    def waiting(self, *which):
        return self.alarms_database.read(lambda connection: outbox.waiting(connection, 100, *which))

    def clear(self, *rows):
        self.alarms_database.write(lambda connection: outbox.clear(connection, rows))

    def test_a_late_deletion_keeps_a_later_row_with_the_same_number(self):
        self.put("a", 1)
        (first,) = self.waiting()
        self.clear(first)  # another request also published the message
        self.put("a", 2)
        (second,) = self.waiting()
        self.assertEqual(first.number, second.number)
        self.clear(first)
        self.assertEqual([second], self.waiting())
        self.clear(first, second)
        self.clear()
        self.assertEqual([], self.waiting())

    def test_messages_of_an_alarm_are_returned_in_order(self):
        for time_ms, alarm_id in enumerate("aba"):
            self.put(alarm_id, time_ms)
        self.assertEqual([1, 3], [row.number for row in self.waiting("a")])
