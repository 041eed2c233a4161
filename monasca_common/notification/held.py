# SPDX-License-Identifier: Apache-2.0
"""The tables of what is not sent now: withheld notifications, groups, repeats, and the minute of each method.

A row is changed by whoever finds it as they read it, so of two processes one goes on. The members of a message are
fixed before it is published: it has the same id whoever publishes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Condition, Row
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.notification.calm import HELD, INHIBITED, LIMIT_KEY, SILENCED, Hold, RateWindow, admission
from monasca_common.notification.errors import storable
from monasca_common.notification.ledger import ENDED, FAILED, GIVEN_UP, SENDING, SUPERSEDED, new_row
from monasca_common.notification.notice import Notice, group_of, repeat_of
from monasca_common.storage.sql import tables

REPEAT = "repeat"
MOST_MEMBERS = 200
MOST_BYTES = 500_000  # of the changes of one message that tells of several

_HELD, _RATE, _NOTIFICATION = tables.notification_held, tables.notification_rate, tables.notification
_SILENCE = tables.silence
_COLUMNS = [column for column in _HELD.c if column.name not in ("value", "size", "created")]
_WHOLE = [*_COLUMNS, _HELD.c.value]


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Without its change, which may have megabytes. ``notice_id``: of a repeat, the first."""

    id: str
    notice_id: str
    tenant: str
    method_id: str
    kind: str
    group_key: str
    sealed: str
    number: int
    due: int


@dataclass(frozen=True, slots=True)
class HeldNotice:
    row: HeldRow
    notice: Notice


class HeldNotices:
    """Each call raises `StorageError`. ``now_ms`` is the caller's."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def withhold(self, notice: Notice, method_id: str, hold: Hold, now_ms: int) -> str:
        """Record that it is not sent now, unless the ledger has it. Returns the state that the ledger has then."""
        reason = {"reason": storable(hold.reason)}
        recorded = new_row(notice, method_id, now_ms, state=hold.state, attempts=0) | reason
        row = _row(notice.id, notice, method_id, hold.state, now_ms) | {"group_key": hold.group_key}

        def work(connection: sa.Connection) -> str:
            found = _state(connection, notice.id)
            if found is None:
                connection.execute(_NOTIFICATION.insert().values(recorded))
                due_ms = _due(connection, hold, now_ms)
                if due_ms is not None:
                    connection.execute(_HELD.insert().values(row | {"due": due_ms}))
            return found or hold.state

        return self._database.write(work)

    def repeat(self, notice: Notice, method_id: str, due_ms: int, now_ms: int) -> None:
        """Its first repeat is due then, unless its repeats are under way."""
        own_id = repeat_of(notice, 0).id
        row = _row(own_id, notice, method_id, REPEAT, now_ms) | {"due": due_ms, "number": 1}

        def work(connection: sa.Connection) -> None:
            if connection.execute(sa.select(_HELD.c.id).where(_HELD.c.id == own_id)).one_or_none() is None:
                connection.execute(_HELD.insert().values(row))

        self._database.write(work)

    def admit(self, method_id: str, most: int, now_ms: int, *, is_digest: bool = False) -> int | None:
        """``None``: one message more may be sent to the method in this minute, and is counted; else when the next
        minute begins. While others wait for that, so does what comes later, unless it is what they are sent in."""

        def work(connection: sa.Connection) -> int | None:
            statement = sa.select(_RATE.c.since_ms, _RATE.c.count).where(_RATE.c.method_id == method_id)
            row = connection.execute(statement.with_for_update()).one_or_none()
            window = None if row is None else RateWindow(*row)
            if not is_digest and (waiting_ms := _limited_until(connection, method_id)) is not None:
                return max(waiting_ms, now_ms)
            made = admission(window, now_ms, most)
            if made is None:
                assert window is not None
                return window.end_ms
            values = {"since_ms": made.since_ms, "count": made.count}
            if row is None:
                connection.execute(_RATE.insert().values(values | {"method_id": method_id}))
            else:
                connection.execute(_RATE.update().where(_RATE.c.method_id == method_id).values(values))
            return None

        return self._database.write(work)

    def due(self, now_ms: int, limit: int) -> list[HeldRow]:
        """Return rows of all tenants in turn; of each tenant the longest due first."""
        oldest = (_HELD.c.due, _HELD.c.id)
        turn = sa.func.row_number().over(partition_by=_HELD.c.tenant, order_by=oldest)
        statement = sa.select(*_COLUMNS).where(_HELD.c.due <= now_ms).order_by(turn, *oldest).limit(limit)
        return [HeldRow(**row._asdict()) for row in self._database.rows(statement)]

    def take(self, row: HeldRow, again_ms: int) -> HeldNotice | None:
        """The row with its change. It is due again at ``again_ms``, if it is not removed by then. ``None``: another
        process has it."""
        same = (_HELD.c.id == row.id, _HELD.c.due == row.due, _HELD.c.kind == row.kind, _HELD.c.sealed == row.sealed)

        def work(connection: sa.Connection) -> HeldNotice | None:
            if not connection.execute(_HELD.update().where(*same).values(due=again_ms)).rowcount:
                return None
            return _whole(connection.execute(sa.select(*_WHOLE).where(_HELD.c.id == row.id)).one())

        return self._database.write(work)

    def hold(self, row: HeldRow, hold: Hold, now_ms: int) -> None:
        """It is withheld for another reason, or for longer; or no more, if somebody has sent it meanwhile."""

        self._database.write(lambda connection: withhold_again(connection, row, hold, now_ms))

    def remove(self, row: HeldRow) -> None:
        self._database.write(lambda connection: remove(connection, row))

    def give_up(self, row: HeldRow, now_ms: int, reason: str) -> None:
        """Of a repeat, this one and those after it; its first was sent."""

        def work(connection: sa.Connection) -> None:
            if row.kind != REPEAT:
                _end(connection, [row.notice_id], GIVEN_UP, reason, now_ms)
            connection.execute(_HELD.delete().where(_HELD.c.id == row.id))

        self._database.write(work)

    def give_up_all(self, message_id: str, now_ms: int, reason: str) -> None:
        """The members of a message."""
        self._database.write(lambda connection: _end_all(connection, message_id, GIVEN_UP, reason, now_ms))

    def supersede(self, message_id: str, notice_ids: Sequence[str], now_ms: int) -> None:
        """These members of a message are left out of it, unless it has ended."""

        def work(connection: sa.Connection) -> None:
            if _state(connection, message_id) not in ENDED:
                _end(connection, notice_ids, SUPERSEDED, "the alarm has changed since", now_ms)
                those = (_HELD.c.sealed == message_id, _HELD.c.notice_id.in_(notice_ids))
                connection.execute(_HELD.delete().where(*those))

        self._database.write(work)

    def advance(self, row: HeldRow, due_ms: int) -> None:
        """The next repeat."""
        same = (_HELD.c.id == row.id, _HELD.c.number == row.number)
        statement = _HELD.update().where(*same).values(number=row.number + 1, due=due_ms)
        self._database.write(lambda connection: connection.execute(statement))

    def members(self, group_key: str) -> list[HeldNotice]:
        """What is sent in the next message of a group, the oldest first: bounded in number and in bytes."""

        def work(connection: sa.Connection) -> list[HeldNotice]:
            of_group = _unsealed(group_key)
            ordered = sa.select(_HELD.c.id, _HELD.c.size).where(*of_group).order_by(_HELD.c.created, _HELD.c.id)
            sizes = connection.execute(ordered.limit(MOST_MEMBERS)).all()
            ids = [each.id for number, each in enumerate(sizes) if _fits(sizes, number)]
            found = connection.execute(sa.select(*_WHOLE).where(_HELD.c.id.in_(ids), *of_group)).all()
            return [_whole(row) for row in sorted(found, key=lambda row: ids.index(row.id))]

        return self._database.read(work)

    def forget_sent(self, group_key: str) -> None:
        """Those that somebody sent by hand while they were held. One that is being sent may still fail."""
        sent = sa.select(_NOTIFICATION.c.id).where(_NOTIFICATION.c.state.in_(ENDED))
        statement = _HELD.delete().where(*_unsealed(group_key), _HELD.c.notice_id.in_(sent))
        self._database.write(lambda connection: connection.execute(statement))

    def postpone(self, group_key: str, due_ms: int) -> None:
        statement = _HELD.update().where(*_unsealed(group_key)).values(due=due_ms)
        self._database.write(lambda connection: connection.execute(statement))

    def seal(self, members: Sequence[HeldNotice], again_ms: int) -> Notice | None:
        """The message that tells of all of them; its members stay until `finish`. ``None``: another process has one
        of them."""
        made = group_of([each.notice for each in members])
        ids = [each.row.id for each in members]

        def work(connection: sa.Connection) -> Notice | None:
            free = (_HELD.c.id.in_(ids), _HELD.c.kind == HELD, _HELD.c.sealed == "")
            if len(connection.execute(sa.select(_HELD.c.id).where(*free).with_for_update()).all()) != len(ids):
                return None
            connection.execute(_HELD.update().where(_HELD.c.id.in_(ids)).values(sealed=made.id, due=again_ms))
            return made

        return self._database.write(work)

    def sealed(self, message_id: str) -> list[HeldNotice]:
        """The members of a message that is not finished."""
        statement = sa.select(*_WHOLE).where(_HELD.c.sealed == message_id)
        return [_whole(row) for row in self._database.rows(statement)]

    def message(self, message_id: str) -> Notice | None:
        """What is sent for these members; ``None``: it is finished."""
        members = self.sealed(message_id)
        # Its id is that of all members, of which some may be superseded.
        return replace(group_of([each.notice for each in members]), id=message_id) if members else None

    def state(self, notice_id: str) -> str | None:
        """What the ledger says of it."""
        return self._database.read(lambda connection: _state(connection, notice_id))

    def finish(self, message_id: str, now_ms: int) -> None:
        """Once the message has ended, its members end alike. A repeated call changes nothing."""

        def work(connection: sa.Connection) -> None:
            state = _state(connection, message_id)
            if state in ENDED:
                _end_all(connection, message_id, state, f"in the message {message_id}", now_ms)

        self._database.write(work)


def withhold_again(connection: sa.Connection, row: HeldRow, hold: Hold, now_ms: int) -> None:
    """See `HeldNotices.hold`."""
    if _state(connection, row.notice_id) in (SENDING, FAILED, *ENDED):
        remove(connection, row)
        return
    due_ms = _due(connection, hold, now_ms)
    values = {"kind": hold.state, "due": due_ms, "group_key": hold.group_key, "created": now_ms}
    connection.execute(_HELD.update().where(_HELD.c.id == row.id).values(values))
    recorded = {"state": hold.state, "reason": storable(hold.reason), "updated": now_ms}
    connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id == row.notice_id).values(recorded))


def release(connection: sa.Connection, row: HeldRow) -> None:
    """Record that it is about to be sent: a change that comes before it is sent counts it as told."""
    withheld = (_NOTIFICATION.c.id == row.notice_id, _NOTIFICATION.c.state.in_((SILENCED, INHIBITED)))
    values = {"state": HELD, "reason": "it is about to be sent"}
    connection.execute(_NOTIFICATION.update().where(*withheld).values(values))


def remove(connection: sa.Connection, row: HeldRow) -> None:
    connection.execute(_HELD.delete().where(_HELD.c.id == row.id))


def _due(connection: sa.Connection, hold: Hold, now_ms: int) -> int | None:
    """When it is looked at again: at once, if its silence was deleted since it was read. Who deletes one meanwhile
    waits for this transaction, and then finds what it held."""
    if not hold.silence_id:
        return hold.due_ms
    lasting = sa.select(_SILENCE.c.id).where(_SILENCE.c.id == hold.silence_id).with_for_update(read=True)
    return now_ms if connection.execute(lasting).one_or_none() is None else hold.due_ms


def _row(own_id: str, notice: Notice, method_id: str, kind: str, now_ms: int) -> dict[str, str | int | bytes | None]:
    value = notice.change.message
    return {
        "id": own_id,
        "notice_id": notice.id,
        "tenant": notice.change.tenant,
        "method_id": method_id,
        "kind": kind,
        "group_key": "",
        "sealed": "",
        "number": 0,
        "created": now_ms,
        "size": len(value),
        "value": value,
    }


def _whole(row: Row) -> HeldNotice:
    facts = row._asdict()
    change = AlarmChange.read(facts.pop("value"))
    return HeldNotice(HeldRow(**facts), Notice(row.notice_id, change))


def _end_all(connection: sa.Connection, message_id: str, state: str, reason: str, now_ms: int) -> None:
    members = connection.execute(sa.select(_HELD.c.notice_id).where(_HELD.c.sealed == message_id)).scalars().all()
    _end(connection, members, state, reason, now_ms)
    connection.execute(_HELD.delete().where(_HELD.c.sealed == message_id))


def _end(connection: sa.Connection, notice_ids: Sequence[str], state: str, reason: str, now_ms: int) -> None:
    values = {"state": state, "reason": storable(reason), "updated": now_ms}
    connection.execute(_NOTIFICATION.update().where(_NOTIFICATION.c.id.in_(notice_ids)).values(values))


def _state(connection: sa.Connection, notice_id: str) -> str | None:
    found: str | None = connection.execute(
        sa.select(_NOTIFICATION.c.state).where(_NOTIFICATION.c.id == notice_id)
    ).scalar_one_or_none()
    return found


def _unsealed(group_key: str) -> tuple[Condition, ...]:
    return _HELD.c.group_key == group_key, _HELD.c.kind == HELD, _HELD.c.sealed == ""


def _limited_until(connection: sa.Connection, method_id: str) -> int | None:
    statement = sa.select(sa.func.min(_HELD.c.due)).where(*_unsealed(f"{LIMIT_KEY}{method_id}"))
    found: int | None = connection.execute(statement).scalar_one()
    return found


def _fits(sizes: Sequence[Row], number: int) -> bool:
    """The first does however large it is."""
    return number == 0 or sum(each.size for each in sizes[: number + 1]) <= MOST_BYTES
