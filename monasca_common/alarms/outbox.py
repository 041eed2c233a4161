# SPDX-License-Identifier: Apache-2.0
"""The outbox, to which transitions are written in the transaction that causes them. The process that wrote a message
publishes it after the commit and removes it. After a crash, the job ``evaluate`` publishes the message with the same
message id, so that consumers can recognize a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.database import Select
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.storage.sql import tables

_OUTBOX = tables.alarm_outbox


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A message in the outbox. ``number``: its position. ``key``: the id of the alarm."""

    number: int
    key: str
    message_id: bytes
    value: bytes


def put(connection: sa.Connection, changes: Sequence[AlarmChange]) -> None:
    """Write transitions, in order, in the transaction that causes them."""
    rows = [{"key": each.alarm_id, "message_id": each.message_id, "value": each.message} for each in changes]
    if rows:
        connection.execute(_OUTBOX.insert(), rows)


def waiting(connection: sa.Connection, limit: int, alarm_id: str | None = None, after: int = 0) -> list[Unpublished]:
    """Return the first ``limit`` messages after the number ``after``, of one alarm or of all alarms."""
    columns = [_OUTBOX.c[name] for name in ("number", "key", "message_id", "value")]
    statement: Select = sa.select(*columns).where(_OUTBOX.c.number > after).order_by(_OUTBOX.c.number).limit(limit)
    if alarm_id is not None:
        statement = statement.where(_OUTBOX.c.key == alarm_id)
    rows = connection.execute(statement)
    return [Unpublished(row.number, row.key, bytes(row.message_id), bytes(row.value)) for row in rows]


def count(connection: sa.Connection) -> int:
    """Return the number of messages in the outbox."""
    return int(connection.execute(sa.select(sa.func.count()).select_from(_OUTBOX)).scalar_one())


def clear(connection: sa.Connection, rows: Sequence[Unpublished]) -> None:
    """Remove acknowledged messages, by number and message id, because SQLite reuses the numbers of removed rows."""
    those = sa.tuple_(_OUTBOX.c.number, _OUTBOX.c.message_id).in_([(row.number, row.message_id) for row in rows])
    connection.execute(_OUTBOX.delete().where(those))
