# SPDX-License-Identifier: Apache-2.0
"""Creates the alarms of new series, and adds new series to the alarms that they join.

A series joins every alarm whose ``match_by`` values are equal to its own for all keys that both have. If there is no
such alarm, the series starts a new alarm, which is created once it has a series of every sub-expression. The result
does not depend on the order within a batch: series with the most values are processed first, so a series of a host
joins the alarms of the host's devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.alarms.alarm_metrics import add_metrics
from monasca_common.alarms.database import new_id
from monasca_common.alarms.evaluation import AlarmState
from monasca_common.models import json_text
from monasca_common.pipeline.evaluate.definitions import LoadedDefinition, load_definitions, match_key
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql import schema, tables

Values = tuple[str, ...]
"""The values of the ``match_by`` keys, in their order; empty for keys that the series lacks."""


@dataclass(frozen=True, slots=True)
class AlarmPart:
    """Assigns the windows of a sub-expression that have ``values`` to the alarm with ``alarm_values``."""

    alarm_values: Values
    sub_expression_id: str
    values: Values


@dataclass(frozen=True, slots=True)
class JoinResult:
    """``alarms``: new alarms. ``parts``: all parts of new alarms, and new parts of existing alarms."""

    alarms: tuple[Values, ...]
    parts: tuple[AlarmPart, ...]


def join(
    known_alarms: Iterable[Values],
    sub_expression_ids: Sequence[str],
    known: Mapping[str, AbstractSet[Values]],
    new: Mapping[str, AbstractSet[Values]],
) -> JoinResult:
    """Return the new alarms and parts. ``known``, ``new``: the values of the series of each sub-expression, from
    earlier batches and from this batch. Either can lack a sub-expression."""
    every = {each: known.get(each, frozenset()) | new.get(each, frozenset()) for each in sub_expression_ids}
    ordered = sorted(set().union(*every.values()), key=lambda each: (-sum(map(bool, each)), each))
    keys = _common_first(ordered)
    alarms, created = _ByValues(known_alarms, keys), _ByValues((), keys)
    for values in ordered:
        if not alarms.agreeing(values) and not created.agreeing(values):
            created.add(values)
    of_created = _parts(created, every)
    complete = {
        values
        for values, parts in of_created.items()
        if len({part.sub_expression_id for part in parts}) == len(set(sub_expression_ids))
    }
    parts = [part for values in complete for part in of_created[values]]
    parts += [part for added in _parts(alarms, new).values() for part in added]
    order = sorted(parts, key=lambda part: (part.alarm_values, part.sub_expression_id, part.values))
    return JoinResult(tuple(sorted(complete)), tuple(order))


def _parts(alarms: _ByValues, series: Mapping[str, AbstractSet[Values]]) -> dict[Values, list[AlarmPart]]:
    found: dict[Values, list[AlarmPart]] = defaultdict(list)
    for sub_expression_id, each_values in series.items():
        for values in each_values:
            for alarm in alarms.agreeing(values):
                found[alarm].append(AlarmPart(alarm, sub_expression_id, values))
    return found


def _common_first(series: Sequence[Values]) -> Sequence[int]:
    """Return the positions of the keys: first those that most series have, and of these, those with few values."""
    columns = list(zip(*series, strict=True))
    return sorted(range(len(columns)), key=lambda key: (columns[key].count(""), len(set(columns[key]))))


class _ByValues:
    """Finds the alarms that agree with a series, in a tree of their values with a level for each key. A search usually
    visits few alarms, regardless of the combinations of keys that alarms have. ``order``: the positions of the keys in
    the tree."""

    def __init__(self, alarms: Iterable[Values], order: Sequence[int]) -> None:
        self._root: dict[str | None, Any] = {}
        self._order = order
        for values in alarms:
            self.add(values)

    def add(self, values: Values) -> None:
        node = self._root
        for position in self._order:
            node = node.setdefault(values[position], {})
        node[None] = values

    def agreeing(self, values: Values) -> list[Values]:
        nodes = [self._root]
        for position in self._order:
            value = values[position]
            nodes = [node[each] for node in nodes for each in ((value, "") if value else node) if each in node]
        return [node[None] for node in nodes if None in node]


SEEN_MS = 3_600_000
"""The age at which ``alarm_series.seen`` is renewed."""
_STAGING, _SERIES, _PART = tables.alarm_staging, tables.alarm_series, tables.alarm_part
_ALARM, _METRIC, _CHANGED = tables.alarm, tables.alarm_metric, tables.alarm_changed
_SUB = tables.alarm_sub_expression
_IDS_AT_ONCE = 500

_Id = TypeVar("_Id", str, bytes)
#: New values by sub-expression, with the time in ms at which their first record arrived in Kafka.
_NewBySub = dict[str, dict[Values, int]]


def create_alarms(connection: sa.Connection, staged: StagedAttempts, now_ms: int) -> int:
    """Store the series of the batch, create their alarms, and return the number of new alarms. The transaction must
    hold the lock on definitions."""
    series = (*staged.within(_STAGING), _STAGING.c.series_id.is_not(None))
    new, joining = _new_series(connection, series)
    known = _known_values(connection, new)
    _store_series(connection, series, now_ms)
    count = 0
    for definition in _definitions(connection, new):
        ids = [each.id for each in definition.sub_expressions]
        query = sa.select(_ALARM.c.match_values, _ALARM.c.id).where(_ALARM.c.definition_id == definition.row.id)
        alarms = {tuple(values): alarm_id for values, alarm_id in connection.execute(query)}
        joined = join(alarms, ids, {each: known[each] for each in ids}, {each: new[each].keys() for each in ids})
        _store(connection, definition, joined, alarms, new, now_ms)
        count += len(joined.alarms)
    for sub_expression_id, series_ids in joining.items():
        # Look up by id, because a database has no statistics on newly staged rows and would compare all pairs of rows.
        for portion in _portions(series_ids):
            own = _SERIES.c.series_id.in_(portion)
            _add_metrics(connection, _SERIES.c.sub_expression_id == sub_expression_id, own)
    return count


def mark_changed(connection: sa.Connection, staged: StagedAttempts) -> None:
    """Mark the alarms whose staged windows can change a state, so that the next pass evaluates them."""
    same = sa.and_(_PART.c.sub_expression_id == _STAGING.c.sub_expression_id, _PART.c.match_key == _STAGING.c.match_key)
    query = sa.select(_PART.c.alarm_id).join(_STAGING, same).where(*staged.within(_STAGING), _STAGING.c.readings != "")
    adding = schema.insert(connection, _CHANGED).from_select(["alarm_id"], query.distinct())
    connection.execute(adding.on_conflict_do_nothing())


def _new_series(
    connection: sa.Connection, series: tuple[sa.ColumnElement[bool], ...]
) -> tuple[_NewBySub, Mapping[str, list[bytes]]]:
    """Return the values that are new in their sub-expression and, by sub-expression, the new series with known values,
    which join existing alarms."""
    row, known = _STAGING.c, _SERIES.c
    is_known = sa.select(known.series_id).where(
        known.sub_expression_id == row.sub_expression_id, known.series_id == row.series_id
    )
    has_values = sa.select(known.series_id).where(
        known.sub_expression_id == row.sub_expression_id, known.match_key == row.match_key
    )
    columns = (row.sub_expression_id, row.series_id, row.match_values, row.received, has_values.exists())
    query = sa.select(*columns).where(*series, ~is_known.exists())
    found: _NewBySub = defaultdict(dict)
    joining: dict[str, list[bytes]] = defaultdict(list)
    for sub_expression_id, series_id, text, received_ms, has in connection.execute(query):
        if has:
            joining[sub_expression_id].append(series_id)
        else:
            values, of_sub = tuple(json_text.read(text.encode())), found[sub_expression_id]
            of_sub[values] = min(received_ms, of_sub.get(values, received_ms))
    return found, joining


def _known_values(connection: sa.Connection, new: Mapping[str, Iterable[Values]]) -> dict[str, set[Values]]:
    """Return the values that existed before the batch, for all sub-expressions of definitions with new values."""
    found: dict[str, set[Values]] = defaultdict(set)
    own, other = _SUB.alias(), _SUB.alias()
    for some in _portions(list(new)):
        ids = sa.select(other.c.id).join(own, own.c.definition_id == other.c.definition_id).where(own.c.id.in_(some))
        columns = (_SERIES.c.sub_expression_id, _SERIES.c.match_values)
        for sub_expression_id, values in connection.execute(
            sa.select(*columns).where(_SERIES.c.sub_expression_id.in_(ids)).distinct()
        ):
            found[sub_expression_id].add(tuple(values))
    return found


def _store_series(connection: sa.Connection, series: tuple[sa.ColumnElement[bool], ...], now_ms: int) -> None:
    row = _STAGING.c
    on_postgresql = connection.dialect.name == "postgresql"
    values, dimensions = (
        sa.cast(column, postgresql.JSONB) if on_postgresql else column for column in (row.match_values, row.dimensions)
    )
    names = ["sub_expression_id", "series_id", "match_key", "match_values", "dimensions", "seen"]
    columns = (row.sub_expression_id, row.series_id, row.match_key, values, dimensions, sa.literal(now_ms))
    adding = schema.insert(connection, _SERIES).from_select(names, sa.select(*columns).where(*series))
    connection.execute(
        adding.on_conflict_do_update(
            index_elements=["sub_expression_id", "series_id"],
            set_={"seen": adding.excluded.seen},
            where=_SERIES.c.seen < now_ms - SEEN_MS,
        )
    )


def _definitions(connection: sa.Connection, new: Mapping[str, Iterable[Values]]) -> list[LoadedDefinition]:
    """Return the definitions that have new values, in order of id."""
    ids = set[str]()
    for some in _portions(list(new)):
        ids |= set(connection.execute(sa.select(_SUB.c.definition_id).where(_SUB.c.id.in_(some))).scalars())
    return [each for some in _portions(sorted(ids)) for each in load_definitions(connection, some).values()]


def _store(
    connection: sa.Connection,
    definition: LoadedDefinition,
    joined: JoinResult,
    known: Mapping[Values, str],
    new: _NewBySub,
    now_ms: int,
) -> None:
    ids = dict(known) | {values: new_id() for values in joined.alarms}
    if joined.alarms:
        begins_ms = _begins_ms(joined, new)
        begun = [(ids[values], values, min(begins_ms[values], now_ms)) for values in joined.alarms]
        _insert_alarms(connection, definition, begun, now_ms)
    parts = [
        {
            "alarm_id": ids[part.alarm_values],
            "sub_expression_id": part.sub_expression_id,
            "match_key": match_key(part.values),
        }
        for part in joined.parts
    ]
    if parts:
        connection.execute(_PART.insert(), parts)
        for some in _portions(sorted({ids[part.alarm_values] for part in joined.parts})):
            _add_metrics(connection, _PART.c.alarm_id.in_(some))


def _begins_ms(joined: JoinResult, new: _NewBySub) -> dict[Values, int]:
    """Return the time at which each alarm begins, which is when every sub-expression has its first series."""
    first: dict[Values, dict[str, int]] = defaultdict(dict)
    for part in joined.parts:
        of_alarm, sub_id = first[part.alarm_values], part.sub_expression_id
        received_ms = new[sub_id].get(part.values, 0)
        of_alarm[sub_id] = min(received_ms, of_alarm.get(sub_id, received_ms))
    return {values: max(of_alarm.values()) for values, of_alarm in first.items()}


def _insert_alarms(
    connection: sa.Connection, definition: LoadedDefinition, alarms: Sequence[tuple[str, Values, int]], now_ms: int
) -> None:
    """Insert alarms. ``alarms``: the id and the values of each alarm, and the time from which it is evaluated."""
    begun = AlarmState.new(definition.expression)
    fixed: dict[str, Any] = {"tenant": definition.row.tenant, "definition_id": definition.row.id, "state": begun.state}
    fixed |= {"lifecycle_state": None, "link": None}
    fixed |= dict.fromkeys(("state_updated", "updated", "created"), now_ms)
    connection.execute(
        _ALARM.insert(),
        [
            {
                **fixed,
                "id": alarm_id,
                "match_key": match_key(values),
                "match_values": list(values),
                "evaluated_from": begins_ms,
            }
            for alarm_id, values, begins_ms in alarms
        ],
    )
    nothing = {"current_values": [], "empty_evaluations": 0, "decided": 0, "newest": None}
    pairs = list(zip(definition.sub_expressions, begun.sub_alarms, strict=True))
    connection.execute(
        tables.sub_alarm.insert(),
        [
            nothing | {"alarm_id": alarm_id, "sub_expression_id": sub.id, "state": new.state, "windows": sub.windows}
            for alarm_id, *_ in alarms
            for sub, new in pairs
        ],
    )
    connection.execute(_CHANGED.insert(), [{"alarm_id": alarm_id} for alarm_id, *_ in alarms])


def _add_metrics(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> None:
    """Add the series of the parts ``which`` to their alarms, unless an alarm already has the series."""
    joined = (
        _PART.join(_SERIES, sa.and_(*(_PART.c[name] == _SERIES.c[name] for name in ("sub_expression_id", "match_key"))))
        .join(_SUB, _SUB.c.id == _PART.c.sub_expression_id)
        .join(_ALARM, _ALARM.c.id == _PART.c.alarm_id)
    )
    named = (_ALARM.c.id.label("alarm_id"), _SUB.c.metric_name.label("name"))
    columns = (*named, _SERIES.c.series_id, _ALARM.c.tenant, _SERIES.c.dimensions)
    is_there = sa.exists().where(_METRIC.c.alarm_id == _ALARM.c.id, _METRIC.c.series_id == _SERIES.c.series_id)
    rows = connection.execute(sa.select(*columns).select_from(joined).where(*which, ~is_there))
    add_metrics(connection, [row._asdict() for row in rows])


def _portions(ids: list[_Id]) -> Iterable[list[_Id]]:
    return (ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE))
