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
    """Return the rank of the column's value, such as a severity."""
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
_GROUPS: Mapping[str, sa.ColumnElement[Any]] = {
    "alarm_definition_id": _ALARM.c.definition_id,
    "name": _DEFINITION.c.name,
    "state": _ALARM.c.state,
    "severity": _DEFINITION.c.severity,
    "link": _ALARM.c.link,
    "lifecycle_state": _ALARM.c.lifecycle_state,
    "metric_name": _DIMENSION.c.metric_name,
    "dimension_name": _DIMENSION.c.name,
    "dimension_value": _DIMENSION.c.value,
}
GROUPS = tuple(_GROUPS)
_OF_METRICS = {"metric_name", "dimension_name", "dimension_value"}

_JOINED = _ALARM.join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)
_SELECT = sa.select(
    *(_ALARM.c[name] for name in ("id", "definition_id", "state", "lifecycle_state", "link")),
    *(_ALARM.c[name] for name in ("state_updated", "updated", "created")),
    _DEFINITION.c.name.label("definition_name"),
    _DEFINITION.c.severity,
).select_from(_JOINED)


@dataclass(frozen=True, slots=True)
class WhichAlarms:
    """Filters for alarms. One metric of the alarm must match both ``metric_name`` and ``dimensions`` (the allowed
    values of each key; empty: any value). Empty ``states`` or ``severities`` match any value."""

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
    return _SELECT.where(*of_tenant(_ALARM, tenant, alarm_id))


def alarms(which: WhichAlarms, sorts: Sequence[Sort], part: Slice) -> Select:
    return ordered(_SELECT.where(*_conditions(which)), sorts, SORTED_BY, _ALARM.c.id, part)


def metrics(alarm_ids: Sequence[str]) -> Select:
    columns = (_METRIC.c.alarm_id, _METRIC.c.name, _METRIC.c.dimensions)
    return sa.select(*columns).where(_METRIC.c.alarm_id.in_(alarm_ids)).order_by(_METRIC.c.series_id)


def counts(which: WhichAlarms, group_by: Sequence[str], part: Slice) -> Select:
    """Return the statement that selects the count and the columns of ``group_by``, ordered by these columns. Without
    ``group_by``, it selects one row."""
    columns = dict(_GROUPS)
    source: sa.FromClause = _JOINED if {"name", "severity"}.intersection(group_by) else _ALARM
    conditions, counted = _conditions(which), sa.func.count()
    wanted = _OF_METRICS.intersection(group_by)
    if wanted:
        of_metrics = _DIMENSION
        if wanted == {"metric_name"}:  # a metric without dimensions has no row in the table of dimensions
            of_metrics, columns["metric_name"] = _METRIC, _METRIC.c.name
        # Several metrics of an alarm can have the same name or dimension.
        counted = sa.func.count(of_metrics.c.alarm_id.distinct())
        own = of_metrics.c.tenant == which.tenant
        if which == WhichAlarms(which.tenant) and wanted.issuperset(group_by):
            source, conditions = of_metrics, [own]  # a join with all alarms would take five times as long
        else:
            source = source.join(of_metrics, sa.and_(of_metrics.c.alarm_id == _ALARM.c.id, own))
    groups = [columns[name] for name in group_by]
    statement: Select = sa.select(counted, *groups).select_from(source).where(*conditions).group_by(*groups)
    return statement.order_by(*(group.asc().nulls_first() for group in groups)).limit(part.limit).offset(part.offset)


def _conditions(which: WhichAlarms) -> list[Condition]:
    conditions: list[Condition] = [_ALARM.c.tenant == which.tenant]
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
    having = _having(which)
    if having is not None:
        conditions.append(_ALARM.c.id.in_(having))
    return conditions


def _having(which: WhichAlarms) -> Select | None:
    """Return the query for the ids of alarms with a metric that has the name and all dimensions, or ``None`` if neither
    is set."""
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
