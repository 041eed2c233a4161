# SPDX-License-Identifier: Apache-2.0
"""Writes to a SQLite file: rows and the offset behind them in one transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import ForkedError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.series import Series
from monasca_common.storage import fence, retention
from monasca_common.storage.base import Claim, Kind, Rows, Writer, Written
from monasca_common.storage.errors import RowsRefused, StorageUnavailable
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.reduction import reduced
from monasca_common.storage.refusal import find_refused
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sqlite import lock as writer_lock
from monasca_common.storage.sqlite import statements
from monasca_common.storage.sqlite.connection import ROW_ERRORS, connect, translated

_MAX_KNOWN_SERIES = 1_000_000  # 16 bytes and a place in a set each: 90 MB


@dataclass(frozen=True, slots=True)
class _Counts:
    stored: int = 0
    repeated: int = 0
    conflicting: int = 0


class _KeyExists(Exception):
    """Rows were inserted as if all were new, and one is not: once more, and look first."""


class SqliteWriter(Writer):
    """Opens its connection with the first call, and again after an error."""

    def __init__(self, path: Path, settings: StorageSettings, clock: Clock) -> None:
        """Raises `WriterAlreadyRuns`, `StorageUnavailable`, `SchemaMismatch`."""
        self._path = path
        self._settings = settings
        self._clock = clock
        self._connection: sqlite3.Connection | None = connect(path, timeout_seconds=settings.write_timeout_seconds)
        self._known: set[bytes] = set()
        self._prunings = 0
        self._keys_existed = False
        self._closed = False
        self._pid = os.getpid()
        try:
            self._lock = writer_lock.acquire(path)
        except BaseException:
            self._connection.close()
            raise

    def next_offsets(self, group: str, partitions: Mapping[TopicPartition, str | None]) -> dict[TopicPartition, int]:
        with self._transaction() as connection:
            return self._stored_offsets(connection, group, partitions)

    def begin(
        self, group: str, starts: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, int]:
        with self._transaction() as connection:
            connection.executemany(
                statements.INSERT_NEXT,
                [(group, *partition, topic_ids.get(partition), start) for partition, start in starts.items()],
            )
            return self._stored_offsets(connection, group, {each: topic_ids.get(each) for each in starts})

    def reset_offsets(
        self,
        group: str,
        starts: Mapping[TopicPartition, int | None],
        topic_ids: Mapping[TopicPartition, str | None],
    ) -> dict[TopicPartition, int]:
        with self._transaction() as connection:
            before = self._stored_offsets(connection, group, dict.fromkeys(starts))
            for partition, offset in starts.items():
                if offset is None:
                    connection.execute(statements.DELETE_NEXT, (group, *partition))
                else:
                    connection.execute(statements.PUT_NEXT, (group, *partition, topic_ids.get(partition), offset))
            return before

    def write(self, claim: Claim, rows: Rows) -> Written:
        fence.check_call(claim, rows)
        try:
            return self._write(claim, rows, expect_new=not self._keys_existed)
        except _KeyExists:
            return self._write(claim, rows, expect_new=False)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._disconnect()
        writer_lock.release(self._lock)

    def _write(self, claim: Claim, rows: Rows, *, expect_new: bool) -> Written:
        refused = None
        with self._transaction() as connection:
            stored = self._fence(connection, claim)
            first = fence.first_to_store(claim, rows, stored)
            rest = _without(rows, first)
            self._refuse_by_time(rest, first)
            try:
                counts, series = self._store(connection, rest, expect_new=expect_new)
            except ROW_ERRORS as error:
                refused = error
                connection.execute("ROLLBACK")
            else:
                fail_point("storage.in_transaction")
                self._advance(connection, claim, stored)
        if refused is not None:
            raise self._refusal(rest, first, refused)
        fail_point("storage.after_commit")
        self._remember(series)
        # Where one key was there, the next batch is likely to hold more: then to insert first is work in vain.
        self._keys_existed = rows.kind is Kind.METRICS and counts.stored < len(rest.values)
        return Written(counts.stored, counts.repeated, counts.conflicting, skipped=first)

    def _fence(self, connection: sqlite3.Connection, claim: Claim) -> StoredNext:
        key = (claim.group, claim.topic, claim.partition)
        row = connection.execute(statements.SELECT_NEXT, key).fetchone()
        if row is None:
            connection.execute(statements.INSERT_NEXT, (*key, claim.topic_id, claim.start))
            return StoredNext(claim.start, claim.topic_id)
        return StoredNext(*row)

    def _advance(self, connection: sqlite3.Connection, claim: Claim, stored: StoredNext) -> None:
        if claim.end <= stored.next_offset:
            return
        updated = connection.execute(
            statements.UPDATE_NEXT,
            (claim.end, claim.topic_id, claim.group, claim.topic, claim.partition, stored.next_offset),
        )
        if updated.rowcount != 1:
            raise StorageUnavailable(
                f"the stored offset of {claim.topic}/{claim.partition} changed within a transaction: nothing of it is "
                "stored"
            )

    def _refuse_by_time(self, rows: Rows, first: int) -> None:
        allowed = retention.window(self._settings, rows.kind, self._clock.time_ms())
        place = 1 if rows.kind is Kind.METRICS else 0
        reasons = retention.refused(list(map(itemgetter(place), rows.values)), allowed)
        if reasons:
            raise RowsRefused({first + position: reason for position, reason in reasons.items()})

    def _store(self, connection: sqlite3.Connection, rows: Rows, *, expect_new: bool) -> tuple[_Counts, list[Series]]:
        """Insert rows and the series that are new to this writer, which it may remember after the commit."""
        if rows.kind is not Kind.METRICS:
            inserted = connection.executemany(
                statements.INSERT_KEYED[rows.kind], statements.keyed_rows(rows.values, rows.message_ids)
            ).rowcount
            return _Counts(inserted, len(rows.values) - inserted), []
        measured = statements.measurement_rows(rows.values)
        series = self._new_series(connection, rows, {row[0] for row in measured})
        connection.executemany(statements.INSERT_SERIES, map(statements.series_row, series))
        # Neighbours in the file one after the other: half the time once the table outgrows the cache.
        measured.sort(key=itemgetter(0))
        if not expect_new:
            return _merge(connection, measured), series
        try:
            statements.insert_measurements(connection, statements.INSERT_MEASUREMENT, measured)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise _KeyExists from None
            raise
        return _Counts(len(measured)), series

    def _new_series(self, connection: sqlite3.Connection, rows: Rows, ids: set[bytes]) -> list[Series]:
        prunings = connection.execute(statements.SELECT_PRUNINGS).fetchone()[0]
        if prunings != self._prunings:
            self._prunings = prunings
            self._known.clear()
        new = ids - self._known
        if not new:
            return []
        found = {value.series.id: value.series for value in rows.values if value.series.id in new}
        return [found[each] for each in sorted(found)]

    def _remember(self, series: list[Series]) -> None:
        # After the commit: remembering what was rolled back would leave measurements without their series.
        if len(self._known) + len(series) > _MAX_KNOWN_SERIES:
            self._known.clear()
        self._known.update(each.id for each in series)

    def _refusal(self, rows: Rows, first: int, cause: BaseException) -> Exception:
        """Find the rows that the database refused, each tried and rolled back."""

        def trial(start: int, stop: int) -> str | None:
            part = _without(rows, start, stop)
            with self._transaction() as connection:
                try:
                    self._store(connection, part, expect_new=False)
                except ROW_ERRORS as error:
                    return f"the database refuses it: {error}"
                finally:
                    connection.execute("ROLLBACK")
            return None

        reasons = find_refused(len(rows.values), trial)
        if not reasons:
            return StorageUnavailable(f"{self._path}: rows were refused together, and none alone: {cause}")
        return RowsRefused({first + position: reason for position, reason in reasons.items()})

    def _stored_offsets(
        self, connection: sqlite3.Connection, group: str, partitions: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, int]:
        stored = {}
        for partition, topic_id in partitions.items():
            row = connection.execute(statements.SELECT_NEXT, (group, *partition)).fetchone()
            if row is not None:
                fence.check_topic(partition.topic, row[1], topic_id)
                stored[partition] = int(row[0])
        return stored

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """This process's turn to write, begun and committed; the block may roll back by itself."""
        if self._closed:
            raise ValueError("this writer is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"this writer was opened by process {self._pid}: open one after the fork")
        if not self._lock.turn.acquire(timeout=self._settings.write_timeout_seconds):
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
            self._lock.turn.release()

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
            # The file may be another one when it can be written again.
            self._disconnect()

    def _disconnect(self) -> None:
        self._known.clear()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _merge(connection: sqlite3.Connection, measured: list[tuple[object, ...]]) -> _Counts:
    """Insert what is new, and let the greater version win where a key exists."""
    kept = reduced(measured)
    connection.execute(statements.CREATE_STAGED)
    connection.execute(statements.EMPTY_STAGED)
    statements.insert_measurements(connection, statements.INSERT_STAGED, kept.rows)
    existing, differing = connection.execute(statements.COUNT_STAGED).fetchone()
    connection.execute(statements.MERGE_STAGED)
    return _Counts(
        len(kept.rows) - existing,
        kept.repeated + existing - differing,
        kept.conflicting + differing,
    )


def _without(rows: Rows, start: int, stop: int | None = None) -> Rows:
    """The rows from ``start`` to just before ``stop``."""
    if start == 0 and stop is None:
        return rows
    part = slice(start, stop)
    return Rows(rows.kind, rows.values[part], rows.offsets[part], rows.message_ids[part])
