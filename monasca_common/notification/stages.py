# SPDX-License-Identifier: Apache-2.0
"""The stages of a notification, in the order of Alertmanager's pipeline.

=================  ==================================================================================
silence            defer until the silence ends                                     `STAGES`, pure
inhibition         defer, and decide again a minute later
acknowledgement    skip the repeat
deduplication      skip a change back to the last notified state
grouping           defer until ``group_wait`` is over
rate limit         defer until the method's minute is over                          `rate_window`, pure
slots              schedule a retry if the receiver has no free slot                ``slots.py``
deliver            send; schedule a retry after a failure                           ``delivery.py``
record             store the outcome                                                ``ledger.py``
=================  ==================================================================================

The functions are pure: time and stored facts are arguments. ``pipeline.py`` reads the facts and stores the decisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monasca_common.alarms.transitions import SEVERITY_RANKS, AlarmChange
from monasca_common.models import json_text

if TYPE_CHECKING:
    from monasca_common.alarms.silences import Silence

#: States of a deferred notification in the ledger.
SILENCED, INHIBITED, HELD = "silenced", "inhibited", "held"
DEFINITION = "definition"
ACKNOWLEDGED = "ACKNOWLEDGED"
OK = "OK"
MINUTE_MS = 60_000
LIMIT_KEY = "limit/"


@dataclass(frozen=True, slots=True)
class Inhibition:
    """A rule: an alarm of the definition with this name, or of this severity, inhibits alarms that have the same values
    of the dimensions ``equal``. An inhibition by severity affects only alarms of lower severities."""

    equal: tuple[str, ...]
    definition: str | None = None
    severity: str | None = None

    def has_source(self, definition: str, severity: str) -> bool:
        return definition == self.definition or severity == self.severity


@dataclass(frozen=True, slots=True)
class StageRules:
    """The operator's rules. ``group_by``: `DEFINITION`, or keys of dimensions; empty for no groups. ``max_per_minute``:
    0 for no limit. ``inhibitions``: strongest first."""

    group_by: tuple[str, ...] = ()
    group_wait_ms: int = 30_000
    max_per_minute: int = 0
    inhibitions: tuple[Inhibition, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveAlarm:
    """An alarm in the state ALARM. ``dimensions``: the dimensions of each metric that shares one with the change."""

    id: str
    definition_id: str
    definition: str
    severity: str
    dimensions: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class CurrentAlarm:
    """The current state of an alarm, and the time at which it changed to that state."""

    state: str
    since_ms: int
    lifecycle_state: str | None
    actions_enabled: bool

    def is_result_of(self, change: AlarmChange) -> bool:
        """Return whether the alarm has been in the change's state since that change."""
        return (self.state, self.since_ms) == (change.new_state, change.time_ms)


@dataclass(frozen=True, slots=True)
class Facts:
    """The stored facts about a change and one method.

    ``active``: alarms that may inhibit it. ``withheld_before``: whether the change before it was silenced or inhibited.
    ``last_notified``: the state in the last notification that the method received, or ``None`` if it is unknown because
    a notification was not sent. ``repeated``: the alarm, if a repeat of the change is due.
    """

    method_id: str = ""
    silences: Sequence[Silence] = ()
    active: Sequence[ActiveAlarm] = ()
    withheld_before: bool = False
    last_notified: str | None = OK
    repeated: CurrentAlarm | None = None

    def is_known(self, change: AlarmChange) -> bool:
        return change.new_state == self.last_notified


@dataclass(frozen=True, slots=True)
class Deferral:
    """The decision not to send a notification now.

    ``state``: the state in the ledger. ``due_ms``: the time at which the stages decide again, or ``None`` for never.
    ``group_key``: notifications with an equal key are sent in one message. ``silence_id``: the id of the silence whose
    end it awaits.
    """

    state: str
    due_ms: int | None
    reason: str
    group_key: str = ""
    silence_id: str = ""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """A minute of one method: its start, and the number of messages to the method."""

    since_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        return self.since_ms + MINUTE_MS


#: Takes the rules, the facts, the change, and the time in ms.
Stage = Callable[[StageRules, Facts, AlarmChange, int], Deferral | None]


def silence(_rules: StageRules, facts: Facts, change: AlarmChange, now_ms: int) -> Deferral | None:
    """Defer until the end of the last silence that covers the change."""
    dimensions = [metric.dimensions for metric in change.metrics]
    covering = [
        each
        for each in facts.silences
        if each.tenant == change.tenant and each.lasts(now_ms) and each.covers(dimensions)
    ]
    last = max(covering, key=lambda each: (each.until_ms, each.id), default=None)
    if last is None:
        return None
    # Decide now whether the end of the silence sends a notification, because the retention may remove the last notified
    # state.
    due_ms = None if facts.is_known(change) else last.until_ms
    return Deferral(SILENCED, due_ms, last.shown, silence_id=last.id)


def inhibition(rules: StageRules, facts: Facts, change: AlarmChange, now_ms: int) -> Deferral | None:
    """Defer while another alarm inhibits this alarm.

    The source of a rule is inhibited only by stronger rules, so that two alarms never inhibit each other.
    """
    ranks = (rank for rank, rule in enumerate(rules.inhibitions) if rule.has_source(change.name, change.severity))
    stronger = rules.inhibitions[: next(ranks, len(rules.inhibitions))]
    others = [each for each in facts.active if each.definition_id != change.definition_id]
    source = next((each for rule in stronger for each in others if _inhibits(rule, each, change)), None)
    if source is None:
        return None
    due_ms = None if facts.is_known(change) else now_ms + MINUTE_MS
    return Deferral(INHIBITED, due_ms, f"inhibited by the alarm {source.id} of {source.definition}")


def acknowledgement(_rules: StageRules, facts: Facts, _change: AlarmChange, _now_ms: int) -> Deferral | None:
    """Skip a repeat while its alarm is acknowledged, or the actions of its definition are disabled."""
    alarm = facts.repeated
    if alarm is None or (alarm.lifecycle_state != ACKNOWLEDGED and alarm.actions_enabled):
        return None
    return Deferral(HELD, None, "the alarm is acknowledged, or its actions are disabled")


def deduplication(_rules: StageRules, facts: Facts, change: AlarmChange, _now_ms: int) -> Deferral | None:
    """Skip a change back to the last notified state if the changes in between were withheld."""
    if not facts.withheld_before or not facts.is_known(change):
        return None
    return Deferral(SILENCED, None, f"no state other than {change.new_state} was notified")


def grouping(rules: StageRules, facts: Facts, change: AlarmChange, now_ms: int) -> Deferral | None:
    """Defer until the first notification of the group has waited for ``group_wait``."""
    if not rules.group_by:
        return None
    parts = [_group_part(each, change) for each in rules.group_by]
    # The key is a hash, because values may be longer than an index accepts.
    digest = hashlib.blake2b(json_text.write(parts), digest_size=16).hexdigest()
    return Deferral(HELD, now_ms + rules.group_wait_ms, "waiting for the group", f"{facts.method_id}/{digest}")


#: The stages that decide whether a member of a group, or a repeat, is sent.
SUPPRESSION: tuple[Stage, ...] = (silence, inhibition, acknowledgement)
STAGES: tuple[Stage, ...] = (*SUPPRESSION, deduplication, grouping)


def decide(
    rules: StageRules, facts: Facts, change: AlarmChange, now_ms: int, stages: Sequence[Stage] = STAGES
) -> Deferral | None:
    """Return the decision of the first stage that defers, or ``None`` if the rate limit is next."""
    decisions = (stage(rules, facts, change, now_ms) for stage in stages)
    return next((deferral for deferral in decisions if deferral is not None), None)


def rate_window(last: RateWindow | None, now_ms: int) -> RateWindow:
    """Return the ``last`` window if it is not over, otherwise a new one."""
    return last if last is not None and last.since_ms <= now_ms < last.end_ms else RateWindow(now_ms, 0)


def next_repeat_ms(due_ms: int, period_seconds: int, now_ms: int) -> int:
    """Return the time of the next repeat after now. Missed repeats are not sent."""
    period_ms = period_seconds * 1000
    return due_ms + max(1, (now_ms - due_ms) // period_ms + 1) * period_ms


def _inhibits(rule: Inhibition, source: ActiveAlarm, change: AlarmChange) -> bool:
    if not rule.has_source(source.definition, source.severity):
        return False
    if rule.severity is not None and SEVERITY_RANKS.get(change.severity, -1) >= SEVERITY_RANKS[rule.severity]:
        return False
    values = {_values(rule.equal, each) for each in source.dimensions} - {None}
    return any(_values(rule.equal, metric.dimensions) in values for metric in change.metrics)


def _values(keys: Sequence[str], dimensions: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the values of these dimensions, or ``None`` if a key is missing."""
    values = tuple(dimensions[key] for key in keys if key in dimensions)
    return values if len(values) == len(keys) else None


def _group_part(by: str, change: AlarmChange) -> str | list[str]:
    if by == DEFINITION:
        return change.definition_id
    return sorted({metric.dimensions[by] for metric in change.metrics if by in metric.dimensions})
