# SPDX-License-Identifier: Apache-2.0
"""Runs evaluation passes. A pass evaluates the alarms that are due from the last evaluation up to the lowest watermark.

A pass is divided into pages of alarms. One transaction writes the states, history and outbox of a page and the cursor
of the pass, so a crash neither repeats nor omits a page. A page is read with a few statements, regardless of its number
of alarms.
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
    EvaluationSpan,
    Measured,
    SubAlarm,
    evaluate,
    needed_from_ms,
)
from monasca_common.alarms.expression import SubExpression
from monasca_common.alarms.partials import WindowPartial, readings_of, runs
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.evaluate import definitions, transitions, watermark
from monasca_common.pipeline.evaluate.definitions import LoadedDefinition, among, load_definitions
from monasca_common.pipeline.evaluate.transitions import EvaluatedAlarm, LoadedAlarm
from monasca_common.pipeline.evaluate.watermark import EvaluatorState, Scan
from monasca_common.pipeline.evaluate.windows import LAST_WINDOW
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.sql import tables

PAGE_ALARMS = 1_000
"""The maximum number of alarms of a page. A page locks the version of definitions. With this size, a change of a
definition waits for less than a second, even on a busy machine."""
PAGE_PERIODS = 50_000
"""The maximum number of periods in a page, which reads a window for each period of its alarms. An alarm with more
periods has its own page."""
_ALARM, _SUB, _CHANGED = tables.alarm, tables.alarm_sub_expression, tables.alarm_changed
_SUB_ALARM, _PART, _WINDOW = tables.sub_alarm, tables.alarm_part, tables.alarm_window
_OF_ALARM = [_ALARM.c[name] for name in ("id", "definition_id", "state", "state_updated", "created", "evaluated_from")]
_OF_PARTIAL = [_WINDOW.c[name] for name in ("record_count", "sums", "least", "greatest", "newest", "readings")]
_NOTHING = Measured()
#: The rows of partials by alarm and sub-expression, and by the start of their window.
_Windows: TypeAlias = dict[tuple[str, str], dict[int, list[Any]]]


@dataclass(frozen=True, slots=True)
class PassReport:
    """Counts of evaluated alarms and of their transitions."""

    alarms: int = 0
    transitions: int = 0

    def plus(self, other: PassReport) -> PassReport:
        return PassReport(self.alarms + other.alarms, self.transitions + other.transitions)


class PassRunner:
    """Runs evaluation passes. Every call raises `EvaluatorFenced` if another process also evaluates the alarms of
    ``job``."""

    def __init__(
        self,
        offset_store: OffsetStore,
        job: str,
        delay_ms: int,
        grace_ms: int,
        clock: Clock | None = None,
        *,
        page_alarms: int = PAGE_ALARMS,
    ) -> None:
        self._offset_store = offset_store
        self._job = job
        self._delay_ms = delay_ms
        self._grace_ms = grace_ms
        self._clock = clock or SystemClock()
        self._page_alarms = page_alarms
        self._new_transitions = 0

    def evaluate_new(self, connection: sa.Connection, stored: EvaluatorState, created_ms: int) -> None:
        """Evaluate alarms that use only ``last`` and were created since ``created_ms``, in the transaction that creates
        them, so that an alarm has its first state from the start. Their windows are never due, so the next pass, which
        evaluates them again, has the same result. At most one page is evaluated; the next pass evaluates the other
        alarms. The transaction must hold the lock on definitions.
        """
        alarms = new_alarms(connection, created_ms, self._page_alarms)
        if alarms:
            span = self._span(stored, stored.evaluated_to_ms)
            known = load_definitions(connection, sorted({row.definition_id for row in alarms}))
            self._new_transitions = self._evaluate(connection, alarms, known, span)

    def finish(self) -> PassReport:
        """Finish a pass that a crash has interrupted, if any."""
        self._new_transitions = 0
        with self._offset_store.reading() as connection:
            stored = watermark.load(connection, self._job)
        return self._run_pages(stored)

    def run(self, scan: Scan) -> PassReport:
        """Evaluate up to the lowest watermark. The report includes the transitions of `evaluate_new`. Before the first
        batch, no alarm is due."""
        with self._offset_store.reading() as connection:
            stored = watermark.load(connection, self._job)
        if stored is None:
            return PassReport()
        return self._run_pages(self._open(stored, scan)).plus(PassReport(transitions=self._new_transitions))

    def _open(self, stored: EvaluatorState, scan: Scan) -> EvaluatorState:
        new = watermark.advanced(stored.delayed(self._delay_ms), scan, self._grace_ms)
        pass_to_ms = watermark.least_ms(new)
        with self._offset_store.writing() as connection:
            watermark.hold(connection, self._job, stored)
            if stored.pass_to_ms is not None:
                return stored
            if is_needed(connection, self._span(new, pass_to_ms)):
                new = replace(new, pass_to_ms=pass_to_ms)
            else:
                new = replace(new, evaluated_to_ms=pass_to_ms)
            watermark.save(connection, self._job, new)
        return new

    def _run_pages(self, stored: EvaluatorState | None) -> PassReport:
        report = PassReport()
        if stored is not None and stored.pass_to_ms is not None:
            with self._offset_store.successive() as writing:
                while stored.pass_to_ms is not None:
                    with writing() as connection:
                        stored, page = self._evaluate_page(connection, stored, stored.pass_to_ms)
                    report = report.plus(page)
                    fail_point("evaluate.after_commit" if stored.pass_to_ms is None else "evaluate.between_pages")
        return report

    def _evaluate_page(
        self, connection: sa.Connection, stored: EvaluatorState, pass_to_ms: int
    ) -> tuple[EvaluatorState, PassReport]:
        span = self._span(stored, pass_to_ms)
        # No definition can change until the commit. As in batches, lock the version before the evaluator's row.
        definitions.lock_version(connection)
        watermark.hold(connection, self._job, stored)
        prefer_indexes(connection)
        following = next_alarms(connection, span, stored.cursor, self._page_alarms)
        known = load_definitions(connection, sorted({row.definition_id for row in following}))
        alarms = _within_periods(following, known)
        changed = self._evaluate(connection, alarms, known, span)
        fail_point("evaluate.inside_page")
        is_last = len(alarms) == len(following) < self._page_alarms
        cursor = "" if is_last else alarms[-1].id
        clear_changed(connection, stored.seen_ms, stored.cursor, cursor or None)
        if is_last:
            new = replace(stored, evaluated_to_ms=pass_to_ms, pass_to_ms=None, cursor="")
        else:
            new = replace(stored, cursor=cursor)
        watermark.save(connection, self._job, new)
        return new, PassReport(len(alarms), changed)

    def _evaluate(
        self,
        connection: sa.Connection,
        alarms: Sequence[Row],
        known: Mapping[str, LoadedDefinition],
        span: EvaluationSpan,
    ) -> int:
        """Return the number of transitions."""
        outcomes = [
            EvaluatedAlarm(
                each,
                evaluate(
                    each.definition.expression, each.state, each.measured, span, begins_ms=each.row.evaluated_from
                ),
            )
            for each in load_alarms(connection, alarms, known, span)
        ]
        return transitions.write(connection, outcomes, self._clock.time_ms())

    def _span(self, stored: EvaluatorState, pass_to_ms: int) -> EvaluationSpan:
        return EvaluationSpan(stored.evaluated_to_ms, pass_to_ms, stored.seen_ms, stored.delay_ms, stored.idle_periods)


def prefer_indexes(connection: sa.Connection) -> None:
    """Let PostgreSQL prefer indexes in this transaction. By default, the planner assumes rotating disks and would read
    whole tables for each page."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL random_page_cost = 1.1")


def is_needed(connection: sa.Connection, span: EvaluationSpan) -> bool:
    """Return whether a window is due or an alarm has changed."""
    return _has(connection, _due(span)) or _has(connection, sa.select(_CHANGED.c.alarm_id))


def next_alarms(connection: sa.Connection, span: EvaluationSpan, after_id: str, limit: int) -> Sequence[Row]:
    """Return the next alarms that are due or have changed, in order of id."""
    changed: Select = sa.select(_CHANGED.c.alarm_id)
    which: Condition = _ALARM.c.id.in_(changed)
    if _has(connection, _due(span)):
        which = sa.or_(_ALARM.c.definition_id.in_(_due(span)), which)
    statement = sa.select(*_OF_ALARM).where(_ALARM.c.id > after_id, which).order_by(_ALARM.c.id).limit(limit)
    return connection.execute(statement).all()


def new_alarms(connection: sa.Connection, created_ms: int, limit: int) -> Sequence[Row]:
    """Return the alarms that were created since ``created_ms`` and use only ``last``, in order of id. They are in the
    table `alarm_changed`."""
    has_windows = sa.exists().where(_SUB.c.definition_id == _ALARM.c.definition_id, _SUB.c.function != "last")
    changed: Select = sa.select(_CHANGED.c.alarm_id)
    new = (_ALARM.c.id.in_(changed), _ALARM.c.created >= created_ms, ~has_windows)
    return connection.execute(sa.select(*_OF_ALARM).where(*new).order_by(_ALARM.c.id).limit(limit)).all()


def load_alarms(
    connection: sa.Connection, alarms: Sequence[Row], definitions: Mapping[str, LoadedDefinition], span: EvaluationSpan
) -> list[LoadedAlarm]:
    """Read everything that determines the states of ``alarms``, which are rows of `next_alarms`. Alarms without a
    definition in ``definitions`` are omitted."""
    ids = [row.id for row in alarms]
    stored: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in connection.execute(sa.select(_SUB_ALARM).where(among(connection, _SUB_ALARM.c.alarm_id, ids))).all():
        stored[row.alarm_id][row.sub_expression_id] = row
    subs = {sub.id: sub for definition in definitions.values() for sub in definition.sub_expressions}
    windows = _windows(connection, ids, list(subs.values()), span)
    return [
        _loaded(row, definitions[row.definition_id], stored[row.id], windows)
        for row in alarms
        if row.definition_id in definitions
    ]


def clear_changed(connection: sa.Connection, seen_ms: int, after_id: str, until_id: str | None) -> None:
    """Delete the changes of a page; ``until_id``: ``None`` for the last page. Changes of a definition during the pass
    are kept for the next pass if the alarm was already evaluated. Changes of an alarm are also kept if it has readings
    in a window after ``seen_ms``, from a clock that is ahead: this window is evaluated later."""
    of_page = [_CHANGED.c.alarm_id > after_id]
    if until_id is not None:
        of_page.append(_CHANGED.c.alarm_id <= until_id)
    same = (_PART.c[name] == _WINDOW.c[name] for name in ("sub_expression_id", "match_key"))
    is_ahead = sa.and_(_WINDOW.c.window_start > seen_ms, _WINDOW.c.readings != "")
    waiting = sa.exists().where(_PART.c.alarm_id == _CHANGED.c.alarm_id, *same, is_ahead)
    connection.execute(_CHANGED.delete().where(*of_page, ~waiting))


def _within_periods(alarms: Sequence[Row], definitions: Mapping[str, LoadedDefinition]) -> Sequence[Row]:
    """Return the first alarms, up to a total of `PAGE_PERIODS` periods, but at least one alarm."""
    periods = 0
    for index, row in enumerate(alarms):
        if row.definition_id in definitions:
            periods += sum(sub.expression.periods for sub in definitions[row.definition_id].sub_expressions)
        if index and periods > PAGE_PERIODS:
            return alarms[:index]
    return alarms


def _due(span: EvaluationSpan) -> Select:
    """Select the definitions with a window whose evaluation is due."""
    length_ms = _SUB.c.period * sa.literal(1000, sa.BigInteger())
    until, after = (
        sa.literal(time_ms - span.delay_ms, sa.BigInteger()) for time_ms in (span.watermark_ms, span.evaluated_to_ms)
    )
    return sa.select(_SUB.c.definition_id).where(_SUB.c.function != "last", until // length_ms > after // length_ms)


def _has(connection: sa.Connection, statement: Select) -> bool:
    return connection.execute(statement.limit(1)).first() is not None


def _loaded(row: Row, definition: LoadedDefinition, stored: Mapping[str, Row], windows: _Windows) -> LoadedAlarm:
    subs = definition.sub_expressions
    sub_alarms = tuple(_sub_alarm(sub, stored[sub.id]) for sub in subs)
    # The initial state of an alarm is not a transition.
    since_ms = -1 if row.state_updated == row.created else row.state_updated
    measured = tuple(_measured(sub.expression, windows.get((row.id, sub.id))) for sub in subs)
    return LoadedAlarm(row, definition, stored, AlarmState(row.state, sub_alarms, since_ms), measured)


def _sub_alarm(sub: StoredSubExpression, row: Row) -> SubAlarm:
    if row.windows < sub.windows:
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
    connection: sa.Connection, ids: Sequence[str], subs: Sequence[StoredSubExpression], span: EvaluationSpan
) -> _Windows:
    """Return the windows of these alarms that an evaluation may need."""
    needed = {sub.id: (sub.windows, _needed_from_ms(sub.expression, span)) for sub in subs}
    least_ms = min((from_ms for _, from_ms in needed.values()), default=0)
    of_part = [_PART.c[name] == _WINDOW.c[name] for name in ("sub_expression_id", "match_key")]
    is_needed = sa.or_(_WINDOW.c.window_start >= least_ms, _WINDOW.c.window_start == LAST_WINDOW)
    columns = (_PART.c.alarm_id, *(_WINDOW.c[name] for name in ("sub_expression_id", "windows", "window_start")))
    # An outer join starts from the parts of the page; with an inner join, SQLite may start from all windows. The limits
    # of sub-expressions are compared in Python, because the planner would underestimate the rows of another join
    # tenfold.
    joined = _PART.outerjoin(_WINDOW, sa.and_(*of_part, is_needed))
    statement = sa.select(*columns, *_OF_PARTIAL).select_from(joined).where(among(connection, _PART.c.alarm_id, ids))
    found: _Windows = defaultdict(lambda: defaultdict(list))
    for alarm_id, sub_id, windows, start_ms, *partial in connection.execute(statement).all():
        generation, from_ms = needed.get(sub_id, (-1, 0))
        if windows == generation and start_ms >= from_ms:
            found[alarm_id, sub_id][start_ms].append(partial)
    return found


def _needed_from_ms(sub: SubExpression, span: EvaluationSpan) -> int:
    return LAST_WINDOW if sub.function == "last" else needed_from_ms(sub, span.evaluated_to_ms, span.delay_ms)


def _measured(sub: SubExpression, windows: Mapping[int, list[Any]] | None) -> Measured:
    if windows is None:
        return _NOTHING
    if sub.function == "last":
        return Measured(readings=runs(sub, (each for row in windows[LAST_WINDOW] for each in readings_of(row[-1]))))
    return Measured({start_ms: _merged(sub, rows) for start_ms, rows in windows.items()})


def _merged(sub: SubExpression, rows: Sequence[Any]) -> WindowPartial:
    """Merge the rows exactly, because concatenated sums and readings can be long and unordered."""
    partials = list(map(WindowPartial.of_row, rows))
    if len(partials) == 1 and len(partials[0].sums) < 2 and len(partials[0].decisive) < 2:
        return partials[0]
    return reduce(lambda one, other: one.merge(other, sub), partials[1:], partials[0].normalised(sub))
