# SPDX-License-Identifier: Apache-2.0
"""Alarm definitions, and the rules for their content and changes. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from monasca_common.alarms import transitions
from monasca_common.alarms.errors import refuse
from monasca_common.alarms.expression import ExpressionError, SubExpression, parse
from monasca_common.models.limits import LONGEST_TEXT, MOST_DIMENSIONS, POSTED, TextRule

SEVERITIES = transitions.SEVERITIES
STATES = ("OK", "UNDETERMINED", "ALARM")
SORTS = ("id", "name", "severity", "updated_at", "created_at")
NAME = TextRule()
DESCRIPTION = TextRule(least=0, most=LONGEST_TEXT)
ACTION = TextRule(most=50)
MOST_ACTIONS = 100  # the maximum number of actions of one state
LONGEST_SPAN_SECONDS = 14 * 86_400
"""The maximum time for which windows of a sub-expression are kept (its period times its number of periods)."""


@dataclass(frozen=True, slots=True)
class AlarmDefinition:
    """An alarm definition. ``match_by``: keys of dimensions; each combination of their values has its own alarm.
    Actions are ids of notification methods. ``id`` and ``deterministic`` are set when the definition is stored."""

    name: str
    expression: str
    description: str = ""
    match_by: tuple[str, ...] = ()
    severity: str = "LOW"
    actions_enabled: bool = True
    alarm_actions: tuple[str, ...] = ()
    ok_actions: tuple[str, ...] = ()
    undetermined_actions: tuple[str, ...] = ()
    deterministic: bool = False
    id: str = ""

    @property
    def actions(self) -> Mapping[str, tuple[str, ...]]:
        """Return the actions by new state."""
        return {"ALARM": self.alarm_actions, "OK": self.ok_actions, "UNDETERMINED": self.undetermined_actions}


@dataclass(frozen=True, slots=True)
class DefinitionFilter:
    """Filters for definitions. ``dimensions``: the allowed values of each key (empty: any value); one sub-expression
    must match all keys. Empty ``severities`` match any severity."""

    tenant: str
    name: str | None = None
    dimensions: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    severities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSubExpression:
    """A stored sub-expression. ``windows``: the generation of its windows, which increases when the windows restart."""

    id: str
    windows: int
    expression: SubExpression


def checked(definition: AlarmDefinition) -> tuple[SubExpression, ...]:
    """Check all rules, except that the actions exist, and return the sub-expressions.

    Raises `BrokenRules`.
    """
    broken = list(_faults(definition))
    parsed: tuple[SubExpression, ...] = ()
    try:
        parsed = parse(definition.expression).sub_expressions
    except ExpressionError as error:
        broken.append(("expression", f"is wrong {error}"))
    for sub in parsed:
        if sub.period * sub.periods > LONGEST_SPAN_SECONDS:
            rule = f"period times periods must not exceed {LONGEST_SPAN_SECONDS} s, which is two weeks"
            broken.append(("expression", f"has {sub.periods} periods of {sub.period} s ({sub.text}): {rule}"))
    refuse(broken)
    return parsed


def _faults(definition: AlarmDefinition) -> Iterator[tuple[str, str]]:
    yield from (("name", fault) for fault in NAME.faults(definition.name))
    yield from (("description", fault) for fault in DESCRIPTION.faults(definition.description))
    if definition.severity not in SEVERITIES:
        yield "severity", f"is not one of {', '.join(SEVERITIES)}"
    yield from _list_faults("match_by", definition.match_by, POSTED.key, MOST_DIMENSIONS)
    for state, actions in definition.actions.items():
        yield from _list_faults(f"{state.lower()}_actions", actions, ACTION, MOST_ACTIONS)


def _list_faults(name: str, texts: Sequence[str], rule: TextRule, most: int) -> Iterator[tuple[str, str]]:
    if len(texts) > most:
        yield name, f"has {len(texts)} entries: at most {most} are allowed"
        return
    if len(set(texts)) < len(texts):
        yield name, "has a duplicate entry"
    for index, text in enumerate(texts):
        yield from ((f"{name}[{index}]", fault) for fault in rule.faults(text))


def refused_changes(
    stored: AlarmDefinition,
    changed: AlarmDefinition,
    stored_parts: Sequence[SubExpression],
    changed_parts: Sequence[SubExpression],
) -> Iterator[tuple[str, str]]:
    """Yield the forbidden changes, which would assign other series to existing alarms."""
    if sorted(stored.match_by) != sorted(changed.match_by):
        yield "match_by", "cannot change: delete the definition and create another"
    if _metrics(stored_parts) != _metrics(changed_parts):
        yield "expression", "cannot have different metrics, dimensions or a different number of sub-expressions"


def _metrics(parts: Sequence[SubExpression]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    return sorted((each.metric_name, each.dimensions) for each in parts)


def paired(stored: Sequence[StoredSubExpression], changed: Sequence[SubExpression]) -> list[StoredSubExpression]:
    """Return the changed sub-expressions in order, each with the id of the stored sub-expression with the same metric.
    Equal metrics are paired by position. Windows restart if the function, the period or the number of periods changes;
    ``last`` has no windows."""
    waiting: dict[object, list[StoredSubExpression]] = defaultdict(list)
    for each in stored:
        waiting[each.expression.metric_name, each.expression.dimensions].append(each)
    pairs: list[StoredSubExpression] = []
    for expression in changed:
        before = waiting[expression.metric_name, expression.dimensions].pop(0)
        restarts = _windows_of(before.expression) != _windows_of(expression)
        pairs.append(StoredSubExpression(before.id, before.windows + restarts, expression))
    return pairs


def _windows_of(expression: SubExpression) -> tuple[object, ...]:
    if expression.function == "last":
        return ("last",)
    return expression.function, expression.period, expression.periods
