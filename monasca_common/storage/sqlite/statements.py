# SPDX-License-Identifier: Apache-2.0
"""The statements that store a batch of rows, and their parameters."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson

from monasca_common.models.series import Series
from monasca_common.storage.base import KINDS_BY_ID, Kind
from monasca_common.storage.sql.writer import KEYED_COLUMNS

# ON CONFLICT DO NOTHING, because INSERT OR IGNORE would also drop rows that violate other constraints.
INSERT_SERIES = (
    "INSERT INTO series (id, tenant, region, name, dimensions) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_COLUMNS = "series_id, time, value, value_meta, version"
# SQLite stores NaN as NULL, so NaN is stored as text, which is greater than all numbers, as in PostgreSQL.
_PLACES = "(?, ?, ifnull(?, 'NaN'), ?, ?)"
INSERT_MEASUREMENT = f"INSERT INTO measurements ({_COLUMNS}) VALUES {_PLACES}"  # nosec B608
# Rows per statement. This takes a quarter less time than one row per statement, and lets other Python threads run.
_MEASUREMENTS_AT_ONCE = 100

# A batch with existing keys is staged, compared with the stored rows, and merged.
CREATE_STAGED = f"CREATE TEMPORARY TABLE IF NOT EXISTS staged ({_COLUMNS})"
EMPTY_STAGED = "DELETE FROM staged"
INSERT_STAGED = f"INSERT INTO staged VALUES {_PLACES}"  # nosec B608
COUNT_STAGED = """
    SELECT count(*), coalesce(sum(new.value IS NOT old.value OR new.value_meta IS NOT old.value_meta), 0)
    FROM staged AS new CROSS JOIN measurements AS old ON old.series_id = new.series_id AND old.time = new.time
"""
MERGE_STAGED = f"""
    INSERT INTO measurements ({_COLUMNS}) SELECT * FROM staged WHERE true
    ON CONFLICT (series_id, time) DO UPDATE
    SET value = excluded.value, value_meta = excluded.value_meta, version = excluded.version
    WHERE (excluded.version, excluded.value, excluded.value_meta IS NOT NULL, ifnull(excluded.value_meta, ''))
        > (version, value, value_meta IS NOT NULL, ifnull(value_meta, ''))
"""  # nosec B608

# The generation increases with each removal of series; a writer then clears its cache of series.
SELECT_GENERATION = "SELECT generation FROM series_generation"
RAISE_GENERATION = "UPDATE series_generation SET generation = generation + 1"


def _insert(kind: Kind, condition: str = "true") -> str:
    columns = KEYED_COLUMNS[kind]
    places = ", ".join(f"?{number}" for number, _ in enumerate(columns, 1))
    names = ", ".join(columns)
    return f"INSERT INTO {kind} ({names}) SELECT {places} WHERE {condition} ON CONFLICT DO NOTHING"  # nosec B608


INSERT_KEYED = {kind: _insert(kind) for kind in KEYED_COLUMNS}

# For rows by id, the id is stored with the time of its first row, and only a row with that time is inserted.
NOTE_ID = {
    kind: f"INSERT INTO {kind}_by_id (time, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING"  # nosec B608
    for kind in KINDS_BY_ID
}
_NOTED = "?1 = (SELECT time FROM {}_by_id WHERE message_id = ?2)"
INSERT_BY_ID = {kind: _insert(kind, _NOTED.format(kind)) for kind in KINDS_BY_ID}


def series_row(series: Series) -> tuple[Any, ...]:
    dimensions = orjson.dumps(dict(series.dimensions), option=orjson.OPT_SORT_KEYS).decode()
    return (series.id, series.tenant, series.region, series.name, dimensions)


def insert_measurements(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows with `INSERT_MEASUREMENT` or `INSERT_STAGED`."""
    at_once = _MEASUREMENTS_AT_ONCE
    several = f"{statement}{f', {_PLACES}' * (at_once - 1)}"
    whole = len(rows) // at_once * at_once
    for start in range(0, whole, at_once):
        connection.execute(several, list(chain.from_iterable(rows[start : start + at_once])))
    connection.executemany(statement, rows[whole:])
