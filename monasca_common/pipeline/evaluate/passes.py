# SPDX-License-Identifier: Apache-2.0
"""Evaluates what is due, round by round: a round goes from the last evaluation to the least horizon.

A round is cut into chunks of alarms. Each is one transaction with its states, history and outbox, and with the place
up to which the round is done: so a crash repeats nothing and leaves nothing out.

The next alarms of a round, with all that decides their states: read with few statements, however many they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import sqlalchemy as sa

from monasca_common.alarms.database import Condition, Row, Select
from monasca_common.alarms.definitions import StoredSubExpression
from monasca_common.alarms.evaluation import (
    AlarmState,
    Measured,
    Progress,
    SubAlarm,
    WindowSummary,
    evaluate,
    has_summary,
    needed_from_ms,
    summarised,
    summary_end_ms,
)
from monasca_common.alarms.expression import SubExpression
from monasca_common.alarms.partial_text import readings_of, sums_of
from monasca_common.alarms.partials import WindowPartial, runs
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.evaluate import cleanup, definitions, transitions, watermark
from monasca_common.pipeline.evaluate.definitions import LoadedDefinition, LoadedDefinitions, among
from monasca_common.pipeline.evaluate.transitions import EvaluatedAlarm, LoadedAlarm
from monasca_common.pipeline.evaluate.watermark import Look, StoredProgress
from monasca_common.pipeline.evaluate.windows import LAST_WINDOW, summary_of, text_of
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.sql import tables

CHUNK_ALARMS = 1_000
"""A chunk holds the version of definitions: who changes one waits for less than a second on a busy machine, too."""
_FORGET_EVERY_MS = 300_000


_ALARM, _DEFINITION, _SUB, _CHANGED = (
    tables.alarm,
    tables.alarm_definition,
    tables.alarm_sub_expression,
    tables.alarm_changed,
)


_SUB_ALARM, _PART, _WINDOW = tables.sub_alarm, tables.alarm_part, tables.alarm_window


_OF_ALARM = [_ALARM.c[name] for name in ("id", "definition_id", "state", "state_updated", "created", "evaluated_from")]


_OF_PARTIAL = [_WINDOW.c[name] for name in ("record_count", "sums", "least", "greatest", "newest", "readings")]


_NOTHING = Measured()


_SUMMARISED_AT_ONCE = 20
"""Of so many alarms the windows are read at once that a summary replaces: each may have 20,000."""


#: The rows of partials by alarm and sub-expression, and by the start of their window.
_Windows: TypeAlias = dict[tuple[str, str], dict[int, list[Any]]]


#: By alarm and sub-expression.
_Summaries: TypeAlias = dict[tuple[str, str], WindowSummary]


@dataclass(frozen=True, slots=True)
class DueSpan:
    """Evaluations due after ``after_ms`` and until ``until_ms``; an evaluation is due ``delay_ms`` after its window.
    ``standstills``: whether there are any."""

    after_ms: int
    until_ms: int
    delay_ms: int
    standstills: bool = False


@dataclass(frozen=True, slots=True)
class RoundReport:
    """``delay_ms``: from the time up to which alarms are evaluated until now."""

    alarms: int = 0
    transitions: int = 0
    delay_ms: int = 0

    def following(self, earlier: RoundReport) -> RoundReport:
        """The report of both."""
        return replace(self, alarms=earlier.alarms + self.alarms, transitions=earlier.transitions + self.transitions)


class Rounds:
    """Every call raises `EvaluatorFenced` where another process evaluates the alarms of ``job`` too."""

    def __init__(
        self,
        offset_store: OffsetStore,
        job: str,
        delay_ms: int,
        grace_ms: int,
        clock: Clock | None = None,
        *,
        writes_history: bool = False,
        chunk_alarms: int = CHUNK_ALARMS,
    ) -> None:
        self._offset_store = offset_store
        self._job = job
        self._delay_ms = delay_ms
        self._has_delay = False  # in the database
        self._grace_ms = grace_ms
        self._clock = clock or SystemClock()
        self._writes_history = writes_history
        self._chunk_alarms = chunk_alarms
        self._forgot_ms = 0
        self._definitions = LoadedDefinitions()
        self._begun = 0

    def begin(self, connection: sa.Connection, version: int, stored: StoredProgress, made_ms: int) -> None:
        """Evaluate alarms of ``last`` alone that were made since then, in the transaction that makes them: such an
        alarm and its first state are one step. No window is due for it, so the next round, which sees it again, comes
        to the same. At most a chunk; what is left gets its state from that round, as all others do.

        ``version``: of all definitions, which the transaction holds.
        """
        alarms = new_alarms(connection, made_ms, self._chunk_alarms)
        if alarms:
            span = self._span(stored, stored.evaluated_to_ms)
            self._begun = self._evaluate(connection, version, alarms, stored, span)

    def finish(self) -> RoundReport:
        """What a crash left of a round."""
        self._begun = 0
        if not self._has_delay:
            with self._offset_store.writing() as connection:
                watermark.adopt_delay(connection, self._job, self._delay_ms)
            self._has_delay = True
        with self._offset_store.reading() as connection:
            stored = watermark.load(connection, self._job)
        return self._chunks(stored)

    def run(self, look: Look) -> RoundReport:
        """Evaluate up to the least horizon; the report has what `begin` changed, too. Before the first batch there is
        nothing to do."""
        with self._offset_store.reading() as connection:
            stored = watermark.load(connection, self._job)
        if stored is None:
            return RoundReport()
        begun = RoundReport(transitions=self._begun)
        return self._chunks(self._open(stored, look)).following(begun)

    def forget(self, now_ms: int) -> None:
        """Remove series, and the windows that no evaluation asks for. So an alarm has the series of the last day."""
        if now_ms < self._forgot_ms + _FORGET_EVERY_MS:
            return
        with self._offset_store.successive() as writing:
            for forget in (cleanup.forget_series, cleanup.forget_windows):
                place: cleanup.Place = None
                is_left = True
                while is_left:
                    with writing() as connection:
                        # Who deletes a definition or an alarm locks the same rows, in another order.
                        definitions.hold_version(connection)
                        stored = watermark.load(connection, self._job)
                        if stored is None:
                            return
                        watermark.hold(connection, self._job, stored)
                        place = forget(connection, stored, now_ms, place)
                    is_left = place is not None
        self._forgot_ms = now_ms

    def _open(self, stored: StoredProgress, look: Look) -> StoredProgress:
        new = watermark.after(stored.delayed(self._delay_ms), look, self._grace_ms)
        round_to_ms = watermark.least_ms(new)
        with self._offset_store.writing() as connection:
            watermark.hold(connection, self._job, stored)
            if stored.round_to_ms is not None:
                return stored
            if is_needed(connection, self._span(new, round_to_ms)):
                new = replace(new, round_to_ms=round_to_ms)
            else:
                new = replace(new, evaluated_to_ms=round_to_ms)
            watermark.save(connection, self._job, new)
        return new

    def _chunks(self, stored: StoredProgress | None) -> RoundReport:
        alarms = transitions = 0
        if stored is not None and stored.round_to_ms is not None:
            with self._offset_store.successive() as writing:
                while stored.round_to_ms is not None:
                    with writing() as connection:
                        stored, evaluated, changed = self._chunk(connection, stored, stored.round_to_ms)
                    alarms, transitions = alarms + evaluated, transitions + changed
                    fail_point("evaluate.after_commit" if stored.round_to_ms is None else "evaluate.between_chunks")
        delay_ms = max(0, self._clock.time_ms() - stored.evaluated_to_ms) if stored else 0
        return RoundReport(alarms, transitions, delay_ms)

    def _chunk(
        self, connection: sa.Connection, stored: StoredProgress, round_to_ms: int
    ) -> tuple[StoredProgress, int, int]:
        span = self._span(stored, round_to_ms)
        # Definitions stay as they are until the commit. Before the evaluator's row, as batches do.
        version = definitions.hold_version(connection)
        watermark.hold(connection, self._job, stored)
        prefer_indexes(connection)
        alarms = next_alarms(connection, span, stored.cursor, self._chunk_alarms)
        changed = self._evaluate(connection, version, alarms, stored, span)
        fail_point("evaluate.inside_chunk")
        is_last = len(alarms) < self._chunk_alarms
        cursor = "" if is_last else alarms[-1].id
        clear_changed(connection, stored.seen_ms, stored.cursor, cursor or None)
        if is_last:
            new = replace(stored, evaluated_to_ms=round_to_ms, round_to_ms=None, cursor="")
        else:
            new = replace(stored, cursor=cursor)
        watermark.save(connection, self._job, new)
        return new, len(alarms), changed

    def _evaluate(
        self, connection: sa.Connection, version: int, alarms: Sequence[Row], stored: StoredProgress, span: DueSpan
    ) -> int:
        """The number of transitions."""
        definitions = self._definitions.load(connection, version, {row.definition_id for row in alarms})
        until = Progress(span.after_ms, span.until_ms, stored.seen_ms, span.delay_ms, stored.standstills)
        outcomes = [
            EvaluatedAlarm(
                each,
                evaluate(
                    each.definition.expression, each.state, each.measured, until, begins_ms=each.row.evaluated_from
                ),
            )
            for each in load(connection, alarms, definitions, span)
        ]
        return transitions.write(connection, outcomes, self._clock.time_ms(), writes_history=self._writes_history)

    def _span(self, stored: StoredProgress, round_to_ms: int) -> DueSpan:
        return DueSpan(stored.evaluated_to_ms, round_to_ms, stored.delay_ms, bool(stored.standstills))


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


def _due(span: DueSpan) -> Select:
    """The definitions of which a window's evaluation is due."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    until, after = (sa.literal(time_ms - span.delay_ms, sa.BigInteger()) for time_ms in (span.until_ms, span.after_ms))
    return sa.select(_SUB.c.definition_id).where(_SUB.c.function != "last", until // length_ms > after // length_ms)


def _has(connection: sa.Connection, statement: Select) -> bool:
    return connection.execute(statement.limit(1)).first() is not None


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
    return text_of(sub, summarised(sub, measured.windows, measured.summary, until_ms))


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
        summary = summary_of(sub.expression, of_sub)
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
