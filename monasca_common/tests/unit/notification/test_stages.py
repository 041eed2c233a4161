# SPDX-License-Identifier: Apache-2.0
"""The rules that limit the number of notifications, as tables of cases; time is an argument."""

import dataclasses

from oslotest import base

from monasca_common.alarms.silences import Silence
from monasca_common.alarms.transitions import AlarmedMetric
from monasca_common.notification import stages
from monasca_common.notification.stages import (
    SUPPRESSION,
    ActiveAlarm,
    CurrentAlarm,
    Facts,
    Inhibition,
    RateWindow,
    StageRules,
    acknowledgement,
    decide,
    deduplication,
    grouping,
    inhibition,
    next_repeat_ms,
    rate_window,
    silence,
)
from monasca_common.tests.unit.notification.receivers import change

NOW_MS = 1_790_000_000_123
_A, _B = {"hostname": "h1", "service": "a"}, {"hostname": "h2", "service": "b"}
ALARM = change(metrics=[AlarmedMetric("cpu", _A), AlarmedMetric("disk", _B)])


def covering(dimensions, begin=-5, end=5, tenant="t1", own_id="s"):
    return Silence(tenant, dimensions, NOW_MS + begin, NOW_MS + end, "ann", id=own_id)


def silences(made, *several):
    return silence(StageRules(), Facts(silences=several), made, NOW_MS)


def inhibits(rules, active, made):
    return inhibition(StageRules(inhibitions=rules), Facts(active=active), made, NOW_MS)


class SilenceTest(base.BaseTestCase):
    def test_a_silence_applies_to_matching_alarms_during_its_time(self):
        for covers, case in (
            (True, covering({})),
            (True, covering({"hostname": "h1"})),
            (True, covering({"hostname": "h2", "service": "b"})),
            (False, covering({"hostname": "h1", "service": "b"})),  # no metric has both
            (False, covering({"hostname": "H1"})),
            (False, covering({"hostname": ""})),
            (False, covering({"region": "r"})),
            (False, covering({}, tenant="t2")),
            (True, covering({}, begin=0)),
            (False, covering({}, begin=1)),
            (True, covering({}, end=1)),
            (False, covering({}, end=0)),
        ):
            self.assertEqual(covers, silences(ALARM, case) is not None, case)

    def test_only_a_silence_without_dimensions_applies_to_an_alarm_without_metrics(self):
        bare = change(metrics=[])
        self.assertIsNone(silences(bare, covering({"hostname": "h1"})))
        self.assertIsNotNone(silences(bare, covering({})))

    def test_the_silence_that_ends_last_is_used(self):
        several = [covering({}, end=end, own_id=str(end)) for end in (3, 9, 5)]
        self.assertEqual("9", silences(ALARM, *several).silence_id)


HOST = ActiveAlarm("host", "d9", "Host is down", "CRITICAL", ({"hostname": "h1"},))
BY_NAME = Inhibition(("hostname",), definition="Host is down")
BY_SEVERITY = Inhibition(("hostname",), severity="CRITICAL")


def source(**changes):
    return dataclasses.replace(HOST, **changes)


class InhibitionTest(base.BaseTestCase):
    # Rule 60
    def test_a_rule_inhibits_matching_targets_with_equal_dimensions(self):
        for is_inhibited, rule, active in (
            (True, BY_NAME, HOST),
            (True, BY_SEVERITY, HOST),
            (False, BY_NAME, source(definition="Host is slow")),
            (False, BY_SEVERITY, source(severity="HIGH")),
            (False, Inhibition(("hostname",), severity="HIGH"), source(severity="HIGH")),  # the change's own severity
            (False, Inhibition(("hostname",), severity="MEDIUM"), source(severity="MEDIUM")),
            (False, BY_NAME, source(dimensions=({"hostname": "h3"},))),
            (True, BY_NAME, source(dimensions=({"hostname": "h3"}, {"hostname": "h2"}))),
            (False, BY_NAME, source(dimensions=({"service": "a"},))),
            (False, BY_NAME, source(dimensions=())),
            (False, Inhibition(("hostname", "service"), definition="Host is down"), HOST),
            (
                False,  # no metric has both values
                Inhibition(("hostname", "service"), definition="Host is down"),
                source(dimensions=({"hostname": "h1", "service": "b"},)),
            ),
            (
                True,
                Inhibition(("hostname", "service"), definition="Host is down"),
                source(dimensions=({"hostname": "h2", "service": "b"},)),
            ),
            (False, BY_NAME, source(definition_id=ALARM.definition_id)),
        ):
            self.assertEqual(is_inhibited, inhibits([rule], [active], ALARM) is not None, (rule, active))

    def test_a_source_is_inhibited_only_by_stronger_rules(self):
        switch = source(definition="Switch is down", definition_id="d8")
        rules = [Inhibition(("hostname",), definition="Switch is down"), BY_NAME]
        host = change(name="Host is down", definition_id="d9", severity="LOW")
        self.assertIn("Switch is down", inhibits(rules, [switch], host).reason)
        self.assertIsNone(inhibits(rules, [HOST], change(name="Switch is down")))
        self.assertIsNone(inhibits([BY_NAME], [source(definition_id="d7")], host))

    def test_an_alarm_without_metrics_is_not_inhibited(self):
        self.assertIsNone(inhibits([BY_NAME], [HOST], change(metrics=())))


class StagesTest(base.BaseTestCase):
    def test_the_stages_have_the_order_of_the_pipeline(self):
        expected = (silence, inhibition, acknowledgement, deduplication, grouping)
        self.assertEqual(expected, stages.STAGES)

    # Rule 60
    def test_each_stage_decides_on_a_change(self):
        grouped, inhibited = StageRules(("definition",), 7), StageRules(inhibitions=(BY_NAME,))
        silenced, ended = Facts(silences=[covering({})]), Facts(withheld_before=True)
        for state, due_ms, rules, facts, made in (
            (None, None, StageRules(), Facts(), ALARM),
            ("silenced", NOW_MS + 5, StageRules(), silenced, ALARM),
            ("silenced", NOW_MS + 5, grouped, silenced, ALARM),
            ("inhibited", NOW_MS + 60_000, inhibited, Facts(active=[HOST]), ALARM),
            ("silenced", NOW_MS + 5, inhibited, Facts(silences=[covering({})], active=[HOST]), ALARM),
            ("held", NOW_MS + 7, grouped, Facts(), ALARM),
            (None, None, StageRules(), ended, ALARM),
            ("silenced", None, StageRules(), ended, change(new_state="OK")),
            (None, None, StageRules(), Facts(), change(new_state="OK")),
            ("silenced", None, StageRules(), dataclasses.replace(ended, last_notified="ALARM"), ALARM),
            (None, None, StageRules(), dataclasses.replace(ended, last_notified="ALARM"), change(new_state="OK")),
        ):
            found = decide(rules, facts, made, NOW_MS)
            self.assertEqual((state, due_ms), (found and found.state, found and found.due_ms), (rules, facts, made))

    def test_changes_with_equal_grouping_values_form_a_group(self):
        other = change(alarm_id="a2", metrics=[AlarmedMetric("net", _A)])
        for is_same, by, made, method in (
            (True, ("definition",), other, "m1"),
            (False, ("definition",), other, "m2"),
            (False, ("definition",), change(definition_id="d2"), "m1"),
            (True, ("hostname",), change(definition_id="d2"), "m1"),
            (False, ("hostname",), change(metrics=[AlarmedMetric("cpu", _B)]), "m1"),
            (False, ("hostname",), change(metrics=()), "m1"),
            (True, ("region",), change(metrics=[AlarmedMetric("cpu", _B)]), "m1"),
            (False, ("hostname", "definition"), change(definition_id="d2"), "m1"),
        ):
            rules = StageRules(by)
            first = change(metrics=[AlarmedMetric("cpu", {"hostname": "h1"})])
            keys = {
                grouping(rules, Facts("m1"), first, 1).group_key,
                grouping(rules, Facts(method), made, 2).group_key,
            }
            self.assertEqual(is_same, len(keys) == 1, (by, made))

    def test_keys_of_groups_are_short_enough_for_an_index(self):
        long = change(
            metrics=[AlarmedMetric("cpu", {"hostname": "é" * 255}), AlarmedMetric("cpu", {"hostname": "è" * 255})]
        )
        self.assertLess(len(grouping(StageRules(("hostname",)), Facts("m" * 36), long, 1).group_key), 100)


class LimitTest(base.BaseTestCase):
    def test_messages_are_counted_from_0_in_each_minute(self):
        for expected, last, now_ms in (
            (RateWindow(5, 0), None, 5),
            (RateWindow(5, 2), RateWindow(5, 2), 60_004),
            (RateWindow(60_005, 0), RateWindow(5, 2), 60_005),
            (RateWindow(4, 0), RateWindow(5, 2), 4),  # the clock was set back
        ):
            self.assertEqual(expected, rate_window(last, now_ms), (last, now_ms))


class RepeatsTest(base.BaseTestCase):
    def test_repeats_of_acknowledged_disabled_silenced_or_inhibited_alarms_are_skipped(self):
        alarm = CurrentAlarm("ALARM", ALARM.time_ms, None, actions_enabled=True)
        for is_sent, changes, rules, facts in (
            (True, {}, StageRules(), Facts()),
            (False, {"lifecycle_state": "ACKNOWLEDGED"}, StageRules(), Facts()),
            (True, {"lifecycle_state": "OPEN"}, StageRules(), Facts()),
            (False, {"actions_enabled": False}, StageRules(), Facts()),
            (False, {}, StageRules(), Facts(silences=[covering({})])),
            (False, {}, StageRules(inhibitions=(BY_NAME,)), Facts(active=[HOST])),
            (True, {}, StageRules(("definition",)), Facts()),
        ):
            facts = dataclasses.replace(facts, repeated=dataclasses.replace(alarm, **changes))
            deferral = decide(rules, facts, ALARM, NOW_MS, SUPPRESSION)
            self.assertEqual(is_sent, deferral is None, (changes, facts))

    def test_only_the_last_change_of_an_alarm_matches_its_state(self):
        alarm = CurrentAlarm("ALARM", ALARM.time_ms, None, actions_enabled=True)
        for is_result, changes in ((True, {}), (False, {"state": "OK"}), (False, {"since_ms": ALARM.time_ms + 1})):
            self.assertEqual(is_result, dataclasses.replace(alarm, **changes).is_result_of(ALARM), changes)

    def test_the_next_repeat_is_due_after_the_period(self):
        for expected, due, now in ((160, 100, 100), (160, 100, 159), (220, 100, 160), (700, 100, 699), (160, 100, 90)):
            self.assertEqual(expected * 1000, next_repeat_ms(due * 1000, 60, now * 1000), (due, now))
