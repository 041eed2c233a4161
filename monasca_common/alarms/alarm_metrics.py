# SPDX-License-Identifier: Apache-2.0
"""The series of alarms, with their dimensions in separate rows for filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.database import Select
from monasca_common.storage.sql import schema, tables

_METRIC, _DIMENSION = tables.alarm_metric, tables.alarm_dimension
_PART, _SERIES = tables.alarm_part, tables.alarm_series
_SERIES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class AlarmSeries:
    """One series of one alarm. ``series_id``: 16 bytes."""

    alarm_id: str
    series_id: bytes
    tenant: str
    name: str
    dimensions: Mapping[str, str]


def add_metrics(connection: sa.Connection, rows: Sequence[AlarmSeries]) -> None:
    """Insert series that the alarms do not have yet, in the transaction that creates the alarms or finds the series."""
    for start in range(0, len(rows), _SERIES_AT_ONCE):
        some = rows[start : start + _SERIES_AT_ONCE]
        _insert(connection, _METRIC, [_metric(row) for row in some])
        _insert(connection, _DIMENSION, [each for row in some for each in _dimensions(row)])


def forget_metrics(connection: sa.Connection, series: Sequence[Mapping[str, Any]]) -> None:
    """Delete the rows of deleted ``series`` (sub_expression_id, match_key, series_id) in alarms of which no other
    sub-expression has this series."""
    if not series:
        return
    own, other = _PART.alias(), _PART.alias()
    of_series = (own.c[name] == sa.bindparam(f"of_{name}") for name in ("sub_expression_id", "match_key"))
    alarms: Select = sa.select(own.c.alarm_id).where(*of_series)
    same = [_SERIES.c[name] == other.c[name] for name in ("sub_expression_id", "match_key")]
    rows = [{f"of_{name}": value for name, value in each.items()} for each in series]
    for table in (_METRIC, _DIMENSION):
        known = other.c.alarm_id == table.c.alarm_id, _SERIES.c.series_id == table.c.series_id
        is_known = sa.select(_SERIES.c.series_id).where(*same, *known).correlate(table).exists()
        which = table.c.series_id == sa.bindparam("of_series_id"), table.c.alarm_id.in_(alarms), ~is_known
        connection.execute(table.delete().where(*which), rows)


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(schema.insert(connection, table).on_conflict_do_nothing(), rows)


def _metric(row: AlarmSeries) -> dict[str, Any]:
    return {**_key(row), "name": row.name, "dimensions": dict(row.dimensions)}


def _dimensions(row: AlarmSeries) -> list[dict[str, Any]]:
    key = {**_key(row), "metric_name": row.name}
    return [{**key, "name": name, "value": value} for name, value in row.dimensions.items()]


def _key(row: AlarmSeries) -> dict[str, Any]:
    return {"alarm_id": row.alarm_id, "series_id": row.series_id, "tenant": row.tenant}
