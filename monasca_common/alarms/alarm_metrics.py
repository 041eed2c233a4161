# SPDX-License-Identifier: Apache-2.0
"""Stores the series of alarms, with a separate row for each dimension, so that filters can select alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.database import Select
from monasca_common.storage.sql import schema, tables

_METRIC, _DIMENSION = tables.alarm_metric, tables.alarm_dimension
_PART, _SERIES = tables.alarm_part, tables.alarm_series
_SERIES_AT_ONCE = 1000
_KEY = ("alarm_id", "series_id", "tenant")


def add_metrics(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert series that the alarms do not have yet, in the transaction that creates the alarms or detects the series.
    ``rows``: the columns of `tables.alarm_metric`."""
    for start in range(0, len(rows), _SERIES_AT_ONCE):
        some = rows[start : start + _SERIES_AT_ONCE]
        dimensions = [
            {**{key: row[key] for key in _KEY}, "metric_name": row["name"], "name": name, "value": value}
            for row in some
            for name, value in row["dimensions"].items()
        ]
        for table, values in ((_METRIC, some), (_DIMENSION, dimensions)):
            if values:
                connection.execute(schema.insert(connection, table).on_conflict_do_nothing(), values)


def forget_metrics(connection: sa.Connection, series: Sequence[Mapping[str, Any]]) -> None:
    """Delete the rows of deleted ``series`` (sub_expression_id, match_key, series_id), unless another sub-expression of
    the alarm has the same series."""
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
