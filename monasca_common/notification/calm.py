# SPDX-License-Identifier: Apache-2.0
"""What keeps notifications few: silences, inhibition, groups, limits, repeats. Pure: time and what is stored are
arguments."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.alarms.silences import Silence
from monasca_common.alarms.transitions import SEVERITIES, AlarmChange
from monasca_common.models import json_text

#: States in the ledger of what is not sent now.
SILENCED, INHIBITED, HELD = "silenced", "inhibited", "held"
DEFINITION = "definition"
ACKNOWLEDGED = "ACKNOWLEDGED"
OK = "OK"
MINUTE_MS = 60_000
LIMIT_KEY = "limit/"


@dataclass(frozen=True, slots=True)
class Inhibition:
    """Alarms of the definition of this name, or of this severity, inhibit those with the same values of ``equal``.

    By severity they inhibit alarms of lower ones alone.
    """

    equal: tuple[str, ...]
    definition: str | None = None
    severity: str | None = None

    def has_source(self, definition: str, severity: str) -> bool:
        return definition == self.definition or severity == self.severity


@dataclass(frozen=True, slots=True)
class CalmRules:
    """``group_by``: `DEFINITION`, or keys of dimensions; none: nothing is grouped. ``max_per_minute``: 0 is no limit.
    ``inhibitions``: the strongest first."""

    group_by: tuple[str, ...] = ()
    group_wait_ms: int = 30_000
    max_per_minute: int = 0
    inhibitions: tuple[Inhibition, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveAlarm:
    """An alarm that is in the state ALARM. ``dimensions``: those of each of its metrics."""

    id: str
    definition_id: str
    definition: str
    severity: str
    dimensions: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class CurrentAlarm:
    """``since_ms``: the time of the change to its state."""

    state: str
    since_ms: int
    lifecycle_state: str | None
    actions_enabled: bool


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What is stored about a change and one method. ``active``: alarms that may inhibit it. ``withheld_before``:
    whether the change before it was silenced or inhibited. ``last_told``: the state of the alarm that people were told
    last; ``None``: unknown, because the notification of it was not sent."""

    silences: Sequence[Silence] = ()
    active: Sequence[ActiveAlarm] = ()
    withheld_before: bool = False
    last_told: str | None = OK


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a notification is not sent now. ``state``: of the ledger. ``due_ms``: when it is looked at again; ``None``:
    never. ``group_key``: what is sent with it. ``silence_id``: of the silence that it waits for."""

    state: str
    due_ms: int | None
    reason: str
    group_key: str = ""
    silence_id: str = ""


class RepeatStep(enum.Enum):
    SEND = "send it"
    SKIP = "leave this one out"
    END = "there are no more"


@dataclass(frozen=True, slots=True)
class RateWindow:
    """A minute of one method: since when, and how many messages it got."""

    since_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.since_ms + MINUTE_MS


def silencing(silences: Iterable[Silence], change: AlarmChange, now_ms: int) -> Silence | None:
    """The silence that covers the change now; of several the one that ends last."""
    dimensions = [each.dimensions for each in change.metrics]
    covering = [
        each for each in silences if each.tenant == change.tenant and each.lasts(now_ms) and each.covers(dimensions)
    ]
    return max(covering, key=lambda each: (each.until_ms, each.id), default=None)


def inhibiting(rules: Sequence[Inhibition], active: Iterable[ActiveAlarm], change: AlarmChange) -> ActiveAlarm | None:
    """An alarm that inhibits the change. What is a source of a rule is inhibited by stronger rules alone, so that no
    two alarms inhibit each other."""
    ranks = (rank for rank, rule in enumerate(rules) if rule.has_source(change.name, change.severity))
    stronger = rules[: next(ranks, len(rules))]
    others = [each for each in active if each.id != change.alarm_id and each.definition_id != change.definition_id]
    found = (each for rule in stronger for each in others if _inhibits(rule, each, change))
    return next(found, None)


def _inhibits(rule: Inhibition, source: ActiveAlarm, change: AlarmChange) -> bool:
    if not rule.has_source(source.definition, source.severity):
        return False
    if rule.severity is not None and _rank(change.severity) >= _rank(rule.severity):
        return False
    values = {_values(rule.equal, each) for each in source.dimensions} - {None}
    return any(_values(rule.equal, each.dimensions) in values for each in change.metrics)


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def _values(keys: Iterable[str], dimensions: Mapping[str, str]) -> tuple[str, ...] | None:
    """``None``: it lacks one."""
    values = tuple(dimensions[key] for key in keys if key in dimensions)
    return values if len(values) == len(tuple(keys)) else None


def suppression(rules: CalmRules, facts: ChangeFacts, change: AlarmChange, now_ms: int) -> Hold | None:
    """Why nobody is to be told of the change now."""
    if (silence := silencing(facts.silences, change, now_ms)) is not None:
        return Hold(SILENCED, silence.until_ms, silence.shown, silence_id=silence.id)
    if (source := inhibiting(rules.inhibitions, facts.active, change)) is not None:
        reason = f"inhibited by the alarm {source.id} of {source.definition}"
        return Hold(INHIBITED, now_ms + MINUTE_MS, reason)
    return None


def plan(rules: CalmRules, facts: ChangeFacts, change: AlarmChange, method_id: str, now_ms: int) -> Hold | None:
    """``None``: it is sent now, if the limit allows."""
    if (hold := suppression(rules, facts, change, now_ms)) is not None:
        # Decided now, because the rows that say what was told last may be removed before the silence ends.
        return hold if is_news(change, facts) else replace(hold, due_ms=None)
    if facts.withheld_before and not is_news(change, facts):
        return Hold(SILENCED, None, f"nobody was told that it was other than {change.new_state}")
    return grouping(rules, change, method_id, now_ms)


def grouping(rules: CalmRules, change: AlarmChange, method_id: str, now_ms: int) -> Hold | None:
    if not rules.group_by:
        return None
    parts = [_part(each, change) for each in rules.group_by]
    # A hash, because values may be longer than what an index takes.
    digest = hashlib.blake2b(json_text.write(parts), digest_size=16).hexdigest()
    return Hold(HELD, now_ms + rules.group_wait_ms, "it waits for its group", f"{method_id}/{digest}")


def _part(by: str, change: AlarmChange) -> str | list[str]:
    if by == DEFINITION:
        return change.definition_id
    return sorted({each.dimensions[by] for each in change.metrics if by in each.dimensions})


def is_news(change: AlarmChange, facts: ChangeFacts) -> bool:
    """Whether it differs from what people were told last."""
    return change.new_state != facts.last_told


def stands(current: CurrentAlarm | None, change: AlarmChange) -> bool:
    """Whether the alarm is in the state of the change since that change."""
    return current is not None and (current.state, current.since_ms) == (change.new_state, change.time_ms)


def repeats(change: AlarmChange, period_seconds: int) -> bool:
    """Whether a method of this period is told again and again: of what is not as it should be."""
    return period_seconds > 0 and change.new_state != OK


def repeat_step(
    rules: CalmRules, facts: ChangeFacts, current: CurrentAlarm | None, change: AlarmChange, now_ms: int
) -> RepeatStep:
    """What to do about a repeat that is due."""
    if current is None or not stands(current, change):
        return RepeatStep.END
    if current.lifecycle_state == ACKNOWLEDGED or not current.actions_enabled:
        return RepeatStep.SKIP
    return RepeatStep.SEND if suppression(rules, facts, change, now_ms) is None else RepeatStep.SKIP


def next_repeat_ms(due_ms: int, period_seconds: int, now_ms: int) -> int:
    """The next time of the period that is to come: what was missed is not made up for."""
    period_ms = period_seconds * 1000
    return due_ms + max(1, (now_ms - due_ms) // period_ms + 1) * period_ms


def admission(window: RateWindow | None, now_ms: int, most: int) -> RateWindow | None:
    """The window with one message more; ``None``: it is full until its end."""
    if window is None or not window.since_ms <= now_ms < window.end_ms:
        return RateWindow(now_ms, 1)
    return RateWindow(window.since_ms, window.count + 1) if window.count < most else None
