# SPDX-License-Identifier: Apache-2.0
"""Decides the states of an alarm from partials. The functions are pure: every time is an argument. A call processes all
events since the last call in the order of event time: *crossings* (a window reaches a state that later data cannot
undo) and *due evaluations* (``delay_ms`` after the end of a window). So one batch of two hours has the same result as
batches of one second.

Two rules are easy to violate:

- A window that was decided by a crossing stays decided until its own due evaluation. Otherwise the due evaluation of an
earlier quiet minute would revert the alarm.
- A window in which the pipeline was idle is unknown, not empty, until agents have had time to resend.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from math import inf
from operator import attrgetter
from typing import NamedTuple

from monasca_common.alarms.expression import Expression, SubExpression, decimal_text
from monasca_common.alarms.partials import (
    ALARM,
    OK,
    UNDETERMINED,
    Crossing,
    WindowPartial,
    crossing,
    immediate_state,
    meets,
)
from monasca_common.models.readings import Reading

MOST_VALUES = 16
"""The maximum number of windows whose values a sub-alarm shows. The newest windows are shown."""
RESTRUCTURED = -1
"""The value of ``SubAlarm.decided_ms`` after a change of the expression's structure. The next evaluation then computes
the alarm's state even without a new measurement."""


@dataclass(frozen=True, slots=True)
class SubAlarm:
    """The state of a sub-expression in an alarm.

    ``current_values``: the values of the last `MOST_VALUES` deciding windows, oldest first. ``empty_evaluations``: the
    number of successive evaluations without measurements. ``decided_ms``: the end of the latest window that a crossing
    has decided; 0 after a change of the threshold or the operator, `RESTRUCTURED` after a change of the structure of
    the expression. ``newest``: the last deciding reading, for the function ``last``.
    """

    sub_expression: SubExpression
    state: str
    current_values: tuple[float, ...] = ()
    empty_evaluations: int = 0
    decided_ms: int = 0
    newest: Reading | None = None

    @classmethod
    def new(cls, sub_expression: SubExpression) -> SubAlarm:
        return cls(sub_expression, OK if sub_expression.deterministic else UNDETERMINED)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of an alarm's state. ``sub_alarms``: the sub-alarms at that time."""

    old_state: str
    new_state: str
    timestamp_ms: int
    reason: str
    sub_alarms: tuple[SubAlarm, ...]


@dataclass(frozen=True, slots=True)
class AlarmState:
    """The state of an alarm. ``sub_alarms``: the sub-alarms, in the order of the expression. ``state`` can be set by
    hand."""

    state: str
    sub_alarms: tuple[SubAlarm, ...]
    last_transition_ms: int = -1

    @classmethod
    def new(cls, expression: Expression) -> AlarmState:
        sub_alarms = tuple(map(SubAlarm.new, expression.sub_expressions))
        return cls(state_of(expression, sub_alarms), sub_alarms)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one sub-alarm: its windows since `needed_from_ms`, by start in ms; or, for ``last``, the
    readings since the last evaluation, reduced by `runs`."""

    windows: Mapping[int, WindowPartial] = field(default_factory=dict)
    readings: Sequence[Reading] = ()


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """A period from ``start_ms`` to ``end_ms`` in which the source was idle and the watermark did not move. For
    evaluations that are due before ``known_from_ms`` (the recovery plus `outage_grace_seconds`), windows without
    measurements count as unknown, not as empty."""

    start_ms: int
    end_ms: int
    known_from_ms: int


@dataclass(frozen=True, slots=True)
class EvaluationSpan:
    """The time span of due evaluations: after ``evaluated_to_ms`` and up to ``watermark_ms``, the lowest watermark of
    all partitions. An evaluation is due ``delay_ms`` after its window. ``seen_ms``: the highest watermark. Windows that
    begin after it come from clocks that are ahead, and are evaluated later."""

    evaluated_to_ms: int
    watermark_ms: int
    seen_ms: int
    delay_ms: int = 30_000
    idle_periods: tuple[IdlePeriod, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    alarm: AlarmState
    transitions: tuple[Transition, ...]


class _SubAlarmEvent(NamedTuple):
    """An event of one sub-alarm. ``at_ms``: its position in time. ``is_due``: whether it is a due evaluation, which is
    processed after crossings with the same time. ``timestamp_ms``: the time of the transition that it can cause."""

    at_ms: float
    is_due: bool
    timestamp_ms: float
    position: int
    apply: Callable[[SubAlarm], SubAlarm]


def evaluate(
    expression: Expression,
    alarm: AlarmState,
    measured: Sequence[Measured],
    span: EvaluationSpan,
    *,
    begins_ms: int = 0,
) -> Evaluated:
    """Return the alarm after all events of the span, and its transitions.

    ``measured``: the measurements of each sub-alarm, in order. ``begins_ms``: the creation time of the alarm.
    Evaluations that were due by then are skipped; for ``last``, only the newest of the earlier readings counts.
    """
    if begins_ms > span.evaluated_to_ms:
        span = replace(span, evaluated_to_ms=begins_ms)
    sub_alarms = list(alarm.sub_alarms)
    state, last_ms = alarm.state, alarm.last_transition_ms
    transitions: list[Transition] = []
    for (*_, timestamp_ms), events in groupby(
        _events(sub_alarms, measured, span, begins_ms), key=lambda event: event[:3]
    ):
        for event in events:
            sub_alarms[event.position] = event.apply(sub_alarms[event.position])
        new_state = state_of(expression, sub_alarms)
        if new_state != state:
            # A late crossing gets a time after the previous change, because history is read in order, and a change back
            # to the same state must have its own time and id.
            last_ms = max(int(timestamp_ms), last_ms + 1)
            reason = _reason(new_state, sub_alarms)
            transitions.append(Transition(state, new_state, last_ms, reason, tuple(sub_alarms)))
            state = new_state
    return Evaluated(AlarmState(state, tuple(sub_alarms), last_ms), tuple(transitions))


def state_of(expression: Expression, sub_alarms: Sequence[SubAlarm]) -> str:
    states = [sub_alarm.state for sub_alarm in sub_alarms]
    if UNDETERMINED in states:
        return UNDETERMINED
    return ALARM if expression.holds([state == ALARM for state in states]) else OK


def needed_from_ms(sub: SubExpression, evaluated_to_ms: int, delay_ms: int) -> int:
    """Return the start of the oldest window that an evaluation can need."""
    return _next_end_ms(sub, evaluated_to_ms, delay_ms) - sub.periods * sub.period * 1000


def _next_end_ms(sub: SubExpression, evaluated_to_ms: int, delay_ms: int) -> int:
    """Return the end of the first window whose evaluation is due after ``evaluated_to_ms``."""
    length_ms = sub.period * 1000
    return ((evaluated_to_ms - delay_ms) // length_ms + 1) * length_ms


def _events(
    sub_alarms: Sequence[SubAlarm], measured: Sequence[Measured], span: EvaluationSpan, begins_ms: int
) -> Iterable[_SubAlarmEvent]:
    """Return the events in order of time. Events with the same time are in the order of the expression."""
    each: list[Iterable[_SubAlarmEvent]] = [_redecisions(sub_alarms, span)]
    for index, (sub_alarm, found) in enumerate(zip(sub_alarms, measured, strict=True)):
        if sub_alarm.sub_expression.function == "last":
            each.append(_readings(index, sub_alarm, found.readings, span, begins_ms))
        else:
            view = _View(sub_alarm.sub_expression, found.windows)
            each.append(sorted(_crossings(index, sub_alarm, view, span), key=_order))
            each.append(_due(index, view, span))
    # Usually all lists are empty and there is one sub-alarm, and merging would take longer than evaluating.
    each = [events for events in each if events != []]
    return each[0] if len(each) == 1 else heapq.merge(*each, key=_order)


def _order(event: _SubAlarmEvent) -> tuple[float, bool, float, int]:
    return event[:4]


def _redecisions(sub_alarms: Sequence[SubAlarm], span: EvaluationSpan) -> list[_SubAlarmEvent]:
    """Return the decisions that result from a changed threshold, operator or structure without a new measurement. They
    share one time before all other events, because separate steps would report states that the alarm never had."""
    # A longer delay moves ``evaluated_to_ms`` forward, perhaps beyond the highest watermark.
    time_ms = min(span.evaluated_to_ms, span.seen_ms)
    return [
        _SubAlarmEvent(-inf, False, time_ms, index, _redecided)
        for index, each in enumerate(sub_alarms)
        if each.decided_ms == RESTRUCTURED or (each.newest and each.state != _state_by(each, each.newest))
    ]


def _redecided(sub_alarm: SubAlarm) -> SubAlarm:
    state = _state_by(sub_alarm, sub_alarm.newest) if sub_alarm.newest else sub_alarm.state
    return replace(sub_alarm, state=state, decided_ms=max(sub_alarm.decided_ms, 0))


def _state_by(sub_alarm: SubAlarm, reading: Reading) -> str:
    return ALARM if meets(sub_alarm.sub_expression, reading.quantity) else OK


def _readings(
    index: int, sub_alarm: SubAlarm, readings: Sequence[Reading], span: EvaluationSpan, begins_ms: int
) -> Iterator[_SubAlarmEvent]:
    known = sub_alarm.newest
    newer = [reading for reading in sorted(readings) if known is None or reading > known]
    if known is None:
        earlier = bisect_right(newer, begins_ms, key=attrgetter("timestamp_ms"))
        newer = newer[max(0, earlier - 1) :]
    for reading in newer:
        at_ms = max(reading.timestamp_ms, span.evaluated_to_ms)
        yield _SubAlarmEvent(at_ms, False, reading.timestamp_ms, index, partial(_taken, reading))


def _taken(reading: Reading, sub_alarm: SubAlarm) -> SubAlarm:
    state = _state_by(sub_alarm, reading)
    return replace(sub_alarm, state=state, current_values=(reading.quantity,), newest=reading)


class _View:
    """The windows of one sub-alarm that have measurements. Loops iterate over these windows instead of all ``periods``
    windows, because there can be millions."""

    def __init__(self, sub: SubExpression, windows: Mapping[int, WindowPartial]) -> None:
        self.sub = sub
        self.windows = windows
        self.starts = sorted(windows)
        self.length_ms = sub.period * 1000
        self.span_ms = self.length_ms * sub.periods
        self._shown_ms = self.length_ms * min(sub.periods, MOST_VALUES)

    @cached_property
    def _values(self) -> list[float]:
        return [self.windows[start_ms].value(self.sub.function) for start_ms in self.starts]

    @cached_property
    def _failed(self) -> list[int]:
        """Return, for each window, the number of earlier windows that do not meet the comparison."""
        return [0, *accumulate(not meets(self.sub, value) for value in self._values)]

    def shown(self, end_ms: int) -> tuple[float, ...]:
        """Return the values of the last ``periods`` windows up to ``end_ms``, at most `MOST_VALUES`."""
        first = bisect_left(self.starts, end_ms - self._shown_ms)
        return tuple(self._values[first : bisect_left(self.starts, end_ms)])

    def counts(self, end_ms: int) -> tuple[int, int]:
        """Return how many of the last ``periods`` windows up to ``end_ms`` have measurements, and how many of the
        measured windows do not meet the comparison."""
        first, last = bisect_left(self.starts, end_ms - self.span_ms), bisect_left(self.starts, end_ms)
        return last - first, self._failed[last] - self._failed[first]


def _crossings(index: int, sub_alarm: SubAlarm, view: _View, span: EvaluationSpan) -> Iterator[_SubAlarmEvent]:
    """Yield the crossings of windows that neither an evaluation nor a crossing has decided."""
    sub = view.sub
    state = immediate_state(sub)
    if state is None:
        return
    next_end_ms = _next_end_ms(sub, span.evaluated_to_ms, span.delay_ms)
    run, previous_ms = 0, None
    for start_ms in view.starts:
        found = crossing(sub, view.windows[start_ms])
        follows = previous_ms is not None and previous_ms + view.length_ms == start_ms
        run = 0 if found is None else run + 1 if follows else 1
        previous_ms = start_ms
        end_ms = start_ms + view.length_ms
        is_undecided = end_ms >= next_end_ms and end_ms > sub_alarm.decided_ms and start_ms <= span.seen_ms
        if found and is_undecided and (state == OK or run >= sub.periods):
            at_ms = max(found.time_ms, span.evaluated_to_ms)
            yield _SubAlarmEvent(at_ms, False, found.time_ms, index, partial(_crossed, view, state, end_ms, found))


def _crossed(view: _View, state: str, end_ms: int, found: Crossing, sub_alarm: SubAlarm) -> SubAlarm:
    values = (*view.shown(end_ms)[:-1], found.value)
    return replace(sub_alarm, state=state, current_values=values, empty_evaluations=0, decided_ms=end_ms)


def _due(index: int, view: _View, span: EvaluationSpan) -> Iterator[_SubAlarmEvent]:
    end_ms = _next_end_ms(view.sub, span.evaluated_to_ms, span.delay_ms)
    while (at_ms := end_ms + span.delay_ms) <= span.watermark_ms:
        yield _SubAlarmEvent(at_ms, True, at_ms, index, partial(_whole_windows, view, end_ms, at_ms, span.idle_periods))
        end_ms += view.length_ms


def _whole_windows(
    view: _View, end_ms: int, at_ms: int, idle_periods: Sequence[IdlePeriod], sub_alarm: SubAlarm
) -> SubAlarm:
    if sub_alarm.decided_ms > end_ms:
        return replace(sub_alarm, empty_evaluations=0)
    sub, values = view.sub, view.shown(end_ms)
    measured, failed = view.counts(end_ms)
    if failed:
        return _seen(sub_alarm, OK, values)
    if measured == sub.periods:
        return _seen(sub_alarm, ALARM, values)
    unknown = _unknown(view, end_ms, [each for each in idle_periods if at_ms < each.known_from_ms])
    if sub.deterministic:
        return _seen(sub_alarm, OK if sub.periods - measured > unknown else sub_alarm.state, values)
    if measured:
        return _seen(sub_alarm, sub_alarm.state, values)
    if unknown:
        return replace(sub_alarm, current_values=())
    most = 2 * sub.periods
    empty = min(sub_alarm.empty_evaluations + 1, most)
    state = UNDETERMINED if empty == most else sub_alarm.state
    return replace(sub_alarm, state=state, current_values=(), empty_evaluations=empty)


def _seen(sub_alarm: SubAlarm, state: str, values: tuple[float, ...]) -> SubAlarm:
    """Return the sub-alarm after an evaluation with measurements. This is called for every alarm each minute, so it
    avoids ``replace``, which takes three times as long."""
    return SubAlarm(sub_alarm.sub_expression, state, values, 0, sub_alarm.decided_ms, sub_alarm.newest)


def _unknown(view: _View, end_ms: int, idle_periods: Sequence[IdlePeriod]) -> int:
    """Return how many of the last ``periods`` windows up to ``end_ms`` have no measurement and overlap an idle
    period."""
    counted_to_ms = end_ms - view.span_ms
    unknown = 0
    for each in sorted(idle_periods, key=lambda period: period.start_ms):
        first_ms = max(each.start_ms // view.length_ms * view.length_ms, counted_to_ms)
        last_ms = min(-(-each.end_ms // view.length_ms) * view.length_ms, end_ms)
        if first_ms < last_ms:
            measured = bisect_left(view.starts, last_ms) - bisect_left(view.starts, first_ms)
            unknown += (last_ms - first_ms) // view.length_ms - measured
            counted_to_ms = last_ms
    return unknown


_REASONS = {
    ALARM: "Thresholds were exceeded for the sub-alarms: {}",
    OK: "The alarm threshold(s) have not been exceeded for the sub-alarms: {}",
    UNDETERMINED: "No data was present for the sub-alarms: {}",
}


def _reason(state: str, sub_alarms: Sequence[SubAlarm]) -> str:
    shown = [_shown(sub_alarm) for sub_alarm in sub_alarms if sub_alarm.state == state]
    return _REASONS[state].format(", ".join(shown))


def _shown(sub_alarm: SubAlarm) -> str:
    text = sub_alarm.sub_expression.text
    if sub_alarm.state == UNDETERMINED:
        return text
    return f"{text} with the values: [{', '.join(map(decimal_text, sub_alarm.current_values))}]"
