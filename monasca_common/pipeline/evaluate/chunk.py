# SPDX-License-Identifier: Apache-2.0
"""The next alarms of a round, with all that decides their states: read with few statements, however many they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.alarms.database import Condition, Row, Select
from monasca_common.alarms.definition_tables import sub_expression
from monasca_common.alarms.definitions import StoredSubExpression
from monasca_common.alarms.evaluation import (
    AlarmState,
    Measured,
    SubAlarm,
    WindowSummary,
    has_summary,
    needed_from_ms,
    summarised,
    summary_end_ms,
)
from monasca_common.alarms.expression import Expression, SubExpression, parse
from monasca_common.alarms.partial_text import readings_of, sums_of
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.pipeline.evaluate import summaries
from monasca_common.pipeline.evaluate.folding import LAST_WINDOW
from monasca_common.storage.sql import tables

_ALARM, _DEFINITION, _SUB, _CHANGED = (
    tables.alarm,
    tables.alarm_definition,
    tables.alarm_sub_expression,
    tables.alarm_changed,
)
_SUB_ALARM, _PART, _WINDOW = tables.sub_alarm, tables.alarm_part, tables.alarm_window
_TEXTS = postgresql.ARRAY(sa.Text())
_OF_ALARM = [_ALARM.c[name] for name in ("id", "definition_id", "state", "state_updated", "created", "evaluated_from")]
_OF_PARTIAL = [_WINDOW.c[name] for name in ("record_count", "sums", "least", "greatest", "newest", "readings")]

_NOTHING = Measured()
_SUMMARISED_AT_ONCE = 20
"""Of so many alarms the windows are read at once that a summary replaces: each may have 20,000."""

#: The rows of partials by alarm and sub-expression, and by the start of their window.
_Windows: TypeAlias = dict[tuple[str, str], dict[int, list[Any]]]
#: By alarm and sub-expression.
_Summaries: TypeAlias = dict[tuple[str, str], WindowSummary]

_parsed: Callable[[str], Expression] = lru_cache(maxsize=20_000)(parse)


@dataclass(frozen=True, slots=True)
class DueSpan:
    """Evaluations due after ``after_ms`` and until ``until_ms``; an evaluation is due ``delay_ms`` after its window.
    ``standstills``: whether there are any."""

    after_ms: int
    until_ms: int
    delay_ms: int
    standstills: bool = False


@dataclass(frozen=True, slots=True)
class LoadedDefinition:
    """``row``: of its table. ``sub_expressions``: in the order of the expression."""

    row: Row
    expression: Expression
    sub_expressions: tuple[StoredSubExpression, ...]


@dataclass(frozen=True, slots=True)
class LoadedAlarm:
    """``row``: of its table. ``stored``: its rows of sub-alarms, by sub-expression. ``summaries``: those of its
    sub-alarms after the evaluation."""

    row: Row
    definition: LoadedDefinition
    stored: Mapping[str, Row]
    state: AlarmState
    measured: tuple[Measured, ...]
    summaries: tuple[str | None, ...]


class LoadedDefinitions:
    """Those of the alarms so far, as long as no definition changes."""

    def __init__(self) -> None:
        self._version = -1
        self._known: dict[str, LoadedDefinition] = {}

    def load(self, connection: sa.Connection, version: int, ids: Set[str]) -> Mapping[str, LoadedDefinition]:
        """At least those of ``ids`` that there are. ``version``: of all definitions, which the transaction holds."""
        if version != self._version:
            self._version, self._known = version, {}
        missing = sorted(ids - self._known.keys())
        if missing:
            subs = _sub_expressions(connection, missing)
            found: Select = sa.select(_DEFINITION).where(among(connection, _DEFINITION.c.id, missing))
            for row in connection.execute(found).all():
                self._known[row.id] = LoadedDefinition(row, _parsed(row.expression), subs[row.id])
        return self._known


def among(connection: sa.Connection, column: sa.ColumnElement[str], ids: Sequence[str]) -> Condition:
    """As ``IN``, of sorted ``ids``, and their range: of neighbours a database reads that part of an index, not all of
    the table. On PostgreSQL with one parameter, because thousands take longer to write than to answer."""
    if not ids:
        return sa.false()
    is_one: Condition = column.in_(ids)
    if connection.dialect.name == "postgresql":
        is_one = column == sa.any_(sa.cast(sa.literal(list(ids), _TEXTS), _TEXTS))
    return sa.and_(column >= ids[0], column <= ids[-1], is_one)


def prefer_indexes(connection: sa.Connection) -> None:
    """Within the transaction. By default PostgreSQL plans for disks that seek, and would read whole tables a chunk."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")


def is_needed(connection: sa.Connection, span: DueSpan) -> bool:
    """Whether there is anything to evaluate."""
    return _has(connection, _due(span)) or _has(connection, sa.select(_CHANGED.c.alarm_id))


def next_alarms(connection: sa.Connection, span: DueSpan, after_id: str, limit: int) -> Sequence[Row]:
    """In order of id."""
    changed: Select = sa.select(_CHANGED.c.alarm_id)
    which: Condition = _ALARM.c.id.in_(changed)
    if _has(connection, _due(span)):
        which = sa.or_(_ALARM.c.definition_id.in_(_due(span)), which)
    statement = sa.select(*_OF_ALARM).where(_ALARM.c.id > after_id, which).order_by(_ALARM.c.id).limit(limit)
    return connection.execute(statement).all()


def new_alarms(connection: sa.Connection, made_ms: int, limit: int) -> Sequence[Row]:
    """Of alarms that were made since then, as `alarm_changed` notes, those of ``last`` alone, in order of id."""
    has_windows = sa.exists().where(_SUB.c.definition_id == _ALARM.c.definition_id, _SUB.c.function != "last")
    changed: Select = sa.select(_CHANGED.c.alarm_id)
    new = (_ALARM.c.id.in_(changed), _ALARM.c.created >= made_ms, ~has_windows)
    return connection.execute(sa.select(*_OF_ALARM).where(*new).order_by(_ALARM.c.id).limit(limit)).all()


def load(
    connection: sa.Connection, alarms: Sequence[Row], definitions: Mapping[str, LoadedDefinition], span: DueSpan
) -> list[LoadedAlarm]:
    """``alarms``: as `next_alarms` has them; the result has those whose definition is among ``definitions``."""
    ids = [row.id for row in alarms]
    stored: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in connection.execute(sa.select(_SUB_ALARM).where(among(connection, _SUB_ALARM.c.alarm_id, ids))).all():
        stored[row.alarm_id][row.sub_expression_id] = row
    loaded = [(row, definitions[row.definition_id]) for row in alarms if row.definition_id in definitions]
    subs = {sub.id: sub for _, definition in loaded for sub in definition.sub_expressions}
    of_windows = {
        key: sub for key, sub in subs.items() if not has_summary(sub.expression, standstills=span.standstills)
    }
    own = [among(connection, _PART.c.sub_expression_id, sorted(of_windows))] if len(of_windows) < len(subs) else []
    windows = _windows(connection, ids, list(of_windows.values()), span, *own)
    found: _Summaries = {}
    long = [
        (row.id, sub) for row, definition in loaded for sub in definition.sub_expressions if sub.id not in of_windows
    ]
    if long:
        found = _summaries(connection, long, stored, span)
        windows |= _since_summaries(connection, long, found)
    return [_loaded(row, definition, stored[row.id], windows, found, span) for row, definition in loaded]


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
    which = among(connection, _SUB.c.definition_id, definitions)
    found: dict[str, list[StoredSubExpression]] = defaultdict(list)
    for row in connection.execute(sa.select(_SUB).where(which).order_by(_SUB.c.position)).all():
        found[row.definition_id].append(sub_expression(row))
    return defaultdict(tuple, {key: tuple(value) for key, value in found.items()})


def _loaded(
    row: Row,
    definition: LoadedDefinition,
    stored: Mapping[str, Row],
    windows: _Windows,
    found: _Summaries,
    span: DueSpan,
) -> LoadedAlarm:
    subs = definition.sub_expressions
    sub_alarms = tuple(_sub_alarm(sub, stored.get(sub.id)) for sub in subs)
    # A state that is as old as the alarm is no transition.
    since_ms = -1 if row.state_updated == row.created else row.state_updated
    measured = tuple(
        _measured(sub.expression, windows.get((row.id, sub.id)), found.get((row.id, sub.id))) for sub in subs
    )
    texts = tuple(_summary_text(sub.expression, each, span) for sub, each in zip(subs, measured, strict=True))
    return LoadedAlarm(row, definition, stored, AlarmState(row.state, sub_alarms, since_ms), measured, texts)


def _summary_text(sub: SubExpression, measured: Measured, span: DueSpan) -> str | None:
    """The summary after the evaluation."""
    if measured.summary is None:
        return None
    until_ms = max(measured.summary.until_ms, summary_end_ms(sub, span.until_ms, span.delay_ms))
    return summaries.text_of(sub, summarised(sub, measured.windows, measured.summary, until_ms))


def _summaries(
    connection: sa.Connection,
    long: Sequence[tuple[str, StoredSubExpression]],
    stored: Mapping[str, Mapping[str, Row]],
    span: DueSpan,
) -> _Summaries:
    """The stored summaries. A missing one is computed from all windows that it replaces; so is one that reaches beyond
    the evaluated windows, because the progress moved back since."""
    found: _Summaries = {}
    missing: dict[str, list[StoredSubExpression]] = defaultdict(list)
    for alarm_id, sub in long:
        row = stored[alarm_id].get(sub.id)
        of_sub = None if row is None or row.windows != sub.windows else row.summary
        summary = summaries.summary_of(sub.expression, of_sub)
        if summary is None or summary.until_ms > summary_end_ms(sub.expression, span.after_ms, span.delay_ms):
            missing[alarm_id].append(sub)
        else:
            found[alarm_id, sub.id] = summary
    alarm_ids = sorted(missing)
    for start in range(0, len(alarm_ids), _SUMMARISED_AT_ONCE):
        some = alarm_ids[start : start + _SUMMARISED_AT_ONCE]
        subs = {sub.id: sub for alarm_id in some for sub in missing[alarm_id]}
        own = among(connection, _PART.c.sub_expression_id, sorted(subs))
        windows = _windows(connection, some, list(subs.values()), span, own)
        for alarm_id in some:
            for sub in missing[alarm_id]:
                until_ms = summary_end_ms(sub.expression, span.after_ms, span.delay_ms)
                rows = {at: each for at, each in windows[alarm_id, sub.id].items() if at < until_ms}
                measured = _measured(sub.expression, rows)
                found[alarm_id, sub.id] = summarised(sub.expression, measured.windows, None, until_ms)
    return found


def _since_summaries(
    connection: sa.Connection, long: Sequence[tuple[str, StoredSubExpression]], found: _Summaries
) -> _Windows:
    """The windows that no summary replaces."""
    from_ms: dict[int, dict[str, StoredSubExpression]] = defaultdict(dict)
    of_alarms: dict[int, set[str]] = defaultdict(set)
    for alarm_id, sub in long:
        until_ms = found[alarm_id, sub.id].until_ms
        from_ms[until_ms][sub.id] = sub
        of_alarms[until_ms].add(alarm_id)
    windows: _Windows = defaultdict(lambda: defaultdict(list))
    for until_ms, subs in from_ms.items():
        needed = {sub.id: (sub.windows, until_ms) for sub in subs.values()}
        own = among(connection, _PART.c.sub_expression_id, sorted(needed))
        read = _read(connection, sorted(of_alarms[until_ms]), needed, own)
        windows |= {key: each for key, each in read.items() if found[key].until_ms == until_ms}
    return windows


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


def _windows(
    connection: sa.Connection,
    ids: Sequence[str],
    subs: Sequence[StoredSubExpression],
    span: DueSpan,
    *conditions: Condition,
) -> _Windows:
    """What an evaluation may ask for."""
    needed = {sub.id: (sub.windows, _needed_from_ms(sub.expression, span)) for sub in subs}
    return _read(connection, ids, needed, *conditions)


def _read(
    connection: sa.Connection, ids: Sequence[str], needed: Mapping[str, tuple[int, int]], *conditions: Condition
) -> _Windows:
    """The windows of these alarms. ``needed``: of each sub-expression the generation of windows, and from when on.
    ``conditions``: on parts."""
    least_ms = min((from_ms for _, from_ms in needed.values()), default=0)
    of_part = [_PART.c[name] == _WINDOW.c[name] for name in ("sub_expression_id", "match_key")]
    is_needed = sa.or_(_WINDOW.c.window_start >= least_ms, _WINDOW.c.window_start == LAST_WINDOW)
    columns = (_PART.c.alarm_id, *(_WINDOW.c[name] for name in ("sub_expression_id", "windows", "window_start")))
    # An outer join begins with the parts of the chunk: SQLite may begin an inner one with all windows. Each
    # sub-expression's own limit is compared here: joining them too would be planned for a tenth of the rows.
    joined = _PART.outerjoin(_WINDOW, sa.and_(*of_part, is_needed))
    statement = sa.select(*columns, *_OF_PARTIAL).select_from(joined)
    statement = statement.where(among(connection, _PART.c.alarm_id, ids), *conditions)
    found: _Windows = defaultdict(lambda: defaultdict(list))
    for alarm_id, sub_id, windows, start_ms, *partial in connection.execute(statement).all():
        generation, from_ms = needed.get(sub_id, (-1, 0))
        if windows == generation and start_ms >= from_ms:
            found[alarm_id, sub_id][start_ms].append(partial)
    return found


def _needed_from_ms(sub: SubExpression, span: DueSpan) -> int:
    return LAST_WINDOW if sub.function == "last" else needed_from_ms(sub, span.after_ms, span.delay_ms)


def _measured(
    sub: SubExpression, windows: Mapping[int, list[Any]] | None, summary: WindowSummary | None = None
) -> Measured:
    if windows is None:
        return _NOTHING if summary is None else Measured(summary=summary)
    if sub.function == "last":
        return Measured(readings=runs(sub, (each for row in windows[LAST_WINDOW] for each in readings_of(row[-1]))))
    return Measured({start_ms: _merged(sub, rows) for start_ms, rows in windows.items()}, (), summary)


def _merged(sub: SubExpression, rows: Sequence[Any]) -> WindowPartial:
    """What was concatenated may be long and unordered: it is made exact."""
    partials = [_partial(*row) for row in rows]
    if len(partials) == 1 and len(partials[0].sums) < 2 and len(partials[0].decisive) < 2:
        return partials[0]
    return reduce(lambda one, other: one.merge(other, sub), partials[1:], partials[0].normalised(sub))


def _partial(count: int, sums: str, least: float, greatest: float, newest_ms: float, readings: str) -> WindowPartial:
    return WindowPartial(count, sums_of(sums), least, greatest, newest_ms, readings_of(readings))
