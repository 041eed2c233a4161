# SPDX-License-Identifier: Apache-2.0
"""Rows some of whose keys are there already: copied into a temporary table, and merged from there.

Insertion keeps what is there. What found its key taken is set apart, counted, and only where it is the greater does it
replace a row. So a repeated batch writes nothing, where ``ON CONFLICT DO UPDATE`` would lock, and log, every row of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monasca_common.storage.postgresql import encoding
from monasca_common.storage.postgresql.connection import BoundedConnection
from monasca_common.storage.postgresql.encoding import KeyedTable
from monasca_common.storage.reduction import MeasurementRow, reduced

# Made once for a connection: making them for every batch would fill the system's catalogue with what is dead.
_MAKE = "CREATE TEMPORARY TABLE IF NOT EXISTS {staged} (LIKE {table}) ON COMMIT DELETE ROWS"
_TABLES = {"staged": "measurements", "taken": "measurements"}

_INSERT = b"""
    WITH new AS (
        INSERT INTO measurements SELECT * FROM pg_temp.staged ON CONFLICT DO NOTHING RETURNING series_id, time
    )
    INSERT INTO pg_temp.taken SELECT * FROM pg_temp.staged AS s
    WHERE NOT EXISTS (SELECT FROM new WHERE new.series_id = s.series_id AND new.time = s.time)
"""
# The bounds spare the planner all other partitions, so these are planned for the batch at hand, and not prepared.
_MATCH = "m.series_id = s.series_id AND m.time = s.time AND m.time BETWEEN %s AND %s"
_RANK = "({0}.version, {0}.value, coalesce({0}.value_meta::text, '') COLLATE \"C\")"
_GREATER = f"{_RANK.format('s')} > {_RANK.format('m')}"
_COUNT = f"""
    SELECT count(*) FILTER (WHERE m.value = s.value AND m.value_meta IS NOT DISTINCT FROM s.value_meta),
           count(*) FILTER (WHERE {_GREATER})
    FROM pg_temp.taken AS s JOIN measurements AS m ON {_MATCH}
""".encode()
_REPLACE = f"""
    UPDATE measurements AS m SET value = s.value, value_meta = s.value_meta, version = s.version
    FROM pg_temp.taken AS s WHERE {_MATCH} AND {_GREATER}
""".encode()


@dataclass(frozen=True, slots=True)
class Counts:
    stored: int = 0
    repeated: int = 0
    conflicting: int = 0


def make(connection: BoundedConnection) -> None:
    """The temporary tables, where this connection has none yet. Outside of a transaction."""
    for staged, table in {**_TABLES, **{_staged(each): each.name for each in encoding.KEYED_TABLES.values()}}.items():
        connection.execute(_MAKE.format(staged=staged, table=table).encode())


def merge_measurements(connection: BoundedConnection, rows: list[MeasurementRow]) -> Counts:
    """The greater ``(version, value, value_meta)`` stays, whatever the order of arrival."""
    kept = reduced((*row[:3], row[3] and encoding.jsonb_text(row[3]), row[4]) for row in rows)
    copy(connection, "pg_temp.staged", encoding.measurements(kept.rows))
    taken = connection.execute(_INSERT).rowcount
    if not taken:
        return Counts(len(kept.rows), kept.repeated, kept.conflicting)
    times = [row[1] for row in kept.rows]
    bounds = (min(times), max(times))
    found = connection.execute(_COUNT, bounds, prepare=False).fetchone()
    same, greater = found or (0, 0)
    if greater:
        connection.execute(_REPLACE, bounds, prepare=False)
    return Counts(len(kept.rows) - taken, kept.repeated + same, kept.conflicting + taken - same)


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
