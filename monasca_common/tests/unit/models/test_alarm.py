# SPDX-License-Identifier: Apache-2.0
import json

from hypothesis import given
from oslotest import base

from monasca_common.models import alarm
from monasca_common.tests.unit.models import hostile

TRANSITION = {
    "tenantId": "t", "alarmId": "a", "alarmDefinitionId": "d", "alarmName": "Disk full", "alarmDescription": "",
    "actionsEnabled": True, "stateChangeReason": "Thresholds were exceeded", "severity": "HIGH", "link": "http://x",
    "lifecycleState": "OPEN", "oldState": "OK", "newState": "ALARM", "timestamp": 1453308031000.7,
    "subAlarms": [{"subAlarmState": "ALARM", "currentValues": [98.5]}],
    "metrics": [{"id": None, "name": "disk", "dimensions": {"host": "é"}}],
}  # fmt: skip


def message(**changes):
    return json.dumps({"alarm-transitioned": TRANSITION | changes}).encode()


class TestAlarm(base.BaseTestCase):
    def places(self, value):
        return [violation.where for violation in alarm.decode_all([value]).errors[0].violations]

    def test_a_transition_is_a_row(self):
        (row,) = alarm.decode_all([message()]).rows
        self.assertEqual(
            (1453308031000, "t", "a", "d", "Disk full", "OK", "ALARM", "HIGH", "Thresholds were exceeded", "http://x",
             "OPEN", TRANSITION["metrics"], TRANSITION["subAlarms"]),
            (*row[:-2], json.loads(row.metrics), json.loads(row.sub_alarms)),
        )  # fmt: skip

    def test_members_omitted_by_older_engines_are_empty(self):
        old = {key: TRANSITION[key] for key in ("tenantId", "alarmId", "oldState", "newState", "timestamp")}
        (row,) = alarm.decode_all([json.dumps({"alarm-transitioned": old}).encode()]).rows
        self.assertEqual(("", "", "", "", None, None, "[]", "[]"), (row[3], row[4], *row[7:]))

    def test_null_is_like_an_absent_member(self):
        (row,) = alarm.decode_all([message(link=None, lifecycleState=None, subAlarms=None)]).rows
        self.assertEqual((None, None, "[]"), (row.link, row.lifecycle_state, row.sub_alarms))

    def test_all_violations_are_listed_with_their_places(self):
        bad = message(tenantId="", alarmId=None, newState=5, timestamp="now", metrics={}, severity="x" * 256)
        expected = ["tenantId", "timestamp", "alarmId", "newState", "severity", "metrics"]
        self.assertEqual({f"alarm-transitioned.{name}" for name in expected}, set(self.places(bad)))
        self.assertEqual(["alarm-transitioned"], self.places(b"{}"))

    def test_a_nul_is_refused_anywhere(self):
        self.assertEqual(["alarm-transitioned.stateChangeReason"], self.places(message(stateChangeReason="\0")))
        self.assertEqual(["alarm-transitioned.metrics"], self.places(message(metrics=[{"name": "\0"}])))

    @given(hostile.members(*TRANSITION))
    def test_any_value_is_a_row_or_an_error(self, members):
        for members_too in (members, json.dumps(TRANSITION).encode()[:-1] + b"," + members[1:]):
            decoded = alarm.decode_all([b'{"alarm-transitioned":%b}' % members_too])
            self.assertEqual(1, len(decoded.rows) + len(decoded.errors))
            for row in decoded.rows:
                self.assertTrue(row.tenant and row.alarm_id and 0 <= row.time_ms < 2**63)
                json.loads(row.metrics)
