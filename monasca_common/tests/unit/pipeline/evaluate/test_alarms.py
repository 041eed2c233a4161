# SPDX-License-Identifier: Apache-2.0
"""The alarms that series create, case by case and in any order of the series."""

import itertools

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.pipeline.evaluate.alarms import AlarmPart, join

CPU, DISK = "cpu", "disk"


def joined(known_alarms=(), known=None, new=None, subs=(CPU, DISK)):
    def sets(of):
        return {sub: set(values) for sub, values in (of or {}).items()}

    return join(known_alarms, subs, sets(known), sets(new))


class JoinTest(base.BaseTestCase):
    def test_without_match_by_an_alarm_is_created_once_each_sub_expression_has_a_series(self):
        self.assertEqual((), joined(new={CPU: [()]}).alarms)
        later = joined(known={CPU: [()]}, new={DISK: [()]})
        self.assertEqual(((),), later.alarms)
        self.assertEqual((AlarmPart((), CPU, ()), AlarmPart((), DISK, ())), later.parts)

    def test_each_combination_of_values_has_an_alarm(self):
        self.assertEqual((("a",), ("b",)), joined(new={CPU: [("a",), ("b",)]}, subs=[CPU]).alarms)

    def test_a_series_of_a_host_joins_the_alarms_of_all_its_devices(self):
        made = joined(new={CPU: [("h", "")], DISK: [("h", "d1"), ("h", "d2")]})
        self.assertEqual((("h", "d1"), ("h", "d2")), made.alarms)
        for alarm in made.alarms:
            self.assertIn(AlarmPart(alarm, CPU, ("h", "")), made.parts)

    def test_a_later_device_has_an_alarm_with_the_existing_host(self):
        later = joined([("h", "d1")], {CPU: [("h", "")], DISK: [("h", "d1")]}, {DISK: [("h", "d2")]})
        self.assertEqual((("h", "d2"),), later.alarms)
        self.assertEqual(
            (AlarmPart(("h", "d2"), CPU, ("h", "")), AlarmPart(("h", "d2"), DISK, ("h", "d2"))), later.parts
        )

    def test_a_series_joins_existing_alarms_and_creates_none(self):
        later = joined([("h", "d1"), ("h", "d2"), ("g", "d1")], new={CPU: [("h", "")]}, subs=[CPU])
        self.assertEqual((), later.alarms)
        self.assertEqual([("h", "d1"), ("h", "d2")], [part.alarm_values for part in later.parts])

    def test_an_alarm_with_a_missing_value_accepts_a_series_that_has_the_value(self):
        later = joined([("h", "")], {CPU: [("h", "")]}, {CPU: [("h", "d")]}, subs=[CPU])
        self.assertEqual(((), (AlarmPart(("h", ""), CPU, ("h", "d")),)), (later.alarms, later.parts))

    def test_series_without_common_values_form_an_alarm(self):
        made = joined(new={CPU: [("h", "")], DISK: [("", "d")]})
        self.assertEqual(1, len(made.alarms))
        self.assertEqual(2, len(made.parts))

    def test_known_parts_of_known_alarms_are_not_returned_again(self):
        self.assertEqual((), joined([("h",)], {CPU: [("h",)]}, subs=[CPU]).parts)

    def test_many_combinations_of_keys_take_little_time(self):
        """Tables of all pairs of combinations would take minutes."""
        self.useFixture(fixtures.Timeout(60, gentle=True))
        combinations = itertools.product(("", "x"), repeat=11)
        series = [(f"v{number}", *values) for number, values in enumerate(combinations)]
        self.assertEqual(sorted(series), list(joined(new={CPU: series}, subs=[CPU]).alarms))

    @given(st.data())
    def test_complete_values_create_the_same_alarms_in_any_batches(self, data):
        values = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"))
        arrivals = data.draw(st.lists(st.tuples(st.sampled_from([CPU, DISK]), values), max_size=12))
        alarms, parts, known = [], set(), {CPU: set(), DISK: set()}
        for sub, one in arrivals:
            if one in known[sub]:
                continue
            made = joined(alarms, known, {sub: [one]})
            alarms += made.alarms
            parts |= set(made.parts)
            known[sub].add(one)
        whole = joined(new=known)
        self.assertEqual(list(whole.alarms), sorted(alarms))
        self.assertEqual(set(whole.parts), parts)

    @given(st.data())
    def test_every_series_is_in_an_alarm_or_waits_for_another_sub_expression(self, data):
        values = st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["", "x", "y"])).filter(any)
        new = data.draw(st.dictionaries(st.sampled_from([CPU, DISK]), st.sets(values, max_size=6)))
        made = joined(new=new)
        for alarm in made.alarms:
            parts = [part for part in made.parts if part.alarm_values == alarm]
            self.assertEqual({CPU, DISK}, {part.sub_expression_id for part in parts})
        for part in made.parts:
            common = zip(part.alarm_values, part.values, strict=True)
            self.assertTrue(all(one == other for one, other in common if one and other))

    @given(st.data())
    def test_a_series_joins_every_alarm_with_which_it_agrees(self, data):
        values = st.tuples(*[st.sampled_from(["", "a", "b"])] * 3).filter(any)
        series = st.dictionaries(st.sampled_from([CPU, DISK]), st.sets(values, max_size=6))
        known, new = data.draw(series), data.draw(series)
        alarms = joined(new=known).alarms
        made = joined(alarms, known, new)

        def agree(alarm, values):
            return all(one == other or not (one and other) for one, other in zip(alarm, values, strict=True))

        every = {sub: known.get(sub, set()) | new.get(sub, set()) for sub in (CPU, DISK)}
        expected = {
            AlarmPart(alarm, sub, one)
            for of, found in ((alarms, new), (made.alarms, every))
            for alarm in of
            for sub, values in found.items()
            for one in values
            if agree(alarm, one)
        }
        self.assertEqual(expected, set(made.parts))
