# SPDX-License-Identifier: Apache-2.0
"""Transactions that write few rows: limited in number and time, with translated errors."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.storage.errors import DuplicateKey, StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.connections import ConnectionDied, Deadline, translated

T = TypeVar("T")

# The statements of a group run one after another, so a larger group would delay other calls.
_MAX_GROUP = 200


class Transactions:
    """Transactions with one connection each, for rare writes that need no pool."""

    def __init__(self, settings: StorageSettings) -> None:
        self._seconds = settings.read_timeout_seconds
        bounds = Bounds(self._seconds, self._seconds / 2, self._seconds)
        self._engine = schema.engine(settings.connection, to_write=True, bounds=bounds)
        self._places = threading.BoundedSemaphore(settings.read_connections)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Call ``work`` in a transaction, and commit it.

        Raises `DuplicateKey`, `StorageUnavailable`, `SchemaMismatch`.
        """
        if not self._places.acquire(timeout=self._seconds):
            raise StorageUnavailable(
                "every connection for writing is busy: raise [storage] read_connections, or send fewer requests"
            )
        try:
            with _errors_translated(self._seconds), self._engine.begin() as connection:
                schema.check_database(connection.exec_driver_sql, connection.dialect.name)
                return work(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Do nothing, because no connection stays open."""


class GroupedTransactions:
    """Group commits of several threads on one open connection, for frequent small writes.

    While a transaction runs, further calls wait for the next transaction, and share its commit and its connection.
    ``work`` must only change the database, because after a failure of the group it is called again in a separate
    transaction.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._seconds = settings.read_timeout_seconds
        bounds = Bounds(self._seconds, self._seconds / 2, self._seconds)
        self._engine = schema.engine(settings.connection, to_write=True, bounds=bounds, kept=True)
        self._lock = threading.Lock()
        self._waiting: list[_Work] = []
        self._is_led = False

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Call ``work`` in a transaction, and commit it.

        Raises `DuplicateKey`, `StorageUnavailable`, `SchemaMismatch`.
        """
        mine = _Work(work)
        with self._lock:
            self._waiting.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.turn.wait()  # this waits for the previous transactions, which are limited in time
        if not mine.over:
            self._lead()
        if mine.error is not None:
            try:
                raise mine.error
            finally:
                mine.error = None  # because its traceback refers to this frame
        result: T = mine.result
        return result

    def close(self) -> None:
        self._engine.dispose()

    def _lead(self) -> None:
        """Run one transaction for all waiting calls, including this thread's; then another thread leads."""
        with self._lock:
            group, self._waiting = self._waiting[:_MAX_GROUP], self._waiting[_MAX_GROUP:]
        try:
            self._commit(group)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._is_led = following is not None
            for each in group:
                each.over = True
                each.turn.set()
            if following is not None:
                following.turn.set()

    def _commit(self, group: Sequence[_Work]) -> None:
        try:
            self._together(group)
        except StorageUnavailable as error:
            for each in group:
                each.error = error
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
                return
            for each in group:  # the error does not identify the refused call
                self._commit([each])

    def _together(self, group: Sequence[_Work]) -> None:
        try:
            self._attempt(group)
        except ConnectionDied:  # the connection may have been closed while idle
            self._attempt(group)

    def _attempt(self, group: Sequence[_Work]) -> None:
        with _errors_translated(self._seconds), self._engine.begin() as connection:
            if not connection.info.get("is_checked"):
                schema.check_database(connection.exec_driver_sql, connection.dialect.name)
                connection.info["is_checked"] = True
            for each in group:
                each.result = each.work(connection)
        for each in group:
            each.error = None


class _Work:
    """A thread's call and its result. ``turn`` is set when the call is done, or when its thread must lead the next
    group."""

    __slots__ = ("error", "over", "result", "turn", "work")

    def __init__(self, work: Callable[[sa.Connection], Any]) -> None:
        self.work = work
        self.turn = threading.Event()
        self.over = False
        self.result: Any = None
        self.error: Exception | None = StorageUnavailable("the thread of the group's transaction has ended")


@contextlib.contextmanager
def _errors_translated(seconds: float) -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        raise DuplicateKey("the database has a row with this key") from error
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise translated(error, Deadline(seconds)) from error
