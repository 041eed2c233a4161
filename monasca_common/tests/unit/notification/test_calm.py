# SPDX-License-Identifier: Apache-2.0
"""The rules that keep notifications few, as tables of cases: time is an argument."""

from oslotest import base

from monasca_common.alarms.silences import Silence
from monasca_common.alarms.transitions import AlarmedMetric
from monasca_common.notification.calm import silencing
from monasca_common.tests.unit.notification.receivers import change

NOW_MS = 1_790_000_000_123
_A, _B = {"hostname": "h1", "service": "a"}, {"hostname": "h2", "service": "b"}
ALARM = change(metrics=[AlarmedMetric("cpu", _A), AlarmedMetric("disk", _B)])


def silence(dimensions, begin=-5, end=5, tenant="t1", own_id="s"):
    return Silence(tenant, dimensions, NOW_MS + begin, NOW_MS + end, "ann", id=own_id)


class SilencingTest(base.BaseTestCase):
    def test_which_alarm_is_silenced_when(self):
        for covers, case in (
            (True, silence({})),
            (True, silence({"hostname": "h1"})),
            (True, silence({"hostname": "h2", "service": "b"})),
            (False, silence({"hostname": "h1", "service": "b"})),  # no metric has both
            (False, silence({"hostname": "H1"})),
            (False, silence({"hostname": ""})),
            (False, silence({"region": "r"})),
            (False, silence({}, tenant="t2")),
            (True, silence({}, begin=0)),
            (False, silence({}, begin=1)),
            (True, silence({}, end=1)),
            (False, silence({}, end=0)),
        ):
            self.assertEqual(covers, silencing([case], ALARM, NOW_MS) is not None, case)

    def test_an_alarm_without_metrics_is_covered_by_a_silence_of_all_alone(self):
        bare = change(metrics=[])
        self.assertIsNone(silencing([silence({"hostname": "h1"})], bare, NOW_MS))
        self.assertIsNotNone(silencing([silence({})], bare, NOW_MS))

    def test_of_several_the_one_counts_that_ends_last(self):
        several = [silence({}, end=end, own_id=str(end)) for end in (3, 9, 5)]
        self.assertEqual("9", silencing(several, ALARM, NOW_MS).id)
