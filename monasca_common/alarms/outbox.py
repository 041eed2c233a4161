# SPDX-License-Identifier: Apache-2.0
"""The outbox: what is to be published about alarms is written in the transaction of what it tells of.

Whoever wrote it publishes it after the commit and removes it; what a crash left, another publishes. Its message id is
the same then, so readers take it once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Row
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

TRANSITION = "transition"
LEFT_AFTER_MS = 60_000  # who wrote a row has published it by then, or does not any more

_OUTBOX = tables.alarm_outbox
_INSERT = _OUTBOX.insert()
_COLUMNS = [_OUTBOX.c[name] for name in ("number", "kind", "key", "message_id", "value")]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """``kind`` says to which topic. ``number``: its place in the outbox."""

    number: int
    kind: str
    key: str
    message_id: bytes
    value: bytes


def put(connection: sa.Connection, kind: str, key: str, message_id: bytes, value: bytes, now_ms: int) -> Unpublished:
    """Within the transaction of what it tells of."""
    row = {"kind": kind, "key": key, "message_id": message_id, "value": value, "created": now_ms}
    (number,) = connection.execute(_INSERT, row).inserted_primary_key or (0,)
    return Unpublished(number, kind, key, message_id, value)


def put_all(connection: sa.Connection, changes: Sequence[AlarmChange], now_ms: int) -> None:
    """Transitions, in order, within the transaction that makes them."""
    rows = [
        {"kind": TRANSITION, "key": each.alarm_id, "message_id": each.message_id, "value": each.message}
        for each in changes
    ]
    if rows:
        connection.execute(_OUTBOX.insert(), [row | {"created": now_ms} for row in rows])


def waiting(connection: sa.Connection, kind: str, limit: int) -> list[Unpublished]:
    """The first ones, whoever wrote them."""
    statement = sa.select(*_COLUMNS).where(_OUTBOX.c.kind == kind).order_by(_OUTBOX.c.number).limit(limit)
    return [_unpublished(row) for row in connection.execute(statement)]


def count(connection: sa.Connection, kind: str) -> int:
    """How many wait."""
    return int(connection.execute(sa.select(sa.func.count()).where(_OUTBOX.c.kind == kind)).scalar_one())


def oldest(database: AlarmsDatabase, *, before_ms: int, limit: int, due: Unpublished) -> list[Unpublished]:
    """What is to be published now, in order: whatever of the kind of ``due`` has its key, up to ``due`` itself, because
    what is told of one alarm keeps its order; and as far as ``limit`` allows, what has been due since before that time.

    ``due`` is missing where those before it are ``limit`` or more: it stays until they are gone.
    """
    up_to_due = sa.and_(_OUTBOX.c.key == due.key, _OUTBOX.c.number <= due.number)
    which = _OUTBOX.c.kind == due.kind, sa.or_(_OUTBOX.c.created < before_ms, up_to_due)
    own_first = sa.case((up_to_due, 0), else_=1)
    statement = sa.select(*_COLUMNS).where(*which).order_by(own_first, _OUTBOX.c.number).limit(limit)
    rows = sorted(database.rows(statement), key=lambda row: row.number)
    return [_unpublished(row) for row in rows]


def left(database: AlarmsDatabase, kind: str, *, before_ms: int, limit: int) -> list[Unpublished]:
    """The first ones that nobody has published since that time."""
    which = _OUTBOX.c.kind == kind, _OUTBOX.c.created < before_ms
    statement = sa.select(*_COLUMNS).where(*which).order_by(_OUTBOX.c.number).limit(limit)
    return [_unpublished(row) for row in database.rows(statement)]


def discard(connection: sa.Connection, kind: str, before_ms: int) -> None:
    """Remove what could not be published since that time, and log the number of rows."""
    old = _OUTBOX.delete().where(_OUTBOX.c.kind == kind, _OUTBOX.c.created < before_ms)
    if count := connection.execute(old).rowcount:
        LOG.error("%d messages of kind %s are removed from the outbox: Kafka did not accept them in time", count, kind)


def remove(database: AlarmsDatabase, rows: Sequence[Unpublished]) -> None:
    """What Kafka has acknowledged. SQLite gives a number again once its row is gone, which another may have removed:
    so the message's id must be the same too."""
    if rows:
        database.write(lambda connection: clear(connection, rows))


def clear(connection: sa.Connection, rows: Sequence[Unpublished]) -> None:
    """As `remove`, within a transaction."""
    those = sa.tuple_(_OUTBOX.c.number, _OUTBOX.c.message_id).in_([(row.number, row.message_id) for row in rows])
    connection.execute(_OUTBOX.delete().where(those))


def _unpublished(row: Row) -> Unpublished:
    return Unpublished(row.number, row.kind, row.key, bytes(row.message_id), bytes(row.value))
