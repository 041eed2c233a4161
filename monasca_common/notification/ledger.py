# SPDX-License-Identifier: Apache-2.0
"""The ledger. A row is *sending* before an attempt and *sent* after it, so that a crash leaves the outcome of at most
one attempt unknown. A loop removes old rows."""

from __future__ import annotations

import enum
import logging
import zlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from monasca_common.alarms.database import AlarmsDatabase, Row
from monasca_common.alarms.silences import Silences
from monasca_common.kafka import MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.models import json_text
from monasca_common.notification.errors import storable
from monasca_common.notification.notification import Notification
from monasca_common.notification.stages import HELD, INHIBITED, OK, SILENCED
from monasca_common.notification.worker_loop import WorkerLoop
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

SENDING, SENT, FAILED, GIVEN_UP = "sending", "sent", "failed", "given up"
#: The alarm changed before an attempt succeeded.
SUPERSEDED = "superseded"
ENDED = (SENT, GIVEN_UP, SUPERSEDED)

_NOTIFICATION, _RATE, _ALARM = tables.notification, tables.notification_rate, tables.alarm
_WITHHELD = (SILENCED, INHIBITED)
_MOST_FAILURES = 50
_ROWS_A_PORTION = 1000
_REST_SECONDS = 300.0
# A pause between two portions lets other processes write, because SQLite permits one writer at a time.
_PAUSE_SECONDS = 0.1
# The statements are built once, because building one takes longer than executing it.
_OWN = _NOTIFICATION.c.id == sa.bindparam("own_id")
_FIND = sa.select(_NOTIFICATION.c.state, _NOTIFICATION.c.attempts).where(_OWN).with_for_update()
_INSERT = {
    "postgresql": postgresql.insert(_NOTIFICATION).on_conflict_do_nothing().returning(_NOTIFICATION.c.id),
    "sqlite": sqlite.insert(_NOTIFICATION).on_conflict_do_nothing().returning(_NOTIFICATION.c.id),
}
_END = (
    _NOTIFICATION.update()
    .where(_OWN)
    .values(state=sa.bindparam("ended_as"), updated=sa.bindparam("ended"), reason=sa.bindparam("answer"))
)


class NextStep(enum.Enum):
    """The next step of an attempt."""

    SEND = "send the notification"
    REPEAT = "send the notification, although the outcome of an earlier attempt is unknown"
    RETRY = "the attempt has failed before; schedule its retry"
    NOTHING = "the notification has ended, or a later attempt is in progress"


class Ledger:
    """The rows of the table ``notification``. Each call may raise `StorageError`."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def begin(
        self, notification: Notification, method_id: str, attempt: int, now_ms: int, *, released: bool = False
    ) -> NextStep:
        """Record an attempt if the ledger allows one, and return the next step. ``released``: the notification was
        deferred before.
        """
        row = new_row(notification, method_id, now_ms, state=SENDING, attempts=attempt)

        def work(connection: sa.Connection) -> NextStep:
            if connection.execute(_INSERT[connection.dialect.name], row).one_or_none() is not None:
                return NextStep.SEND
            stored = connection.execute(_FIND, {"own_id": notification.id}).one()
            step = _step(stored, attempt, released=released)
            if step in (NextStep.SEND, NextStep.REPEAT):
                repeats = _NOTIFICATION.c.repeats + int(step is NextStep.REPEAT)
                values = {"state": SENDING, "reason": None, "attempts": attempt, "repeats": repeats, "updated": now_ms}
                connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id == notification.id).values(values))
            return step

        return self._database.write(work)

    def finish(self, notification: Notification, state: str, now_ms: int, reason: str | None = None) -> None:
        """Record the outcome of an attempt: `FAILED`, `SENT` or `GIVEN_UP`. ``reason``: the receiver's response."""
        statement, values = _END, _outcome(notification.id, state, now_ms, reason)
        if state != SENT:
            line = json_text.write({"timestamp": now_ms, "answer": values["answer"]}).decode() + "\n"
            longer = sa.func.coalesce(_NOTIFICATION.c.failures, "").concat(line)
            few = _NOTIFICATION.c.attempts <= _MOST_FAILURES
            statement = _END.values(failures=sa.case((few, longer), else_=_NOTIFICATION.c.failures))
        self._database.write(lambda connection: connection.execute(statement, values))

    def end(self, notification: Notification, method_id: str, state: str, now_ms: int, reason: str) -> bool:
        """Record that no further attempt follows. Return ``False`` if the notification had already ended."""
        row = new_row(notification, method_id, now_ms, state=FAILED, attempts=0)

        def work(connection: sa.Connection) -> bool:
            connection.execute(_INSERT[connection.dialect.name], row)
            if connection.execute(_FIND, {"own_id": notification.id}).one().state in ENDED:
                return False
            connection.execute(_END, _outcome(notification.id, state, now_ms, reason))
            return True

        return self._database.write(work)

    def resend(self, notification_id: str, now_ms: int, *, also_under_way: bool = False) -> bool:
        """Begin another attempt after the last one ended. Return ``False`` if one is in progress or the id is unknown.

        ``also_under_way``: begin an attempt even if another seems to be in progress, because its process has crashed.
        """
        conditions = [_NOTIFICATION.c.id == notification_id]
        if not also_under_way:
            conditions.append(_NOTIFICATION.c.state != SENDING)
        # An attempt in progress counts as this attempt: retries continue from the number of attempts that ended.
        further = sa.case((_NOTIFICATION.c.state == SENDING, 0), else_=1)
        values = {"state": SENDING, "attempts": _NOTIFICATION.c.attempts + further, "updated": now_ms}
        statement = _NOTIFICATION.update().where(*conditions).values(values)
        return self._database.write(lambda connection: connection.execute(statement).rowcount) == 1

    def restore(self, notification_id: str, state: str) -> None:
        """Undo an attempt that does not count: a failed attempt by an operator, or an attempt that sent nothing.

        Retries continue from the number of attempts before it.
        """
        values = {"state": state, "attempts": _NOTIFICATION.c.attempts - int(state == FAILED)}
        statement = _NOTIFICATION.update().where(_NOTIFICATION.c.id == notification_id).values(values)
        self._database.write(lambda connection: connection.execute(statement))

    def prune(self, before_ms: int) -> int:
        """Remove at most `_ROWS_A_PORTION` rows that are unchanged since ``before_ms``, and older message counts of
        methods. Return the number of rows.

        Rows of an alarm with a withheld notification stay until the alarm is OK, because `stages.deduplication` needs
        the withheld rows and those next to them.
        """
        is_active = sa.exists().where(_ALARM.c.id == _NOTIFICATION.c.alarm_id, _ALARM.c.state != OK)
        withheld = _NOTIFICATION.alias()
        of_same_alarm = (withheld.c.alarm_id == _NOTIFICATION.c.alarm_id, withheld.c.state.in_(_WITHHELD))
        has_withheld = sa.exists().where(*of_same_alarm).correlate(_NOTIFICATION)
        is_old = sa.and_(_NOTIFICATION.c.updated < before_ms, ~sa.and_(is_active, has_withheld))
        portion = sa.select(_NOTIFICATION.c.id).where(is_old).order_by(_NOTIFICATION.c.updated).limit(_ROWS_A_PORTION)
        # The age is compared twice, because an attempt may begin between the selection of a row and its removal.
        statement = _NOTIFICATION.delete().where(_NOTIFICATION.c.id.in_(portion), is_old)

        def work(connection: sa.Connection) -> int:
            connection.execute(_RATE.delete().where(_RATE.c.since_ms < before_ms))
            return connection.execute(statement).rowcount

        return self._database.write(work)


class LedgerRetention(WorkerLoop):
    """Removes rows and silences after their retention time until `stop`, in each process independently."""

    expected = (MessagingError, StorageError)

    def __init__(
        self, ledger: Ledger, silences: Silences, clock: Clock, retention_ms: int, status: MemberStatus
    ) -> None:
        super().__init__("the retention of the ledger", clock, status, reason="")
        self._ledger = ledger
        self._silences = silences
        self._retention_ms = retention_ms

    def serve(self) -> None:
        while not self.stopping.is_set():
            self.health.turned()
            before_ms = self.clock.time_ms() - self._retention_ms
            removed = self._ledger.prune(before_ms)
            self._silences.prune(before_ms)
            self.health.turned("")
            if removed:
                LOG.info("removed %d old rows of the ledger", removed)
            self.stopping.wait(_PAUSE_SECONDS if removed == _ROWS_A_PORTION else _REST_SECONDS)


def _outcome(notification_id: str, state: str, now_ms: int, reason: str | None) -> dict[str, Any]:
    """Return the parameters of `_END`."""
    return {"own_id": notification_id, "ended_as": state, "ended": now_ms, "answer": reason and storable(reason)}


def _step(row: Row, attempt: int, *, released: bool) -> NextStep:
    if row.state in (SILENCED, INHIBITED, HELD):
        return NextStep.SEND if released else NextStep.NOTHING
    if row.state in ENDED or row.attempts > attempt:
        return NextStep.NOTHING
    if row.state == SENDING:
        return NextStep.REPEAT
    return NextStep.RETRY if row.attempts == attempt else NextStep.SEND


def new_row(notification: Notification, method_id: str, now_ms: int, *, state: str, attempts: int) -> dict[str, Any]:
    """Return the initial row of a notification."""
    return {
        "id": notification.id,
        "tenant": notification.change.tenant,
        "alarm_id": notification.change.alarm_id,
        "method_id": method_id,
        "new_state": notification.change.new_state,
        "alarm_time": notification.change.time_ms,
        "state": state,
        "attempts": attempts,
        "repeats": 0,
        "created": now_ms,
        "updated": now_ms,
        "definition_id": notification.change.definition_id,
        "change": zlib.compress(b"\n".join(each.message for each in notification.changes), 1),
    }
