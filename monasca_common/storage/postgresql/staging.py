# SPDX-License-Identifier: Apache-2.0
"""Rows some of whose keys are there already: copied into a temporary table, and merged from there.

Insertion keeps what is there. What found its key taken is set apart, counted, and only where it is the greater does it
replace a row. So a repeated batch writes nothing, where ``ON CONFLICT DO UPDATE`` would lock, and log, every row of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from monasca_common.storage.postgresql import encoding
from monasca_common.storage.postgresql.connection import BoundedConnection
from monasca_common.storage.postgresql.encoding import KeyedTable
from monasca_common.storage.reduction import MeasurementRow, Reduced, reduced

# Made once for a connection: making them for every batch would fill the system's catalogue with what is dead.
_MAKE = "CREATE TEMPORARY TABLE IF NOT EXISTS {staged} (LIKE {table}) ON COMMIT DELETE ROWS"
_TABLES = {"staged": "measurements", "taken": "measurements"}

# What is new is told by key: to sort out in the server what found its key taken costs half as much again.
_INSERT = b"INSERT INTO measurements SELECT * FROM pg_temp.staged ON CONFLICT DO NOTHING RETURNING series_id, time"
# The bounds spare the planner all other partitions, so these are planned for the batch at hand, and not prepared.
_MATCH = "m.series_id = s.series_id AND m.time = s.time AND m.time BETWEEN %s AND %s"
_RANK = "({0}.version, {0}.value, coalesce({0}.value_meta::text, '') COLLATE \"C\")"
_GREATER = f"{_RANK.format('s')} > {_RANK.format('m')}"
_COUNT = f"""
    SELECT count(*), count(*) FILTER (WHERE m.value = s.value AND m.value_meta IS NOT DISTINCT FROM s.value_meta),
           count(*) FILTER (WHERE {_GREATER})
    FROM pg_temp.{{taken}} AS s JOIN measurements AS m ON {_MATCH}
"""
_REPLACE = f"""
    UPDATE measurements AS m SET value = s.value, value_meta = s.value_meta, version = s.version
    FROM pg_temp.{{taken}} AS s WHERE {_MATCH} AND {_GREATER}
"""


@dataclass(frozen=True, slots=True)
class Counts:
    stored: int = 0
    repeated: int = 0
    conflicting: int = 0


@dataclass(frozen=True, slots=True)
class _Taken:
    """How many keys are there; with the same value; with a row that is to be replaced."""

    count: int
    same: int
    greater: int


def make(connection: BoundedConnection) -> None:
    """The temporary tables, where this connection has none yet. Outside of a transaction."""
    for staged, table in {**_TABLES, **{_staged(each): each.name for each in encoding.KEYED_TABLES.values()}}.items():
        connection.execute(_MAKE.format(staged=staged, table=table).encode())


def merge_measurements(connection: BoundedConnection, rows: list[MeasurementRow], *, repeated: bool) -> Counts:
    """The greater ``(version, value, value_meta)`` stays, whatever the order of arrival.

    ``repeated``: probably every key is there, so that to look before inserting saves the attempt.
    """
    kept = _reduced(rows)
    times = [row[1] for row in kept.rows]
    bounds = (min(times), max(times))
    copy(connection, "pg_temp.staged", encoding.measurements(kept.rows))
    source, new = "staged", 0
    taken = _taken(connection, source, bounds) if repeated else None
    if taken is None or taken.count < len(kept.rows):
        keys = set(connection.execute(_INSERT, binary=True).fetchall())
        new = len(keys)
        if new == len(kept.rows):
            return Counts(new, kept.repeated, kept.conflicting)
        if new:
            source = "taken"
            copy(connection, "pg_temp.taken", encoding.measurements(row for row in kept.rows if row[:2] not in keys))
        taken = _taken(connection, source, bounds)
    if taken.greater:
        connection.execute(_REPLACE.format(taken=source).encode(), bounds, prepare=False)
    return Counts(new, kept.repeated + taken.same, kept.conflicting + taken.count - taken.same)


def _taken(connection: BoundedConnection, source: str, bounds: tuple[int, int]) -> _Taken:
    row = connection.execute(_COUNT.format(taken=source).encode(), bounds, prepare=False).fetchone()
    assert row is not None
    return _Taken(*row)


def _reduced(rows: list[MeasurementRow]) -> Reduced:
    """Only rows whose key is there several times are compared: few are, and it costs a microsecond each."""
    keys = list(map(itemgetter(0, 1), rows))
    if len(set(keys)) == len(rows):
        return Reduced(rows, 0, 0)
    several = {key for key, count in Counter(keys).items() if count > 1}
    alone = [row for key, row in zip(keys, rows, strict=True) if key not in several]
    kept = reduced(
        (*row[:3], row[3] and encoding.jsonb_text(row[3]), row[4])
        for key, row in zip(keys, rows, strict=True)
        if key in several
    )
    return Reduced(alone + kept.rows, kept.repeated, kept.conflicting)


def merge_keyed(connection: BoundedConnection, table: KeyedTable, rows: list[tuple[Any, ...]]) -> int:
    """The first of a key stays. How many are new."""
    staged = f"pg_temp.{_staged(table)}"
    copy(connection, staged, encoding.keyed(table, rows), columns=table.columns)
    columns = ", ".join(table.columns)
    statement = f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {staged} ON CONFLICT DO NOTHING"
    return connection.execute(statement.encode()).rowcount


def copy(connection: BoundedConnection, table: str, encoded: bytes, *, columns: tuple[str, ...] = ()) -> None:
    """``columns``: in the order of the encoded fields, where that is not the table's."""
    names = f" ({', '.join(columns)})" if columns else ""
    with connection.cursor().copy(f"COPY {table}{names} FROM STDIN (FORMAT BINARY)".encode()) as stream:
        stream.write(encoded)


def _staged(table: KeyedTable) -> str:
    return f"staged_{table.name}"
