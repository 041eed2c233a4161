# SPDX-License-Identifier: Apache-2.0
from monasca_common.api.query import iso
from monasca_common.models.rows import AlarmTransition
from monasca_common.storage.base import Kind
from monasca_common.tests.unit.api.reads_case import BASE_MS, ReadsCase


class TestAlarms(ReadsCase):
    def test_the_history_of_all_alarms_and_of_one(self):
        self.store(*(_transition(n) for n in range(3)), kind=Kind.ALARM_HISTORY)
        found = self.elements("/v2.0/alarms/state-history")
        self.assertEqual([f"alarm-{n}" for n in range(3)], [one["alarm_id"] for one in found])
        self.assertEqual(found, self.elements("/v2.0/alarms/state-history/"))
        (one,) = self.elements("/v2.0/alarms/alarm-1/state-history")
        self.assertEqual(found[1], one)
        self.assertEqual(
            {
                "id": one["id"],
                "alarm_id": "alarm-1",
                "metrics": [{"id": None, "name": "cpu", "dimensions": {"host": "1"}}],
                "old_state": "OK",
                "new_state": "ALARM",
                "reason": "because",
                "reason_data": "{}",
                "timestamp": iso(BASE_MS + 1),
                "sub_alarms": [
                    {
                        "sub_alarm_expression": {
                            "function": "MAX",
                            "metric_name": "cpu",
                            "dimensions": {"camelCase": "x"},
                            "period": 60,
                        },
                        "sub_alarm_state": "ALARM",
                        "current_values": [1.5],
                    }
                ],
            },
            one,
        )
        self.assertEqual([found[2]], self.elements("/v2.0/alarms/state-history", dimensions="host:2"))
        self.assertEqual(found[1:], self.elements("/v2.0/alarms/state-history", start_time=iso(BASE_MS + 1)))
        self.assertEqual([], self.elements("/v2.0/alarms/state-history", tenant="other"))
        pages = self.pages("/v2.0/alarms/state-history", limit="1")
        self.assertEqual(found, [one for page in pages for one in page])


def _transition(number):
    metric = '{"id": "", "name": "cpu", "dimensions": {"camelCase": "x"}}'
    expression = f'{{"function": "MAX", "metricDefinition": {metric}, "period": 60}}'
    sub = f'[{{"subAlarmExpression": {expression}, "subAlarmState": "ALARM", "currentValues": [1.5]}}]'
    metrics = f'[{{"name": "cpu", "dimensions": {{"host": "{number}"}}}}]'
    states = ("OK", "ALARM", "LOW", "because", None, None)
    return AlarmTransition(BASE_MS + number, "tenant", f"alarm-{number}", "d", "n", *states, metrics, sub)
