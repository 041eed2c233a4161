# SPDX-License-Identifier: Apache-2.0
"""Partitions, one per day and table, which are created before they are needed and dropped when all their rows are too
old.

Neither step blocks writers or readers. ``CREATE TABLE … PARTITION OF`` would lock the whole table for as long as the
longest transaction on it; attaching a separately created table does not conflict with writes. A plain ``DROP`` would
also lock the whole table, and all sessions would wait while it waits for a long read. Detaching ``CONCURRENTLY`` blocks
no other session. If it is interrupted, the next pruning finishes it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator

from psycopg import sql

from monasca_common.models.times import Window
from monasca_common.storage import retention
from monasca_common.storage.base import KINDS_BY_ID, Kind, Pruned
from monasca_common.storage.postgresql.connection import translated
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.bounded import BoundedConnection

TABLES = {kind: "measurements" if kind is Kind.METRICS else str(kind) for kind in Kind}
_DAYS_BEHIND = 2
_DAYS_AHEAD = 2
_DAYS_A_TRANSACTION = 20
_EPOCH = datetime.date(1970, 1, 1)

# Classes of advisory locks, for creating and for dropping the partitions of a table.
_MAKING, _DROPPING = 0x6D6F6E01, 0x6D6F6E02

_ATTACHED = """
    SELECT part.relname, inhdetachpending FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid
    WHERE inhparent = to_regclass(%s)
"""
# Selects partitions that were detached but not dropped, because the process was killed in between.
_DETACHED = r"""
    SELECT relname FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%s))
    AND relkind = 'r' AND NOT relispartition AND relname ~ ('^' || %s || '_[0-9]{8}$')
"""
_CREATE = sql.SQL("CREATE TABLE IF NOT EXISTS {name} (LIKE {table} INCLUDING ALL)")
_ATTACH = sql.SQL("ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})")
_DETACH = sql.SQL("ALTER TABLE {table} DETACH PARTITION {name} CONCURRENTLY")
_FINALIZE = sql.SQL("ALTER TABLE {table} DETACH PARTITION {name} FINALIZE")
_DROP = sql.SQL("DROP TABLE {name}")
_IDS_A_STEP = 10_000
_DELETE_IDS = sql.SQL(
    "DELETE FROM {table} WHERE message_id = ANY "
    "(ARRAY(SELECT message_id FROM {table} WHERE time < %s ORDER BY time LIMIT %s))"
)


def day_of(time_ms: int) -> int:
    """Return the day of a time, in days since the epoch."""
    return time_ms // DAY_MS


def around(now_ms: int, allowed: Window) -> set[int]:
    """Return the days of rows that are expected soon."""
    today = day_of(now_ms)
    days = range(today - _DAYS_BEHIND, today + _DAYS_AHEAD + 1)
    return {day for day in days if day_of(allowed.earliest_ms) <= day <= day_of(allowed.latest_ms) + 1}


def partition_name(table: str, day: int) -> str:
    return f"{table}_{_EPOCH + datetime.timedelta(days=day):%Y%m%d}"


def make(connection: BoundedConnection, table: str, days: Iterable[int], *, timeout_seconds: float) -> set[int]:
    """Create the missing partitions. Return the days that have a partition afterwards.

    Each transaction and time-out covers a limited number of days, because creating a partition takes locks until the
    transaction ends, and a database has a limited number of locks. Concurrent processes do not create a partition
    twice.
    """
    there = {day for day, pending in _attached(connection, table).items() if not pending}
    missing = sorted(set(days) - there)
    for start in range(0, len(missing), _DAYS_A_TRANSACTION):
        there |= _make(connection.give(timeout_seconds), table, missing[start : start + _DAYS_A_TRANSACTION])
    return there


def _make(connection: BoundedConnection, table: str, days: Iterable[int]) -> set[int]:
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_MAKING, table])
        attached = _attached(connection, table)
        there = {day for day, pending in attached.items() if not pending}
        for day in sorted(set(days) - there):
            if day in attached:  # pruning was interrupted, and then the retention was raised
                _detach(connection, table, day, pending=True)
            names = {"table": sql.Identifier(table), "name": sql.Identifier(partition_name(table, day))}
            connection.execute(_CREATE.format(**names))
            bounds = {"start": sql.Literal(day * DAY_MS), "end": sql.Literal((day + 1) * DAY_MS)}
            connection.execute(_ATTACH.format(**names, **bounds))
            there.add(day)
    return there


def prune(
    give: Callable[[float], BoundedConnection], timeout_seconds: float, settings: StorageSettings, now_ms: int
) -> Iterator[Pruned]:
    """Drop the partitions in which every row is older than its retention. ``give`` sets the time-out of a step."""
    for kind, table in TABLES.items():
        first = day_of(retention.window(settings, kind, now_ms).earliest_ms)
        with translated():
            connection = give(timeout_seconds)
            connection.execute(b"SELECT pg_advisory_lock(%s, hashtext(%s))", [_DROPPING, table])
            attached = _attached(connection, table)
        for day in sorted(day for day in attached if day < first):
            with translated():
                _detach(give(timeout_seconds), table, day, pending=attached[day])
        with translated():
            detached = [day for day in _detached(give(timeout_seconds), table) if day < first]
            for day in detached:
                give(timeout_seconds).execute(_DROP.format(name=sql.Identifier(partition_name(table, day))))
            connection.execute(b"SELECT pg_advisory_unlock(%s, hashtext(%s))", [_DROPPING, table])
        if detached:
            yield Pruned(table, len(detached), "partitions")
        if kind in KINDS_BY_ID:
            yield from _prune_ids(give, timeout_seconds, f"{table}_by_id", first * DAY_MS)


def _prune_ids(
    give: Callable[[float], BoundedConnection], timeout_seconds: float, table: str, earliest_ms: int
) -> Iterator[Pruned]:
    """Remove the ids of removed rows."""
    statement = _DELETE_IDS.format(table=sql.Identifier(table))
    removed = _IDS_A_STEP
    while removed == _IDS_A_STEP:
        with translated():
            removed = give(timeout_seconds).execute(statement, [earliest_ms, _IDS_A_STEP]).rowcount
        if removed:
            yield Pruned(table, removed, "rows")


def _detach(connection: BoundedConnection, table: str, day: int, *, pending: bool) -> None:
    statement = _FINALIZE if pending else _DETACH
    connection.execute(statement.format(table=sql.Identifier(table), name=sql.Identifier(partition_name(table, day))))


def _attached(connection: BoundedConnection, table: str) -> dict[int, bool]:
    """Return, by day, whether a detach was started but not finished."""
    found = connection.execute(_ATTACHED.encode(), [table]).fetchall()
    days = ((_day_of_name(table, name), pending) for name, pending in found)
    return {day: pending for day, pending in days if day is not None}


def _detached(connection: BoundedConnection, table: str) -> list[int]:
    found = connection.execute(_DETACHED.encode(), [table, table]).fetchall()
    return sorted(day for (name,) in found if (day := _day_of_name(table, name)) is not None)


def _day_of_name(table: str, name: str) -> int | None:
    try:
        date = datetime.datetime.strptime(name.removeprefix(f"{table}_"), "%Y%m%d").replace(tzinfo=datetime.UTC).date()
    except ValueError:  # a table that belongs to an operator
        return None
    return (date - _EPOCH).days
