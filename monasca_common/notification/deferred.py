# SPDX-License-Identifier: Apache-2.0
"""The table of notifications that are not sent now, and the minute of each method.

A row is silenced, inhibited, held for its group or for a limit, the next repeat of a periodic method, or a scheduled
retry. A process claims a row by changing it from what it read, so of two processes one continues. The members of a
group are fixed before their message is published: it has the same id, whichever process publishes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Condition, Row
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka import Record
from monasca_common.notification.errors import storable
from monasca_common.notification.ledger import ENDED, FAILED, GIVEN_UP, SENDING, SUPERSEDED, new_row
from monasca_common.notification.notification import Notification, group_of, repeat_of
from monasca_common.notification.retries import Retry
from monasca_common.notification.stages import HELD, INHIBITED, LIMIT_KEY, SILENCED, Deferral, RateWindow, rate_limit
from monasca_common.storage.sql import tables

#: The kinds of rows that are not a state of the ledger.
REPEAT, SCHEDULED = "repeat", "scheduled"
MOST_MEMBERS = 200
MOST_BYTES = 500_000  # of the changes of one message of a group
MOST_SCHEDULED = 500  # that are claimed in one transaction

_DEFERRED, _RATE, _NOTIFICATION = tables.notification_deferred, tables.notification_rate, tables.notification
_SILENCE = tables.silence
_COLUMNS = [column for column in _DEFERRED.c if column.name not in ("value", "size", "created")]
_WHOLE = [*_COLUMNS, _DEFERRED.c.value]


@dataclass(frozen=True, slots=True)
class DeferredRow:
    """A row without its change, which may have megabytes.

    ``notification_id``: of a repeat, the first. ``message_id``: of the group's message, once its members are fixed.
    ``number``: of a repeat, or the attempt of a retry.
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


@dataclass(frozen=True, slots=True)
class ScheduledRetry:
    """A retry that is claimed until ``claimed_ms``."""

    id: str
    notification_id: str
    value: bytes
    claimed_ms: int

    @property
    def record(self) -> Record:
        return Record(self.value, key=self.notification_id.encode(), message_id=f"{self.id}/due".encode())


class DeferredNotifications:
    """Each call raises `StorageError`. ``now_ms`` is the caller's."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def defer(self, notification: Notification, method_id: str, deferral: Deferral, now_ms: int) -> str:
        """Record that it is not sent now, unless the ledger has it. Return its state in the ledger after that."""
        reason = {"reason": storable(deferral.reason)}
        recorded = new_row(notification, method_id, now_ms, state=deferral.state, attempts=0) | reason
        row = _row(notification.id, notification, method_id, deferral.state, now_ms)

        def work(connection: sa.Connection) -> str:
            found = _state(connection, notification.id)
            if found is None:
                connection.execute(_NOTIFICATION.insert().values(recorded))
                due_ms = _due(connection, deferral, now_ms)
                if due_ms is not None:
                    connection.execute(_DEFERRED.insert().values(row | _due_at(due_ms, deferral.group_key)))
            return found or deferral.state

        return self._database.write(work)

    def begin_repeats(self, notification: Notification, method_id: str, due_ms: int, now_ms: int) -> None:
        """Make the first repeat due at ``due_ms``, unless there are repeats already."""
        own_id = repeat_of(notification, 0).id
        row = _row(own_id, notification, method_id, REPEAT, now_ms) | _due_at(due_ms) | {"number": 1}

        def work(connection: sa.Connection) -> None:
            if connection.execute(sa.select(_DEFERRED.c.id).where(_is(own_id))).one_or_none() is None:
                connection.execute(_DEFERRED.insert().values(row))

        self._database.write(work)

    def schedule(self, retry: Retry, value: bytes, now_ms: int) -> None:
        """Have ``value`` published to the retry topic when the retry is due."""
        own_id = f"{retry.notification.id}/{retry.attempt}"
        row = _row(own_id, retry.notification, retry.method_id, SCHEDULED, now_ms) | _due_at(retry.not_before_ms)
        row |= {"number": retry.attempt, "value": value, "size": len(value)}

        def work(connection: sa.Connection) -> None:
            connection.execute(_DEFERRED.delete().where(_is(own_id)))
            connection.execute(_DEFERRED.insert().values(row))

        self._database.write(work)

    def claim_scheduled(self, now_ms: int, claimed_ms: int) -> list[ScheduledRetry]:
        """Return retries that are due, the longest due first. Other processes do not get them until ``claimed_ms``."""
        columns = (_DEFERRED.c.id, _DEFERRED.c.notification_id, _DEFERRED.c.value)
        due = sa.select(*columns).where(_DEFERRED.c.kind == SCHEDULED, _DEFERRED.c.due <= now_ms)
        due = due.order_by(_DEFERRED.c.due).limit(MOST_SCHEDULED).with_for_update(skip_locked=True)

        def work(connection: sa.Connection) -> list[ScheduledRetry]:
            found = [ScheduledRetry(*row, claimed_ms) for row in connection.execute(due)]
            ids = [retry.id for retry in found]
            connection.execute(_DEFERRED.update().where(_DEFERRED.c.id.in_(ids)).values(due=claimed_ms))
            return found

        return self._database.write(work)

    def remove_scheduled(self, published: Sequence[ScheduledRetry]) -> None:
        """Remove those that are still claimed: one that was scheduled again in the meantime stays."""
        for claimed_ms in {retry.claimed_ms for retry in published}:
            ids = [retry.id for retry in published if retry.claimed_ms == claimed_ms]
            self._execute(_DEFERRED.delete().where(_DEFERRED.c.id.in_(ids), _DEFERRED.c.due == claimed_ms))

    def admit(self, method_id: str, most: int, now_ms: int, *, is_digest: bool = False) -> int | None:
        """Count one more message to the method in this minute, and return ``None``; or return when the next minute
        begins. While others wait for it, so do later ones, except the digest that they are sent in."""

        def work(connection: sa.Connection) -> int | None:
            statement = sa.select(_RATE.c.since_ms, _RATE.c.count).where(_RATE.c.method_id == method_id)
            row = connection.execute(statement.with_for_update()).one_or_none()
            window = None if row is None else RateWindow(*row)
            if not is_digest and (limited_ms := _limited_until(connection, method_id)) is not None:
                return max(limited_ms, now_ms)
            admitted = rate_limit(window, now_ms, most)
            if admitted is None:
                assert window is not None
                return window.end_ms
            values = {"since_ms": admitted.since_ms, "count": admitted.count}
            if row is None:
                connection.execute(_RATE.insert().values(values | {"method_id": method_id}))
            else:
                connection.execute(_RATE.update().where(_RATE.c.method_id == method_id).values(values))
            return None

        return self._database.write(work)

    def due(self, now_ms: int, limit: int) -> list[DeferredRow]:
        """Return rows other than retries, of all tenants in turn; of each tenant the longest due first."""
        oldest = (_DEFERRED.c.due, _DEFERRED.c.id)
        turn = sa.func.row_number().over(partition_by=_DEFERRED.c.tenant, order_by=oldest)
        statement = sa.select(*_COLUMNS).where(_DEFERRED.c.due <= now_ms, _DEFERRED.c.kind != SCHEDULED)
        rows = self._database.rows(statement.order_by(turn, *oldest).limit(limit))
        return [DeferredRow(**row._asdict()) for row in rows]

    def take(self, row: DeferredRow, again_ms: int) -> Deferred | None:
        """Return the row with its change; unless it is removed, it is due again at ``again_ms``. ``None``: another
        process has it."""
        same = [_DEFERRED.c[name] == getattr(row, name) for name in ("id", "due", "kind", "message_id")]

        def work(connection: sa.Connection) -> Deferred | None:
            if not connection.execute(_DEFERRED.update().where(*same).values(due=again_ms)).rowcount:
                return None
            return _whole(connection.execute(sa.select(*_WHOLE).where(_is(row.id))).one())

        return self._database.write(work)

    def defer_again(self, row: DeferredRow, deferral: Deferral, now_ms: int) -> None:
        """See the function of this name."""
        self._database.write(lambda connection: defer_again(connection, row, deferral, now_ms))

    def remove(self, row: DeferredRow) -> None:
        self._database.write(lambda connection: remove(connection, row))

    def give_up(self, row: DeferredRow, now_ms: int, reason: str) -> None:
        """Give up a notification; or a repeat and those after it, because its first notification was sent."""

        def work(connection: sa.Connection) -> None:
            if row.kind != REPEAT:
                _end(connection, [row.notification_id], GIVEN_UP, reason, now_ms)
            remove(connection, row)

        self._database.write(work)

    def give_up_all(self, message_id: str, now_ms: int, reason: str) -> None:
        """Give up the members of a message."""
        self._database.write(lambda connection: _end_all(connection, message_id, GIVEN_UP, reason, now_ms))

    def supersede(self, message_id: str, notification_ids: Sequence[str], now_ms: int) -> None:
        """Leave these members out of a message, unless it has ended."""

        def work(connection: sa.Connection) -> None:
            if _state(connection, message_id) not in ENDED:
                _end(connection, notification_ids, SUPERSEDED, "the alarm has changed since", now_ms)
                those = (_DEFERRED.c.message_id == message_id, _DEFERRED.c.notification_id.in_(notification_ids))
                connection.execute(_DEFERRED.delete().where(*those))

        self._database.write(work)

    def advance(self, row: DeferredRow, due_ms: int) -> None:
        """Make the next repeat due at ``due_ms``."""
        same = (_is(row.id), _DEFERRED.c.number == row.number)
        self._execute(_DEFERRED.update().where(*same).values(number=row.number + 1, due=due_ms))

    def members(self, group_key: str) -> list[Deferred]:
        """Return the members of the next message of a group, the oldest first, bounded in number and bytes."""

        def work(connection: sa.Connection) -> list[Deferred]:
            of_group = _open_group(group_key)
            ordered = sa.select(_DEFERRED.c.id, _DEFERRED.c.size).where(*of_group)
            ordered = ordered.order_by(_DEFERRED.c.created, _DEFERRED.c.id).limit(MOST_MEMBERS)
            sizes = connection.execute(ordered).all()
            ids = [row.id for number, row in enumerate(sizes) if _fits(sizes, number)]
            found = connection.execute(sa.select(*_WHOLE).where(_DEFERRED.c.id.in_(ids), *of_group)).all()
            return [_whole(row) for row in sorted(found, key=lambda row: ids.index(row.id))]

        return self._database.read(work)

    def remove_sent(self, group_key: str) -> None:
        """Remove those that an operator sent in the meantime. One that is being sent may still fail."""
        sent = sa.select(_NOTIFICATION.c.id).where(_NOTIFICATION.c.state.in_(ENDED))
        self._execute(_DEFERRED.delete().where(*_open_group(group_key), _DEFERRED.c.notification_id.in_(sent)))

    def postpone(self, group_key: str, due_ms: int) -> None:
        self._execute(_DEFERRED.update().where(*_open_group(group_key)).values(due=due_ms))

    def fix(self, members: Sequence[Deferred], again_ms: int) -> Notification | None:
        """Return the message of these members, which stay until `finish`. ``None``: another process has one."""
        message = group_of([member.notification for member in members])
        ids = [member.row.id for member in members]

        def work(connection: sa.Connection) -> Notification | None:
            free = (_DEFERRED.c.id.in_(ids), _DEFERRED.c.kind == HELD, _DEFERRED.c.message_id == "")
            if len(connection.execute(sa.select(_DEFERRED.c.id).where(*free).with_for_update()).all()) != len(ids):
                return None
            values = {"message_id": message.id, "due": again_ms}
            connection.execute(_DEFERRED.update().where(_DEFERRED.c.id.in_(ids)).values(values))
            return message

        return self._database.write(work)

    def fixed(self, message_id: str) -> list[Deferred]:
        """Return the members of a message that is not finished."""
        statement = sa.select(*_WHOLE).where(_DEFERRED.c.message_id == message_id)
        return [_whole(row) for row in self._database.rows(statement)]

    def message(self, message_id: str) -> Notification | None:
        """Return the message of these members; ``None``: it is finished."""
        members = self.fixed(message_id)
        # Its id is that of all members, of which some may be superseded.
        return replace(group_of([each.notification for each in members]), id=message_id) if members else None

    def state(self, notification_id: str) -> str | None:
        """Return the state in the ledger."""
        return self._database.read(lambda connection: _state(connection, notification_id))

    def finish(self, message_id: str, now_ms: int) -> None:
        """Once the message has ended, end its members alike. A repeated call changes nothing."""

        def work(connection: sa.Connection) -> None:
            state = _state(connection, message_id)
            if state in ENDED:
                _end_all(connection, message_id, state, f"in the message {message_id}", now_ms)

        self._database.write(work)

    def _execute(self, statement: sa.Update | sa.Delete) -> None:
        self._database.write(lambda connection: connection.execute(statement))


def defer_again(connection: sa.Connection, row: DeferredRow, deferral: Deferral, now_ms: int) -> None:
    """Defer it for another reason, or for longer; or remove it, if an operator sent it in the meantime."""
    if _state(connection, row.notification_id) in (SENDING, FAILED, *ENDED):
        remove(connection, row)
        return
    due_ms = _due(connection, deferral, now_ms)
    if due_ms is None:
        remove(connection, row)
    else:
        values = {"kind": deferral.state, "created": now_ms} | _due_at(due_ms, deferral.group_key)
        connection.execute(_DEFERRED.update().where(_is(row.id)).values(values))
    recorded = {"state": deferral.state, "reason": storable(deferral.reason), "updated": now_ms}
    connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id == row.notification_id).values(recorded))


def release(connection: sa.Connection, row: DeferredRow) -> None:
    """Record that it is about to be sent: for a change that is read before that, the method knows of it."""
    withheld = (_NOTIFICATION.c.id == row.notification_id, _NOTIFICATION.c.state.in_((SILENCED, INHIBITED)))
    values = {"state": HELD, "reason": "it is about to be sent"}
    connection.execute(_NOTIFICATION.update().where(*withheld).values(values))


def remove(connection: sa.Connection, row: DeferredRow) -> None:
    connection.execute(_DEFERRED.delete().where(_is(row.id)))


def _due(connection: sa.Connection, deferral: Deferral, now_ms: int) -> int | None:
    """Return when it is due: now, if its silence was deleted since it was read. A transaction that deletes the silence
    in the meantime waits for this one, and then finds the row."""
    if not deferral.silence_id:
        return deferral.due_ms
    lasting = sa.select(_SILENCE.c.id).where(_SILENCE.c.id == deferral.silence_id).with_for_update(read=True)
    return now_ms if connection.execute(lasting).one_or_none() is None else deferral.due_ms


def _due_at(due_ms: int, group_key: str = "") -> dict[str, int | str]:
    return {"due": due_ms, "group_key": group_key}


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


def _end_all(connection: sa.Connection, message_id: str, state: str, reason: str, now_ms: int) -> None:
    of_message = _DEFERRED.c.message_id == message_id
    members = connection.execute(sa.select(_DEFERRED.c.notification_id).where(of_message)).scalars().all()
    _end(connection, members, state, reason, now_ms)
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


def _fits(sizes: Sequence[Row], number: int) -> bool:
    """The first one fits, however large it is."""
    return number == 0 or sum(row.size for row in sizes[: number + 1]) <= MOST_BYTES
