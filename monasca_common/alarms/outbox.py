# SPDX-License-Identifier: Apache-2.0
"""The outbox: messages about alarms are written in the transaction that causes them.

The process that wrote a message publishes it after the commit and removes it; after a crash, another process publishes
it under the same message id, by which readers recognize a repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Row
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.storage.sql import tables

TRANSITION = "transition"
LEFT_AFTER_MS = 60_000  # after which the process that wrote a row has published it or has died

_OUTBOX = tables.alarm_outbox
_INSERT = _OUTBOX.insert()
_COLUMNS = [_OUTBOX.c[name] for name in ("number", "kind", "key", "message_id", "value")]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A message in the outbox. ``kind`` selects the topic. ``number``: the position in the outbox."""

    number: int
    kind: str
    key: str
    message_id: bytes
    value: bytes


def put(connection: sa.Connection, kind: str, key: str, message_id: bytes, value: bytes, now_ms: int) -> Unpublished:
    """Write a message, in the transaction that causes it."""
    row = {"kind": kind, "key": key, "message_id": message_id, "value": value, "created": now_ms}
    (number,) = connection.execute(_INSERT, row).inserted_primary_key or (0,)
    return Unpublished(number, kind, key, message_id, value)


def put_all(connection: sa.Connection, changes: Sequence[AlarmChange], now_ms: int) -> None:
    """Write transitions, in order, in the transaction that causes them."""
    rows = [
        {"kind": TRANSITION, "key": each.alarm_id, "message_id": each.message_id, "value": each.message}
        for each in changes
    ]
    if rows:
        connection.execute(_OUTBOX.insert(), [row | {"created": now_ms} for row in rows])


def waiting(connection: sa.Connection, kind: str, limit: int) -> list[Unpublished]:
    """Return the first messages, of any process."""
    statement = sa.select(*_COLUMNS).where(_OUTBOX.c.kind == kind).order_by(_OUTBOX.c.number).limit(limit)
    return [_unpublished(row) for row in connection.execute(statement)]


def count(connection: sa.Connection, kind: str) -> int:
    """Return the number of messages."""
    return int(connection.execute(sa.select(sa.func.count()).where(_OUTBOX.c.kind == kind)).scalar_one())


def oldest(database: AlarmsDatabase, *, before_ms: int, limit: int, due: Unpublished) -> list[Unpublished]:
    """Return the messages to publish now, in order: those of the kind and the key of ``due``, up to ``due``, because
    messages about one alarm keep their order; and, within ``limit``, those written before that time.

    If ``limit`` or more precede ``due``, it is not included and stays until they are removed.
    """
    up_to_due = sa.and_(_OUTBOX.c.key == due.key, _OUTBOX.c.number <= due.number)
    which = _OUTBOX.c.kind == due.kind, sa.or_(_OUTBOX.c.created < before_ms, up_to_due)
    own_first = sa.case((up_to_due, 0), else_=1)
    statement = sa.select(*_COLUMNS).where(*which).order_by(own_first, _OUTBOX.c.number).limit(limit)
    rows = sorted(database.rows(statement), key=lambda row: row.number)
    return [_unpublished(row) for row in rows]


def remove(database: AlarmsDatabase, rows: Sequence[Unpublished]) -> None:
    """Remove acknowledged messages, by number and message id, because SQLite reuses the numbers of removed rows."""
    if rows:
        database.write(lambda connection: clear(connection, rows))


def clear(connection: sa.Connection, rows: Sequence[Unpublished]) -> None:
    """Like `remove`, within a transaction."""
    those = sa.tuple_(_OUTBOX.c.number, _OUTBOX.c.message_id).in_([(row.number, row.message_id) for row in rows])
    connection.execute(_OUTBOX.delete().where(those))


def _unpublished(row: Row) -> Unpublished:
    return Unpublished(row.number, row.kind, row.key, bytes(row.message_id), bytes(row.value))
