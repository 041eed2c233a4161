# SPDX-License-Identifier: Apache-2.0
"""The statements behind lists and counts of alarms, for SQLite and PostgreSQL. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.database import Condition, Select, Slice, Sort, ordered
from monasca_common.alarms.definitions import SEVERITIES, STATES
from monasca_common.storage.sql import tables
from monasca_common.storage.sql.queries import Queries

_ALARM, _DEFINITION, _METRIC = tables.alarm, tables.alarm_definition, tables.alarm_metric


def _rank(column: sa.Column[str], values: Sequence[str]) -> sa.ColumnElement[int]:
    """The place of a value among those that are ordered by meaning."""
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
_OF_METRICS = ("metric_name", "dimension_name", "dimension_value")
_GROUPED_BY: Mapping[str, sa.ColumnElement[Any]] = {
    "alarm_definition_id": _ALARM.c.definition_id,
    "name": _DEFINITION.c.name,
    "state": _ALARM.c.state,
    "severity": _DEFINITION.c.severity,
    "link": _ALARM.c.link,
    "lifecycle_state": _ALARM.c.lifecycle_state,
    "metric_name": _METRIC.c.name,
}
GROUPS = (*tuple(_GROUPED_BY), *_OF_METRICS[1:])

_COLUMNS = (
    *(_ALARM.c[name] for name in ("id", "definition_id", "state", "lifecycle_state", "link")),
    *(_ALARM.c[name] for name in ("state_updated", "updated", "created")),
    _DEFINITION.c.name.label("definition_name"),
    _DEFINITION.c.severity,
)
_JOINED = _ALARM.join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)


@dataclass(frozen=True, slots=True)
class WhichAlarms:
    """``metric_name``, ``dimensions`` (allowed values of each key, none for any): of one of an alarm's metrics.
    ``states``, ``severities``: any if there are none."""

    tenant: str
    definition_id: str | None = None
    metric_name: str | None = None
    dimensions: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    states: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    lifecycle_state: str | None = None
    link: str | None = None
    state_updated_since_ms: int | None = None


class AlarmQueries:
    """``dialect``: ``sqlite`` or ``postgresql``."""

    def __init__(self, dialect: str) -> None:
        self._queries = Queries(dialect)
        self._on_postgresql = dialect == "postgresql"

    def one(self, tenant: str, alarm_id: str) -> Select:
        return sa.select(*_COLUMNS).select_from(_JOINED).where(_ALARM.c.id == alarm_id, _ALARM.c.tenant == tenant)

    def alarms(self, which: WhichAlarms, sorts: Sequence[Sort], part: Slice) -> Select:
        statement = sa.select(*_COLUMNS).select_from(_JOINED).where(*self._conditions(which))
        return ordered(statement, sorts, SORTED_BY, _ALARM.c.id, part)

    @staticmethod
    def metrics(alarm_ids: Sequence[str]) -> Select:
        columns = (_METRIC.c.alarm_id, _METRIC.c.name, _METRIC.c.dimensions)
        return sa.select(*columns).where(_METRIC.c.alarm_id.in_(alarm_ids)).order_by(_METRIC.c.series_id)

    def count(self, which: WhichAlarms) -> Select:
        return sa.select(sa.func.count()).select_from(_ALARM).where(*self._conditions(which))

    def counts(self, which: WhichAlarms, group_by: Sequence[str], part: Slice) -> Select:
        """Columns: the count, then those of ``group_by``, by which rows are ordered."""
        source: sa.FromClause = _JOINED
        columns = dict(_GROUPED_BY)
        if set(group_by) & set(_OF_METRICS):
            source = source.join(_METRIC, _METRIC.c.alarm_id == _ALARM.c.id)
        if set(group_by) & set(_OF_METRICS[1:]):
            pairs = self._pairs()
            source = source.join(pairs, sa.true())
            columns["dimension_name"] = self._by_bytes(pairs.c.key)
            columns["dimension_value"] = self._by_bytes(pairs.c.value)
        chosen = [columns[name].label(name) for name in group_by]
        each: Any = sa.select(_ALARM.c.id.label("alarm_id"), *chosen)
        each = each.select_from(source).where(*self._conditions(which))
        if set(group_by) & set(_OF_METRICS):
            each = each.distinct()  # an alarm may have a name or a dimension in several metrics
        rows = each.subquery("each_alarm")
        groups = [rows.c[name] for name in group_by]
        statement = sa.select(sa.func.count(), *groups).group_by(*groups)
        return (
            statement.order_by(*(group.asc().nulls_first() for group in groups)).limit(part.limit).offset(part.offset)
        )

    def _conditions(self, which: WhichAlarms) -> list[Condition]:
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
        if which.metric_name is not None or which.dimensions:
            conditions.append(_ALARM.c.id.in_(self._having(which)))
        return conditions

    def _having(self, which: WhichAlarms) -> Select:
        conditions: list[Condition] = [_METRIC.c.tenant == which.tenant]
        if which.metric_name is not None:
            conditions.append(_METRIC.c.name == which.metric_name)
        conditions += self._queries.match(_METRIC.c.dimensions, which.dimensions)
        return sa.select(_METRIC.c.alarm_id).where(*conditions)

    def _pairs(self) -> Any:
        """The dimensions of a metric as rows with the columns ``key`` and ``value``."""
        if self._on_postgresql:
            return sa.func.jsonb_each_text(_METRIC.c.dimensions).table_valued("key", "value").render_derived()
        return sa.func.json_each(_METRIC.c.dimensions).table_valued("key", "value")

    def _by_bytes(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        return sa.collate(column, "C") if self._on_postgresql else column
