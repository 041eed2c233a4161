# SPDX-License-Identifier: Apache-2.0
"""Evaluates what is due, round by round: a round goes from the last evaluation to the least horizon.

A round is cut into chunks of alarms. Each is one transaction with its states, history and outbox, and with the place
up to which the round is done: so a crash repeats nothing and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from monasca_common.alarms.database import Row
from monasca_common.alarms.evaluation import Progress, evaluate
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.evaluate import active, chunk, forgetting, horizon, outcome, progress
from monasca_common.pipeline.evaluate.chunk import DueSpan, LoadedDefinitions
from monasca_common.pipeline.evaluate.horizon import Look
from monasca_common.pipeline.evaluate.outcome import EvaluatedAlarm
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.pipeline.source.offset_store import OffsetStore

CHUNK_ALARMS = 1_000
"""A chunk holds the version of definitions: who changes one waits for less than a second on a busy machine, too."""
_FORGET_EVERY_MS = 300_000


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
        alarms = chunk.new_alarms(connection, made_ms, self._chunk_alarms)
        if alarms:
            span = self._span(stored, stored.evaluated_to_ms)
            self._begun = self._evaluate(connection, version, alarms, stored, span)

    def finish(self) -> RoundReport:
        """What a crash left of a round."""
        self._begun = 0
        if not self._has_delay:
            with self._offset_store.writing() as connection:
                progress.adopt_delay(connection, self._job, self._delay_ms)
            self._has_delay = True
        with self._offset_store.reading() as connection:
            stored = progress.load(connection, self._job)
        return self._chunks(stored)

    def run(self, look: Look) -> RoundReport:
        """Evaluate up to the least horizon; the report has what `begin` changed, too. Before the first batch there is
        nothing to do."""
        with self._offset_store.reading() as connection:
            stored = progress.load(connection, self._job)
        if stored is None:
            return RoundReport()
        begun = RoundReport(transitions=self._begun)
        return self._chunks(self._open(stored, look)).following(begun)

    def forget(self, now_ms: int) -> None:
        """Remove series, and the windows that no evaluation asks for. So an alarm has the series of the last day."""
        if now_ms < self._forgot_ms + _FORGET_EVERY_MS:
            return
        with self._offset_store.successive() as writing:
            for forget in (forgetting.forget_series, forgetting.forget_windows):
                place: forgetting.Place = None
                is_left = True
                while is_left:
                    with writing() as connection:
                        # Who deletes a definition or an alarm locks the same rows, in another order.
                        active.hold_version(connection)
                        stored = progress.load(connection, self._job)
                        if stored is None:
                            return
                        progress.hold(connection, self._job, stored)
                        place = forget(connection, stored, now_ms, place)
                    is_left = place is not None
        self._forgot_ms = now_ms

    def _open(self, stored: StoredProgress, look: Look) -> StoredProgress:
        new = horizon.after(stored.delayed(self._delay_ms), look, self._grace_ms)
        round_to_ms = horizon.least_ms(new)
        with self._offset_store.writing() as connection:
            progress.hold(connection, self._job, stored)
            if stored.round_to_ms is not None:
                return stored
            if chunk.is_needed(connection, self._span(new, round_to_ms)):
                new = replace(new, round_to_ms=round_to_ms)
            else:
                new = replace(new, evaluated_to_ms=round_to_ms)
            progress.save(connection, self._job, new)
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
        version = active.hold_version(connection)
        progress.hold(connection, self._job, stored)
        chunk.prefer_indexes(connection)
        alarms = chunk.next_alarms(connection, span, stored.cursor, self._chunk_alarms)
        changed = self._evaluate(connection, version, alarms, stored, span)
        fail_point("evaluate.inside_chunk")
        is_last = len(alarms) < self._chunk_alarms
        cursor = "" if is_last else alarms[-1].id
        chunk.clear_changed(connection, stored.seen_ms, stored.cursor, cursor or None)
        if is_last:
            new = replace(stored, evaluated_to_ms=round_to_ms, round_to_ms=None, cursor="")
        else:
            new = replace(stored, cursor=cursor)
        progress.save(connection, self._job, new)
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
            for each in chunk.load(connection, alarms, definitions, span)
        ]
        return outcome.write(connection, outcomes, self._clock.time_ms(), writes_history=self._writes_history)

    def _span(self, stored: StoredProgress, round_to_ms: int) -> DueSpan:
        return DueSpan(stored.evaluated_to_ms, round_to_ms, stored.delay_ms, bool(stored.standstills))
