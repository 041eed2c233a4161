# SPDX-License-Identifier: Apache-2.0
"""Stores deferred notifications, scheduled attempts, and the current message count of each rate-limited method.

A row is a silenced or inhibited notification, a member of a group or of a digest, the next repeat of a periodic method,
or a scheduled attempt. When a row is due, it is released: one transaction replaces it with an attempt. A process claims
a row, makes the attempt, and then replaces the row with the next attempt or removes it.

Each step is conditional on the values that were read, so only one of several processes does it. The members of a group
are fixed when their message is scheduled, so the message has the same id each time it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Condition, Row, new_id
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.notification.errors import storable
from monasca_common.notification.ledger import ENDED, FAILED, SENDING, SUPERSEDED, new_row
from monasca_common.notification.notification import Notification, group_of, repeat_of
from monasca_common.notification.retries import FIRST, Retry
from monasca_common.notification.stages import HELD, INHIBITED, LIMIT_KEY, SILENCED, Deferral, RateWindow, rate_window
from monasca_common.storage.sql import schema, tables

LOG = logging.getLogger(__name__)

#: The kinds of rows that are not states in the ledger.
REPEAT, SCHEDULED = "repeat", "scheduled"
MOST_MEMBERS = 200
MOST_BYTES = 500_000  # maximum bytes of the changes in one message of a group

_DEFERRED, _RATE, _NOTIFICATION = tables.notification_deferred, tables.notification_rate, tables.notification
_SILENCE = tables.silence
_COLUMNS = [column for column in _DEFERRED.c if column.name not in ("value", "size", "created")]
_WHOLE = [*_COLUMNS, _DEFERRED.c.value]


@dataclass(frozen=True, slots=True)
class DeferredRow:
    """A row without its change, which can be several megabytes long.

    ``notification_id``: for a repeat, the id of the first notification. ``message_id``: the id of the group's message,
    once its members are fixed. ``number``: the number of a repeat, or of the attempt of a retry.
    """

    id: str
    notification_id: str
    tenant: str
    method_id: str
    kind: str
    group_key: str
    message_id: str
    number: int
    due: int


@dataclass(frozen=True, slots=True)
class Deferred:
    row: DeferredRow
    notification: Notification


class DeferredNotifications:
    """The deferred notifications in the database. Each call may raise `StorageError`. ``now_ms``: the caller's time."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def defer(self, notification: Notification, method_id: str, deferral: Deferral, now_ms: int) -> str:
        """Store a deferred notification, unless the ledger already has it. Return the resulting state in the ledger."""
        reason = {"reason": storable(deferral.reason)}
        recorded = new_row(notification, method_id, now_ms, state=deferral.state, attempts=0) | reason
        row = _row(notification.id, notification, method_id, deferral.state, now_ms)

        def work(connection: sa.Connection) -> str:
            found = _state(connection, notification.id)
            if found is None:
                connection.execute(_NOTIFICATION.insert().values(recorded))
                due_ms = _due(connection, deferral, now_ms)
                if due_ms is not None:
                    release = {"due": due_ms, "group_key": deferral.group_key}
                    connection.execute(_DEFERRED.insert().values(row | release))
            return found or deferral.state

        return self._database.write(work)

    def begin_repeats(self, notification: Notification, method_id: str, due_ms: int, now_ms: int) -> None:
        """Schedule the first repeat for ``due_ms``, unless a repeat exists."""
        own_id = repeat_of(notification, 0).id
        row = _row(own_id, notification, method_id, REPEAT, now_ms) | {"due": due_ms, "number": 1}

        def work(connection: sa.Connection) -> None:
            connection.execute(schema.insert(connection, _DEFERRED).on_conflict_do_nothing(), row)

        self._database.write(work)

    def schedule(self, retry: Retry, now_ms: int) -> None:
        """Store the retry until it is due. It replaces an earlier row of the same attempt. The ledger gets a row even
        before the first attempt, because the stages of later changes need to know that the change was not sent. A
        deferred notification is not scheduled again, for example if a change is read again while its digest is sent."""
        recorded = new_row(retry.notification, retry.method_id, now_ms, state=HELD, attempts=0)

        def work(connection: sa.Connection) -> None:
            state = _state(connection, retry.notification.id)
            if state is None:
                connection.execute(_NOTIFICATION.insert().values(recorded))
            if retry.attempt > FIRST or state not in (SILENCED, INHIBITED, HELD):
                _schedule(connection, retry, now_ms)

        self._database.write(work)

    def release(self, members: Sequence[Deferred], method_id: str, now_ms: int) -> None:
        """Schedule one message with these members now, unless another process has released one of them.

        A single member becomes its own message. Members of a group stay until `finish`, with the id of their message.
        """
        message = members[0].notification if len(members) == 1 else group_of([each.notification for each in members])
        retry = Retry(message, method_id, FIRST, now_ms)
        ids, kind = [each.row.id for each in members], members[0].row.kind
        free = (_DEFERRED.c.id.in_(ids), _DEFERRED.c.kind == kind, _DEFERRED.c.message_id == "")

        def work(connection: sa.Connection) -> None:
            if len(connection.execute(sa.select(_DEFERRED.c.id).where(*free).with_for_update()).all()) != len(ids):
                return
            if len(ids) == 1:
                connection.execute(_DEFERRED.delete().where(*free))
            else:
                connection.execute(_DEFERRED.update().where(*free).values(message_id=message.id))
            _schedule(connection, retry, now_ms)

        self._database.write(work)

    def advance(self, row: DeferredRow, due_ms: int, now_ms: int, repeat: Retry | None) -> None:
        """Schedule the next repeat for ``due_ms``, and this ``repeat``, if it is not skipped, unless another process
        has already done so."""
        same = (_is(row.id), _DEFERRED.c.number == row.number)
        following = _DEFERRED.update().where(*same).values(number=row.number + 1, due=due_ms)

        def work(connection: sa.Connection) -> None:
            if connection.execute(following).rowcount and repeat is not None:
                _schedule(connection, repeat, now_ms)

        self._database.write(work)

    def claim_retries(self, now_ms: int, until_ms: int, most: int, *, takes_over: bool = True) -> list[Retry]:
        """Claim and return due retries, oldest due time first. Other processes cannot claim them before ``until_ms``.

        ``takes_over``: include retries whose claim has expired.
        """
        columns = [_DEFERRED.c[name] for name in ("notification_id", "method_id", "number", "due", "value")]
        due = sa.select(_DEFERRED.c.id, *columns).where(_DEFERRED.c.kind == SCHEDULED, _DEFERRED.c.due <= now_ms)
        if not takes_over:
            due = due.where(_DEFERRED.c.message_id == "")
        due = due.order_by(_DEFERRED.c.due).limit(most).with_for_update(skip_locked=True)
        claim = new_id()

        def work(connection: sa.Connection) -> Sequence[Row]:
            rows = connection.execute(due).all()
            claimed = _DEFERRED.update().where(_DEFERRED.c.id.in_([row.id for row in rows]))
            connection.execute(claimed.values(due=until_ms, message_id=claim))
            return rows

        found = [_retry(row, claim) for row in self._database.write(work)]
        return [retry for retry in found if retry is not None]

    def renew(self, retries: Sequence[Retry], until_ms: int) -> None:
        """Extend claims that are still valid."""
        ids, claims = {each.id for each in retries}, {each.claim for each in retries}
        held = (_DEFERRED.c.id.in_(ids), _DEFERRED.c.message_id.in_(claims))
        self._execute(_DEFERRED.update().where(*held).values(due=until_ms))

    def complete(self, retry: Retry, following: Retry | None, now_ms: int) -> None:
        """Replace a claimed retry with the following one if its claim is still valid. If none follows, end the members
        of its message with the message's outcome."""
        own = (_is(retry.id), _DEFERRED.c.message_id == retry.claim)

        def work(connection: sa.Connection) -> None:
            if not connection.execute(_DEFERRED.delete().where(*own)).rowcount:
                return
            if following is not None:
                _schedule(connection, following, now_ms)
            elif retry.members > 1:
                _finish(connection, retry.notification.id, now_ms)

        self._database.write(work)

    def admit(self, method_id: str, most: int, now_ms: int, *, is_digest: bool = False) -> int | None:
        """Count one more message to the method in its current minute, and return ``None``. If the limit is reached, or
        earlier notifications are waiting for the digest, return the time at which the next minute begins.

        ``is_digest``: the message is this digest.
        """

        def work(connection: sa.Connection) -> int | None:
            statement = sa.select(_RATE.c.since_ms, _RATE.c.count).where(_RATE.c.method_id == method_id)
            row = connection.execute(statement.with_for_update()).one_or_none()
            if not is_digest and (limited_ms := _limited_until(connection, method_id)) is not None:
                return max(limited_ms, now_ms)
            window = rate_window(None if row is None else RateWindow(*row), now_ms)
            if window.count >= most:
                return window.end_ms
            values = {"since_ms": window.since_ms, "count": window.count + 1}
            if row is None:
                connection.execute(_RATE.insert().values(values | {"method_id": method_id}))
            else:
                connection.execute(_RATE.update().where(_RATE.c.method_id == method_id).values(values))
            return None

        return self._database.write(work)

    def due(self, now_ms: int, limit: int) -> list[DeferredRow]:
        """Return rows to release, alternating between tenants, and within each tenant by due time, oldest first."""
        oldest = (_DEFERRED.c.due, _DEFERRED.c.id)
        turn = sa.func.row_number().over(partition_by=_DEFERRED.c.tenant, order_by=oldest)
        is_open = (_DEFERRED.c.kind != SCHEDULED, _DEFERRED.c.message_id == "")
        statement = sa.select(*_COLUMNS).where(_DEFERRED.c.due <= now_ms, *is_open)
        rows = self._database.rows(statement.order_by(turn, *oldest).limit(limit))
        return [DeferredRow(**row._asdict()) for row in rows]

    def take(self, row: DeferredRow, again_ms: int) -> Deferred | None:
        """Return the row with its change, or ``None`` if another process has claimed it. Unless the row is removed, it
        is due again at ``again_ms``."""
        same = [_DEFERRED.c[name] == getattr(row, name) for name in ("id", "due", "kind", "message_id")]

        def work(connection: sa.Connection) -> Deferred | None:
            if not connection.execute(_DEFERRED.update().where(*same).values(due=again_ms)).rowcount:
                return None
            value = connection.execute(sa.select(_DEFERRED.c.value).where(_is(row.id))).scalar_one()
            return Deferred(row, Notification(row.notification_id, AlarmChange.read(value)))

        return self._database.write(work)

    def defer_again(self, row: DeferredRow, deferral: Deferral, now_ms: int) -> None:
        """Call `defer_again` in a transaction."""
        self._database.write(lambda connection: defer_again(connection, row, deferral, now_ms))

    def remove(self, row: DeferredRow) -> None:
        self._database.write(lambda connection: remove(connection, row))

    def supersede(self, message_id: str, notification_ids: Sequence[str], now_ms: int) -> None:
        """Remove these members from a message, unless the message has ended."""

        def work(connection: sa.Connection) -> None:
            if _state(connection, message_id) not in ENDED:
                _end(connection, notification_ids, SUPERSEDED, "the alarm has changed since", now_ms)
                those = (_DEFERRED.c.message_id == message_id, _DEFERRED.c.notification_id.in_(notification_ids))
                connection.execute(_DEFERRED.delete().where(*those))

        self._database.write(work)

    def members(self, group_key: str) -> list[Deferred]:
        """Return the members of the next message of a group, oldest first, limited in number and bytes. Remove members
        that an operator sent in the meantime, but not members in progress, because they can still fail."""
        of_group = _open_group(group_key)
        sent = sa.select(_NOTIFICATION.c.id).where(_NOTIFICATION.c.state.in_(ENDED))
        oldest = (_DEFERRED.c.created, _DEFERRED.c.id)

        def work(connection: sa.Connection) -> Sequence[Row]:
            connection.execute(_DEFERRED.delete().where(*of_group, _DEFERRED.c.notification_id.in_(sent)))
            ordered = sa.select(_DEFERRED.c.id, _DEFERRED.c.size).where(*of_group).order_by(*oldest)
            sizes = connection.execute(ordered.limit(MOST_MEMBERS)).all()
            totals = accumulate(row.size for row in sizes)
            # The first member always fits, regardless of its size.
            ids = [row.id for row, total in zip(sizes, totals, strict=True) if row is sizes[0] or total <= MOST_BYTES]
            whole = sa.select(*_WHOLE).where(_DEFERRED.c.id.in_(ids), *of_group).order_by(*oldest)
            return connection.execute(whole).all()

        return [_whole(row) for row in self._database.write(work)]

    def postpone(self, row: DeferredRow, due_ms: int) -> None:
        """Postpone a row, with the other members of its group."""
        those = _open_group(row.group_key) if row.kind == HELD else (_is(row.id), _DEFERRED.c.message_id == "")
        self._execute(_DEFERRED.update().where(*those).values(due=due_ms))

    def message(self, message_id: str) -> Notification | None:
        """Return the message with its members, or ``None`` if the message has ended."""
        rows = self._database.rows(sa.select(*_WHOLE).where(_DEFERRED.c.message_id == message_id))
        # The id identifies all members, including members that have been superseded since.
        return replace(group_of([_whole(row).notification for row in rows]), id=message_id) if rows else None

    def finish(self, message_id: str, now_ms: int) -> None:
        """End the members of a message that has ended, with its outcome. A repeated call has no effect."""
        self._database.write(lambda connection: _finish(connection, message_id, now_ms))

    def _execute(self, statement: sa.Update | sa.Delete) -> None:
        self._database.write(lambda connection: connection.execute(statement))


def defer_again(connection: sa.Connection, row: DeferredRow, deferral: Deferral, now_ms: int) -> None:
    """Defer a notification for a new reason or a longer time, or remove it if an operator sent it in the meantime."""
    if _state(connection, row.notification_id) in (SENDING, FAILED, *ENDED):
        remove(connection, row)
        return
    due_ms = _due(connection, deferral, now_ms)
    if due_ms is None:
        remove(connection, row)
    else:
        values = {"kind": deferral.state, "created": now_ms, "due": due_ms, "group_key": deferral.group_key}
        connection.execute(_DEFERRED.update().where(_is(row.id)).values(values))
    recorded = {"state": deferral.state, "reason": storable(deferral.reason), "updated": now_ms}
    connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id == row.notification_id).values(recorded))


def end_withholding(connection: sa.Connection, row: DeferredRow) -> None:
    """Record that the notification is about to be sent. The stages of later changes then treat the method as notified,
    even before the attempt."""
    withheld = (_NOTIFICATION.c.id == row.notification_id, _NOTIFICATION.c.state.in_((SILENCED, INHIBITED)))
    values = {"state": HELD, "reason": "the notification is about to be sent"}
    connection.execute(_NOTIFICATION.update().where(*withheld).values(values))


def remove(connection: sa.Connection, row: DeferredRow) -> None:
    connection.execute(_DEFERRED.delete().where(_is(row.id)))


def _retry(row: Row, claim: str) -> Retry | None:
    """Return a claimed retry, or ``None`` if another version of this program stored it in an unreadable form."""
    try:
        return replace(Retry.read(*row[1:]), claim=claim)
    except (InvalidEnvelope, LookupError) as error:
        LOG.error(
            "row %s of notification_deferred cannot be read, and is left in place: %r; delete it, and send its "
            "notification with `monasca-common notification resend %s`",
            row.id,
            error,
            row.notification_id,
        )
        return None


def _schedule(connection: sa.Connection, retry: Retry, now_ms: int) -> None:
    row, value = _row(retry.id, retry.notification, retry.method_id, SCHEDULED, now_ms), retry.value
    facts = {"due": retry.due_ms, "number": retry.attempt, "value": value, "size": len(value)}
    connection.execute(_DEFERRED.delete().where(_is(retry.id)))
    connection.execute(_DEFERRED.insert().values(row | facts))


def _due(connection: sa.Connection, deferral: Deferral, now_ms: int) -> int | None:
    """Return when the notification is due: now, if its silence has been deleted since the facts were read. A concurrent
    transaction that deletes the silence waits for this transaction, and then finds the row."""
    if not deferral.silence_id:
        return deferral.due_ms
    lasting = sa.select(_SILENCE.c.id).where(_SILENCE.c.id == deferral.silence_id).with_for_update(read=True)
    return now_ms if connection.execute(lasting).one_or_none() is None else deferral.due_ms


def _row(
    own_id: str, notification: Notification, method_id: str, kind: str, now_ms: int
) -> dict[str, str | int | bytes]:
    value = notification.change.message
    return {
        "id": own_id,
        "notification_id": notification.id,
        "tenant": notification.change.tenant,
        "method_id": method_id,
        "kind": kind,
        "group_key": "",
        "message_id": "",
        "number": 0,
        "created": now_ms,
        "size": len(value),
        "value": value,
    }


def _whole(row: Row) -> Deferred:
    facts = row._asdict()
    change = AlarmChange.read(facts.pop("value"))
    return Deferred(DeferredRow(**facts), Notification(row.notification_id, change))


def _finish(connection: sa.Connection, message_id: str, now_ms: int) -> None:
    """End the members of a message that has ended, with its outcome."""
    ended = sa.select(_NOTIFICATION.c.state, _NOTIFICATION.c.reason)
    ended = ended.where(_NOTIFICATION.c.id == message_id, _NOTIFICATION.c.state.in_(ENDED))
    message = connection.execute(ended).one_or_none()
    if message is not None:
        of_message = _DEFERRED.c.message_id == message_id
        members = connection.execute(sa.select(_DEFERRED.c.notification_id).where(of_message)).scalars().all()
        reason = f"in the message {message_id}" + (f": {message.reason}" if message.reason else "")
        _end(connection, members, message.state, reason, now_ms)
        connection.execute(_DEFERRED.delete().where(of_message))


def _end(connection: sa.Connection, notification_ids: Sequence[str], state: str, reason: str, now_ms: int) -> None:
    values = {"state": state, "reason": storable(reason), "updated": now_ms}
    connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id.in_(notification_ids)).values(values))


def _state(connection: sa.Connection, notification_id: str) -> str | None:
    statement = sa.select(_NOTIFICATION.c.state).where(_NOTIFICATION.c.id == notification_id)
    found: str | None = connection.execute(statement).scalar_one_or_none()
    return found


def _is(own_id: str) -> Condition:
    return _DEFERRED.c.id == own_id


def _open_group(group_key: str) -> tuple[Condition, ...]:
    return _DEFERRED.c.group_key == group_key, _DEFERRED.c.kind == HELD, _DEFERRED.c.message_id == ""


def _limited_until(connection: sa.Connection, method_id: str) -> int | None:
    statement = sa.select(sa.func.min(_DEFERRED.c.due)).where(*_open_group(f"{LIMIT_KEY}{method_id}"))
    found: int | None = connection.execute(statement).scalar_one()
    return found
