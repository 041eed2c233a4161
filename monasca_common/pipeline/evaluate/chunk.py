# SPDX-License-Identifier: Apache-2.0
"""The next alarms of a round, with all that decides their states: read with few statements, however many they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.alarms.database import Condition, Row, Select
from monasca_common.alarms.definition_tables import sub_expression
from monasca_common.alarms.definitions import StoredSubExpression
from monasca_common.alarms.evaluation import AlarmState, Measured, SubAlarm
from monasca_common.alarms.expression import Expression, SubExpression, parse
from monasca_common.alarms.partial_text import readings_of, sums_of
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.storage.sql import tables

_ALARM, _DEFINITION, _SUB, _CHANGED = (
    tables.alarm,
    tables.alarm_definition,
    tables.alarm_sub_expression,
    tables.alarm_changed,
)
_SUB_ALARM, _PART, _WINDOW = tables.sub_alarm, tables.alarm_part, tables.alarm_window
_TEXTS = postgresql.ARRAY(sa.Text())
_OF_ALARM = [_ALARM.c[name] for name in ("id", "definition_id", "state", "state_updated", "created")]
_NOTHING = WindowPartial(0, (), inf, -inf, -inf)

_parsed: Callable[[str], Expression] = lru_cache(maxsize=20_000)(parse)


@dataclass(frozen=True, slots=True)
class DueSpan:
    """Evaluations due after ``after_ms`` and until ``until_ms``; an evaluation is due ``delay_ms`` after its window."""

    after_ms: int
    until_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class LoadedAlarm:
    """``row``, ``definition``: of their tables. ``stored``: its rows of sub-alarms, by sub-expression."""

    row: Row
    definition: Row
    expression: Expression
    sub_expressions: tuple[StoredSubExpression, ...]
    stored: Mapping[str, Row]
    state: AlarmState
    measured: tuple[Measured, ...]


def among(connection: sa.Connection, column: sa.ColumnElement[str], ids: Sequence[str]) -> Condition:
    """As ``IN``; on PostgreSQL with one parameter, because thousands take longer to write than to answer."""
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.cast(sa.literal(list(ids), _TEXTS), _TEXTS))
    return column.in_(ids)


def is_needed(connection: sa.Connection, span: DueSpan) -> bool:
    """Whether there is anything to evaluate."""
    return _has(connection, _due(span)) or _has(connection, sa.select(_CHANGED.c.alarm_id))


def next_ids(connection: sa.Connection, span: DueSpan, after_id: str, limit: int) -> list[str]:
    changed: Select = sa.select(_CHANGED.c.alarm_id)
    which: Condition = _ALARM.c.id.in_(changed)
    if _has(connection, _due(span)):
        which = sa.or_(_ALARM.c.definition_id.in_(_due(span)), which)
    statement = sa.select(_ALARM.c.id).where(_ALARM.c.id > after_id, which).order_by(_ALARM.c.id).limit(limit)
    return list(connection.execute(statement).scalars())


def load(connection: sa.Connection, ids: Sequence[str], span: DueSpan) -> list[LoadedAlarm]:
    """In order of id."""
    alarms = connection.execute(
        sa.select(*_OF_ALARM).where(among(connection, _ALARM.c.id, ids)).order_by(_ALARM.c.id)
    ).all()
    of_definitions = sorted({row.definition_id for row in alarms})
    found: Select = sa.select(_DEFINITION).where(_DEFINITION.c.id.in_(of_definitions))
    definitions = {row.id: row for row in connection.execute(found)}
    subs = _sub_expressions(connection, of_definitions)
    stored: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in connection.execute(sa.select(_SUB_ALARM).where(among(connection, _SUB_ALARM.c.alarm_id, ids))):
        stored[row.alarm_id][row.sub_expression_id] = row
    by_id = {each.id: each.expression for some in subs.values() for each in some}
    measured = _measured(connection, ids, by_id, span)
    return [
        LoadedAlarm(
            row,
            definitions[row.definition_id],
            _parsed(definitions[row.definition_id].expression),
            subs[row.definition_id],
            stored[row.id],
            _state(row, subs[row.definition_id], stored[row.id]),
            tuple(measured.get((row.id, each.id), Measured()) for each in subs[row.definition_id]),
        )
        for row in alarms
        if row.definition_id in definitions
    ]


def clear_changed(connection: sa.Connection, seen_ms: int, after_id: str, until_id: str | None) -> None:
    """Those of a chunk; ``until_id``: None for the last one. What a definition that changed during the round notes of
    alarms that are done stays for the next round. So do alarms that have readings of a clock that is ahead: those
    windows begin after ``seen_ms``, and wait."""
    of_chunk = [_CHANGED.c.alarm_id > after_id]
    if until_id is not None:
        of_chunk.append(_CHANGED.c.alarm_id <= until_id)
    same = (_PART.c[name] == _WINDOW.c[name] for name in ("sub_expression_id", "match_key"))
    is_ahead = sa.and_(_WINDOW.c.window_start > seen_ms, _WINDOW.c.readings != "")
    waiting = sa.exists().where(_PART.c.alarm_id == _CHANGED.c.alarm_id, *same, is_ahead)
    connection.execute(_CHANGED.delete().where(*of_chunk, ~waiting))


def needed_from(delay_ms: int, evaluated_to_ms: int) -> sa.ColumnElement[int]:
    """`needed_from_ms` of a row of sub-expressions."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    return (sa.literal(evaluated_to_ms - delay_ms, sa.BigInteger()) // length_ms + 1 - _SUB.c.periods) * length_ms


def _due(span: DueSpan) -> Select:
    """The definitions of which a window's evaluation is due."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    until, after = (sa.literal(time_ms - span.delay_ms, sa.BigInteger()) for time_ms in (span.until_ms, span.after_ms))
    return sa.select(_SUB.c.definition_id).where(_SUB.c.function != "last", until // length_ms > after // length_ms)


def _has(connection: sa.Connection, statement: Select) -> bool:
    return connection.execute(statement.limit(1)).first() is not None


def _sub_expressions(
    connection: sa.Connection, definitions: Sequence[str]
) -> dict[str, tuple[StoredSubExpression, ...]]:
    statement = sa.select(_SUB).where(_SUB.c.definition_id.in_(definitions)).order_by(_SUB.c.position)
    found: dict[str, list[StoredSubExpression]] = defaultdict(list)
    for row in connection.execute(statement):
        found[row.definition_id].append(sub_expression(row))
    return {definition_id: tuple(some) for definition_id, some in found.items()}


def _state(row: Row, subs: Sequence[StoredSubExpression], stored: Mapping[str, Row]) -> AlarmState:
    sub_alarms = tuple(_sub_alarm(each, stored.get(each.id)) for each in subs)
    return AlarmState(row.state, sub_alarms, -1 if row.state_updated == row.created else row.state_updated)


def _sub_alarm(sub: StoredSubExpression, row: Row | None) -> SubAlarm:
    if row is None or row.windows < sub.windows:
        return SubAlarm.new(sub.expression)
    newest = readings_of(row.newest)
    return SubAlarm(
        sub.expression,
        row.state,
        tuple(row.current_values),
        row.empty_evaluations,
        row.decided,
        newest[0] if newest else None,
    )


def _measured(
    connection: sa.Connection, ids: Sequence[str], subs: Mapping[str, SubExpression], span: DueSpan
) -> dict[tuple[str, str], Measured]:
    of_part = [_PART.c[name] == _WINDOW.c[name] for name in ("sub_expression_id", "match_key")]
    columns = [_WINDOW.c[name] for name in ("record_count", "sums", "least", "greatest", "newest", "readings")]
    needed = sa.or_(_SUB.c.function == "last", _WINDOW.c.window_start >= needed_from(span.delay_ms, span.after_ms))
    statement: Select = (
        sa.select(_PART.c.alarm_id, _WINDOW.c.sub_expression_id, _WINDOW.c.window_start, *columns)
        .join_from(_PART, _WINDOW, sa.and_(*of_part))
        .join(_SUB, sa.and_(_SUB.c.id == _WINDOW.c.sub_expression_id, _SUB.c.windows == _WINDOW.c.windows))
        .where(among(connection, _PART.c.alarm_id, ids), needed)
    )
    found: dict[tuple[str, str], dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for alarm_id, sub_id, start_ms, *partial in connection.execute(statement):
        found[alarm_id, sub_id][start_ms].append(partial)
    return {key: _of_windows(subs[key[1]], windows) for key, windows in found.items()}


def _of_windows(sub: SubExpression, windows: Mapping[int, list[Any]]) -> Measured:
    if sub.function == "last":
        return Measured(readings=runs(sub, (each for row in windows[0] for each in readings_of(row[-1]))))
    return Measured({start_ms: _merged(sub, rows) for start_ms, rows in windows.items()})


def _merged(sub: SubExpression, rows: Sequence[Any]) -> WindowPartial:
    """What was concatenated may be long and unordered: merging makes it exact."""
    merged = _NOTHING
    for count, sums, least, greatest, newest_ms, readings in rows:
        merged = merged.merge(
            WindowPartial(count, sums_of(sums), least, greatest, newest_ms, readings_of(readings)), sub
        )
    return merged
