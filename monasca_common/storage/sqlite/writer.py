# SPDX-License-Identifier: Apache-2.0
"""Writes rows and their next offset to a SQLite file in one transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import ForkedError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.models.series import Series
from monasca_common.storage import fence
from monasca_common.storage.base import Claim, Kind, Rows, Written
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.positions import SQLITE
from monasca_common.storage.reduction import MeasurementRow, measurement_rows, reduced
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.writer import SqlWriter, keyed_rows, refusal
from monasca_common.storage.sqlite import statements
from monasca_common.storage.sqlite.connection import ROW_ERRORS, connect, translated

# The transactions of this process on a file take turns, because SQLite's own wait for another writer is not fair.
_turns: dict[Path, threading.Lock] = {}
os.register_at_fork(after_in_child=_turns.clear)


class _RowExists(Exception):
    """The key of an inserted row already exists; repeat the call with a check for existing keys."""


class SqliteWriter(SqlWriter):
    """A writer that connects in its constructor, and again at the first call after an error."""

    dialect = SQLITE

    def __init__(self, path: Path, settings: StorageSettings, clock: Clock) -> None:
        """Raises `StorageUnavailable`, `SchemaMismatch`."""
        super().__init__(settings, clock)
        self._path = path
        self._turn = _turns.setdefault(path, threading.Lock())
        self._connection: sqlite3.Connection | None = connect(path, timeout_seconds=settings.write_timeout_seconds)
        self._keys_existed = False
        self._pid = os.getpid()

    def write(self, claim: Claim, rows: Rows) -> Written:
        fence.check_call(claim, rows)
        try:
            return self._write(claim, rows, expect_new=not self._keys_existed)
        except _RowExists:
            return self._write(claim, rows, expect_new=False)

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    def _write(self, claim: Claim, rows: Rows, *, expect_new: bool) -> Written:
        rest, first = rows, 0
        refused: str | None = None
        with self._transaction() as connection:
            try:
                with self._advancing(connection, claim) as transaction:
                    rest, first = transaction.new_rows(rows)
                    self._check_times(rest, first)
                    written, series = self._store(connection, rest, expect_new=expect_new)
            except ROW_ERRORS as error:
                refused = str(error)  # the traceback of the error refers to this frame, and to the rows
                connection.execute("ROLLBACK")
        if refused is not None:
            raise self._refusal(rest, first, refused)
        fail_point("storage.after_commit")
        self._remember(series)
        # If one key exists, the next batch probably has more existing keys, and a failed insertion is wasted work.
        self._keys_existed = rows.kind is Kind.METRICS and written.stored < len(rest.values)
        return replace(written, skipped=first)

    def _store(self, connection: sqlite3.Connection, rows: Rows, *, expect_new: bool) -> tuple[Written, list[Series]]:
        """Insert rows, and series that are not in the writer's cache. Return these series, to be cached after the
        commit."""
        if rows.kind is not Kind.METRICS:
            inserted = _insert_keyed(connection, rows)
            return Written(inserted, len(rows.values) - inserted), []
        measured = measurement_rows(rows.values)
        generation = connection.execute(statements.SELECT_GENERATION).fetchone()[0]
        series = self._new_series(generation, rows, {row[0] for row in measured})
        connection.executemany(statements.INSERT_SERIES, map(statements.series_row, series))
        # The rows are sorted by key, which halves the time once the table is larger than the cache.
        measured.sort(key=itemgetter(0))
        if not expect_new:
            return _merge(connection, measured), series
        try:
            statements.insert_measurements(connection, statements.INSERT_MEASUREMENT, measured)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise _RowExists from None
            raise
        return Written(len(measured)), series

    def _refusal(self, rows: Rows, first: int, cause: str) -> Exception:
        """Find the refused rows by trials that are rolled back."""

        def trial(part: Rows) -> str | None:
            with self._transaction() as connection:
                try:
                    self._store(connection, part, expect_new=False)
                except ROW_ERRORS as error:
                    return f"the database refuses it: {error}"
                finally:
                    connection.execute("ROLLBACK")
            return None

        return refusal(rows, first, trial, cause=cause, database=str(self._path))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction during this writer's turn. It commits unless the block rolls back."""
        if self._closed:
            raise ValueError("this writer is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"this writer was opened by process {self._pid}: open one after the fork")
        if not self._turn.acquire(timeout=self._settings.write_timeout_seconds):
            raise StorageUnavailable(f"{self._path}: this process's other writers took too long")
        try:
            with translated(self._path):
                connection = self._connected()
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back(error)
            raise
        finally:
            self._turn.release()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, timeout_seconds=self._settings.write_timeout_seconds)
        return self._connection

    def _roll_back(self, error: BaseException) -> None:
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()
        if isinstance(error, StorageUnavailable):
            # The file may be replaced before the next write.
            self._disconnect()

    def _disconnect(self) -> None:
        self._known.clear()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _insert_keyed(connection: sqlite3.Connection, rows: Rows) -> int:
    """Insert rows, keeping the first row of each key. Return the number of new rows."""
    keyed = keyed_rows(rows)
    if not rows.by_id:
        return connection.executemany(statements.INSERT_KEYED[rows.kind], keyed).rowcount
    by_id = [row for row, is_by_id in zip(keyed, rows.by_id, strict=True) if is_by_id]
    others = [row for row, is_by_id in zip(keyed, rows.by_id, strict=True) if not is_by_id]
    connection.executemany(statements.NOTE_ID[rows.kind], [row[:2] for row in by_id])
    inserted = connection.executemany(statements.INSERT_BY_ID[rows.kind], by_id).rowcount
    return inserted + connection.executemany(statements.INSERT_KEYED[rows.kind], others).rowcount


def _merge(connection: sqlite3.Connection, measured: list[MeasurementRow]) -> Written:
    """Insert new rows; for existing keys, keep the row with the greater version."""
    kept = reduced(measured)
    connection.execute(statements.CREATE_STAGED)
    connection.execute(statements.EMPTY_STAGED)
    statements.insert_measurements(connection, statements.INSERT_STAGED, kept.rows)
    existing, differing = connection.execute(statements.COUNT_STAGED).fetchone()
    connection.execute(statements.MERGE_STAGED)
    return Written(len(kept.rows) - existing, kept.repeated + existing - differing, kept.conflicting + differing)
