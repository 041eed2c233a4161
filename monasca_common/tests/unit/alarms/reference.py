# SPDX-License-Identifier: Apache-2.0
"""A plain model of alarms, which keeps all measurements and recomputes everything at each point. It uses the package
only to compute the values of expressions."""

from collections import namedtuple
from itertools import count
from math import fsum, inf
from operator import ge, gt, le, lt
from statistics import fmean

Change = namedtuple("Change", "old new timestamp_ms states values")
Measurement = namedtuple("Measurement", "time_ms value sub")


def meets(sub, value):
    return {"GT": gt, "GTE": ge, "LT": lt, "LTE": le}[sub.operator](value, sub.threshold)


def value_of(function, values):
    return float({"min": min, "max": max, "sum": fsum, "count": len, "avg": fmean}[function](values))


def irrevocable(sub):
    """Return the state that no further measurement of a window can change."""
    above = sub.operator in ("GT", "GTE")
    if sub.function in ("max", "count"):
        return "ALARM" if above else "OK"
    if sub.function == "min":
        return "OK" if above else "ALARM"
    return None


class SubReference:
    """``shown``: the maximum number of windows whose values are in a transition."""

    def __init__(self, sub, delay_ms, shown):
        self.sub = sub
        self.shown = shown
        self.delay_ms = delay_ms
        self.length_ms = sub.period * 1000
        self.state = "OK" if sub.deterministic else "UNDETERMINED"
        self.values = ()
        self.empty = 0
        self.newest_ms = -1
        self.reported = set()

    def view(self, end_ms, known):
        """Return {start of the window: values} of the last windows that have measurements."""
        found = {}
        for number in range(self.sub.periods, 0, -1):
            start_ms = end_ms - number * self.length_ms
            values = [one.value for one in known if start_ms <= one.time_ms < start_ms + self.length_ms]
            if values:
                found[start_ms] = values
        return found

    def values_of(self, end_ms, view):
        first_ms = end_ms - self.shown * self.length_ms
        shown = (values for start_ms, values in view.items() if start_ms >= first_ms)
        return tuple(value_of(self.sub.function, values) for values in shown)

    def is_reached(self, end_ms, known):
        """Return whether the windows that end at ``end_ms`` decide irrevocably."""
        wanted = irrevocable(self.sub)
        view = self.view(end_ms, known)
        outcomes = [meets(self.sub, value_of(self.sub.function, values)) for values in view.values()]
        if wanted == "ALARM":
            return len(outcomes) == self.sub.periods and all(outcomes)
        newest = end_ms - self.length_ms
        return wanted == "OK" and newest in view and not outcomes[-1]

    def reached(self, decided_to_ms, known):
        """Return the ends, after ``decided_to_ms``, of the windows that decide irrevocably."""
        if irrevocable(self.sub) is None:
            return []
        ends = {(one.time_ms // self.length_ms + 1) * self.length_ms for one in known}
        return sorted(end for end in ends if end > decided_to_ms and self.is_reached(end, known))

    def decided_to(self, time_ms):
        """Return the end of the last window whose evaluation is due at ``time_ms``."""
        return (time_ms - self.delay_ms) // self.length_ms * self.length_ms

    def brought_about(self, known, decided_to_ms):
        """Return (time, state, values) of each immediate change that has not been returned before."""
        if self.sub.function == "last":
            newest = max(known, default=None, key=lambda one: one.time_ms)
            if newest is None or newest.time_ms <= self.newest_ms:
                return []
            self.newest_ms = newest.time_ms
            return [(newest.time_ms, "ALARM" if meets(self.sub, newest.value) else "OK", (newest.value,))]
        found = []
        for end_ms in self.reached(decided_to_ms, known):
            if end_ms in self.reported:
                continue
            is_older = end_ms < max(self.reported, default=0)
            self.reported.add(end_ms)
            if is_older:
                continue  # a newer window has already decided, and its values remain
            # Find the first moment at which the measurements of the newest window, in order of time, decided it.
            times = sorted(one.time_ms for one in known if end_ms - self.length_ms <= one.time_ms < end_ms)
            time_ms = next(t for t in times if self.is_reached(end_ms, [one for one in known if one.time_ms <= t]))
            view = self.view(end_ms, [one for one in known if one.time_ms <= time_ms])
            found.append((time_ms, irrevocable(self.sub), self.values_of(end_ms, view)))
        return found

    def ends(self, after_ms, until_ms):
        """Yield the ends of the windows that are due between the two times."""
        for number in count((after_ms - self.delay_ms) // self.length_ms + 1):
            if number * self.length_ms + self.delay_ms > until_ms:
                return
            yield number * self.length_ms

    def due(self, end_ms, known):
        if self.reached(end_ms, known):
            self.state, self.empty = irrevocable(self.sub), 0
            return
        view = self.view(end_ms, known)
        self.values = self.values_of(end_ms, view)
        if view:
            self.empty = 0
        if not all(meets(self.sub, value_of(self.sub.function, values)) for values in view.values()):
            self.state = "OK"
        elif len(view) == self.sub.periods:
            self.state = "ALARM"
        elif self.sub.deterministic:
            self.state = "OK"
        elif not view:
            self.empty += 1
            if self.empty >= 2 * self.sub.periods:
                self.state = "UNDETERMINED"


def changes(expression, batches, delay_ms, shown=16):
    """Return the transitions.

    ``batches``: (measurements that arrived, watermark). A watermark is not less than the previous one, nor than the
    time of any measurement of its batch. The ``sub`` of a measurement is the position of its sub-expression.
    """
    subs = [SubReference(sub, delay_ms, shown) for sub in expression.sub_expressions]
    state = alarm_state(expression, subs)
    found = []
    earlier, evaluated_to_ms = [], 0

    def tell(timestamp_ms):
        nonlocal state
        new = alarm_state(expression, subs)
        if new != state:
            found.append(
                Change(state, new, timestamp_ms, tuple(sub.state for sub in subs), tuple(sub.values for sub in subs))
            )
            state = new

    for arrived, watermark_ms in batches:
        # Late measurements are evaluated first, in order of their times.
        points = {(max(one.time_ms, evaluated_to_ms), one.time_ms) for one in arrived}
        for sub in subs:
            if sub.sub.function != "last":
                points |= {(end + delay_ms, inf) for end in sub.ends(evaluated_to_ms, watermark_ms)}
        for point, time_ms in sorted(points):
            is_due = time_ms == inf
            known = [*earlier, *(one for one in arrived if one.time_ms <= (point if is_due else time_ms))]
            events = []
            for position, sub in enumerate(subs):
                own = [one for one in known if one.sub == position]
                if is_due:
                    if sub.sub.function != "last" and (point - delay_ms) % sub.length_ms == 0:
                        sub.due(point - delay_ms, own)
                else:
                    # Windows that are due before this point are decided; windows that are due at this point are not.
                    decided_to_ms = sub.decided_to(evaluated_to_ms if point == evaluated_to_ms else point - 1)
                    events += [(event, sub) for event in sub.brought_about(own, decided_to_ms)]
            if is_due:
                tell(point)
            for (when_ms, sub_state, values), sub in sorted(events, key=lambda event: event[0][0]):
                sub.state, sub.values, sub.empty = sub_state, values, 0
                tell(when_ms)
        earlier, evaluated_to_ms = [*earlier, *arrived], watermark_ms
    return found


def alarm_state(expression, subs):
    states = [sub.state for sub in subs]
    if "UNDETERMINED" in states:
        return "UNDETERMINED"
    return "ALARM" if expression.holds([state == "ALARM" for state in states]) else "OK"
