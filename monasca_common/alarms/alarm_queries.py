# SPDX-License-Identifier: Apache-2.0
"""Builds the statements that list and count alarms, for SQLite and PostgreSQL. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.database import Condition, Select, Slice, Sort, of_tenant, ordered
from monasca_common.alarms.definitions import SEVERITIES, STATES
from monasca_common.storage.sql import tables

_ALARM, _DEFINITION = tables.alarm, tables.alarm_definition
_METRIC, _DIMENSION = tables.alarm_metric, tables.alarm_dimension


def _rank(column: sa.Column[str], values: Sequence[str]) -> sa.ColumnElement[int]:
    """Return the rank of a value, such as a severity."""
    return sa.case({value: place for place, value in enumerate(values)}, value=column, else_=len(values))


SORTED_BY: Mapping[str, sa.ColumnElement[Any]] = {
    "alarm_id": _ALARM.c.id,
    "alarm_definition_id": _ALARM.c.definition_id,
    "alarm_definition_name": _DEFINITION.c.name,
    "state": _rank(_ALARM.c.state, STATES),
    "severity": _rank(_DEFINITION.c.severity, SEVERITIES),
    "lifecycle_state": _ALARM.c.lifecycle_state,
    "link": _ALARM.c.link,
    "state_updated_timestamp": _ALARM.c.state_updated,
    "updated_timestamp": _ALARM.c.updated,
    "created_timestamp": _ALARM.c.created,
}
SORTS = tuple(SORTED_BY)
_OF_ALARMS: Mapping[str, sa.ColumnElement[Any]] = {
    "alarm_definition_id": _ALARM.c.definition_id,
    **{name: _ALARM.c[name] for name in ("state", "link", "lifecycle_state")},
}
_OF_DEFINITIONS: Mapping[str, sa.ColumnElement[Any]] = {"name": _DEFINITION.c.name, "severity": _DEFINITION.c.severity}
_OF_DIMENSIONS: Mapping[str, sa.ColumnElement[Any]] = {
    "metric_name": _DIMENSION.c.metric_name,
    "dimension_name": _DIMENSION.c.name,
    "dimension_value": _DIMENSION.c.value,
}
GROUPS = (
    *("alarm_definition_id", "name", "state", "severity", "link", "lifecycle_state"),
    *_OF_DIMENSIONS,
)

_COLUMNS = (
    *(_ALARM.c[name] for name in ("id", "definition_id", "state", "lifecycle_state", "link")),
    *(_ALARM.c[name] for name in ("state_updated", "updated", "created")),
    _DEFINITION.c.name.label("definition_name"),
    _DEFINITION.c.severity,
)
_JOINED = _ALARM.join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)


@dataclass(frozen=True, slots=True)
class WhichAlarms:
    """Filters of alarms. ``metric_name`` and ``dimensions`` (allowed values of each key; empty: any value) apply to one
    metric of the alarm. Empty ``states`` or ``severities``: any."""

    tenant: str
    definition_id: str | None = None
    metric_name: str | None = None
    dimensions: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    states: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    lifecycle_state: str | None = None
    link: str | None = None
    state_updated_since_ms: int | None = None


def one(tenant: str, alarm_id: str) -> Select:
    return sa.select(*_COLUMNS).select_from(_JOINED).where(*of_tenant(_ALARM, tenant, alarm_id))


def alarms(which: WhichAlarms, sorts: Sequence[Sort], part: Slice) -> Select:
    statement = sa.select(*_COLUMNS).select_from(_JOINED).where(*_conditions(which))
    return ordered(statement, sorts, SORTED_BY, _ALARM.c.id, part)


def metrics(alarm_ids: Sequence[str]) -> Select:
    columns = (_METRIC.c.alarm_id, _METRIC.c.name, _METRIC.c.dimensions)
    return sa.select(*columns).where(_METRIC.c.alarm_id.in_(alarm_ids)).order_by(_METRIC.c.series_id)


def count(which: WhichAlarms) -> Select:
    having = _having(which)
    if having is not None and not _own_conditions(which):
        return sa.select(sa.func.count()).select_from(having.distinct().subquery("having"))
    return sa.select(sa.func.count()).select_from(_ALARM).where(*_conditions(which))


def counts(which: WhichAlarms, group_by: Sequence[str], part: Slice) -> Select:
    """Return the statement for the count and the columns of ``group_by``, ordered by these columns. For columns of
    definitions, alarms are counted by definition first, because definitions are few.
    """
    counted = _counted(which, group_by).subquery("counted")
    columns = {**{column.name: column for column in counted.c}, **_OF_DEFINITIONS}
    groups = [columns[name] for name in group_by]
    statement: Select = sa.select(counted.c.count, *groups)
    if set(group_by) & set(_OF_DEFINITIONS):
        source = counted.join(_DEFINITION, _DEFINITION.c.id == counted.c.alarm_definition_id)
        statement = sa.select(sa.cast(sa.func.sum(counted.c.count), sa.BigInteger), *groups)
        statement = statement.select_from(source).group_by(*groups)
    return statement.order_by(*(group.asc().nulls_first() for group in groups)).limit(part.limit).offset(part.offset)


def _counted(which: WhichAlarms, group_by: Sequence[str]) -> Select:
    """Count by the columns of alarms and metrics, and also by definition if ``group_by`` contains columns of
    definitions."""
    names = [name for name in group_by if name not in _OF_DEFINITIONS]
    if len(names) < len(group_by) and "alarm_definition_id" not in names:
        names.append("alarm_definition_id")
    of_metrics, columns = _source_of_metrics(group_by)
    groups = [columns[name].label(name) for name in names]
    if of_metrics is None:
        statement: Select = sa.select(sa.func.count().label("count"), *groups).where(*_conditions(which))
    else:
        # Several metrics of an alarm can have the same name or dimension.
        alarm_id, conditions = of_metrics.c.alarm_id, [of_metrics.c.tenant == which.tenant]
        statement = sa.select(sa.func.count(alarm_id.distinct()).label("count"), *groups).select_from(of_metrics)
        if _own_conditions(which) or set(names) & set(_OF_ALARMS):
            statement = statement.join(_ALARM, _ALARM.c.id == alarm_id)
            conditions += _conditions(which)
        else:
            conditions += _metric_conditions(which, alarm_id)
        statement = statement.where(*conditions)
    return statement.group_by(*groups)


def _source_of_metrics(group_by: Sequence[str]) -> tuple[sa.Table | None, Mapping[str, sa.ColumnElement[Any]]]:
    """Return the table with the requested columns of metrics, if any, and all columns."""
    asked = set(group_by) & set(_OF_DIMENSIONS)
    if asked == {"metric_name"}:
        return _METRIC, {**_OF_ALARMS, "metric_name": _METRIC.c.name}
    return (_DIMENSION if asked else None), {**_OF_ALARMS, **_OF_DIMENSIONS}


def _conditions(which: WhichAlarms) -> list[Condition]:
    return [_ALARM.c.tenant == which.tenant, *_own_conditions(which), *_metric_conditions(which, _ALARM.c.id)]


def _own_conditions(which: WhichAlarms) -> list[Condition]:
    """Return the conditions on the alarm and its definition."""
    conditions: list[Condition] = []
    for column, value in (
        (_ALARM.c.definition_id, which.definition_id),
        (_ALARM.c.lifecycle_state, which.lifecycle_state),
        (_ALARM.c.link, which.link),
    ):
        if value is not None:
            conditions.append(column == value)
    if which.states:
        conditions.append(_ALARM.c.state.in_(which.states))
    if which.state_updated_since_ms is not None:
        conditions.append(_ALARM.c.state_updated >= which.state_updated_since_ms)
    if which.severities:
        definitions = sa.select(_DEFINITION.c.id).where(
            _DEFINITION.c.tenant == which.tenant, _DEFINITION.c.severity.in_(which.severities)
        )
        conditions.append(_ALARM.c.definition_id.in_(definitions))
    return conditions


def _metric_conditions(which: WhichAlarms, alarm_id: sa.ColumnElement[str]) -> list[Condition]:
    having = _having(which)
    return [] if having is None else [alarm_id.in_(having)]


def _having(which: WhichAlarms) -> Select | None:
    """Select the ids of alarms with a metric that has the name and all dimensions; return ``None`` without a
    condition."""
    if not which.dimensions:
        if which.metric_name is None:
            return None
        return sa.select(_METRIC.c.alarm_id).where(
            _METRIC.c.tenant == which.tenant, _METRIC.c.name == which.metric_name
        )
    (name, values), *others = which.dimensions.items()
    first = _DIMENSION.alias("first")
    statement: Select = sa.select(first.c.alarm_id).where(first.c.tenant == which.tenant, *_has(first, name, values))
    if which.metric_name is not None:
        statement = statement.where(first.c.metric_name == which.metric_name)
    for number, (name, values) in enumerate(others):
        other = _DIMENSION.alias(f"other_{number}")
        same = other.c.alarm_id == first.c.alarm_id, other.c.series_id == first.c.series_id
        statement = statement.where(sa.select(sa.literal_column("1")).where(*same, *_has(other, name, values)).exists())
    return statement


def _has(dimension: sa.FromClause, name: str, values: Sequence[str]) -> list[Condition]:
    return [dimension.c.name == name, *([dimension.c.value.in_(values)] if values else [])]
