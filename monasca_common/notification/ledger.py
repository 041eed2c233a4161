# SPDX-License-Identifier: Apache-2.0
"""The ledger: a row says *sending* before an attempt and *sent* after it, so a crash hides at most the one between."""

from __future__ import annotations

import enum

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Row
from monasca_common.notification.notice import Notice
from monasca_common.storage.sql import tables

SENDING, SENT, FAILED, GIVEN_UP = "sending", "sent", "failed", "given up"
SILENCED = "silenced"

_NOTIFICATION = tables.notification
_MOST_REASON = 500
ROWS_A_PORTION = 1000


class NextStep(enum.Enum):
    """What to do about an attempt."""

    SEND = "send it"
    REPEAT = "send it, although an attempt with an unknown outcome was made before"
    RETRY = "it has failed already; its retry may not have been published"
    NOTHING = "it is done, or a later attempt is under way"


class NoticeLedger:
    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def begin(self, notice: Notice, method_id: str, attempt: int, now_ms: int) -> NextStep:
        """Raises `StorageError`; so do the others."""

        def work(connection: sa.Connection) -> NextStep:
            columns = (_NOTIFICATION.c.state, _NOTIFICATION.c.attempts)
            row = connection.execute(sa.select(*columns).where(_of(notice.id)).with_for_update()).one_or_none()
            if row is None:
                made = _new_row(notice, method_id, now_ms, state=SENDING, attempts=attempt)
                connection.execute(_NOTIFICATION.insert().values(made))
                return NextStep.SEND
            step = _step(row, attempt)
            if step in (NextStep.SEND, NextStep.REPEAT):
                repeats = _NOTIFICATION.c.repeats + int(step is NextStep.REPEAT)
                values = {"state": SENDING, "attempts": attempt, "repeats": repeats, "updated": now_ms}
                connection.execute(_NOTIFICATION.update().where(_of(notice.id)).values(values))
            return step

        return self._database.write(work)

    def withhold(self, notice: Notice, method_id: str, state: str, reason: str, now_ms: int) -> str:
        """Record that it is not sent, and why, unless it has a row. Returns the state that it has then."""
        values = _new_row(notice, method_id, now_ms, state=state, attempts=0) | {"reason": reason[:_MOST_REASON]}

        def work(connection: sa.Connection) -> str:
            found = connection.execute(sa.select(_NOTIFICATION.c.state).where(_of(notice.id))).scalar_one_or_none()
            if found is None:
                connection.execute(_NOTIFICATION.insert().values(values))
            return found or state

        return self._database.write(work)

    def finish(self, notice: Notice, state: str, now_ms: int, reason: str | None = None) -> None:
        """``state``: `SENT`, `FAILED` or `GIVEN_UP`."""
        values = {"state": state, "updated": now_ms, "reason": reason and reason[:_MOST_REASON]}
        statement = _NOTIFICATION.update().where(_of(notice.id)).values(values)
        self._database.write(lambda connection: connection.execute(statement))

    def prune(self, before_ms: int) -> int:
        """Remove at most `ROWS_A_PORTION` rows that did not change since ``before_ms``. Returns how many."""
        is_old = _NOTIFICATION.c.updated < before_ms
        portion = sa.select(_NOTIFICATION.c.id).where(is_old).order_by(_NOTIFICATION.c.updated).limit(ROWS_A_PORTION)
        # The age is asked for twice, because an attempt may begin between the choice of a row and its removal.
        statement = _NOTIFICATION.delete().where(_NOTIFICATION.c.id.in_(portion), is_old)
        return self._database.write(lambda connection: connection.execute(statement).rowcount)


def _step(row: Row, attempt: int) -> NextStep:
    if row.state in (SENT, GIVEN_UP) or row.attempts > attempt:
        return NextStep.NOTHING
    if row.state == SENDING:
        return NextStep.REPEAT
    return NextStep.RETRY if row.attempts == attempt else NextStep.SEND


def _new_row(notice: Notice, method_id: str, now_ms: int, *, state: str, attempts: int) -> dict[str, str | int]:
    return {
        "id": notice.id,
        "tenant": notice.change.tenant,
        "alarm_id": notice.change.alarm_id,
        "method_id": method_id,
        "new_state": notice.change.new_state,
        "alarm_time": notice.change.time_ms,
        "state": state,
        "attempts": attempts,
        "repeats": 0,
        "created": now_ms,
        "updated": now_ms,
    }


def _of(notice_id: str) -> sa.ColumnElement[bool]:
    return _NOTIFICATION.c.id == notice_id
