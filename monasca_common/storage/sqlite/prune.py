# SPDX-License-Identifier: Apache-2.0
"""Removes rows older than their retention, in short transactions between which writers can continue.

The file does not shrink, because SQLite reuses the free space.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from monasca_common.storage import retention
from monasca_common.storage.base import KINDS_BY_ID, Kind, Pruned
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sqlite import statements
from monasca_common.storage.sqlite.connection import connect, translated

ROWS_A_STEP = 10_000
SERIES_A_STEP = 1000  # number of series visited in one step, with or without old rows
# The index begins with the series, so each series has its own bound, and one step removes a limited number of rows.
_NEXT_SERIES = "SELECT series_id FROM measurements WHERE series_id > ? ORDER BY series_id LIMIT 1"
_END_OF_STEP = "SELECT time FROM measurements WHERE series_id = ? AND time < ? ORDER BY time LIMIT 1 OFFSET ?"
_DELETE_MEASUREMENTS = "DELETE FROM measurements WHERE series_id = ? AND time < ?"
_LAST_OF_STEP = "SELECT max(id) FROM (SELECT id FROM series WHERE id > ? ORDER BY id LIMIT ?)"
_DELETE_SERIES = """
    DELETE FROM series WHERE id > ? AND id <= ?
    AND NOT EXISTS (SELECT 1 FROM measurements WHERE series_id = series.id)
"""


def prune(path: Path, settings: StorageSettings, now_ms: int) -> Iterator[Pruned]:
    """Remove old rows, step by step. Raises `StorageUnavailable`, `SchemaMismatch`."""
    connection = connect(path, timeout_seconds=settings.write_timeout_seconds)
    with contextlib.closing(connection):
        for kind in Kind:
            earliest_ms = retention.window(settings, kind, now_ms).earliest_ms
            if kind is Kind.METRICS:
                yield from _steps(path, connection, _measurements(connection, earliest_ms), "measurements")
                yield from _steps(path, connection, _series(connection), "series")
            else:
                yield from _steps(path, connection, _keyed(connection, str(kind), earliest_ms), str(kind))
            if kind in KINDS_BY_ID:  # also remove the ids of the removed rows
                ids = f"{kind}_by_id"
                yield from _steps(path, connection, _keyed(connection, ids, earliest_ms, key="message_id"), ids)


# A step deletes rows within a transaction, and returns their number and whether more remain.
_Step = Callable[[], tuple[int, bool]]


def _steps(path: Path, connection: sqlite3.Connection, step: _Step, table: str) -> Iterator[Pruned]:
    more = True
    while more:
        with translated(path):
            began = time.monotonic()
            connection.execute("BEGIN IMMEDIATE")
            try:
                removed, more = step()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            took_seconds = time.monotonic() - began
        if removed:
            yield Pruned(table, removed, "rows")
        if more:
            # Pause, because a waiting writer polls the lock.
            time.sleep(took_seconds)


def _keyed(connection: sqlite3.Connection, table: str, earliest_ms: int, *, key: str = "rowid") -> _Step:
    """Return the step that removes the rows of a table with a column ``time``."""
    old = f"SELECT {key} FROM {table} WHERE time < ? ORDER BY time LIMIT ?"  # nosec B608
    delete = f"DELETE FROM {table} WHERE {key} IN ({old})"  # nosec B608

    def step() -> tuple[int, bool]:
        removed = connection.execute(delete, (earliest_ms, ROWS_A_STEP)).rowcount
        return removed, removed == ROWS_A_STEP

    return step


def _measurements(connection: sqlite3.Connection, earliest_ms: int) -> _Step:
    series = b""

    def step() -> tuple[int, bool]:
        nonlocal series
        removed = 0
        for _ in range(SERIES_A_STEP):
            row = connection.execute(_NEXT_SERIES, (series,)).fetchone()
            if row is None:
                return removed, False
            end = connection.execute(_END_OF_STEP, (row[0], earliest_ms, ROWS_A_STEP - removed)).fetchone()
            removed += connection.execute(_DELETE_MEASUREMENTS, (row[0], end[0] if end else earliest_ms)).rowcount
            if end is not None:
                break
            series = row[0]
        return removed, True

    return step


def _series(connection: sqlite3.Connection) -> _Step:
    """Return the step that removes series without a measurement, and raises the generation for writers' caches."""
    after = b""

    def step() -> tuple[int, bool]:
        nonlocal after
        last = connection.execute(_LAST_OF_STEP, (after, SERIES_A_STEP)).fetchone()[0]
        if last is None:
            return 0, False
        removed = connection.execute(_DELETE_SERIES, (after, last)).rowcount
        after = last
        if removed:
            connection.execute(statements.RAISE_GENERATION)
        return removed, True

    return step
