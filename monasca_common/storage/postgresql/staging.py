# SPDX-License-Identifier: Apache-2.0
"""Stores rows whose keys may exist: copies them to a temporary table, and merges them from there.

The insertion keeps existing rows. Rows whose key exists are separated and counted, and replace a row only if they are
greater. So a repeated batch writes nothing, whereas ``ON CONFLICT DO UPDATE`` would lock and log each of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from monasca_common.storage.base import Written
from monasca_common.storage.postgresql import encoding
from monasca_common.storage.postgresql.encoding import KeyedTable
from monasca_common.storage.reduction import MeasurementRow, Reduced, reduced
from monasca_common.storage.sql.bounded import BoundedConnection

# These tables are created once per connection, because creating them for every batch would bloat the system catalogue.
_MAKE = "CREATE TEMPORARY TABLE IF NOT EXISTS {staged} (LIKE {table}) ON COMMIT DELETE ROWS"
_TABLES = {"staged": "measurements", "taken": "measurements"}

# The statement returns the keys of new rows, because selecting the other rows in the server takes 50 % longer.
_INSERT = b"INSERT INTO measurements SELECT * FROM pg_temp.staged ON CONFLICT DO NOTHING RETURNING series_id, time"
# The bounds exclude all other partitions, so these statements are planned for each batch and not prepared.
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

# The rows are ordered by id, so that two writers of the same ids wait for each other instead of deadlocking. The
# parameters are binary, because text takes twice as long, and a temporary table would add some milliseconds to each
# commit.
_NOTE_IDS = """
    INSERT INTO {table}_by_id (message_id, time) SELECT * FROM unnest(%b::bytea[], %b::bigint[])
    ON CONFLICT DO NOTHING RETURNING message_id
"""


def make(connection: BoundedConnection) -> None:
    """Create the temporary tables of this connection, if it has none. Call it outside a transaction."""
    for staged, table in {**_TABLES, **{_staged(each): each.name for each in encoding.KEYED_TABLES.values()}}.items():
        connection.execute(_MAKE.format(staged=staged, table=table).encode())


def merge_measurements(connection: BoundedConnection, rows: list[MeasurementRow]) -> Written:
    """Merge rows, keeping the greatest ``(version, value, value_meta)`` of each key regardless of the arrival order."""
    kept = _reduced(rows)
    times = [row[1] for row in kept.rows]
    bounds = (min(times), max(times))
    copy(connection, "pg_temp.staged", encoding.measurements(kept.rows))
    keys = set(connection.execute(_INSERT, binary=True).fetchall())
    new, source = len(keys), "staged"
    if new == len(kept.rows):
        return Written(new, kept.repeated, kept.conflicting)
    if new:
        source = "taken"
        copy(connection, "pg_temp.taken", encoding.measurements(row for row in kept.rows if row[:2] not in keys))
    counts = connection.execute(_COUNT.format(taken=source).encode(), bounds, prepare=False).fetchone()
    assert counts is not None
    existing, same, greater = counts
    if greater:
        connection.execute(_REPLACE.format(taken=source).encode(), bounds, prepare=False)
    return Written(new, kept.repeated + same, kept.conflicting + existing - same)


def _reduced(rows: list[MeasurementRow]) -> Reduced:
    """Reduce the rows by key. Only the few rows with a repeated key are compared, which takes a microsecond each."""
    keys = list(map(itemgetter(0, 1), rows))
    if len(set(keys)) == len(rows):
        return Reduced(rows, 0, 0)
    several = {key for key, count in Counter(keys).items() if count > 1}
    single = [row for key, row in zip(keys, rows, strict=True) if key not in several]
    kept = reduced(
        (*row[:3], row[3] and encoding.jsonb_text(row[3]), row[4])
        for key, row in zip(keys, rows, strict=True)
        if key in several
    )
    return Reduced(single + kept.rows, kept.repeated, kept.conflicting)


def merge_keyed(connection: BoundedConnection, table: KeyedTable, rows: list[tuple[Any, ...]]) -> int:
    """Merge rows, keeping the first row of each key. Return the number of new rows."""
    staged = f"pg_temp.{_staged(table)}"
    copy(connection, staged, encoding.keyed(table, rows), columns=table.columns)
    columns = ", ".join(table.columns)
    statement = f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {staged} ON CONFLICT DO NOTHING"
    return connection.execute(statement.encode()).rowcount


def new_by_id(
    connection: BoundedConnection, table: KeyedTable, rows: list[tuple[Any, ...]], by_id: Sequence[bool]
) -> list[tuple[Any, ...]]:
    """Return the rows, except rows by id (`Rows.by_id`) whose id is already stored, with any time.

    If two transactions insert the same id, the index on ids makes the second wait for the first.
    """
    if not by_id:
        return rows
    first: dict[bytes, tuple[Any, ...]] = {}
    others = []
    for row, is_by_id in zip(rows, by_id, strict=True):
        if is_by_id:
            first.setdefault(row[1], row)
        else:
            others.append(row)
    return others + [first[message_id] for message_id in note_ids(connection, table, first)]


def note_ids(connection: BoundedConnection, table: KeyedTable, rows: Mapping[bytes, tuple[Any, ...]]) -> list[bytes]:
    """Record new ids, each with the time of its row. Return the ids that were recorded."""
    ids = sorted(rows)
    statement = _NOTE_IDS.format(table=table.name).encode()
    noted = connection.execute(statement, [ids, [rows[each][0] for each in ids]], binary=True)
    return [message_id for (message_id,) in noted.fetchall()]


def copy(connection: BoundedConnection, table: str, encoded: bytes, *, columns: tuple[str, ...] = ()) -> None:
    """Copy encoded rows into a table. ``columns``: the order of the encoded fields, if it differs from the table's."""
    names = f" ({', '.join(columns)})" if columns else ""
    with connection.cursor().copy(f"COPY {table}{names} FROM STDIN (FORMAT BINARY)".encode()) as stream:
        stream.write(encoded)


def _staged(table: KeyedTable) -> str:
    return f"staged_{table.name}"
