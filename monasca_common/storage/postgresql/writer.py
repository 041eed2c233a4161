# SPDX-License-Identifier: Apache-2.0
"""Writes rows and their next offset to PostgreSQL in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import psycopg
from oslo_log import log as logging
from psycopg import errors

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.models.series import Series
from monasca_common.storage import fence, retention
from monasca_common.storage.base import Claim, Kind, Rows, Written
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.positions import POSTGRESQL
from monasca_common.storage.postgresql import encoding, partitions, staging
from monasca_common.storage.postgresql import series as stored_series
from monasca_common.storage.postgresql.connection import ROW_ERRORS, connect, is_of_a_row, reason, translated
from monasca_common.storage.reduction import measurement_rows
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.bounded import BoundedConnection
from monasca_common.storage.sql.writer import SqlWriter, keyed_rows, refusal, times_of

LOG = logging.getLogger(__name__)

_ATTEMPTS = 4  # a batch may encounter an existing key and a missing partition, each of them twice

# The rows are sorted, so that two writers of the same series wait for each other instead of deadlocking.
_INSERT_SERIES = b"""
    INSERT INTO series (id, tenant, region, name, dimensions)
    SELECT id, tenant, region, name, dimensions::jsonb
    FROM unnest(%s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[])
        AS new (id, tenant, region, name, dimensions)
    ON CONFLICT DO NOTHING
"""


class _KeyExists(Exception):
    """The key of a copied row already exists; repeat the call with a check for existing keys."""


class _PartitionMissing(Exception):
    def __init__(self, days: set[int]) -> None:
        self.days = days


class PostgresqlWriter(SqlWriter):
    """A writer that connects in its constructor, and again at the first call after an error."""

    dialect = POSTGRESQL

    def __init__(self, arguments: dict[str, Any], settings: StorageSettings, clock: Clock) -> None:
        """Raises `StorageUnavailable`, `SchemaMismatch`."""
        super().__init__(settings, clock)
        self._arguments = arguments
        self._days: dict[Kind, set[int]] = {}  # the days that have a partition
        self._today: dict[Kind, int] = {}  # the last day of `_make_ahead`
        # Kinds whose last batch had existing keys. Repeated batches follow one another, and a failed copy makes a batch
        # 50 % more expensive. A batch of only new rows removes the kind.
        self._merging: set[Kind] = set()
        self._can_merge = False  # whether this connection has its temporary tables
        self._connection: BoundedConnection | None = self._connect()

    def write(self, claim: Claim, rows: Rows) -> Written:
        fence.check_call(claim, rows)
        with self._session() as connection:
            self._make_ahead(connection, rows.kind)
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(connection, claim, rows)
                except _KeyExists:
                    self._merging.add(rows.kind)
                except _PartitionMissing as missing:
                    self._make_partitions(connection, rows.kind, missing.days)
        raise StorageUnavailable("partitions are removed while they are created: use the same retention for `db prune`")

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    def _attempt(self, connection: BoundedConnection, claim: Claim, rows: Rows) -> Written:
        merge = rows.kind in self._merging
        if merge:
            self._prepare_merge(connection)
        rest, first = rows, 0
        try:
            with connection.transaction(), self._advancing(connection, claim) as transaction:
                rest, first = transaction.new_rows(rows)
                self._check_partitions(rest.kind, self._check_times(rest, first))
                written, series = self._store(connection, rest, merge=merge)
        except ROW_ERRORS as error:
            meaning = self._meaning(connection, rest, first, error, merged=merge)
            if meaning is None:
                raise
            try:
                raise meaning from error
            finally:
                del meaning  # because its traceback refers to this frame, and to the rows
        fail_point("storage.after_commit")
        self._remember(series)
        if not (written.repeated or written.conflicting):
            self._merging.discard(rows.kind)
        return replace(written, skipped=first)

    def _meaning(
        self, connection: BoundedConnection, rows: Rows, first: int, error: Exception, *, merged: bool
    ) -> Exception | None:
        """Return the exception for an error in the transaction, which is rolled back, or ``None`` if the state of the
        database caused the error."""
        if isinstance(error, errors.UniqueViolation) and not merged:
            return _KeyExists()
        if _lacks_partition(error):  # another process has dropped a cached partition
            self._days.pop(rows.kind, None)
            return _PartitionMissing({partitions.day_of(time) for time in times_of(rows)})
        if not is_of_a_row(error):
            return None
        return refusal(rows, first, partial(self._trial, connection), cause=reason(error), database="PostgreSQL")

    def _trial(self, connection: BoundedConnection, rows: Rows) -> str | None:
        """Return the reason why these rows are refused, or ``None``; roll them back."""
        connection.give(self._settings.write_timeout_seconds)
        self._prepare_merge(connection)
        try:
            with connection.transaction(force_rollback=True):
                self._store(connection, rows, merge=True)
        except ROW_ERRORS as error:
            if is_of_a_row(error) and not _lacks_partition(error):
                return reason(error)
            raise
        return None

    def _check_partitions(self, kind: Kind, times: Sequence[int]) -> None:
        if not times:
            return
        known = self._days.get(kind, set())
        days = {partitions.day_of(min(times)), partitions.day_of(max(times))}
        if len(days) > 1 or not days <= known:
            missing = {partitions.day_of(time) for time in times} - known
            if missing:
                # Do not create them in this transaction, because it would block other processes that create partitions
                # until it ends.
                raise _PartitionMissing(missing)

    def _make_ahead(self, connection: BoundedConnection, kind: Kind) -> None:
        """Create the partitions of the days around today, once a day, so that no row waits for a partition."""
        now_ms = self._clock.time_ms()
        today = partitions.day_of(now_ms)
        if self._today.get(kind) == today:
            return
        self._today[kind] = today
        days = partitions.around(now_ms, retention.window(self._settings, kind, now_ms))
        try:
            self._make_partitions(connection, kind, days)
        except psycopg.OperationalError as error:
            if connection.broken or connection.closed:
                raise
            # Rows that need a partition create it or fail, so other rows do not need to wait for a lock.
            LOG.warning(
                "creating partitions of %s in advance failed: %s",
                partitions.TABLES[kind],
                reason(error),
            )

    def _make_partitions(self, connection: BoundedConnection, kind: Kind, days: set[int]) -> None:
        timeout_seconds = self._settings.write_timeout_seconds
        self._days[kind] = partitions.make(connection, partitions.TABLES[kind], days, timeout_seconds=timeout_seconds)
        connection.give(timeout_seconds)

    def _store(self, connection: BoundedConnection, rows: Rows, *, merge: bool) -> tuple[Written, list[Series]]:
        """Insert rows, and series that are not in the writer's cache. Return these series, to be cached after the
        commit."""
        if not rows.values:
            return Written(), []
        if rows.kind is not Kind.METRICS:
            return self._store_keyed(connection, rows, merge=merge), []
        measured = measurement_rows(rows.values)
        series = self._new_series(stored_series.hold(connection), rows, {row[0] for row in measured})
        _insert_series(connection, series)
        if merge:
            return staging.merge_measurements(connection, measured), series
        staging.copy(connection, "measurements", encoding.measurements(measured))
        return Written(len(measured)), series

    def _store_keyed(self, connection: BoundedConnection, rows: Rows, *, merge: bool) -> Written:
        table = encoding.KEYED_TABLES[rows.kind]
        count = len(rows.values)
        kept = encoding.first_of_each_key(staging.new_by_id(connection, table, keyed_rows(rows), rows.by_id))
        if merge:
            stored = staging.merge_keyed(connection, table, kept)
            return Written(stored, count - stored)
        staging.copy(connection, table.name, encoding.keyed(table, kept), columns=table.columns)
        return Written(len(kept), count - len(kept))

    def _prepare_merge(self, connection: BoundedConnection) -> None:
        if not self._can_merge:
            staging.make(connection)
            self._can_merge = True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[BoundedConnection]:
        with self._session() as connection, connection.transaction():
            yield connection

    @contextlib.contextmanager
    def _session(self) -> Iterator[BoundedConnection]:
        """Yield a connection with the time-out of one call; close it afterwards if it is unusable."""
        if self._closed:
            raise ValueError("this writer is closed")
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection.give(self._settings.write_timeout_seconds)
        try:
            with translated():
                yield connection
        except BaseException as error:
            # Also disconnect after an interruption, because the connection may be in the middle of a response.
            if isinstance(error, StorageUnavailable) or not isinstance(error, Exception) or connection.closed:
                self._disconnect()
            raise

    def _connect(self) -> BoundedConnection:
        timeout_seconds = self._settings.write_timeout_seconds
        return connect(self._arguments, timeout_seconds=timeout_seconds, application="monasca-common writer")

    def _disconnect(self) -> None:
        """Close the connection and clear the caches, because the database may be restored to an older state."""
        connection, self._connection = self._connection, None
        self._known.clear()
        self._days.clear()
        self._today.clear()
        self._can_merge = False
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def _lacks_partition(error: Exception) -> bool:
    # Only "no partition found for row" has no constraint name.
    return isinstance(error, errors.CheckViolation) and error.diag.constraint_name is None


def _insert_series(connection: BoundedConnection, series: list[Series]) -> None:
    if not series:
        return
    columns = [
        [each.id for each in series],
        [each.tenant for each in series],
        [each.region for each in series],
        [each.name for each in series],
        [orjson.dumps(dict(each.dimensions)).decode() for each in series],
    ]
    connection.execute(_INSERT_SERIES, columns)
